"""Runs the commands shown in README.md, docs/*.md and docs/howto/*.md and rewrites what they print; and writes docs/cli.md.

python docs/regenerate.py [--recorded] [FILE...]

What counts in a page, each kind an ordinary fenced block:

    ```console    lines starting with `$ ` are commands; all other lines are what they printed
    ```python     a complete program; a ```text block after `<!-- prints -->` is what it printed

and comments on the line before a block:

    <!-- file: NAME -->       the block is the file NAME of the folder in which the commands of the page run
    <!-- shown: A, B -->      of the output only the paragraphs that start with A or B are kept, `...` stands for others
    <!-- recorded -->         slow, or needs data that is not part of the project: run with --recorded only, and dated
    <!-- not run -->          for the eye only

A picture `![...](pictures/NAME.svg)` of a page is the file of that name that the page's commands wrote, if they wrote one.

Recorded blocks find the measured runs as `measured_runs.csv`, and the whole folder as `reference`, if
SHARDWRIGHT_REFERENCE_DATA names a folder holding `ground_truth/measured_runs.csv`. tests/docs compares every block that is
not recorded with what it prints now.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "SHARDWRIGHT_REFERENCE_DATA"
BLOCK = re.compile(
    r"(?P<marks>(?:^<!--[^\n]*-->\n)*)^(?P<open>```(?P<kind>[a-z]*)\n)(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
PICTURE = re.compile(r"!\[[^\]]*\]\((pictures/[\w-]+\.svg)\)")
MARK = re.compile(r"<!-- ([a-z ]+?)(?:: (.*?))? -->")
DATED = re.compile(r"  # \d{4}-\d\d-\d\d$")
VOLATILE = re.compile(r'("(?:wall_s|cpu_s)": )[0-9.e-]+')


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block with the marks before it."""

    kind: str
    body: str
    marks: dict[str, str]

    @property
    def commands(self) -> tuple[str, ...]:
        """Its shell commands, without date."""
        return tuple(DATED.sub("", line[2:]) for line in self.body.splitlines() if line.startswith("$ "))

    @property
    def runs(self) -> bool:
        """Whether it is a program, or holds commands."""
        return "not run" not in self.marks and (self.kind == "python" or (self.kind == "console" and bool(self.commands)))


def pages() -> tuple[Path, ...]:
    """README.md and the pages of docs and docs/howto, in order."""
    return (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "howto").glob("*.md")))


def blocks(text: str) -> tuple[Block, ...]:
    """The fenced blocks of a page."""
    return tuple(_block(found) for found in BLOCK.finditer(text))


def _block(found: re.Match[str]) -> Block:
    marks = {name: value or "" for name, value in MARK.findall(found["marks"])}
    return Block(kind=found["kind"], body=found["body"], marks=marks)


@contextmanager
def workplace(text: str) -> Iterator[Callable[..., str]]:
    """A folder with the files of a page and `shardwright` and `python` on the path; yields what runs a command in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for block in blocks(text):
            if "file" in block.marks:
                (folder / block.marks["file"]).parent.mkdir(parents=True, exist_ok=True)
                (folder / block.marks["file"]).write_text(block.body, encoding="utf-8")
        environment = _environment(folder)

        def run(*command: str) -> str:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                check=False,
            )
            return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())

        yield run


def _environment(folder: Path) -> dict[str, str]:
    tools = folder / ".tools"
    tools.mkdir()
    for name, arguments in (("shardwright", "-m shardwright "), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n', encoding="utf-8")
        (tools / name).chmod(0o755)
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    (folder / "graphs").symlink_to(ROOT / "tests" / "graphs" / "files")
    reference = Path(os.environ.get(REFERENCE, ""))
    runs = reference / "ground_truth" / "measured_runs.csv"
    if runs.is_file():
        (folder / "measured_runs.csv").symlink_to(runs.resolve())
        (folder / "reference").symlink_to(reference.resolve())
    path = f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    settings = {
        "PYTHONIOENCODING": "utf-8",
        "NO_COLOR": "1",
        "COLUMNS": "80",
        "PATH": path,
        "SHARDWRIGHT_NO_PROGRESS": "1",
    }
    return {**_python_environment(), **settings}


def _python_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def printed(block: Block, run: Callable[..., str]) -> str:
    """The body of a console block as it would be today; a command's date is kept."""
    lines = [line for line in block.body.splitlines() if line.startswith("$ ")]
    shown = block.marks.get("shown")
    outputs = [trimmed(run("bash", "-c", command), shown) for command in block.commands]
    return "".join(f"{line}\n{output}" for line, output in zip(lines, outputs, strict=True))


def trimmed(output: str, shown: str | None) -> str:
    """The paragraphs that start with one of the words of `shown`; `...` for those left out."""
    if shown is None:
        return output
    starts = tuple(word.strip() for word in shown.split(","))
    kept: list[str] = []
    for paragraph in output.rstrip("\n").split("\n\n"):
        if paragraph.startswith(starts):
            kept.append(paragraph)
        elif not kept or kept[-1] != "...":
            kept.append("...")
    return "\n\n".join(kept) + "\n"


def same(first: str, second: str) -> bool:
    """Whether two outputs agree but for the seconds a run took."""
    return VOLATILE.sub(r"\1*", first) == VOLATILE.sub(r"\1*", second)


def drawn(text: str, run: Callable[..., str]) -> dict[str, str]:
    """The pictures of a page that its commands wrote, as they are now."""
    found = {name: run("bash", "-c", f"test ! -f {name} || cat {name}") for name in PICTURE.findall(text)}
    return {name: content for name, content in found.items() if content}


def regenerated(text: str, recorded: bool, pictures: dict[str, str] | None = None) -> str:
    """A page with everything printed anew; `pictures` takes those its commands wrote."""
    last_program = ""
    with workplace(text) as run:

        def renewed(found: re.Match[str]) -> str:
            nonlocal last_program
            block = _block(found)
            body = block.body
            if block.kind == "python" and block.runs:
                last_program = block.body
            if "prints" in block.marks:
                body = run("python", "-c", last_program)
            elif block.kind == "console" and block.runs and ("recorded" not in block.marks or recorded):
                body = printed(_dated(block), run)
            return f"{found['marks']}{found['open']}{block.body if same(body, block.body) else body}```"

        made = BLOCK.sub(renewed, text)
        if pictures is not None:
            pictures.update(drawn(text, run))
        return made


def _dated(block: Block) -> Block:
    if "recorded" not in block.marks:
        return block
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return replace(block, body="".join(f"$ {command}  # {today}\n" for command in block.commands))


def main() -> int:
    """Rewrites the pages and names those that changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recorded", action="store_true", help="run the recorded blocks as well")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: all pages")
    given = parser.parse_args()
    if not given.files:
        subprocess.run([sys.executable, ROOT / "docs" / "cli_reference.py"], env=_python_environment(), check=True)
    for page in given.files or pages():
        before = page.read_text(encoding="utf-8")
        pictures: dict[str, str] = {}
        after = regenerated(before, given.recorded, pictures)
        for name, content in pictures.items():
            (page.parent / name).parent.mkdir(exist_ok=True)
            (page.parent / name).write_text(content, encoding="utf-8")
        if after != before:
            page.write_text(after, encoding="utf-8")
            sys.stdout.write(f"{page.name} changed\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
