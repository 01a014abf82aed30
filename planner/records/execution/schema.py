"""The record that `run` prints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shardwright.planner.records.degrees.schema import Parallel
from shardwright.planner.records.schema import Bytes, ClusterIdentity, Count, Degree, ModelIdentity, Record, Seconds


class HostMachine(Record):
    """What it ran on."""

    gpus: Count = Field(description="devices PyTorch sees")
    gpu: str | None = Field(description="name of the first")
    cores: Degree
    torch: str = Field(description="version of PyTorch")


class RunModel(Record):
    """The model that was trained."""

    name: str
    layers: Degree
    parameters: Count


class Measured(Record):
    """What the processes reported."""

    step_time_s: Seconds = Field(description="median of the steps after two that warm up")
    step_times_s: list[Seconds]
    tokens_per_s: float
    peak_memory_bytes: Bytes = Field(description="of the fullest rank: allocated on its GPU, the whole process on a CPU")
    losses: list[float]


class PredictedRun(Record):
    """What was predicted of the plan, on the planned cluster."""

    step_time_s: Seconds
    allocated_bytes: Bytes


class Trial(Record):
    """One plan, run."""

    rank: Degree
    status: Literal["ok", "failed", "timeout", "refused"]
    reason: str | None
    device: Literal["cuda", "cpu"] | None
    ranks: Degree | None = Field(description="processes")
    model: RunModel
    seq_len: Degree
    global_batch: Degree
    parallel: Parallel
    miniature: dict[str, Annotated[list[int], Field(min_length=2, max_length=2)]] | None = Field(
        description="what is smaller than planned: name -> [planned, run]; null where the plan itself ran"
    )
    measured: Measured | None
    predicted: PredictedRun | None
    not_comparable: str | None = Field(description="why the measurement says nothing of the prediction")
    error: float | None = Field(description="predicted / measured - 1 of the step time")
    memory_error: float | None = Field(description="predicted / measured - 1 of allocated memory")
    wall_s: Seconds | None


class RunInfo(Record):
    """The run itself."""

    wall_s: Seconds
    version: str


class RunRecord(Record):
    """What `run --format json` prints."""

    schema_version: Literal[1] = 1
    kind: Literal["run-result"]
    machine: HostMachine
    steps: Degree
    scale_down: bool
    trials: list[Trial]
    stopped: Literal["interrupted"] | None
    run: RunInfo


class MeasuredPlan(Record):
    """A plan that was measured, and what it was predicted to take without and with what was learned."""

    rank: Degree = Field(description="in the RESULT")
    id: str
    measured_step_time_s: Seconds
    before_step_time_s: Seconds
    after_step_time_s: Seconds


class TunedPlan(Record):
    """A plan of the list after tuning."""

    rank: Degree = Field(description="by measured time where there is one, else by predicted time")
    id: str
    rank_before: Degree | None = Field(description="in the RESULT; null if it was not listed there")
    parallel: Parallel
    before_step_time_s: Seconds = Field(description="predicted without what was learned")
    step_time_s: Seconds = Field(description="predicted with it")
    measured_step_time_s: Seconds | None


class SiteParts(Record):
    """Times of the site over modelled times."""

    device: float
    host: float
    scaleup: float
    scaleout: float


class TuneRecord(Record):
    """What `tune --format json` prints."""

    schema_version: Literal[1] = 1
    kind: Literal["tune-result"]
    model: ModelIdentity
    cluster: ClusterIdentity
    source: Literal["stated", "run"]
    trials: list[Trial]
    measured: list[MeasuredPlan]
    site: SiteParts | None = Field(description="null where nothing that was measured can be compared")
    plans: list[TunedPlan]
    warnings: list[str] = Field(description="measured steps far from their predictions")
    stopped: Literal["interrupted"] | None
    run: RunInfo
