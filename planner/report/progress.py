"""How far a search has come: one live line on a terminal, a plain line now and then elsewhere.

    explored 25.65 M of 25.8 M (99 %), best 29.65 s, bound 29.44 s, gap 0.7 %

On a terminal the newest event takes the place of the one before, and the line is gone at the end. Anywhere else (a log, a
pipe) a line is written every `PLAIN_S` seconds of a search that takes so long, so that a log shows life and nothing more;
`SHARDWRIGHT_NO_PROGRESS` switches both off.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

from shardwright.planner.report import words
from shardwright.planner.report.style import WIDTH, encodable

INTERVAL_S = 0.1
PLAIN_S = 10.0
CLEAR = "\r\x1b[K"
OFF = "SHARDWRIGHT_NO_PROGRESS"


class Event(Protocol):
    """What the search tells."""

    @property
    def explored(self) -> int:
        """Candidates dealt with so far."""

    @property
    def candidates(self) -> int:
        """Candidates in all."""

    @property
    def best_step_time_s(self) -> float | None:
        """The best step time so far."""

    @property
    def lower_bound_step_time_s(self) -> float | None:
        """No plan is faster; None before a bound is known."""


class LiveLine:
    """Shows events on a stream; used as a context manager, a live line is gone afterwards.

    Args:
        stream: where to.
        clock: seconds that only grow.
        environ: the environment.
        say: an event in words; those of a search by default.
    """

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        environ: Mapping[str, str] = os.environ,
        say: Callable[[Any], str] | None = None,
    ) -> None:
        self._say = say or line
        self._stream = stream
        self._clock = clock
        self._live = stream.isatty() and environ.get("TERM") != "dumb"
        self._off = bool(environ.get(OFF))
        self._next: float | None = None
        self._shown = False

    def __enter__(self) -> LiveLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown and self._live:
            self._write(CLEAR)

    def __call__(self, event: Any) -> None:
        """Shows the event if it is time to."""
        if self._off:
            return
        now = self._clock()
        if self._next is None:
            self._next = now if self._live else now + PLAIN_S
        if now < self._next:
            return
        self._next = now + (INTERVAL_S if self._live else PLAIN_S)
        self._shown = True
        text = self._say(event)
        self._write(CLEAR + text[: WIDTH - 1] if self._live else text + "\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(encodable(text, self._stream.encoding or "ascii"))
            self._stream.flush()
        except BrokenPipeError:  # whoever read it has gone away
            self._off = True


def line(event: Event) -> str:
    """`explored of candidates, best so far, bound, gap`, as far as they are known."""
    share = 100 * event.explored // max(event.candidates, 1)
    parts = [f"explored {_count(event.explored)} of {_count(event.candidates)} ({share} %)"]
    best, bound = event.best_step_time_s, event.lower_bound_step_time_s
    if best is not None:
        parts.append(f"best {words.seconds(best, 4)}")
    if bound is not None:
        parts.append(f"bound {words.seconds(bound, 4)}")
    if best and bound is not None:
        parts.append(f"gap {words.percent(max(1 - bound / best, 0.0))}")
    return ", ".join(parts)


def _count(value: int) -> str:
    """In so few letters that the line fits on 80 columns."""
    return words.big(value) if value >= 1_000_000 else words.count(value)
