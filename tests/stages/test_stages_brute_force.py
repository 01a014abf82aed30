"""The program finds what trying every division finds."""

import numpy as np
import pytest
import stage_problems as problems

from shardwright.planner.cost.sends import tied_s
from shardwright.planner.search.stages.candidate import best_division


def checked(seed, most, offload="none"):
    """Compares one random problem; whether memory binds and whether the best is not uniform, or None where there is none."""
    case = problems.random_case(seed, most=most, offload=offload)
    if case is None:
        return None
    steps, peaks = problems.priced(case.context, case.plan, case.key, case.chunks)
    rng = np.random.default_rng(seed + 10_000)
    if rng.random() < 0.95:  # room for the leanest, not for the fastest
        fastest = peaks[steps.argmin()]
        room = peaks.min() if peaks.min() < fastest else fastest
        if fastest > peaks.min():
            room = peaks.min() + rng.random() * 0.9 * (fastest - peaks.min())
        case = problems.with_room(case, room + 1)
        steps, peaks = problems.priced(case.context, case.plan, case.key, case.chunks)
    fits = peaks <= case.context.problem.device.memory_bytes
    best = np.where(fits, steps, np.inf).min()
    tied = float(tied_s(case.context, case.plan, case.key)[0])
    found = best_division(case.context, case.plan, case.key, np.inf, tied_s=tied, effort=60.0)
    assert found.step_s == pytest.approx(best, rel=2e-5), (seed, found)
    assert found.bound_s <= best * (1 + 1e-9)
    assert found.bound_s >= best * (1 - 1e-4), (seed, found)
    binding = bool(best > steps.min() * (1 + 1e-12))
    at = int(np.where(fits, steps, np.inf).argmin())
    return binding, np.ptp(case.chunks[at]) > 1 or _left_over(case.chunks[at])


def _left_over(chunks):
    """Whether a division is not as even as possible with the larger chunks first."""
    base, larger = divmod(int(chunks.sum()), len(chunks))
    return chunks.tolist() != [base + 1] * larger + [base] * (len(chunks) - larger)


def compared(count, most, start=0):
    """So many problems, of which at most half are such that the fastest of all divisions fits."""
    found, seed, easy = [], start, 0
    while len(found) < count:
        made, seed = checked(seed, most), seed + 1
        if made is not None and (made[0] or easy < count // 2):
            easy += not made[0]
            found.append(made)
    binding, uneven = np.array(found).mean(axis=0)
    assert binding >= 0.5
    assert uneven >= 1 / 3


def test_equals_brute_force():
    compared(40, 600)


@pytest.mark.parametrize("offload", ["optimizer", "activations", "optimizer=0.5,activations=0.5"])
def test_equals_brute_force_where_a_part_is_on_hosts(offload):
    made = [checked(seed, 300, offload) for seed in range(24)]
    binding = [one[0] for one in made if one is not None]
    assert len(binding) >= 8
    assert any(binding)


@pytest.mark.slow
def test_equals_brute_force_at_its_limit():
    compared(300, 100_000)
