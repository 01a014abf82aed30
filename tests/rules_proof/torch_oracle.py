"""torch.distributed.pipelining's own verdict on a schedule, without ranks to run it.

A schedule class is built on every rank of the pipeline from stages that know only where they stand, its orders of all ranks
are checked by torch's own `_validate_schedule`, and sends and receives are put between them, as a run would do before its
first step.
"""

from typing import Any

from torch.distributed.pipelining import schedules
from verdicts import ACCEPTED, Verdict, refused

FAULTS = (ValueError, RuntimeError, AssertionError, AttributeError, IndexError, ZeroDivisionError)

CLASSES = {
    "1f1b": "Schedule1F1B",
    "gpipe": "ScheduleGPipe",
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "zb-h1": "ScheduleInterleavedZeroBubble",
    "interleaved-zb": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}
"""Our schedules, and torch's classes."""

FOLDED = ("zb-v", "dualpipe-v")


class Stage(schedules._PipelineStageBase):  # type: ignore[name-defined, misc]
    """A stage that knows where it is and never runs."""

    def __init__(self, rank: int, index: int, places: dict[int, int]) -> None:
        self.group_rank, self.group_size = rank, max(places.values()) + 1
        self.num_stages, self.stage_index = len(places), index
        self.stage_index_to_group_rank = places
        self.has_backward, self.submod = True, None


Stage.__abstractmethods__ = frozenset()


def placed(schedule: str, pp: int, vpp: int, folded: bool | None = None) -> dict[int, int]:
    """Stage -> rank, as torch and torchtitan place a schedule's stages: in turn, or folded like a V."""
    if schedule in FOLDED if folded is None else folded:
        return {stage: min(stage, 2 * pp - 1 - stage) % pp for stage in range(pp * vpp)}
    return {stage: stage % pp for stage in range(pp * vpp)}


def verdict(schedule: str, pp: int, vpp: int, micro_batches: int, folded: bool | None = None) -> Verdict:
    """What torch says of a schedule over so many ranks, chunks a rank and micro-batches."""
    places = placed(schedule, pp, vpp, folded)
    made = getattr(schedules, CLASSES[schedule])
    try:
        for rank in range(pp):
            own = [Stage(rank, index, places) for index, at in places.items() if at == rank]
            _built(made, own, pp, micro_batches)
    except FAULTS as fault:
        return refused("schedule", fault)
    return ACCEPTED


def _built(made: Any, own: list[Stage], pp: int, micro_batches: int) -> None:
    if issubclass(made, schedules.PipelineScheduleSingle):
        made(own[0] if len(own) == 1 else own, micro_batches)  # a list is what a rank with two stages would hand over
        return
    schedule = made(own, micro_batches)
    order = schedule.pipeline_order
    schedules._validate_schedule(order, pp, own[0].num_stages, micro_batches)
    actions = {rank: [one for one in row if one is not None] for rank, row in order.items()}
    schedules._add_send_recv(actions, lambda stage: own[0].stage_index_to_group_rank[stage], own[0].num_stages)
