"""Plans that no other beats in step time, memory and cost at once.

    a beats b  if a is no worse in all three and better in one

On one cluster cost is proportional to the step, so that a front of step and memory is one of all three: `front` picks it from a
scan, among plans that fit and that some framework can launch. Fewer nodes cost less at more time; `merged` joins the fronts of
several sizes and drops what is beaten. Only steps of at least `FINEST` of the memory are shown, so that a front can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.planner.plans import IntArray
from shardwright.planner.problem import Problem
from shardwright.planner.search.ranking import launchable
from shardwright.planner.search.scan import Scan

FINEST = 0.02
"""Share of the device's memory that a slower plan saves at least."""

AXES = ("step_time_s", "peak_bytes", "usd_per_1m_tokens")

Point = dict[str, Any]


def front(problem: Problem, made: Scan) -> IntArray:
    """Candidates of the front of step time and memory, fastest first."""
    fitting = np.flatnonzero(made.fits)
    fitting = fitting[launchable(problem, made, fitting)]
    order = fitting[np.lexsort((made.peak_bytes[fitting], made.step_s[fitting]))]
    rows: list[int] = []
    least, finest = np.inf, FINEST * problem.memory_bytes / problem.cluster.gpus
    for row in order:
        if made.peak_bytes[row] <= least - finest:
            rows.append(int(row))
            least = made.peak_bytes[row]
    return np.array(rows, dtype=np.int64)


def points(records: Iterable[Mapping[str, Any]], name: Callable[[Mapping[str, Any]], str]) -> list[Point]:
    """The front of described plans, fastest first.

    Args:
        records: ESTIMATE records.
        name: the id of one.
    """
    return merged([[{"id": name(record)} | _point(record) for record in records]])


def merged(fronts: Sequence[Sequence[Point]]) -> list[Point]:
    """The front of several fronts."""
    found = [point for some in fronts for point in some]
    kept = [point for point in found if not any(beats(other, point) for other in found)]
    distinct = {tuple(point[axis] for axis in AXES): point for point in reversed(kept)}
    return sorted(distinct.values(), key=lambda point: (point["step_time_s"], point["peak_bytes"]))


def beats(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether a point is no worse than another in time, memory and cost, and better in one; unknown cost does not count."""
    pairs = [(one[axis], other[axis]) for axis in AXES if one[axis] is not None and other[axis] is not None]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _point(record: Mapping[str, Any]) -> Point:
    predicted = record["predicted"]
    return {
        "step_time_s": predicted["step_time_s"],
        "peak_bytes": record["memory"]["peak_bytes"],
        "usd_per_1m_tokens": predicted["usd_per_1m_tokens"],
        "joules_per_token": predicted["joules_per_token"],
        "goodput_fraction": predicted["goodput_fraction"],
        "parallel": record["parallel"],
    }
