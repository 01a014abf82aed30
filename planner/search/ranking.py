"""Ranks priced candidates: ties first by simplicity, then by time.

With b the least step time of a plan that some framework can launch, tie group 1 holds every plan with t <= b·(1 + tie);
the next one starts at the fastest plan that no earlier group holds, and reaches as far (groups of which nothing is shown
are not counted). Inside a group plans come by simplicity

    simplicity = axes in use (tp, cp, pp, vpp, ep, etp, hybrid replicas, ZeRO above 1, recompute, counted embedding or head,
                 a schedule other than 1F1B and its interleaved form)
                 + 20 where memory is above 95 % of the device (such runs fail now and then)
                 + 100 where no framework can launch the plan

then by step time, then by their place in the space: a total order, so that output is stable. Of the plans that
share tp, sp, cp, pp, ep, etp and micro-batch (a *family*) only the first is shown, so that the ten best are ten different
meshes rather than ten ways to write one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.planner.cost.indexing import distinct
from shardwright.planner.description import RISKY_SHARE, columns_of
from shardwright.planner.plans import BoolArray, FloatArray, IntArray
from shardwright.planner.problem import Problem
from shardwright.planner.rules.base import facts_of
from shardwright.planner.rules.registry import expressible
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.search.scan import Scan

UNLAUNCHABLE, RISKY = 100, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What of the ranking does not depend on step times, so that it is computed once while these become exact.

    Attributes:
        family: of every candidate, [candidates].
        simple: simplicity of those that fit, [candidates].
    """

    family: IntArray
    simple: IntArray


def traits_of(problem: Problem, made: Scan) -> Traits:
    """The traits of the candidates of a scan."""
    fitting = np.flatnonzero(made.fits)
    simple = np.zeros(len(made.batch), dtype=np.int64)
    simple[fitting] = simplicity(problem, made, fitting)
    return Traits(family=families(made), simple=simple)


def ranked(problem: Problem, made: Scan, top: int, tie: float, traits: Traits | None = None) -> tuple[IntArray, IntArray]:
    """The best candidates that fit.

    Args:
        problem: what was planned.
        made: priced candidates.
        top: how many to return at most.
        tie: relative width of a tie group.
        traits: of these candidates, where they are known.

    Returns:
        Candidates in rank order and their tie groups (from 1).
    """
    fitting = np.flatnonzero(made.fits)
    order = fitting[np.argsort(made.step_s[fitting], kind="stable")]
    known = traits_of(problem, made) if traits is None else traits
    steps, family, simple = made.step_s[order], known.family[order], known.simple[order]
    seen: set[int] = set()
    rows: list[int] = []
    groups: list[int] = []
    start = 0
    while start < len(order) and len(rows) < top:
        leader = start if groups else int(np.argmax(simple < UNLAUNCHABLE))
        end = int(np.searchsorted(steps, steps[leader] * (1 + tie), side="right"))
        fresh = [place for place in range(start, end) if int(family[place]) not in seen]
        group = groups[-1] + 1 if groups else 1
        for place in sorted(fresh, key=lambda p: (simple[p], steps[p], order[p])):
            if int(family[place]) not in seen and len(rows) < top:
                seen.add(int(family[place]))
                rows.append(int(order[place]))
                groups.append(group)
        start = end
    return np.array(rows, dtype=np.int64), np.array(groups, dtype=np.int64)


def families(made: Scan) -> IntArray:
    """The family of every candidate: plans on one mesh with one micro-batch."""
    b = made.batch
    if len(b) == 0:
        return np.zeros(0, dtype=np.int64)
    return distinct(b.tp, b.sp, b.cp, b.pp, b.ep, b.etp, b.micro_batch)[1]


def launchable(problem: Problem, made: Scan, rows: IntArray) -> BoolArray:
    """Where some framework can express a candidate."""
    able = expressible(columns_of(made.batch.take(rows)), facts_of(problem), problem.framework, problem.target_version)
    return np.asarray(np.logical_or.reduce(list(able.values())))


def simplicity(problem: Problem, made: Scan, rows: IntArray) -> IntArray:
    """What a plan asks of those who run it; smaller is simpler."""
    b = made.batch.take(rows)
    plain = np.isin(SCHEDULE_IDS, ("1f1b", "interleaved-1f1b"))
    hybrid = (b.dp_shard > 1) & (b.shown_dp_replicate > 1)
    used = [b.tp > 1, b.cp > 1, b.pp > 1, b.vpp > 1, b.ep > 1, b.etp > 1, hybrid, b.zero > 1, b.zero > 2]
    used += [b.recompute > 0, _counted(made, b.split), ~plain[b.schedule]]
    found = sum((u.astype(np.int64) for u in used), start=np.zeros(len(rows), dtype=np.int64))
    risky = made.peak_bytes[rows] > RISKY_SHARE * made.capacity_bytes[rows]
    return np.asarray(found + RISKY * risky + UNLAUNCHABLE * ~launchable(problem, made, rows))


def _counted(made: Scan, split: IntArray) -> BoolArray:
    """Splits whose chunks are not the plain even ones."""
    uneven = np.array([_is_counted(s.chunks) for s in made.splits])
    return uneven[split]


def _is_counted(chunks: tuple[int, ...]) -> bool:
    base, larger = divmod(sum(chunks), len(chunks))
    return chunks != tuple([base + 1] * larger + [base] * (len(chunks) - larger))


def nearest_to_fitting(made: Scan, count: int) -> IntArray:
    """Candidates with the least memory, each of another family; fastest first among equals."""
    order = np.lexsort((made.step_s, made.peak_bytes))
    _, first = np.unique(families(made)[order], return_index=True)
    return np.asarray(order[np.sort(first)[:count]])


def best_step_s(made: Scan) -> float | None:
    """The least step time of a candidate that fits, whatever its rank."""
    times: FloatArray = made.step_s[made.fits]
    return float(times.min()) if len(times) else None


def degrees_in_words(made: Scan, row: int) -> str:
    """One plan of a scan in a line: its degrees above 1, micro-batch and ZeRO stage."""
    batch = made.batch
    names = [name for name in ("tp", "cp", "pp", "vpp", "ep", "etp", "dp") if int(getattr(batch, name)[row]) > 1]
    shown = [f"{name} {int(getattr(batch, name)[row])}" for name in names]
    return " ".join([*shown, f"micro-batch {int(batch.micro_batch[row])}", f"zero {int(batch.zero[row])}"])
