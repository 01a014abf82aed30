"""Where the time of one step goes: the ten parts of `time` as bars, and as one sentence.

step_time_s = compute + recompute + exposed (tp, cp, ep, pp, dp) + bubble + optimizer + other
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.style import BARS, table

LABELS = {
    "compute_s": "compute",
    "recompute_s": "recompute",
    "exposed_tp_s": "tensor parallel, exposed",
    "exposed_cp_s": "context parallel, exposed",
    "exposed_ep_s": "expert parallel, exposed",
    "exposed_pp_s": "pipeline sends, exposed",
    "exposed_dp_s": "data parallel, exposed",
    "bubble_s": "bubble and imbalance",
    "optimizer_s": "optimizer",
    "other_s": "host launches, waiting",
}
BAR = 30


def time_waterfall(time: Mapping[str, float]) -> Any:
    """A bar a part, longest possible bar = the whole step; parts of zero are left out."""
    total = sum(time[name] for name in LABELS)
    shown = table("part", "time", "share", BARS, left=("part",))
    for name, label in LABELS.items():
        if time[name] > 0:
            shown.add_row(
                label, words.seconds(time[name]), words.percent(time[name] / total), words.bar(time[name] / total, BAR)
            )
    shown.add_row("step", words.seconds(total), "100 %")
    return shown


def where_the_step_goes(time: Mapping[str, float]) -> str:
    """The parts above one per cent, largest first."""
    total = sum(time[name] for name in LABELS)
    parts = sorted(((time[name] / total, label) for name, label in LABELS.items()), reverse=True)
    return "; ".join(f"{label} {words.percent(share, 0)}" for share, label in parts if share >= 0.01)
