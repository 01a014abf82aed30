"""`--why-not tp=8,pp=4`: that plan priced and compared by part, or the rule it breaks and what would mend it.

The plan asked about is the explained one with the named axes turned; axes that must follow do (`knobs.followed`), and its own
division of layers stays while the pipeline does. Beside it stands the best plan of the search that holds the named axes
(`_best`), since what was kept may not suit what was turned. What a search does not turn of itself (`HELD`) may be there as the
explained plan has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardwright.documents import rounded
from shardwright.errors import ConflictError, InvalidValueError
from shardwright.planner.cost.pricing import TIME_PARTS
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.explanation.knobs import NAMES, OWN_SPLIT, Point, degrees_at, followed, point_of, word
from shardwright.planner.explanation.saved import Record, Saved
from shardwright.planner.plan_records import degrees_of
from shardwright.planner.plans import Degrees
from shardwright.planner.rules.registry import AXIS_ORDER
from shardwright.planner.search.finalists import settled
from shardwright.planner.search.scan import scan
from shardwright.planner.search.space import Space, declare, enumerate_legal, fixed_value

WHERE = "--why-not"

HELD = ("cp_comm", "moe_dispatcher", "loss_chunks", "offload")
"""Axes of which a search tries one value unless it is told."""

_PIPELINE = ("pp", "vpp", "schedule")


def asked_axes(statements: Sequence[str]) -> dict[str, int]:
    """Axes and values of `tp=8,pp=4`.

    Raises:
        InvalidValueError: no `KEY=VALUE`, or a value out of range.
        UnknownNameError: an axis or word that does not exist.
        ConflictError: two values for one axis.
    """
    made: dict[str, int] = {}
    for part in (part.strip() for text in statements for part in text.split(",")):
        name, separator, value = (text.strip() for text in part.partition("="))
        if not separator or not name or not value:
            raise InvalidValueError(f"{part[:40]!r} is no KEY=VALUE", where=WHERE, hint=f"write {WHERE} tp=8,pp=4")
        axis, index = fixed_value(name, value, WHERE)
        if made.setdefault(axis, index) != index:
            raise ConflictError(f"{axis} is asked with two values", where=WHERE, hint="keep one of the two")
    return made


def why_not(saved: Saved, asked: Mapping[str, int]) -> Record:
    """The plan with some axes turned, compared with the explained one.

    Args:
        saved: the explained plan.
        asked: axis -> value.
    """
    base = point_of(saved.estimate)
    point = followed(saved.problem.cluster.gpus, base, asked)
    if all(point[axis] == base[axis] for axis in _PIPELINE) and "split" not in asked:
        point |= {"split": base["split"]}
    record: Record = rounded(estimate_degrees(saved.problem, _degrees(saved, point, base)))
    broken = [v for v in record["violations"] if v["rule"] != "memory"]
    return {
        "asked": {axis: word(axis, value) for axis, value in asked.items()},
        "followed": {axis: word(axis, point[axis]) for axis in AXIS_ORDER if point[axis] != base[axis] and axis not in asked},
        "same": {axis: point[axis] for axis in AXIS_ORDER} == base,
        "feasible": record["feasible"],
        "legal": not broken,
        "violations": record["violations"],
        "parallel": record["parallel"],
        "comparison": compared(saved.estimate, record) if record["predicted"] else None,
        "best": _best(saved, asked),
    }


def _degrees(saved: Saved, point: Point, base: Point) -> Degrees:
    """The plan of a point; own splits and numbers of recomputed layers as the explained plan has them."""
    made, own = degrees_at(saved.problem, point), degrees_of(saved.estimate)
    if any(point[axis] != base[axis] for axis in _PIPELINE):
        return made
    if point["split"] == OWN_SPLIT:
        made = replace(made, layers_per_stage=own.layers_per_stage)
    if point["recompute"] == base["recompute"]:
        made = replace(made, recompute_layers=own.recompute_layers)
    return made


def compared(one: Mapping[str, Any], other: Mapping[str, Any]) -> Record:
    """Two plans by part of the step and by peak; delta = other − one."""
    steps = [record["predicted"]["step_time_s"] for record in (one, other)]
    peaks = [record["memory"]["peak_bytes"] for record in (one, other)]
    parts = [
        {"name": name, "a_s": one["time"][name], "b_s": other["time"][name], "delta_s": other["time"][name] - one["time"][name]}
        for name in TIME_PARTS
    ]
    return {
        "step": {
            "a_s": steps[0],
            "b_s": steps[1],
            "delta_s": steps[1] - steps[0],
            "delta_fraction": steps[1] / steps[0] - 1,
        },
        "parts": parts,
        "peak_bytes": {"a_bytes": peaks[0], "b_bytes": peaks[1], "delta_bytes": peaks[1] - peaks[0]},
    }


def _best(saved: Saved, asked: Mapping[str, int]) -> Record | None:
    """The fastest plan of the search that holds the axes asked for; None where none is legal or fits."""
    held = {axis: word(axis, value) for axis, value in asked.items()}
    problem = replace(saved.problem, assumptions=())
    legal = enumerate_legal(problem, _space(saved, declare(problem, held), asked))
    if len(legal) == 0:
        return None
    made = settled(scan(problem, legal), problem, 1, 0.0, near=False)[0]
    if not made.fits.any():
        return None
    row = int(np.where(made.fits, made.step_s, np.inf).argmin())
    step, peak = float(made.step_s[row]), int(made.peak_bytes[row])
    before = saved.estimate["predicted"]["step_time_s"]
    return {
        "plan": {NAMES.get(axis, axis): word(axis, int(legal.columns[axis][row])) for axis in AXIS_ORDER},
        "step_time_s": step,
        "delta_s": step - before,
        "delta_fraction": step / before - 1,
        "peak_bytes": peak,
        "delta_bytes": peak - saved.estimate["memory"]["peak_bytes"],
    }


def _space(saved: Saved, space: Space, asked: Mapping[str, int]) -> Space:
    """The space of a search, and what the explained plan has of axes that a search holds."""
    base = point_of(saved.estimate)
    more = {axis: tuple(sorted({*space.axes[axis], base[axis]})) for axis in HELD if axis not in asked}
    return replace(space, axes={**space.axes, **more})
