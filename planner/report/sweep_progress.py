"""How far a sweep is, in words; shown by `progress.LiveLine`."""

from __future__ import annotations

from typing import Protocol

from shardwright.planner.report import words


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
