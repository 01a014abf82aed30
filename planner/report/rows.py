"""Results as rows for CSV: one a plan, a run, or a listed item, nested keys joined with underscores.

plan_rows(result), estimate_rows(estimate), validation_rows(result) -> list of flat mappings
csv_text(rows) -> text
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PLAN_GROUPS = ("parallel", "predicted", "time")


def plan_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a ranked plan."""
    rows = []
    for plan in result["plans"]:
        place = {"rank": plan["rank"], "tie_group": plan["tie_group"], "id": plan["id"]}
        rows.append(place | _job(result) | _estimate_row(plan))
    return rows


def plan_columns(result: Mapping[str, Any]) -> list[str]:
    """The columns every plan table has, also an empty one."""
    rows = plan_rows(result)
    return list(rows[0]) if rows else ["rank", "tie_group", "id", *_job(result)]


def estimate_rows(estimate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The one row of a priced plan."""
    return [_estimate_row(estimate)]


def validation_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a run, as in `rows`."""
    return [dict(row) for row in result["rows"]]


def point_row(point: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a point of a sweep: its key, its status, and its best plan."""
    row = {**point["key"], **{name: point[name] for name in ("status", "reason", "result_digest")}}
    return row | (_estimate_row(point["best"]) if point.get("best") else {})


def sharding_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row an operator of a distinct layer."""
    plain = ("name", "kind", "divides", "held", "forward_s", "backward_s", "exchange_s", "states_bytes", "runner_up")
    return [
        {"layer": layer["layer"], "count": layer["count"], **_flat({key: operator[key] for key in plain})}
        for layer in result["layers"]
        for operator in layer["operators"]
    ]


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    """RFC 4180 text with a header line; unknown values are empty, lists separated by blanks.

    Text that a spreadsheet would take for a formula is preceded by an apostrophe.
    """
    names = list(dict.fromkeys([*columns, *(key for row in rows for key in row)]))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return stream.getvalue()


def _job(result: Mapping[str, Any]) -> dict[str, Any]:
    training = {k: result["training"][k] for k in ("seq_len", "global_batch", "precision")}
    return {
        "model": result["model"]["name"],
        "cluster": result["cluster"]["name"],
        "gpus": result["cluster"]["gpus"],
        **training,
    }


def _estimate_row(plan: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"feasible": plan["feasible"]}
    for group in PLAN_GROUPS:
        row |= _flat(plan[group] or {})
    memory = plan["memory"] or {}
    row |= {f"memory_{k}": memory.get(k) for k in ("peak_bytes", "capacity_bytes", "peak_stage")}
    return row | {"violations": [v["rule"] for v in plan["violations"]], "expressible_by": plan["expressible_by"]}


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in data.items():
        made |= _flat(value, f"{prefix}{key}_") if isinstance(value, Mapping) else {prefix + key: value}
    return made


def flat_rows(items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Any mappings as flat rows."""
    return [_flat(item) for item in items]


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return _safe(" ".join(str(_cell(v)) for v in value))
    return _safe(value) if isinstance(value, str) else value


def _safe(text: str) -> str:
    return "'" + text if text[:1] in {"=", "+", "-", "@", "\t", "\r"} else text
