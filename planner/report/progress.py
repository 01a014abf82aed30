"""One live line on a terminal while the search runs; nothing anywhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TextIO

from shardwright.planner.report import words
from shardwright.planner.report.style import encodable

INTERVAL_S = 0.1
CLEAR = "\r\x1b[K"


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


class LiveLine:
    """Writes the newest event over the line before it; used as a context manager, the line is gone afterwards."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next = 0.0
        self._shown = False

    def __enter__(self) -> LiveLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._stream.write(CLEAR)
            self._stream.flush()

    def __call__(self, event: Event) -> None:
        """Shows the event, at most ten times a second."""
        now = self._clock()
        if now < self._next or not self._stream.isatty():
            return
        self._next = now + INTERVAL_S
        self._shown = True
        self._stream.write(CLEAR + encodable(line(event), self._stream.encoding or "ascii"))
        self._stream.flush()


def line(event: Event) -> str:
    """`explored of candidates, best so far`."""
    share = 100 * event.explored // max(event.candidates, 1)
    text = f"explored {words.count(event.explored)} of {words.count(event.candidates)} ({share} %)"
    return text if event.best_step_time_s is None else f"{text}, best {words.seconds(event.best_step_time_s, 4)}"
