"""A sweep in one of the four formats, piece by piece, so that memory does not grow with its points.

sweep_chunks(result, form, style) -> pieces of text that make the document
sweep_rows(result) -> one row a point, for CSV
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from shardwright.documents import rounded, yaml_text
from shardwright.planner.report import rows
from shardwright.planner.report.output import json_text
from shardwright.planner.report.style import Style, to_text
from shardwright.planner.sweep.run import SweepResult
from shardwright.planner.sweep.scaling import Series, job_of, measures, series_of

DERIVED = ("efficiency", "exposed_share", "doubling_gain", "headroom_bytes")


def sweep_chunks(result: SweepResult, form: str, style: Style) -> Iterator[str]:
    """The document in pieces; joined they are the whole."""
    if form == "json":
        yield from _json_chunks(result)
    elif form == "csv":
        yield from _csv_chunks(result)
    elif form == "yaml":
        yield yaml_text(rounded(result.to_dict()))
    else:
        from shardwright.planner.report.sweep_table import sweep_parts

        yield to_text(sweep_parts(list(result.records()), result.asked), style)


def _json_chunks(result: SweepResult) -> Iterator[str]:
    before, _, after = json_text(result.head()).partition('"points": []')
    yield before + '"points": ['
    separator = "\n"
    for record in result.records():
        text = json.dumps(record, indent=2, allow_nan=False).replace("\n", "\n    ")
        yield f"{separator}    {text}"
        separator = ",\n"
    yield ("\n  ]" if result.points else "]") + after


def _csv_chunks(result: SweepResult) -> Iterator[str]:
    columns: list[str] = []
    for row in sweep_rows(result):
        columns = columns if len(columns) >= len(row) else list(row)
    yield rows.csv_text([], columns)
    for row in sweep_rows(result):
        yield rows.csv_text([row], columns).partition("\n")[2]


def sweep_rows(result: SweepResult) -> Iterator[dict[str, Any]]:
    """One row a point: key, status, what is derived of its series, and the best plan as in the CSV of `plan`."""
    places = _places(result)
    for record in result.records():
        row = {**record["key"], **{name: record[name] for name in ("status", "reason", "result_digest")}}
        found = measures(record)
        if found is None:
            yield rounded(row)
            continue
        series, at = places[_name(job_of(record["key"]), found.gpus)]
        derived = (series.efficiency(at), found.exposed_share, series.gain(at), found.headroom_bytes)
        yield rounded(row | dict(zip(DERIVED, derived, strict=True)) | rows.estimate_rows(record["best"])[0])


def _places(result: SweepResult) -> dict[str, tuple[Series, int]]:
    """Where each point stands in its series."""
    made = {}
    for series in series_of(result.records()):
        for at, one in enumerate(series.sizes):
            made[_name(series.key, one.gpus)] = series, at
    return made


def _name(job: dict[str, Any], gpus: int) -> str:
    return json.dumps([job, gpus])
