"""How many distinct places a token's experts live in, where every choice of experts is as likely as any other.

With E experts in G groups, of which a token may use g, it picks g groups and then k of the E·g/G experts in them. Of n places
that hold E/n experts each, it meets

    n · P(x groups of the place are picked) · (1 − Π_{j<k} (E·g/G − w − j) / (E·g/G − j))        `Routing.places`

summed over x, with w the experts of the place in picked groups: x·E/G where a place holds whole groups (x hypergeometric),
E/n where it is a part of one. Without groups (G = g = 1) this is n · (1 − C(E − E/n, k) / C(E, k)).
Group-limited routing: arXiv 2405.04434 section 2.1.3 (a token goes to few nodes), arXiv 2412.19437 section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import comb

import numpy as np

from shardwright.planner.plans import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Experts, how many of them a token uses, groups they form, and how many of these it may use."""

    experts: int
    topk: int
    groups: int = 1
    topk_groups: int = 1

    @classmethod
    def of(cls, dims: Mapping[str, int]) -> Routing:
        """The routing of a layer with experts, from its dims."""
        groups = dims.get("expert_groups", 1)
        return cls(experts=dims["experts"], topk=dims["topk"], groups=groups, topk_groups=dims.get("topk_groups", groups))

    def places(self, count: FloatArray) -> FloatArray:
        """Expected distinct places that a token's experts live in, of so many that share all experts evenly, any shape."""
        counts, inverse = np.unique(np.asarray(count, dtype=np.float64), return_inverse=True)
        return np.array([_places(self, float(n)) for n in counts])[inverse].reshape(np.shape(count))


@lru_cache(maxsize=4096)
def _places(routing: Routing, count: float) -> float:
    each, groups, picked = routing.experts / count, routing.groups, routing.topk_groups
    if count >= groups:
        return count * picked / groups * _met(routing, each)
    held = max(round(groups / count), 1)
    ways = comb(groups, picked)
    chances = ((x, comb(held, x) * comb(groups - held, picked - x) / ways) for x in range(1, min(held, picked) + 1))
    return count * sum(chance * _met(routing, x * routing.experts / groups) for x, chance in chances)


def _met(routing: Routing, own: float) -> float:
    """Chance that one of a token's experts is among `own` of those in its groups."""
    able, missed = routing.experts * routing.topk_groups / routing.groups, 1.0
    for drawn in range(routing.topk):
        missed *= max((able - own - drawn) / (able - drawn), 0.0) if able > drawn else 0.0
    return 1.0 - missed
