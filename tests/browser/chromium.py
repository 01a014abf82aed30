"""Headless Chromium, driven through its debugging pipe: nothing but the standard library is needed.

Messages are JSON texts ended by a zero byte, to file descriptor 3 and from 4 (https://chromedevtools.github.io/devtools-protocol/).
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 60


def program():
    """Path of a Chromium, or None."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


class Page:
    """A tab."""

    def __init__(self, browser, session, target):
        self._browser, self._session, self._target = browser, session, target
        self.messages = []
        """What the page said on its console, or failed at."""

    def send(self, method, **params):
        return self._browser.send(method, session=self._session, **params)

    def close(self):
        self._browser.send("Target.closeTarget", targetId=self._target)

    def open(self, url):
        self.messages.clear()
        self.send("Page.navigate", url=url)
        self._browser.wait(lambda event: event["method"] == "Page.loadEventFired" and event.get("sessionId") == self._session)

    def value(self, expression):
        """The value of an expression, as JSON knows it."""
        done = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise AssertionError(done["exceptionDetails"])
        return done["result"].get("value")

    def size(self, width, height=900):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def theme(self, name, media=""):
        self.send("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": name}])

    def key(self, key, code=None, text=None, modifiers=0):
        named = {"key": key, "code": code or key, "modifiers": modifiers}
        if text:
            named["text"] = text
        codes = {"Enter": 13, "Tab": 9, "ArrowLeft": 37, "ArrowRight": 39, " ": 32}
        named["windowsVirtualKeyCode"] = codes.get(key, ord(key[0]))
        self.send("Input.dispatchKeyEvent", type="keyDown", **named)
        self.send("Input.dispatchKeyEvent", type="keyUp", **named)

    def click(self, selector):
        x, y = self.centre(selector)
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)

    def centre(self, selector):
        box = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{box}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        area = f"(() => {{ const b = {box}.getBoundingClientRect(); return [b.x, b.y, b.width, b.height] }})()"
        x, y, width, height = self.value(area)
        return x + width / 2, y + height / 2

    def mouse(self, kind, x, y, **more):
        held = {"button": "left", "buttons": 1, "clickCount": 1} if kind != "mouseWheel" else {}
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **{**held, **more})

    def screenshot(self, path, whole=True):
        made = self.send("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        Path(path).write_bytes(base64.b64decode(made["data"]))

    def pdf(self):
        return base64.b64decode(self.send("Page.printToPDF", printBackground=True)["data"])


class Browser:
    """A process, used as a context manager."""

    def __init__(self, executable):
        self._folder = tempfile.mkdtemp(prefix="chromium-")
        to_us, ours = os.pipe(), os.pipe()
        command = [
            executable, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--remote-debugging-pipe", "--hide-scrollbars", f"--user-data-dir={self._folder}", "about:blank",
        ]  # fmt: skip
        script = f'exec 3<&{ours[0]} 4>&{to_us[1]}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "chromium", *command],
            pass_fds=(ours[0], to_us[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(ours[0])
        os.close(to_us[1])
        self._in, self._out = to_us[0], ours[1]
        self._buffer, self._number, self._events, self._pages = b"", 0, [], {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.send("Browser.close")
        finally:
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
            os.close(self._in)
            os.close(self._out)
            shutil.rmtree(self._folder, ignore_errors=True)

    def page(self):
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log"):
            page.send(f"{domain}.enable")
        return page

    def send(self, method, session=None, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        number = self._number
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def wait(self, wanted):
        while True:
            while self._events:
                if wanted(self._events.pop(0)):
                    return
            self._note(self._next())

    def _note(self, event):
        self._events.append(event)
        page = self._pages.get(event.get("sessionId"))
        kinds = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        if page is not None and event["method"] in kinds:
            page.messages.append(event["params"])

    def _next(self):
        end = time.monotonic() + PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            read = os.read(self._in, 1 << 16)
            if not read:
                raise RuntimeError("Chromium has ended")
            self._buffer += read
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)
