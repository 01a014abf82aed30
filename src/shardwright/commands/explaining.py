"""`explain` and `compare`: why a plan costs what it costs, and how two plans differ."""

from __future__ import annotations

from typing import Annotated

from shardwright.commands import console
from shardwright.planner.report import options as o


def explain(result: o.Result, rank: o.Rank = None, why_not: o.WhyNot = None, form: o.Format = "table") -> int:
    """Say where the time of a plan goes, and what would change it."""
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    from shardwright.planner.explanation.explain import explain as explained

    return console.finished(explained(result, rank=rank, why_not=tuple(why_not or ())), form)


def compare(
    one: Annotated[str, o.argument("A", "what plan or estimate wrote, or Megatron-LM arguments")],
    other: Annotated[str, o.argument("B", "the same; deltas are B - A")],
    rank_a: Annotated[int | None, o.option(o.INPUTS, "which plan of A (1)", metavar="N", min=1)] = None,
    rank_b: Annotated[int | None, o.option(o.INPUTS, "which plan of B (1)", metavar="N", min=1)] = None,
    cluster: o.Cluster = None,
    model: Annotated[str | None, o.option(o.INPUTS, "model of arguments that describe none", metavar="MODEL")] = None,
    define: o.Define = None,
    tolerance: Annotated[float | None, o.option(o.OUTPUT, "exit 1 if the steps differ by more", metavar="PCT")] = None,
    form: o.Format = "table",
) -> int:
    """Compare two plans part by part, and name what counts."""
    from shardwright.planner.report import asked
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    from shardwright.planner.explanation.comparison import compare as compared

    result = compared(
        one,
        other,
        rank_a=rank_a,
        rank_b=rank_b,
        tolerance_percent=tolerance,
        cluster=cluster,
        model=model,
        defined=asked.defined(define or ()),
    )
    return console.finished(result, form)
