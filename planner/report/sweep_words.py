"""Words and numbers that the table and the picture of a sweep share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.sweep.scaling import Knee

_SAID = {"seq_len": "tokens a sequence", "batch_rule": "a step"}


def thousands(value: float) -> str:
    """A number with three digits, in thousands (k), millions (M) or billions (B)."""
    for limit, factor, unit in ((1e3, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if abs(value) < limit:
            return words.digits(value / factor) + unit
    return words.digits(value / 1e9) + "B"


def knee_text(knee: Knee) -> str:
    """The knee in a sentence."""
    gains = words.percent(knee.beyond, 0), words.percent(knee.before, 0)
    return f"beyond {words.many(knee.nodes, 'node')} each doubling adds {gains[0]} (up to there {gains[1]})"


def cell(value: Any) -> str:
    """Part of a key as text, numbers with separators."""
    first, _, rest = str(value).partition(" ")
    return " ".join(filter(None, (f"{int(first):,}" if first.isdecimal() else first, rest)))


def job_text(job: Mapping[str, Any]) -> str:
    """A job, or part of its key, on one line."""
    return "; ".join(" ".join([cell(value), *([_SAID[name]] if name in _SAID else [])]) for name, value in job.items())
