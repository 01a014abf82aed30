"""Orders of operations are those of torch's schedule classes and of Megatron-Core's schedule table."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.errors import InvalidValueError
from shardwright.planner.schedules.memory import peak_live
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, PHASES, WEIGHT
from shardwright.planner.schedules.shape import Shape, order_of, torch_group

pytestmark = pytest.mark.frameworks

SINGLE_GRID = [(1, 2), (2, 2), (2, 5), (4, 4), (4, 9), (8, 8), (8, 24)]
LOOPED_GRID = [(1, 2, 4), (2, 2, 4), (2, 3, 6), (4, 2, 8), (4, 3, 12), (4, 4, 10), (8, 2, 16), (8, 4, 32)]
FOLDED_GRID = [(1, 4), (2, 4), (2, 5), (3, 6), (4, 8), (4, 13), (5, 10), (8, 16), (8, 40)]
SHORT_FOLDED_GRID = [(2, 1), (3, 4), (4, 3), (8, 9)]
"""Fewer micro-batches than ZB-V's pipeline can hold."""

TORCH_PHASES = {"FORWARD": FORWARD, "FULL_BACKWARD": BACKWARD, "BACKWARD_INPUT": INPUT, "BACKWARD_WEIGHT": WEIGHT}


@pytest.fixture(scope="module")
def schedules():
    return pytest.importorskip("torch.distributed.pipelining.schedules")


def ours(shape):
    """(phase, stage, micro-batch) of each operation, by rank."""
    order = order_of(shape)
    rows = zip(order.phase.tolist(), order.stage.tolist(), order.micro_batch.tolist(), strict=True)
    return [[one for one in zip(*row, strict=True) if one[0] >= 0] for row in rows]


def theirs(actions):
    """The same of torch's actions; where two overlap, one after the other."""
    made = []
    for action in actions:
        if action is None:
            continue
        for one in action.sub_actions or (action,):
            if one.computation_type.name in TORCH_PHASES:
                made.append((TORCH_PHASES[one.computation_type.name], one.stage_index, one.microbatch_index))
    return made


def torch_orders(schedules, name, pp, vpp, micro_batches):
    """torch's pipeline order, from stages that know only where they are."""

    class Stage(schedules._PipelineStageBase):
        def __init__(self, rank, index):
            self.group_rank, self.group_size, self.num_stages, self.stage_index = rank, pp, pp * vpp, index
            self.stage_index_to_group_rank = {stage: stage % pp for stage in range(pp * vpp)}
            self.has_backward, self.submod = True, None

    Stage.__abstractmethods__ = frozenset()  # it never runs
    made = getattr(schedules, name)
    if vpp == 1 and name in {"ScheduleGPipe", "Schedule1F1B"}:
        return made(Stage(0, 0), micro_batches)._get_pipeline_order()
    folded = name in {"ScheduleZBVZeroBubble", "ScheduleDualPipeV"}
    own = (0, 2 * pp - 1) if folded else range(0, pp * vpp, pp)
    return made([Stage(0, index) for index in own], micro_batches).pipeline_order


@pytest.mark.parametrize(("pp", "micro_batches"), SINGLE_GRID)
def test_torch_1f1b(schedules, pp, micro_batches):
    made = torch_orders(schedules, "Schedule1F1B", pp, 1, micro_batches)
    for rank, operations in enumerate(ours(Shape(schedule="1f1b", pp=pp, vpp=1, micro_batches=micro_batches))):
        found = theirs(made[rank])
        if rank == pp - 1:  # torch's listing numbers forward passes of the last rank from 1; what it runs starts at 0
            found = [(phase, stage, batch - (phase == FORWARD)) for phase, stage, batch in found]
        assert found == operations


@pytest.mark.parametrize(("pp", "micro_batches"), SINGLE_GRID)
def test_torch_gpipe(schedules, pp, micro_batches):
    made = torch_orders(schedules, "ScheduleGPipe", pp, 1, micro_batches)
    for rank, operations in enumerate(ours(Shape(schedule="gpipe", pp=pp, vpp=1, micro_batches=micro_batches))):
        assert theirs(made[rank]) == operations


@pytest.mark.parametrize(("pp", "vpp", "micro_batches"), LOOPED_GRID)
def test_torch_interleaved(schedules, pp, vpp, micro_batches):
    made = torch_orders(schedules, "ScheduleInterleaved1F1B", pp, vpp, micro_batches)
    group = torch_group(pp, micro_batches)
    shape = Shape(schedule="interleaved-1f1b", pp=pp, vpp=vpp, micro_batches=micro_batches, group=group)
    assert [theirs(made[rank]) for rank in range(pp)] == ours(shape)


@pytest.mark.parametrize(("pp", "micro_batches"), [case for case in SINGLE_GRID if case[1] % max(1, case[1] // case[0]) == 0])
def test_torch_zero_bubble_with_one_stage_a_rank(schedules, pp, micro_batches):
    made = torch_orders(schedules, "ScheduleInterleavedZeroBubble", pp, 1, micro_batches)
    shape = Shape(schedule="zb-h1", pp=pp, vpp=1, micro_batches=micro_batches)
    assert [theirs(made[rank]) for rank in range(pp)] == ours(shape)


@pytest.mark.parametrize(("pp", "vpp", "micro_batches"), LOOPED_GRID)
def test_torch_interleaved_zero_bubble(schedules, pp, vpp, micro_batches):
    made = torch_orders(schedules, "ScheduleInterleavedZeroBubble", pp, vpp, micro_batches)
    group = torch_group(pp, micro_batches)
    shape = Shape(schedule="interleaved-zb", pp=pp, vpp=vpp, micro_batches=micro_batches, group=group)
    assert [theirs(made[rank]) for rank in range(pp)] == ours(shape)


@pytest.mark.parametrize(("pp", "micro_batches"), FOLDED_GRID + SHORT_FOLDED_GRID)
def test_torch_zb_v(schedules, pp, micro_batches):
    made = torch_orders(schedules, "ScheduleZBVZeroBubble", pp, 2, micro_batches)
    shape = Shape(schedule="zb-v", pp=pp, vpp=2, micro_batches=micro_batches)
    assert [theirs(made[rank]) for rank in range(pp)] == ours(shape)


@pytest.mark.parametrize(("pp", "micro_batches"), FOLDED_GRID)
def test_torch_dualpipe_v(schedules, pp, micro_batches):
    made = torch_orders(schedules, "ScheduleDualPipeV", pp, 2, micro_batches)
    shape = Shape(schedule="dualpipe-v", pp=pp, vpp=2, micro_batches=micro_batches)
    assert [theirs(made[rank]) for rank in range(pp)] == ours(shape)


@pytest.mark.parametrize(("pp", "micro_batches"), FOLDED_GRID)
def test_torch_dualpipe_v_runs_the_same_passes_together(schedules, pp, micro_batches):
    made = torch_orders(schedules, "ScheduleDualPipeV", pp, 2, micro_batches)
    order = order_of(Shape(schedule="dualpipe-v", pp=pp, vpp=2, micro_batches=micro_batches, paired=True))
    for rank in range(pp):
        found = [theirs([action]) for action in made[rank] if action is not None and action.sub_actions]
        parts = np.stack((order.phase, order.stage, order.micro_batch), axis=2)[rank].tolist()
        pairs = [[tuple(parts[first]), tuple(parts[first + 1])] for first in np.flatnonzero(order.paired[rank])]
        assert found == pairs


@pytest.mark.parametrize(("pp", "vpp", "micro_batches"), LOOPED_GRID)
def test_torch_reads_our_order_back(schedules, pp, vpp, micro_batches, tmp_path):
    """torch's own reader of schedule files accepts what we would write, and its check finds every operation in place."""
    shape = Shape(
        schedule="interleaved-1f1b", pp=pp, vpp=vpp, micro_batches=micro_batches, group=torch_group(pp, micro_batches)
    )
    letters = {FORWARD: "F", BACKWARD: "B"}
    rows = [[f"{stage}{letters[phase]}{batch}" for phase, stage, batch in row] for row in ours(shape)]
    file = tmp_path / "schedule.csv"
    file.write_text("\n".join(",".join(row) for row in rows) + "\n", encoding="utf-8")
    with file.open(encoding="utf-8") as lines:
        read = {rank: [schedules._Action.from_str(word) for word in line.strip().split(",")] for rank, line in enumerate(lines)}
    schedules._validate_schedule(read, pp, pp * vpp, micro_batches)
    assert [theirs(read[rank]) for rank in range(pp)] == ours(shape)


@pytest.mark.parametrize(("pp", "micro_batches"), [(2, 5), (2, 7), (4, 8), (4, 9), (4, 10), (4, 11), (4, 15)])
def test_torch_refuses_what_we_refuse(schedules, pp, micro_batches):
    def refused(call, error):
        try:
            call()
        except error:
            return True
        return False

    by_torch = refused(lambda: torch_orders(schedules, "ScheduleInterleaved1F1B", pp, 2, micro_batches), ValueError)
    assert refused(lambda: torch_group(pp, micro_batches), InvalidValueError) == by_torch


MEGATRON_GRID = [
    (pp, vpp, groups * group + rest, group)
    for pp in (2, 3, 4, 8)
    for vpp in (2, 3, 4)
    for group in (pp, pp + 1, 2 * pp)
    for groups in (1, 2, 4)
    for rest in {0, pp if pp < group else 0}
]


@pytest.mark.filterwarnings("ignore")
def test_megatron_interleaved():
    megatron = pytest.importorskip("megatron.core.pipeline_parallel.schedules")
    for pp, vpp, micro_batches, group in MEGATRON_GRID:
        shape = Shape(schedule="interleaved-1f1b", pp=pp, vpp=vpp, micro_batches=micro_batches, group=group)
        table = [(batch, chunk) for batch, chunk in megatron.get_schedule_table(micro_batches, vpp, group)]
        for rank, operations in enumerate(ours(shape)):
            forward = [(batch, stage // pp) for phase, stage, batch in operations if phase == FORWARD]
            backward = [(batch, vpp - 1 - stage // pp) for phase, stage, batch in operations if phase == BACKWARD]
            assert forward == backward == table
            warm_up = megatron_warm_up(megatron, shape, rank)
            together = ours(replace(shape, paired=True))[rank]
            later = megatron_warm_up(megatron, shape, rank, overlap_moe_expert_parallel_comm=True)
            assert [PHASES[phase] for phase, _, _ in together].index("backward") == min(later + 1, micro_batches * vpp)
            first = [PHASES[phase] for phase, _, _ in operations].index("backward")
            assert first == min(warm_up + 1, micro_batches * vpp)


@pytest.mark.filterwarnings("ignore")
def test_megatron_plain():
    megatron = pytest.importorskip("megatron.core.pipeline_parallel.schedules")
    for pp, micro_batches in SINGLE_GRID[1:]:
        shape = Shape(schedule="1f1b", pp=pp, vpp=1, micro_batches=micro_batches)
        for rank, kept in enumerate(peak_live(order_of(shape))):
            assert kept == min(micro_batches, megatron_warm_up(megatron, shape, rank) + 1)


def megatron_warm_up(megatron, shape, rank, **options):
    """Forward passes before the first pair, as Megatron-Core counts them."""

    class Group:
        def size(self):
            return shape.pp

        def rank(self):
            return rank

    class Communicator:
        pp_group = Group()
        virtual_pipeline_model_parallel_size = shape.vpp if shape.vpp > 1 else None

    counts = megatron.get_pp_rank_microbatches(
        shape.micro_batches, shape.vpp, shape.group, forward_only=False, p2p_communicator=Communicator(), **options
    )
    return counts[2]
