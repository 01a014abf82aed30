"""The records of the plans that shardwright prints: plan-result and estimate.

Units are in the names of the keys, unknown is null, every key is always present, no key is unknown. Published as
JSON Schema by `shardwright.planner.schema`, which also reads files back through these records.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from shardwright.planner.records.degrees.schema import Parallel, PartialParallel
from shardwright.planner.records.placement.schema import Placement
from shardwright.planner.records.search.schema import Conflict, Run, Search

Count = Annotated[int, Field(ge=0)]
Degree = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]
Bytes = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Origin = Literal["given", "preset", "default", "inferred"]
Axis = Literal["tp", "cp", "ep", "pp", "dp"]
Interval = Annotated[list[Count], Field(min_length=2, max_length=2)]


class Record(BaseModel):
    """A record without unknown keys, whose values are of the very type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Violation(Record):
    """A rule that the plan breaks, and what would mend it."""

    rule: str
    message: str
    remedy: str


class StageTime(Record):
    """Time of one micro-batch on one stage, recompute inside backward."""

    forward_s: Seconds
    backward_s: Seconds


class StageMemory(Record):
    """What is live at the stage's peak on its most loaded rank; the parts sum to the total."""

    parameters_bytes: Bytes
    gradients_bytes: Bytes
    optimizer_bytes: Bytes
    activations_bytes: Bytes
    logits_bytes: Bytes
    buffers_bytes: Bytes
    reserve_bytes: Bytes
    total_bytes: Bytes
    capacity_bytes: Bytes


class Stage(Record):
    """One pipeline rank."""

    index: Count
    layers: list[Interval | None] = Field(description="first and last layer of each virtual chunk, 0-based, inclusive")
    holds: list[Literal["embedding", "head", "loss", "mtp"]]
    ranks: str = Field(description="all ranks, as ranges and strides: 0-3,8-11 or 0-511:8")
    node_type: str
    time: StageTime
    memory: StageMemory


class StepInterval(Record):
    """Why the interval of the step time is as wide as it is."""

    kind: Literal["routed", "small", "adapters", "transferred", "exchange", "dense"] = Field(description="kind of run")
    runs: Count = Field(description="published runs of that kind whose errors the width was taken from")
    sources: Count = Field(description="sources they come from")
    site_share: float = Field(description="what measured runs of this site leave of the width; 1 without any")


class Predicted(Record):
    """The headline figures."""

    step_time_s: Seconds
    step_time_low_s: Seconds | None = Field(description="80 % of measured runs lie between this and step_time_high_s")
    step_time_high_s: Seconds | None
    interval: StepInterval | None = Field(None, description="what step_time_low_s and step_time_high_s are made of")
    samples_per_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float = Field(description="over the GPUs asked for")
    model_tflops_per_gpu: float
    mfu: float
    flops_convention: Literal["full", "causal"]
    peak_tflops: float
    usd_per_1m_tokens: float | None = Field(description="of the nodes in use, failures left out")
    joules_per_token: float | None = Field(description="of the site: nodes in use, cooling included; failures left out")
    goodput_fraction: float | None = Field(description="share of wall time that is useful, failures and checkpoints considered")
    goodput_low_fraction: Fraction | None = Field(None, description="at the greatest published rate of failures")
    goodput_high_fraction: Fraction | None = Field(None, description="at the least")
    mtti_s: Seconds | None = Field(None, description="mean time to interruption; null without failures")
    checkpoint_interval_s: Seconds | None = Field(None, description="Daly's; null without failures")
    checkpoint_bytes_per_rank: float | None = Field(None, ge=0, description="evenly spread over all ranks")


class Time(Record):
    """Parts of the step on the critical stage; they sum to step_time_s."""

    compute_s: Seconds
    recompute_s: Seconds
    exposed_tp_s: Seconds
    exposed_cp_s: Seconds
    exposed_ep_s: Seconds
    exposed_pp_s: Seconds
    exposed_dp_s: Seconds
    bubble_s: Seconds
    optimizer_s: Seconds
    other_s: Seconds


class Meters(Record):
    """The peak as different meters read it."""

    allocated_bytes: Bytes | None
    reserved_bytes: Bytes | None
    device_bytes: Bytes | None


class Headline(Record):
    """The peak in the meter that was asked for."""

    meter: Literal["allocated", "reserved", "device"]
    bytes: Bytes


class Memory(Record):
    """The fullest stage."""

    peak_bytes: Bytes
    capacity_bytes: Bytes
    peak_stage: Count
    meters: Meters
    headline: Headline
    host_peak_bytes: Bytes | None = Field(description="per node")


class Communication(Record):
    """One kind of collective: totals of a step on the rank that determines it."""

    axis: Axis
    collective: str
    group_size: Degree
    group_stride: Degree = Field(1, description="distance between the ranks of a group; in files of earlier versions left out")
    message_bytes: float = Field(ge=0, description="as nccl-tests counts: the full vector; all-to-all: the send buffer")
    count_per_step: float = Field(ge=0)
    time_s: Seconds
    tail_s: Seconds | None = Field(None, description="on an unlucky set of nodes, 95 %; in files of earlier versions left out")
    exposed_s: Seconds
    algorithm: str | None
    bottleneck_link: str | None
    wire_bytes: float = Field(ge=0, description="sent by the rank, over all of them")


class Link(Record):
    """A link that some collectives wait for most."""

    link: str = Field(description="preset of its curves; cables of the network by the switches they lead out of")
    wire_bytes: float = Field(ge=0, description="sent by the rank in a step, in these collectives")
    busy_s: Seconds = Field(description="time of these collectives in a step")
    utilisation: float = Field(ge=0, description="of the step")


class Account(Record):
    """Where the costs of parallelism are booked."""

    bytes_moved_hbm_per_flop: float | None
    bytes_moved_links_per_flop: float | None
    critical_collectives_per_step: float | None
    largest_message_bytes: float | None
    smallest_message_bytes: float | None
    overlap_covered_fraction: float | None
    bottleneck_link: str | None
    bottleneck_utilisation: float | None
    links: list[Link] = Field(default_factory=list, description="busiest first")


class Source(Record):
    """Where a term of a price comes from."""

    origin: Literal["measured", "transferred", "modelled", "datasheet", "assumed"]
    source: str
    median_error: float | None = Field(None, description="on measurements held out of the fit")


class EstimateBody(Record):
    """One priced plan."""

    feasible: bool
    violations: list[Violation]
    expressible_by: list[str]
    parallel: Parallel
    stages: list[Stage]
    predicted: Predicted
    time: Time
    memory: Memory
    communication: list[Communication]
    account: Account
    sources: dict[str, Source] = Field(description="where each term of the price comes from")
    warnings: list[str]
    placement: Placement | None = Field(None, description="of a plan of `plan`; null where no hosts or switches are named")


class RankedPlan(EstimateBody):
    """A plan of the ranking."""

    rank: Degree
    tie_group: Count
    id: str
    objective_value: float | None = Field(None, description="where plans may use fewer nodes: what they are ranked by")


class Remedy(Record):
    """A change to a plan that does not fit."""

    change: str
    feasible: bool | None = Field(description="null where it was not priced")
    step_time_s: Seconds | None
    peak_bytes: Bytes | None = None


class NearMiss(EstimateBody):
    """A plan that nearly fits."""

    shortage_bytes: Bytes
    remedies: list[Remedy]


class Assumption(Record):
    """A value in force and where it comes from."""

    key: str
    value: Any
    origin: Origin


class Lora(Record):
    """Low-rank adapters."""

    rank: Degree
    targets: Annotated[list[str], Field(min_length=1)]


class TrainingInputs(Record):
    """The training job in full."""

    seq_len: Degree
    global_batch: Degree
    precision: str
    optimizer: str
    grad_bytes: Degree
    lora: Lora | None = Field(None, description="left out where no adapters are trained")
    freeze: list[str] | None = Field(None, description="modules that are not trained; left out where all are")
    length_histogram: list[Interval] | None = Field(None, description="length and count; left out where sequences are alike")


class Calibration(Record):
    """The fits in force."""

    name: str
    digest: str
    inline: dict[str, Any]


class Inputs(Record):
    """Everything a price depends on, so that the file stands alone."""

    model: dict[str, Any]
    cluster: dict[str, Any]
    training: TrainingInputs
    calibration: Calibration
    stack: str
    search: dict[str, Any]
    operation: dict[str, float] = Field(default_factory=dict, description="failures, restarts, checkpoints, power")


class ModelIdentity(Record):
    """The model in short."""

    name: str
    layers: Degree
    parameters: Count
    active_parameters: Count
    buffers: Count
    mtp_parameters: Count
    trainable_parameters: Count | None = Field(None, description="with adapters; left out where all parameters are trained")
    digest: str


class ClusterIdentity(Record):
    """The cluster in short."""

    name: str
    gpus: Degree
    nodes: Degree
    digest: str


class TrainingIdentity(Record):
    """The training job in short."""

    seq_len: Degree
    global_batch: Degree
    precision: str
    optimizer: str


class ParetoPoint(Record):
    """A plan that no other beats in step time, memory and cost at once."""

    id: str
    step_time_s: Seconds
    peak_bytes: Bytes
    usd_per_1m_tokens: float | None
    joules_per_token: float | None
    goodput_fraction: float | None
    parallel: Parallel


class Trial(Record):
    """A plan to measure."""

    rank: Degree | None = Field(description="among `plans`; null if it is not shown there")
    id: str
    step_time_s: Seconds
    probability: Fraction = Field(description="that it is the fastest: what measuring it adds")
    cumulative_probability: Fraction = Field(description="that the fastest is among it and those before it")
    expected_loss: Annotated[float, Field(ge=0)] = Field(description="of running the best of those, relative to the fastest")
    parallel: Parallel


class Trials(Record):
    """Which plans to measure, and what was compared."""

    candidates: Count
    slowest_step_time_s: Seconds | None = Field(description="of the candidates")
    draws: Degree
    seed: Count
    plans: list[Trial]


class Job(Record):
    """What every result says of its inputs."""

    schema_version: Literal[1]
    inputs: Inputs
    model: ModelIdentity
    cluster: ClusterIdentity
    training: TrainingIdentity
    assumptions: list[Assumption]


class PlanResult(Job):
    """What `plan --format json` prints."""

    kind: Literal["plan-result"]
    search: Search
    plans: list[RankedPlan]
    near_misses: list[NearMiss]
    conflict: Conflict | None = Field(None, description="where nothing fits")
    pareto: list[ParetoPoint] | None = Field(None, description="with --pareto, fastest first")
    trials: Trials | None = Field(None, description="with --trials")
    run: Run


class Estimate(EstimateBody, Job):
    """What `estimate --format json` prints of a plan that can be priced."""

    kind: Literal["estimate"]


class UnpricedEstimate(Job):
    """What `estimate --format json` prints of a plan that cannot be priced: violations, no prices."""

    kind: Literal["estimate"]
    feasible: Literal[False]
    violations: Annotated[list[Violation], Field(min_length=1)]
    expressible_by: list[str]
    parallel: PartialParallel
    stages: Annotated[list[Any], Field(max_length=0)]
    predicted: None
    time: None
    memory: None
    communication: Annotated[list[Any], Field(max_length=0)]
    account: None
    sources: dict[str, Source]
    warnings: list[str]


class AnyEstimate(RootModel[Estimate | UnpricedEstimate]):
    """What `estimate --format json` prints."""
