"""What every engine does: evaluate tasks, in whatever order they finish, no more of them at once than it has workers for.

    results(tasks) -> (digest, text) of each task

Tasks are drawn as workers become free, so that a long sweep is never held in memory as a whole. A worker that dies loses
its one task, which is given out again; a task that has cost `MAX_LOSSES` workers stops the sweep.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from shardwright.errors import LimitReachedError
from shardwright.planner.sweep.points import Prepared

MAX_LOSSES = 3


class Engine(Protocol):
    """Evaluates the points of a sweep."""

    @property
    def name(self) -> str:
        """As `--engine` calls it."""

    @property
    def workers(self) -> int:
        """Points evaluated at once."""

    def results(self, tasks: Iterator[Prepared]) -> Iterator[tuple[str, str]]:
        """Digest and result of each task as it finishes; closing the iterator stops the workers at once.

        Raises:
            LimitReachedError: a task has cost too many workers.
        """


def lost(digest: str, losses: dict[str, int]) -> None:
    """Counts a worker lost with a task.

    Raises:
        LimitReachedError: it was one too many.
    """
    losses[digest] = losses.get(digest, 0) + 1
    if losses[digest] >= MAX_LOSSES:
        message = f"{MAX_LOSSES} workers ended while they evaluated the same point"
        raise LimitReachedError(
            message, where="--engine", hint="do they have enough memory? finished points are kept in the store"
        )
