"""What a cluster is to do: train so many tokens within days, within a budget, or at a rate.

    days     D:  wall-clock days of the run, failures considered, are at most D
    budget   U:  USD of the run are at most U
    rate     R:  useful tokens a second, failures considered, are at least R

`Target.excess` says by which factor an outcome misses it: at most 1 where it is met.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.planner.sizing.outcome import Outcome

_TOKENS = re.compile(r"(\d+(?:\.\d+)?(?:[eE]\+?\d{1,2})?)\s*([KMBT]?)", re.IGNORECASE)
_SCALES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
MOST_TOKENS = 10**18
WAYS = "--days D, --budget USD or --tokens-per-s R"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Tokens to train, and one of three limits.

    Attributes:
        tokens: of the whole run.
        days: wall-clock days at most.
        budget_usd: USD at most.
        tokens_per_s: useful tokens a second at least.
    """

    tokens: int
    days: float | None = None
    budget_usd: float | None = None
    tokens_per_s: float | None = None

    def __post_init__(self) -> None:
        limits = {"--days": self.days, "--budget": self.budget_usd, "--tokens-per-s": self.tokens_per_s}
        given = {name: value for name, value in limits.items() if value is not None}
        if not given:
            raise InvalidValueError("no target", where="--days", hint=f"give {WAYS}")
        if len(given) > 1:
            raise ConflictError(f"{' and '.join(given)} are both given", where=list(given)[1], hint="keep one of them")
        for name, value in given.items():
            if not math.isfinite(value) or value <= 0:
                raise InvalidValueError(f"{name} is {value:g}", where=name, hint="give a positive number")
        if not 1 <= self.tokens <= MOST_TOKENS:
            raise InvalidValueError(f"{self.tokens} tokens", where="--tokens", hint=f"give 1 to {MOST_TOKENS:.0e}")

    def excess(self, outcome: Outcome) -> float:
        """By which factor an outcome misses the target; at most 1 where it is met."""
        if self.days is not None:
            return outcome.days / self.days
        if self.budget_usd is not None:
            return outcome.usd / self.budget_usd
        return (self.tokens_per_s or 0.0) / outcome.tokens_per_s

    def worst_excess(self, outcome: Outcome) -> float:
        """The same at the greatest published rate of failures."""
        slower = outcome.days_high / outcome.days
        return self.excess(outcome) * slower

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; limits not given are null."""
        return {"tokens": self.tokens, "days": self.days, "budget_usd": self.budget_usd, "tokens_per_s": self.tokens_per_s}


def parse_tokens(text: str) -> int:
    """A number of tokens as people write it: 15T, 300B, 1.5e12.

    Raises:
        InvalidValueError: it is none.
    """
    found = _TOKENS.fullmatch(text.strip())
    if found is None:
        raise InvalidValueError(f"{text[:40]!r} is no number of tokens", where="--tokens", hint="write 15T, 300B or 1.5e12")
    return round(float(found[1]) * _SCALES[found[2].upper()])
