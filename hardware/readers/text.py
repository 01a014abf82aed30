"""Text as people hand it over: terminal escapes removed, line ends made equal, prefixes of remote shells split off.

plain(text)           without escapes, control characters and carriage returns
by_host(text)         {host: text} where every line starts with ``host:`` (pdsh, clush, srun -l), else {None: text}
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|\x1b\([A-Z0-9]")
_BARE_STYLE = re.compile(r"\^\[\[[0-9;]*m")  # an escape that was copied as visible text
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")
_PREFIX = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,100}):(?:[ \t](.*)|())")


def plain(text: str) -> str:
    """The text without terminal escapes and control characters; tabs and line ends stay."""
    unified = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ")
    return _CONTROL.sub("", _BARE_STYLE.sub("", _ESCAPE.sub("", unified)))


def counted(number: int, noun: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def by_host(text: str) -> dict[str | None, str]:
    """Splits output of several hosts; the line numbers of each part stay those of the whole."""
    lines = text.split("\n")
    matches = [_PREFIX.fullmatch(line) for line in lines]
    if not any(matches) or any(match is None and line.strip() for match, line in zip(matches, lines, strict=True)):
        return {None: text}
    parts: dict[str | None, list[str]] = {}
    for number, match in enumerate(matches):
        if match:
            own = parts.setdefault(match.group(1), [])
            own += [""] * (number - len(own)) + [match.group(2) or ""]
    return {host: "\n".join(own) for host, own in parts.items()}
