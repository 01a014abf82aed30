"""The shape of `sweep.yaml`, and of what `sweep --format json` prints.

Keys of `sweep.yaml` are the options' names with underscores. Knobs take one value, a list, a range or `auto`
(`shardwright.planner.sweep.knobs`); all other keys take one value each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shardwright.documents import Document, read_document, validate
from shardwright.errors import DamagedFileError
from shardwright.planner.records.schema import Count, Degree, Fraction, RankedPlan, Record, Seconds

Value = str | int | float
Knob = Annotated[Value | list[Value], Field(description="one value, a list, a range 8..1024x2 or 8..64+8, or auto")]
Words = Annotated[str | list[str], Field(description="one, or a list")]


class SweepFile(BaseModel):
    """A sweep: the product of its knobs, and what holds for all points."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: Words | None = Field(None, description="preset ids, configuration files, or auto: all presets")
    node: Words | None = Field(None, description="node types, or auto: all presets")
    nodes: Knob | None = Field(None, description="numbers of nodes; auto: 1, 2, 4, ... up to 16,384 GPUs")
    gpus: Knob | None = Field(None, description="numbers of GPUs, instead of nodes")
    seq_len: Knob | None = Field(None, description="tokens a sequence; auto: the model's context, at most 8,192")
    global_batch: Knob | None = Field(None, description="sequences a step; auto: 4,194,304 tokens a step")
    batch_per_gpu: Knob | None = Field(None, description="sequences a step for each GPU")
    tokens_per_batch: Knob | None = Field(None, description="tokens a step")
    precision: Words | None = Field(None, description="auto: bf16, or fp16 where the device has no bf16")
    framework: Words | None = None
    optimizer: str | None = None
    grad_dtype: str | None = None
    target_version: str | None = None
    stack: str | None = None
    routing_skew: float | None = Field(None, description="rows of the busiest expert over the mean")
    memory_margin: float | None = Field(None, description="GiB")
    memory_meter: str | None = None
    lora: str | None = None
    freeze: Words | None = None
    calibration: str | None = Field(None, description="path, from where the command runs")
    length_histogram: str | None = Field(None, description="path, from where the command runs")
    set: Words | None = Field(None, description="what-if statements KEY=VALUE")
    objective: str | None = None
    price: Words | None = Field(None, description="NODE=USD_PER_GPU_HOUR, or a YAML file of them")
    allow_subset: bool | None = Field(None, description="plans may use fewer nodes")
    fix: dict[str, Value] | None = Field(None, description="degrees to hold: {tp: 4, pp: 2}")
    effort: str | None = None
    effort_seconds: float | None = Field(None, gt=0, description="deterministic seconds a point; search: 2")
    tie: float | None = Field(None, description="per cent")
    top: int | None = Field(None, ge=1, le=1000, description="plans a point")


MODEL_KEYS = frozenset(("layers", "hidden", "heads", "vocab"))
"""Keys that every model YAML has, and no sweep."""


def is_sweep(name: str) -> bool:
    """Whether a word names a sweep.yaml: a YAML file that is no model.

    Raises:
        DamagedFileError: a YAML file that cannot be read.
    """
    path = Path(name)
    return path.suffix.lower() in {".yaml", ".yml"} and not MODEL_KEYS & read_document(path).data.keys()


def read_sweep(path: Path) -> Document:
    """A sweep.yaml, checked.

    Raises:
        DamagedFileError: it cannot be read.
        UnknownNameError, InvalidValueError: a key or value that cannot be, with its line.
    """
    document = read_document(path)
    validate(SweepFile, document)
    return document


class PointKey(Record):
    """What tells a point from others."""

    model: str
    node: str
    nodes: Degree
    gpus: Degree
    seq_len: Degree
    batch_rule: str = Field(description="the batch as it was stated")
    global_batch: Degree = Field(description="sequences that gives")
    precision: str
    framework: str


class SearchInShort(Record):
    """How far the search of a point came."""

    candidates: Count
    priced: Count
    fits: Count
    best_step_time_s: Seconds | None
    lower_bound_step_time_s: Seconds | None
    gap: Fraction | None
    stopped: str | None


class PointRecord(Record):
    """One point and its best plans."""

    key: PointKey
    status: Literal["ok", "infeasible", "error"]
    reason: str | None = Field(description="why there is no plan")
    result_digest: str | None = Field(description="sha256 of inputs, search and plans of what `plan` prints for the point")
    search: SearchInShort | None
    best: RankedPlan | None
    others: list[RankedPlan] = Field(description="ranks 2 and on, with --top")


class About(Record):
    """What a stored result is about."""

    model: str
    node: str
    nodes: Degree
    gpus: Degree
    seq_len: Degree
    global_batch: Degree
    precision: str
    framework: str
    objective: str


class StoredPoint(Record):
    """The result of a point as a store keeps it."""

    status: Literal["ok", "infeasible", "error"]
    reason: str | None
    result_digest: str | None
    search: SearchInShort | None
    best: RankedPlan | None
    others: list[RankedPlan]
    about: About | None = None

    @model_validator(mode="after")
    def _has_its_plan(self) -> StoredPoint:
        if (self.status == "ok") != (self.best is not None):
            raise ValueError("a plan is there where the status is ok, and only there")
        return self


def stored_point(text: str) -> dict[str, Any]:
    """The result of a point that a store keeps.

    Raises:
        DamagedFileError: the text is something else.
    """
    try:
        StoredPoint.model_validate_json(text)
        return dict(json.loads(text))
    except (ValidationError, ValueError, RecursionError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        message = f"the store holds a damaged result: {first}"
        raise DamagedFileError(message, where="--store", hint="remove the file and sweep again, or name a new one") from error


class Knee(Record):
    """Where growing stops paying."""

    nodes: Degree
    gpus: Degree
    gain_before: float = Field(description="what a doubling adds up to there, as a share")
    gain_beyond: float


class ScalePoint(Record):
    """One size of a series."""

    nodes: Degree
    gpus: Degree
    tokens_per_s: float
    efficiency: float = Field(description="tokens a second of a GPU, over those of the smallest size that fits")
    exposed_share: Fraction = Field(description="of the step, over all axes")
    doubling_gain: float | None = Field(description="throughput that a doubling adds, from the size before to this one")
    changed: dict[str, list[Any]] = Field(description="degrees that differ from the size before: old and new value")


class Scaling(Record):
    """The same job on other numbers of nodes."""

    key: dict[str, Any]
    sizes: list[ScalePoint]
    knee: Knee | None = Field(description="null where there is none, or fewer than four sizes")


class SweepRun(Record):
    """What differs from run to run."""

    wall_s: Seconds
    computed: Count = Field(description="points evaluated in this run")
    reused: Count = Field(description="points that the store held")
    engine: str
    workers: Degree
    version: str


class SweepResult(Record):
    """What `sweep --format json` prints."""

    schema_version: Literal[1]
    kind: Literal["sweep-result"]
    asked: Count = Field(description="points of the sweep")
    stopped: Literal["interrupted"] | None = Field(description="points not finished are left out")
    points: list[PointRecord]
    scaling: list[Scaling]
    run: SweepRun
