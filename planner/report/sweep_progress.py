"""How far a sweep is: one live line on a terminal, a plain line now and then anywhere else.

Plain lines come after 10 s and then ever more seldom (a tenth of the time that has passed lies between them), so that a log
of a long sweep stays short.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from shardwright.planner.report import words
from shardwright.planner.report.progress import CLEAR, INTERVAL_S, OFF
from shardwright.planner.report.style import encodable

FIRST_S, SHARE = 10.0, 0.1


class Event(Protocol):
    """What a sweep tells."""

    @property
    def done(self) -> int:
        """Points whose result is known."""

    @property
    def points(self) -> int:
        """All points."""

    @property
    def reused(self) -> int:
        """Those the store held."""

    @property
    def elapsed_s(self) -> float:
        """Since the first point was given out."""


class SweepLine:
    """Writes how far a sweep is; used as a context manager, the live line is gone afterwards."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._live, self._off = stream.isatty(), bool(os.environ.get(OFF))
        self._began = clock()
        self._next = self._began + (0.0 if self._live else FIRST_S)
        self._shown = False

    def __enter__(self) -> SweepLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown and self._live:
            self._stream.write(CLEAR)
            self._stream.flush()

    def __call__(self, event: Event) -> None:
        """Shows the event if its time has come."""
        now = self._clock()
        if now < self._next or self._off:
            return
        self._next = now + (INTERVAL_S if self._live else max(SHARE * (now - self._began), FIRST_S))
        self._shown = True
        text = encodable(sweep_line(event), self._stream.encoding or "ascii")
        self._stream.write(CLEAR + text if self._live else text + "\n")
        self._stream.flush()


def sweep_line(event: Event) -> str:
    """`done of points, how many a second, how long the others take`."""
    share = 100 * event.done // max(event.points, 1)
    text = f"{words.count(event.done)} of {words.count(event.points)} points ({share} %)"
    text += f", {words.count(event.reused)} from the store" if event.reused else ""
    made = event.done - event.reused
    if made < 1 or event.elapsed_s <= 0:
        return text
    rate = made / event.elapsed_s
    pace = f"{words.digits(rate)} a second" if rate >= 1 else f"{words.seconds(1 / rate)} each"
    return f"{text}, {pace}, {words.seconds((event.points - event.done) / rate)} left"
