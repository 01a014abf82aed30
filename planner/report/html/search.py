"""What became of every candidate, and how far the best may be from the optimum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.html import bars
from shardwright.planner.report.html.picture import Picture, Table


def search_picture(search: Mapping[str, Any]) -> Picture:
    """The picture of the `search` of a plan-result."""
    fates = _fates(search)
    total = max(search["candidates"], 1)
    rows = [_row(name, label, count, total, class_) for name, label, count, class_ in fates if count]
    return Picture(
        id="search",
        title="What the search did",
        caption=f"{words.count(search['candidates'])} candidates, each counted once: under the first rule it breaks, as "
        f"pruned by the bound, or priced.",
        data={**{key: search[key] for key in _KEPT}, "rejected": dict(search["rejected"])},
        body=bars.drawn(rows),
        height=bars.height(rows),
        table=Table(
            columns=("what became of them", "candidates", "share"),
            rows=[(label, words.count(count), words.percent(count / total, 3)) for _, label, count, _ in fates],
        ),
        note=verdict(search),
    )


_KEPT = (
    "candidates",
    "pruned_by_bound",
    "priced",
    "fits",
    "best_step_time_s",
    "lower_bound_step_time_s",
    "gap",
    "proven_optimal",
    "stopped",
)


def _fates(search: Mapping[str, Any]) -> list[tuple[str, str, int, str]]:
    rejected = sorted(((n, rule) for rule, n in search["rejected"].items() if n), key=lambda item: (-item[0], item[1]))
    return [
        *((f"rejected.{rule}", f"rejected: {rule}", n, "q-rejected") for n, rule in rejected),
        ("pruned_by_bound", "pruned by the bound", search["pruned_by_bound"], "q-pruned"),
        ("too_large", "priced, does not fit", search["priced"] - search["fits"], "q-large"),
        ("fits", "priced, fits", search["fits"], "q-fits"),
    ]


def _row(name: str, label: str, count: int, total: int, class_: str) -> bars.Row:
    share = f"{words.count(count)} · {words.percent(count / total, 2)}"
    segment = bars.Segment(start=0.0, end=count / total, class_=class_, title=share, key=name, value=count)
    return bars.Row(label=label, reading=share, segments=(segment,), index=name)


def verdict(search: Mapping[str, Any]) -> str:
    """How good the best plan is known to be, in a sentence."""
    if search["best_step_time_s"] is None:
        return "No plan of this space fits."
    said = f"Best step time {words.seconds(search['best_step_time_s'], 4)}"
    if search["lower_bound_step_time_s"] is not None:
        said += f"; no plan of this space is faster than {words.seconds(search['lower_bound_step_time_s'], 4)}"
        proven = search["proven_optimal"]
        said += ": proven optimal" if proven else f": the gap is {words.percent(search['gap'], 2)}"
    stopped = search["stopped"]
    return said + (f". The search stopped early ({stopped.replace('_', ' ')})." if stopped else ".")
