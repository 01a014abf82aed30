"""The records that `size` prints: clusters that meet a target, and what became of every size."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shardwright.planner.records.schema import (
    Assumption,
    ClusterIdentity,
    Count,
    Degree,
    Estimate,
    ModelIdentity,
    Record,
    Seconds,
    TrainingIdentity,
)


class SizeTarget(Record):
    """Tokens to train, and one of three limits; the others are null."""

    tokens: Degree
    days: float | None
    budget_usd: float | None
    tokens_per_s: float | None


class SizedCluster(ClusterIdentity):
    """A cluster of one node type, with the price in force."""

    node: str
    usd_per_gpu_hour: float
    price_source: str


class RunOutcome(Record):
    """A whole run: wall-clock time with failures, cost, checkpoints."""

    steps: Degree
    step_time_s: Seconds
    days: float
    days_low: float = Field(description="at the least published rate of failures")
    days_high: float = Field(description="at the greatest")
    usd: float = Field(description="of the wall-clock time")
    usd_low: float
    usd_high: float
    mwh: float | None = Field(description="energy of the site")
    tokens_per_s: float = Field(description="useful ones, over the wall-clock time")
    goodput_fraction: float
    interruptions: float = Field(ge=0, description="expected")
    mtti_s: Seconds | None
    restart_s: Seconds
    checkpoint_interval_s: Seconds | None
    checkpoint_s: Seconds = Field(description="training stops so long for one")
    checkpoint_bytes_per_rank: float


class Spare(Record):
    """The fastest run that is left with some nodes lost; null where there is none."""

    lost: Degree
    nodes: Count
    nodes_used: Degree | None
    plan: Estimate | None
    reason: str | None
    steps: Degree | None = None
    step_time_s: Seconds | None = None
    days: float | None = None
    days_low: float | None = None
    days_high: float | None = None
    usd: float | None = None
    usd_low: float | None = None
    usd_high: float | None = None
    mwh: float | None = None
    tokens_per_s: float | None = None
    goodput_fraction: float | None = None
    interruptions: float | None = None
    mtti_s: Seconds | None = None
    restart_s: Seconds | None = None
    checkpoint_interval_s: Seconds | None = None
    checkpoint_s: Seconds | None = None
    checkpoint_bytes_per_rank: float | None = None


class SizeAnswer(RunOutcome):
    """The best cluster by one criterion."""

    criterion: Literal["smallest", "cheapest", "fastest"]
    cluster: SizedCluster
    plan: Estimate
    meets_at_worst: bool = Field(description="whether the target is met at the greatest published rate of failures too")
    spare: Spare | None = Field(None, description="left out with --spare 0")


class NearestSize(RunOutcome):
    """Where no size meets the target: the one that misses it by the least factor."""

    cluster: SizedCluster
    excess: float = Field(description="by which factor it misses")
    plan: Estimate


class SizeBound(Record):
    """What is known of a node type without planning."""

    excluded_up_to_nodes: Degree | None
    reason: str | None
    least_days: float = Field(description="of the largest size: every FLOP at full rate, no failures")
    least_usd: float = Field(description="of any size, likewise")
    searched: Count


class SizeRow(Record):
    """One size."""

    node: str
    nodes: Degree
    gpus: Degree
    status: Literal["excluded", "beaten", "no plan", "nothing fits", "misses", "meets"]
    reason: str | None
    least_days: float
    least_usd: float
    step_time_s: Seconds | None
    days: float | None
    days_low: float | None
    days_high: float | None
    usd: float | None
    tokens_per_s: float | None


class SizeRun(Record):
    """What differs from run to run."""

    wall_s: Seconds
    cpu_s: Seconds


class SizeResult(Record):
    """What `size --format json` prints."""

    schema_version: Literal[1]
    kind: Literal["size-result"]
    target: SizeTarget
    model: ModelIdentity
    training: TrainingIdentity
    assumptions: list[Assumption]
    answers: list[SizeAnswer] = Field(description="smallest, cheapest, fastest; empty where no size meets the target")
    nearest: NearestSize | None
    bound: dict[str, SizeBound] = Field(description="by node type")
    sizes: list[SizeRow] = Field(description="every size, by GPUs")
    run: SizeRun
