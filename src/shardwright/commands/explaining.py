"""`explain`: why a plan costs what it costs, and what would change that."""

from __future__ import annotations

from shardwright.commands import console
from shardwright.planner.report import options as o


def explain(result: o.Result, rank: o.Rank = None, why_not: o.WhyNot = None, form: o.Format = "table") -> int:
    """Explain a plan: where its time goes, what binds it, what would change it."""
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    from shardwright.planner.explanation.explain import explain as explained

    return console.finished(explained(result, rank=rank, why_not=tuple(why_not or ())), form)
