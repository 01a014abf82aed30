"""The step as a waterfall: each of the ten parts of `time` starts where the one above ends; together they are the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.html import bars
from shardwright.planner.report.html.picture import Picture, Table
from shardwright.planner.report.time_table import LABELS


def time_picture(plan: Mapping[str, Any]) -> Picture:
    """The picture of one ESTIMATE; parts of zero are left out of the drawing."""
    time = plan["time"]
    total = sum(time[name] for name in LABELS)
    rows, start = [], 0.0
    for name, label in LABELS.items():
        if time[name] > 0:
            rows.append(_row(name, label, (start, time[name]), total))
        start += time[name]
    rows.append(_row("step", "step", (0.0, plan["predicted"]["step_time_s"]), total))
    return Picture(
        id="time",
        title="Where the step goes",
        caption="Seconds of one step on the stage that determines it; only exchange that nothing hides counts.",
        data={"step_time_s": plan["predicted"]["step_time_s"], **{name: time[name] for name in LABELS}},
        body=bars.drawn(rows),
        height=bars.height(rows),
        table=Table(
            columns=("part", "time", "share"),
            rows=[
                *((label, words.seconds(time[name]), words.percent(time[name] / total)) for name, label in LABELS.items()),
                ("step", words.seconds(total, 4), words.percent(1.0)),
            ],
        ),
    )


def _row(name: str, label: str, span: tuple[float, float], total: float) -> bars.Row:
    start, seconds = span
    share = words.percent(seconds / total)
    segment = bars.Segment(
        start=start / total,
        end=(start + seconds) / total,
        class_="p-" + name.removesuffix("_s"),
        title=f"{words.seconds(seconds, 4)}, {share}",
        key=name,
        value=seconds,
    )
    step = name == "step"
    reading = words.seconds(seconds, 4) if step else f"{words.seconds(seconds)} · {share}"
    return bars.Row(label=label, reading=reading, segments=(segment,), index=name, strong=step)
