"""The bound of interleaved pipelines: never above the step of any division, and above what the busiest rank works."""

import numpy as np
import pytest

from shardwright.planner.plans import PlanBatch
from shardwright.planner.schedules.exact import exact_step_s
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.schedules.shape import Shape
from shardwright.planner.schedules.timing import chunk_times
from shardwright.planner.search.stages.layers import Direction
from shardwright.planner.search.stages.turns import Work, least_turns_s

SIZES = [(2, 2, 2), (2, 3, 6), (3, 2, 3), (3, 2, 9), (4, 2, 8), (4, 3, 4), (6, 2, 12), (8, 2, 16)]


def plan_of(pp, vpp, count):
    columns = dict.fromkeys(PlanBatch.__slots__, 1) | {"offload": 0}
    columns |= {"pp": pp, "vpp": vpp, "micro_batches": count, "schedule": SCHEDULE_IDS.index("interleaved-1f1b")}
    return PlanBatch(**{name: np.array([value]) for name, value in columns.items()})


def divisions(rng, total, pp, vpp, count):
    """Random divisions whose inner chunks hold the even share, rounded down, or one layer more; [divisions, chunks]."""
    chunks, share = pp * vpp, total // (pp * vpp)
    made = rng.integers(share, share + 2, (60 * count, chunks))
    made[:, [0, -1]] = rng.integers(0, share + 2, (60 * count, 2))
    made = made[made.sum(axis=1) == total]
    return made[:count]


def direction(rng, heavier, send):
    layer, first, last = heavier * rng.uniform(0.5, 1.5), rng.uniform(0, 0.5), rng.uniform(0, 3)
    return [np.array([part]) for part in (layer, first, last, send)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_no_division_takes_less(sizes, seed):
    pp, vpp, count = sizes
    rng = np.random.default_rng(seed)
    total = int(pp * vpp * rng.uniform(1, 3))
    send, covered = rng.uniform(0, 0.2), int(rng.integers(0, 4))
    ways = [direction(rng, heavier, send) for heavier in (1.0, 2.0)]
    again = ways[0][0] * (covered > 0)
    held = divisions(rng, total, pp, vpp, 300)
    passes = [w[0] * held + w[3] / vpp for w in ways]
    for made, way in zip(passes, ways, strict=True):
        made[:, 0] += way[1]
        made[:, -1] += way[2]
    of_rank = held.reshape(-1, vpp, pp).sum(axis=1)
    share = np.minimum(covered, of_rank) / np.maximum(of_rank, 1)
    passes[1] += again * held * np.tile(share, vpp)
    shape = Shape(schedule="interleaved-1f1b", pp=pp, vpp=vpp, micro_batches=count)
    steps = exact_step_s(shape, chunk_times(passes[0], passes[1], 0.0, pp=pp))
    parts = [Direction(layer_s=w[0], first_s=w[1], last_s=w[2], whole_s=total * w[0] + w[1] + w[2], send_s=w[3]) for w in ways]
    work = Work(
        total=total,
        forward=parts[0],
        backward=parts[1],
        layer_s=ways[0][0] + ways[1][0],
        again_s=again,
        covered=np.array([covered]),
    )
    bound = least_turns_s(plan_of(*sizes), work, np.zeros(1), np.inf)
    assert len(steps) > 0
    assert bound[0] <= steps.min() * (1 + 1e-9)
    assert bound[0] > 0.85 * steps.min()
