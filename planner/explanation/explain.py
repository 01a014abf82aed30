"""`explain`: why a plan costs what it costs, from the saved file alone.

    explain(source, rank, why_not) = waterfall + what binds + slowest link of each axis + roofline of the heavy operators
                                     + memory of the fullest stage + next best changes + inputs that decide the winner

Every number is the estimate's own or is priced by `cost.pricing`; nothing is searched but the neighbours of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.errors import InvalidValueError
from shardwright.planner.explanation.alternatives import asked_axes
from shardwright.planner.explanation.alternatives import why_not as alternative
from shardwright.planner.explanation.binding import constraints, links, peak
from shardwright.planner.explanation.neighbours import changes
from shardwright.planner.explanation.roofline import roofline
from shardwright.planner.explanation.saved import Record, Saved, priced, read_saved
from shardwright.planner.explanation.switching import LIMIT, figures
from shardwright.planner.explanation.waterfall import waterfall
from shardwright.planner.shown import Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Shown):
    """Why a plan costs what it costs.

    Attributes:
        data: the record `explain --format json` prints.
    """

    data: Mapping[str, Any]

    @property
    def exit_code(self) -> int:
        """0; 1 where a plan asked about by `why_not` breaks a rule or does not fit."""
        asked = self.data["why_not"]
        return 0 if asked is None or asked["feasible"] else 1

    def to_dict(self) -> dict[str, Any]:
        """The record itself."""
        return dict(self.data)

    def __repr__(self) -> str:
        binding = self.data["binding"]
        return f"Explanation(rank={self.data['rank']}, binding={binding['constraint']!r}, what={binding['what']!r})"


def explain(
    source: str | Path | Mapping[str, Any], *, rank: int | None = None, why_not: str | Sequence[str] = ()
) -> Explanation:
    """Explains a plan of a saved result.

    Args:
        source: a RESULT (file or folder) or a PLAN, or one of them as a mapping.
        rank: 1-based rank of the plan in a RESULT.
        why_not: a plan to compare it with, as `tp=8,pp=4`: the same plan with these turned.

    Raises:
        ShardwrightError: the file is damaged or has no such rank, or `why_not` cannot be read.

    Example:
        >>> import shardwright
        >>> result = shardwright.plan("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64)
        >>> shardwright.explain(result.to_dict()).to_dict()["binding"]["constraint"]
        'compute'
    """
    asked = asked_axes([why_not] if isinstance(why_not, str) else why_not) if why_not else {}
    saved = read_saved(source, rank)
    if not saved.estimate["stages"]:
        raise InvalidValueError("the plan has no price", where="RESULT", hint="explain a plan that can be priced")
    return Explanation(data=_record(saved, asked))


def _record(saved: Saved, asked: Mapping[str, int]) -> Record:
    estimate = saved.estimate
    near, operators = changes(saved.problem, estimate), roofline(priced(saved.problem, [saved.degrees]), 0)
    bound, own = constraints(estimate, near, operators), saved.ranked[saved.place]
    return {
        "schema_version": 1,
        "kind": "explanation",
        **{name: saved.document[name] for name in ("model", "cluster", "training")},
        "rank": saved.rank,
        "id": own.get("id"),
        **{name: estimate[name] for name in ("feasible", "violations", "parallel", "predicted")},
        "waterfall": waterfall(estimate),
        "binding": bound[0],
        "constraints": bound,
        "links": links(estimate),
        "roofline": operators,
        "memory": peak(estimate),
        "changes": near,
        "winner": _winner(saved),
        "inputs": figures(saved),
        "why_not": alternative(saved, asked) if asked else None,
        "warnings": estimate["warnings"],
    }


def _winner(saved: Saved) -> Record | None:
    """The plan that `inputs` would dethrone; None where there is no ranking of several plans."""
    if len(saved.ranked) < 2:
        return None
    first = saved.ranked[0]
    return {
        "rank": first["rank"],
        "id": first["id"],
        "among": len(saved.ranked),
        "tie_percent": 100 * saved.tie,
        "factor_at_most": LIMIT,
    }
