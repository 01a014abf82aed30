"""A `Timeline` as text: a line for each rank, time from left to right.

    |F0F1F2F3            B0··F4B1··|

Every operation is written from the column where it starts to the one where it ends: a letter, its micro-batch, and dots up to
its end. F is forward, B backward, I input gradient, W weight gradient; small letters stand for the later half of all chunks.
Passes that run together are joined by `+`. A blank is idle.
"""

from __future__ import annotations

from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, WEIGHT
from shardwright.planner.schedules.timeline import Event, Timeline

LETTERS = {FORWARD: "F", BACKWARD: "B", INPUT: "I", WEIGHT: "W"}


def drawn(made: Timeline, *, column_s: float) -> tuple[str, ...]:
    """A line for each rank.

    Args:
        made: one step.
        column_s: seconds of one character.
    """
    width = round(max(event.end_s for event in made.events) / column_s)
    return tuple(f"|{_line(made, rank, width, column_s)}|" for rank in range(made.pp))


def _line(made: Timeline, rank: int, width: int, column_s: float) -> str:
    line = [" "] * width
    for slot in _slots(made.of_rank(rank)):
        start, end = (round(time / column_s) for time in (slot[0].start_s, slot[0].end_s))
        word = "+".join(_word(made, event) for event in slot)
        line[start:end] = word[: end - start].ljust(end - start, "·")
    return "".join(line)


def _slots(events: tuple[Event, ...]) -> list[list[Event]]:
    """Operations, those that run together as one."""
    made: list[list[Event]] = []
    for event in events:
        if event.paired and event.phase != FORWARD:
            made[-1].append(event)
        else:
            made.append([event])
    return made


def _word(made: Timeline, event: Event) -> str:
    letter = LETTERS[event.phase]
    later = 2 * event.stage >= len(made.stage_rank)
    return f"{letter.lower() if later and made.vpp > 1 else letter}{event.micro_batch}"
