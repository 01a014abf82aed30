"""What every test runs under: no network, no colours, reproducible hypothesis."""

import importlib.util
import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

REFERENCE_VARIABLE = "SHARDWRIGHT_REFERENCE_DATA"

hypothesis.settings.register_profile("default", deadline=None, max_examples=50)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True, database=None, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the tests that compare with the frameworks themselves, or start Ray, where those are not installed."""
    if importlib.util.find_spec("ray") is None:
        for item in items:
            if item.get_closest_marker("ray"):
                item.add_marker(pytest.mark.skip(reason="extra `ray` is not installed"))
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        mark = pytest.mark.skip(reason=f"extra `frameworks` is not installed: no {', '.join(missing)}")
        for item in items:
            if item.get_closest_marker("frameworks"):
                item.add_marker(mark)


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """The folder of published measurements and checks; tests that want it are skipped where it is not named."""
    given = os.environ.get(REFERENCE_VARIABLE, "")
    if not given:
        pytest.skip(f"{REFERENCE_VARIABLE} is not set")
    folder = Path(given)
    if not folder.is_dir():
        pytest.fail(f"{REFERENCE_VARIABLE} names {given}, which is no folder")
    return folder


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("CLICOLOR_FORCE", raising=False)


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    """Refuses every connection that would leave this machine, and every name look-up for one."""
    connect, connect_ex, resolve = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def refuse_far(address: object) -> None:
        if not _is_near(address):
            raise PermissionError(f"tests may not use the network: {address!r}")

    def guarded_connect(self: socket.socket, address: object) -> None:
        refuse_far(address)
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: object) -> int:
        refuse_far(address)
        return connect_ex(self, address)

    def guarded_resolve(host: object, *rest: object, **options: object) -> object:
        refuse_far((host, 0))
        return resolve(host, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
        patch.setattr(socket, "getaddrinfo", guarded_resolve)
        yield


def _is_near(address: object) -> bool:
    """True for Unix sockets, the loopback and this machine's own name."""
    if not isinstance(address, tuple):
        return True
    host = address[0].decode() if isinstance(address[0], bytes) else address[0]
    if host in (None, "", "localhost", "localhost.localdomain", socket.gethostname()):
        return True
    try:
        near = ipaddress.ip_address(str(host).split("%")[0])
    except ValueError:
        return False
    return near.is_loopback or near.is_unspecified
