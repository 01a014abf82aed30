"""What commands write: the result to standard output, in one piece, everything else to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from shardwright.errors import InvalidValueError, unknown_name

INTERRUPTED = 130


def finished(result: Any, form: str) -> int:
    """Writes a result and gives its exit code."""
    data = result.to_dict()
    write(rendered(data, form))
    if data.get("search", {}).get("stopped") == "interrupted":
        return INTERRUPTED
    return int(result.exit_code)


def rendered(data: dict[str, Any], form: str) -> str:
    """A document as `--format` asks for it, in the style that standard output can show."""
    from shardwright.planner.report.output import render
    from shardwright.planner.report.style import style_for

    return render(data, form, style_for(sys.stdout))


def write(text: str) -> None:
    """The one place that writes to standard output; a reader that has gone away is no error.

    Raises:
        InvalidValueError: what standard output leads to cannot be written, a full disk for one.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            message = f"cannot write the result: {error.strerror}"
            raise InvalidValueError(message, where="standard output", hint="write it elsewhere") from error


def say(text: str) -> None:
    """Writes remarks to standard error."""
    from shardwright.planner.report.style import encodable, visible

    try:
        sys.stderr.write(encodable(visible(text.rstrip("\n")) + "\n", sys.stderr.encoding or "ascii"))
        sys.stderr.flush()
    except BrokenPipeError:
        return


def one_of(option: str, given: str, known: Sequence[str]) -> None:
    """Refuses an option value that is none of those known.

    Raises:
        UnknownNameError: with the nearest that is known.
    """
    if given not in known:
        raise unknown_name(option, given, known, where=f"--{option}")
