"""The pipeline of one plan over one step: which stage does what when, and where it waits.

Passes stand on the upper lane of a stage, what its exchange exposes (at the end of each pass, where it is not hidden) and what
follows the last pass on the lower one; where nothing stands, the stage waits. All times come from `planner.simulation`, which
ends when `predicted.step_time_s` says.

The page draws from `Picture.data`. Times there are ticks of step / 10^9, so that a step of 100,000 operations takes a megabyte:

    stages[i].codes      one letter an operation, a key of `operations`
    stages[i].starts     when each starts, ticks
    operations[letter]   phase, chunk, length of each, ticks; one table for each stage

Beyond `DRAWN` operations the middle of every stage is one block (`fold`), with the number of operations left out.
"""

from __future__ import annotations

import string
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.html.picture import Legend, Picture, Table
from shardwright.planner.report.html.timeline_drawing import drawing, height
from shardwright.planner.schedules.orders import PHASES
from shardwright.planner.schedules.timeline import Event
from shardwright.planner.simulation import AXES, StepTimeline

TICKS = 1_000_000_000
DRAWN = 120_000
"""Operations that are kept one by one."""

LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clock:
    """Seconds as ticks."""

    step_s: float

    def ticks(self, seconds: float) -> int:
        return round(seconds / self.step_s * TICKS)


def timeline_picture(made: StepTimeline, priced_s: float) -> Picture:
    """The picture of a step.

    Args:
        made: the step, simulated.
        priced_s: `predicted.step_time_s` of the same plan.
    """
    data = timeline_data(made, priced_s)
    idle = [stage["idle_s"] for stage in data["stages"]]
    split = any(op["phase"] == "weight-gradient" for stage in data["stages"] for op in stage["operations"].values())
    return Picture(
        id="timeline",
        title="Pipeline timeline",
        caption=f"One step of {words.seconds(priced_s, 4)}, stage by stage. Hatched: the stage waits, between "
        f"{words.percent(min(idle) / made.step_s)} and {words.percent(max(idle) / made.step_s)} of the step. "
        "Lower lane of each stage: exchange that nothing hides, drawn at the end of its pass, and what follows the last pass.",
        data=data,
        body=drawing(data),
        height=height(data),
        width=1200,
        legend=_legend(data, split),
        table=_table(data),
        note=_note(made, priced_s),
    )


def timeline_data(made: StepTimeline, priced_s: float) -> dict[str, Any]:
    """What the page draws."""
    clock, by_rank = _Clock(step_s=made.step_s), defaultdict(list)
    for event in made.timeline.events:
        by_rank[event.rank].append(event)
    keep = len(made.timeline.events) if len(made.timeline.events) <= DRAWN else DRAWN // made.timeline.pp // 2
    return {
        "step_time_s": priced_s,
        "simulated_step_s": made.step_s,
        "ticks": TICKS,
        "axes": list(AXES),
        "tied_s": made.tied_s,
        "stages": [_stage(made, rank, by_rank[rank], clock, keep) for rank in range(made.timeline.pp)],
    }


def _stage(made: StepTimeline, rank: int, events: Sequence[Event], clock: _Clock, keep: int) -> dict[str, Any]:
    kinds = list(dict.fromkeys((event.phase, event.stage) for event in events))
    letters = dict(zip(kinds, LETTERS, strict=False))
    firsts = {(event.phase, event.stage): event for event in reversed(events)}
    stages = [stage for stage, on in enumerate(made.timeline.stage_rank) if on == rank]
    shown, fold = _folded(events, keep, clock)
    busy = sum(event.end_s - event.start_s for event in events)
    tail = {name: getattr(made.tails, name)[rank] for name in ("data_s", "uneven_s", "update_s")}
    return {
        "index": rank,
        "operations": {
            letters[kind]: {
                "phase": PHASES[kind[0]],
                "chunk": stages.index(kind[1]),
                "length": clock.ticks(firsts[kind].end_s - firsts[kind].start_s),
                "exposed": _exposed(made, kind, clock),
            }
            for kind in kinds
        },
        "codes": "".join(letters[event.phase, event.stage] for event in shown),
        "starts": [clock.ticks(event.start_s) for event in shown],
        "micro_batches": _micro_batches(shown, kinds),
        "fold": fold,
        "last": clock.ticks(events[-1].end_s),
        "tail": {name: clock.ticks(seconds) for name, seconds in tail.items()},
        "busy_s": busy,
        "tail_s": tail,
        "idle_s": made.step_s - busy - made.timeline.tail_s[rank],
    }


def _exposed(made: StepTimeline, kind: tuple[int, int], clock: _Clock) -> list[int]:
    """Exposed exchange of an operation by axis; that of backward passes belongs to the input gradient where they are split."""
    phase, stage = kind
    if PHASES[phase] == "weight-gradient":
        return [0] * len(AXES)
    parts = made.passes.forward_s if PHASES[phase] == "forward" else made.passes.backward_s
    return [clock.ticks(seconds) for seconds in parts[stage].tolist()]


def _folded(events: Sequence[Event], keep: int, clock: _Clock) -> tuple[Sequence[Event], dict[str, int] | None]:
    if len(events) <= 2 * keep:
        return events, None
    hidden = events[keep:-keep]
    span = {"start": clock.ticks(hidden[0].start_s), "end": clock.ticks(hidden[-1].end_s)}
    return [*events[:keep], *events[-keep:]], {"at": keep, "operations": len(hidden), **span}


def _micro_batches(events: Sequence[Event], kinds: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Micro-batch of each operation as runs [first, count] of numbers that go up by one; kind after kind, as `operations`."""
    by_kind: dict[tuple[int, int], list[int]] = defaultdict(list)
    for event in events:
        by_kind[event.phase, event.stage].append(event.micro_batch)
    runs: list[list[int]] = []
    for kind in kinds:
        for at, number in enumerate(by_kind[kind]):
            if at and number == runs[-1][0] + runs[-1][1]:
                runs[-1][1] += 1
            else:
                runs.append([number, 1])
    return runs


def _legend(data: Mapping[str, Any], split: bool) -> list[Legend]:
    keys = [Legend(class_="f-forward", label="forward"), Legend(class_="f-backward", label="backward")]
    if split:
        keys = [keys[0], Legend(class_="f-backward", label="input gradient")]
        keys.append(Legend(class_="f-weight-gradient", label="weight gradient"))
    operations = [op for stage in data["stages"] for op in stage["operations"].values()]
    for index, axis in enumerate(AXES):
        if any(op["exposed"][index] for op in operations):
            keys.append(Legend(class_=f"p-exposed_{axis}", label=f"{axis} exchange"))
    tails = {"data_s": ("p-exposed_dp", "dp exchange"), "uneven_s": ("p-bubble", "uneven documents")}
    for name, (class_, label) in (tails | {"update_s": ("p-optimizer", "optimizer")}).items():
        if any(stage["tail"][name] for stage in data["stages"]):
            keys.append(Legend(class_=class_, label=label))
    return [*keys, Legend(class_="f-idle", label="waits")]


def _table(data: Mapping[str, Any]) -> Table:
    step = data["simulated_step_s"]
    rows = [
        (
            str(stage["index"]),
            words.seconds(stage["busy_s"], 4),
            words.seconds(stage["tail_s"]["data_s"] + stage["tail_s"]["uneven_s"]),
            words.seconds(stage["tail_s"]["update_s"]),
            words.seconds(max(stage["idle_s"], 0.0)),
            words.percent(max(stage["idle_s"], 0.0) / step),
        )
        for stage in data["stages"]
    ]
    return Table(columns=("stage", "passes", "exchange after", "optimizer", "waits", "share"), rows=rows)


def _note(made: StepTimeline, priced_s: float) -> str:
    said = []
    if made.tied_s > 0:
        said.append(f"The sum of the gradients of tied embeddings ({words.seconds(made.tied_s)}) ends the step.")
    if len(made.timeline.events) > DRAWN:
        said.append(f"Of {words.count(len(made.timeline.events))} operations the first and the last are drawn one by one.")
    if abs(made.step_s - priced_s) > 1e-6 * priced_s:
        said.append(
            f"Simulated anew the step takes {words.seconds(made.step_s, 4)}: another version wrote the file, or it was changed."
        )
    return " ".join(said)
