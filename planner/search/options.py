"""What a search takes and what it reports while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EFFORTS = ("scan", "search", "prove")
DEFAULT_TIE_PERCENT, MAX_TIE_PERCENT = 1.0, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How to search.

    Attributes:
        top: how many plans to return.
        fix: axes held at a value, as text: {"tp": "4", "schedule": "1f1b"}.
        effort: scan, search or prove. Scan prices every legal candidate of the declared space; search and prove also divide
            layers freely, until the gap is within 1 % (for 10 deterministic seconds) or 1e-4 (for 300, or the time limit).
        tie_percent: plans within so many per cent of the best of their group are tied, 0 to 3.
        allow_subset: plans may use fewer nodes; so they may where the objective is not throughput.
        pareto: list the plans that no other beats in step time, memory and cost at once.
        trials: how many plans to name whose measurement most raises the chance of holding the fastest; 0: none are.
        workers: threads that price candidates; the answer does not depend on it.
        remedies: whether to look for what would make near misses fit, where nothing does; that takes a second or two.
        effort_s: deterministic seconds for dividing layers; None for those of the effort.
        time_limit_s: seconds after which to stop dividing layers; the answer then depends on the machine.
    """

    top: int = 10
    fix: Mapping[str, str] = field(default_factory=dict)
    effort: str = "search"
    tie_percent: float = DEFAULT_TIE_PERCENT
    allow_subset: bool = False
    pareto: bool = False
    trials: int = 0
    workers: int = 2
    remedies: bool = True
    time_limit_s: float | None = None
    effort_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """What `inputs.search` says of them."""
        made: dict[str, Any] = {"fixed": dict(self.fix), "effort": self.effort, "tie_percent": self.tie_percent}
        for name in ("effort_s", "time_limit_s"):
            made |= {name: getattr(self, name)} if getattr(self, name) is not None else {}
        return made | ({"allow_subset": True} if self.allow_subset else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a search has come.

    Attributes:
        explored: candidates rejected or priced so far.
        candidates: all of them.
        best_step_time_s: least step time of a plan that fits; None before the first.
        lower_bound_step_time_s: no plan of the space is faster; None before a bound is known.
        leaders: the first ranked list, degrees in words and step time; empty while candidates are priced.
    """

    explored: int
    candidates: int
    best_step_time_s: float | None
    lower_bound_step_time_s: float | None = None
    leaders: tuple[tuple[str, float], ...] = ()
