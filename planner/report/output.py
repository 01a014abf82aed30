"""A result in one of the four formats.

    render(data, form, style) -> text, by data["kind"]

`json` and `yaml` carry everything, floats rounded to 12 significant digits; `csv` carries the rows; `table` is
for reading.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from shardwright.documents import rounded, yaml_text
from shardwright.errors import unknown_name
from shardwright.planner.report.style import Style

FORMATS = ("table", "json", "yaml", "csv")

ROWS_OF: Mapping[str, str] = {
    "calibration": "fits",
    "explanation": "waterfall",
    "comparison": "parts",
    "size-result": "sizes",
    "run-result": "trials",
    "tune-result": "plans",
}
"""Lists of mappings that are the rows of a document."""


def checked_format(name: str) -> str:
    """The format's name.

    Raises:
        UnknownNameError: it is none of `FORMATS`.
    """
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS, where="--format")
    return name


def render(data: Mapping[str, Any], form: str, style: Style) -> str:
    """The result as text that ends with a line break.

    Raises:
        UnknownNameError: a format there is none of.
    """
    checked_format(form)
    if form == "json":
        return json_text(data)
    if form == "yaml":
        return yaml_text(rounded(data))
    return _csv(rounded(data)) if form == "csv" else _table(data, style)


def json_text(data: Mapping[str, Any]) -> str:
    """One JSON document, keys in their order, ASCII only."""
    return json.dumps(rounded(data), indent=2, allow_nan=False) + "\n"


def _table(data: Mapping[str, Any], style: Style) -> str:
    from shardwright.planner.report.calibration_output import calibration_parts
    from shardwright.planner.report.comparison_table import comparison_parts
    from shardwright.planner.report.emission_table import emission_parts
    from shardwright.planner.report.estimate_table import estimate_parts
    from shardwright.planner.report.explanation_table import explanation_parts
    from shardwright.planner.report.html.record_table import report_parts
    from shardwright.planner.report.listing_table import listing_parts
    from shardwright.planner.report.plan_table import plan_parts
    from shardwright.planner.report.run_table import run_parts
    from shardwright.planner.report.sharding_table import sharding_parts
    from shardwright.planner.report.size_table import size_parts
    from shardwright.planner.report.style import to_text
    from shardwright.planner.report.sweep_table import sweep_parts
    from shardwright.planner.report.tune_table import tune_parts
    from shardwright.planner.report.validation_table import validation_parts

    parts: dict[str, Callable[[Mapping[str, Any]], list[Any]]] = {
        "plan-result": plan_parts,
        "estimate": estimate_parts,
        "validation": validation_parts,
        "emission": emission_parts,
        "calibration": calibration_parts,
        "explanation": explanation_parts,
        "comparison": comparison_parts,
        "size-result": size_parts,
        "sharding": sharding_parts,
        "report": report_parts,
        "sweep-result": lambda sweep: sweep_parts(sweep["points"], sweep["asked"]),
        "run-result": run_parts,
        "tune-result": tune_parts,
    }
    return to_text(parts.get(data["kind"], listing_parts)(data), style)


def _csv(data: Mapping[str, Any]) -> str:
    from shardwright.planner.report import rows

    return rows.csv_text(rows_of(data), rows.plan_columns(data) if data["kind"] == "plan-result" else ())


def rows_of(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A document as flat rows: what CSV and frames hold."""
    from shardwright.planner.report import rows

    made: dict[str, Callable[[Mapping[str, Any]], list[dict[str, Any]]]] = {
        "plan-result": rows.plan_rows,
        "estimate": rows.estimate_rows,
        "validation": rows.validation_rows,
        "sharding": rows.sharding_rows,
        "emission": lambda emission: [{"file": name} for name in emission["files"]],
        "sweep-result": lambda sweep: [rows.point_row(point) for point in sweep["points"]],
        "report": lambda report: [{"file": name} for name in (report["file"], *report["figures"])],
    }
    if data["kind"] in made:
        return made[data["kind"]](data)
    if data["kind"] in ROWS_OF:
        return rows.flat_rows(data[ROWS_OF[data["kind"]]])
    return rows.flat_rows(data.get("items", [data.get("item", {})]))
