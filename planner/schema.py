"""The shape of what shardwright prints, published; and such files read back.

    json_schema(name)        the JSON Schema that `shardwright schema NAME` prints
    read_result(path)        a plan-result or an estimate, checked
    read_plan(path, rank)    (inputs, estimate) of one plan of such a file

A file is JSON, or the folder that `plan -o` wrote, or `-` for standard input. Whatever is damaged is refused with
its place. The records of plans are in `shardwright.planner.records.schema`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from shardwright.documents import RESULT_LIMIT_BYTES, Document, parse_json, read_text, validate
from shardwright.errors import DamagedFileError, InvalidValueError, ShardwrightError, UnsupportedError, unknown_name
from shardwright.planner.records.execution.schema import RunRecord, TuneRecord
from shardwright.planner.records.explanation.schema import Comparison, Explanation
from shardwright.planner.records.schema import AnyEstimate, Count, Degree, Estimate, PlanResult, Record
from shardwright.planner.records.sharding.schema import Sharding
from shardwright.planner.records.sizing.schema import SizeResult
from shardwright.planner.records.sweep.schema import SweepResult

SCHEMA_VERSION = 1
RESULT_FILE = "result.json"


class ValidationRow(Record):
    """One measured run and its prediction."""

    id: str
    source_group: str
    status: Literal["ok", "skipped"]
    reason: str | None
    measured_step_time_s: float | None
    predicted_step_time_s: float | None
    error: float | None
    interval_low_s: float | None
    interval_high_s: float | None
    measured_peak_gib: float | None
    predicted_peak_gib: float | None
    memory_error: float | None
    outcome: str | None
    predicted_fits: bool | None
    scored: bool = Field(description="whether its step time counts in the summaries")
    interval_kind: str | None = Field(description="kind of run whose errors the interval is as wide as")
    labels: dict[str, str] = Field(description="hardware, kind, scale, precision; empty where the row was skipped")
    time_shares: dict[str, float] = Field(description="parts of the predicted step over the whole")
    stack: str | None
    measured_from: str | None = Field(description="the column the measured step time was taken or computed from")
    defaults: list[str] = Field(description="what the row left open, and what was taken for it")


class ValidationSummary(Record):
    """Errors of a group of runs; absolute, except bias."""

    rows: Count
    scored: Count
    skipped: Count
    median: float | None
    mean: float | None
    p90: float | None
    bias: float | None
    memory_median: float | None
    memory_p90: float | None
    oom_called: float | None
    ran_refused: float | None
    tau: float | None
    regret: float | None
    jobs_ranked: Count = Field(description="jobs of which two plans or more were measured: what tau and regret are means over")
    interval_coverage: float | None = Field(description="share of measured times inside the interval")
    interval_width: float | None = Field(description="mean width of the interval over the predicted time")
    groups: Count = Field(description="source groups averaged")


class Validation(Record):
    """What `validate --format json` prints."""

    schema_version: Literal[1] = 1
    kind: Literal["validation"]
    fit: Literal["all", "none", "loso"]
    anchor: Literal["none", "first"]
    by: Literal["source", "hardware", "kind", "scale", "precision"] = Field(description="what the table is by")
    note: str
    unscored_groups: list[str] = Field(description="reported, and left out of the summary")
    rows: list[ValidationRow]
    by_source: dict[str, ValidationSummary]
    by_hardware: dict[str, ValidationSummary] = Field(description="by generation of device, averaged over sources")
    by_kind: dict[str, ValidationSummary] = Field(description="dense, experts, fine-tuning")
    by_scale: dict[str, ValidationSummary] = Field(description="by number of GPUs")
    by_precision: dict[str, ValidationSummary] = Field(description="by format of the products")
    summary: ValidationSummary


class Emission(Record):
    """What `emit --format json` prints."""

    schema_version: Literal[1] = 1
    kind: Literal["emission"]
    target: str = Field(description="the framework the files are for")
    target_version: str = Field(description="its release")
    launcher: str
    folder: str = Field(description="where the bundle was written")
    files: Annotated[list[str], Field(min_length=1)] = Field(description="paths within the folder, in alphabetical order")
    plan_id: str = Field(description="short name of the plan: equal for equal degrees and stages")
    nodes: Degree
    gpus_per_node: Degree
    start: str = Field(description="what to type in the folder")
    check: str = Field(description="asks the framework's own parser, in the folder")
    needs: dict[str, str] = Field(description="environment variables to set before: name -> what it holds")
    notes: list[str]


class Report(Record):
    """What `report --format json` prints."""

    schema_version: Literal[1] = 1
    kind: Literal["report"]
    file: str = Field(description="the HTML file")
    bytes: Count
    rank: Degree | None = Field(description="plan shown in detail; null for a sweep")
    pictures: list[str] = Field(description="ids of the pictures, as the embedded data names them")
    figures: list[str] = Field(description="files of --figures")
    notes: list[str]


KINDS: Mapping[str, Any] = {
    "plan-result": PlanResult,
    "estimate": AnyEstimate,
    "validation": Validation,
    "emission": Emission,
    "explanation": Explanation,
    "comparison": Comparison,
    "report": Report,
    "sweep-result": SweepResult,
    "size-result": SizeResult,
    "run-result": RunRecord,
    "tune-result": TuneRecord,
    "sharding": Sharding,
}
READABLE: Mapping[str, Any] = {"plan-result": PlanResult, "estimate": Estimate}
INPUT_KINDS = ("calibration", "cluster", "model", "sweep")


def schema_names() -> tuple[str, ...]:
    """What `json_schema` knows."""
    return (*KINDS, *INPUT_KINDS)


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of one of the printed or read documents.

    Raises:
        UnknownNameError: there is none of that name.
    """
    record: Any = KINDS.get(name)
    if name == "cluster":
        from shardwright.hardware.schema import ClusterFile

        record = ClusterFile
    elif name == "calibration":
        from shardwright.hardware.calibrations.schema import CalibrationFile

        record = CalibrationFile
    elif name == "model":
        from shardwright.models.schema import ModelRecord

        record = ModelRecord
    elif name == "sweep":
        from shardwright.planner.records.sweep.schema import SweepFile

        record = SweepFile
    if record is None:
        raise unknown_name("schema", name, schema_names(), where="NAME")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **record.model_json_schema()}


def read_result(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """A plan-result or an estimate.

    Args:
        source: a JSON file, a folder that `plan -o` wrote, `-` for standard input, or what such a file holds.

    Raises:
        DamagedFileError: it cannot be read, is cut off, or is something else.
        UnsupportedError: written by another version of the format.
        InvalidValueError, UnknownNameError: a value or key that cannot be, with its line.
    """
    document = _document(source)
    _check_kind(document)
    if document.data["kind"] == "estimate" and document.data.get("predicted", 0) is None:
        message = f"{document.source} holds a plan that cannot be priced"
        raise InvalidValueError(message, where=document.place("predicted"), hint="see its violations for remedies")
    validate(READABLE[document.data["kind"]], document)
    return document.data


def read_plan(source: str | Path | Mapping[str, Any], rank: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """One plan of a file, with the inputs it was made from.

    Args:
        source: as for `read_result`.
        rank: 1-based; an estimate has rank 1 only.

    Returns:
        (inputs, estimate).

    Raises:
        ShardwrightError: as `read_result`; and a rank the file does not have.
    """
    name = "the result" if isinstance(source, Mapping) else str(source)
    return plan_of(read_result(source), rank, name)


def plan_of(data: dict[str, Any], rank: int, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """One plan of a document that `read_result` read, as `read_plan` returns it; `name` is for messages."""
    plans = data["plans"] if data["kind"] == "plan-result" else [data]
    if not plans:
        message = f"{name} holds no plan: nothing fitted"
        raise InvalidValueError(message, where="--plan", hint="see its near_misses for remedies")
    if not 1 <= rank <= len(plans):
        allowed = "1" if len(plans) == 1 else f"1 to {len(plans)}"
        raise InvalidValueError(f"{name} has no rank {rank}", where="--rank", hint=f"it has {allowed}")
    return data["inputs"], plans[rank - 1]


_EXPECTED = "give what `plan --format json`, `plan -o` or `estimate --format json` wrote"


def _document(source: str | Path | Mapping[str, Any]) -> Document:
    if isinstance(source, Mapping):
        return Document(data=dict(source), source="result", text="")
    if str(source) == "-":
        return _standard_input()
    if not str(source):
        raise DamagedFileError("no result is named", where="RESULT", hint=_EXPECTED)
    place = Path(source)
    if place.is_dir():
        if not (place / RESULT_FILE).is_file():
            raise DamagedFileError(f"{place} holds no {RESULT_FILE}", where=str(place), hint=_EXPECTED)
        place = place / RESULT_FILE
    try:
        return parse_json(read_text(place, limit_bytes=RESULT_LIMIT_BYTES), str(place))
    except ShardwrightError as error:
        error.hint = error.hint or _EXPECTED
        raise


def _standard_input() -> Document:
    name = "standard input"
    try:
        return parse_json(sys.stdin.read(RESULT_LIMIT_BYTES), name)
    except (UnicodeDecodeError, AttributeError) as error:  # no text, or closed
        raise DamagedFileError(f"{name} cannot be read as text", where=name, hint=_EXPECTED) from error
    except ShardwrightError as error:
        error.hint = error.hint or _EXPECTED
        raise


def _check_kind(document: Document) -> None:
    kind = document.data.get("kind")
    if not isinstance(kind, str) or kind not in READABLE:
        said = f"is of kind {str(kind)[:60]!r}" if kind is not None else "has no key `kind`"
        raise DamagedFileError(f"{document.source} {said}", where=document.place("kind"), hint=_EXPECTED)
    version = document.data.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise UnsupportedError(
            f"{document.source} has schema_version {str(version)[:60]}; this version reads {SCHEMA_VERSION}",
            where=document.place("schema_version"),
            hint="read it with the version that wrote it, or plan again",
        )
