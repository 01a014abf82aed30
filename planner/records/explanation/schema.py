"""The records that `explain` and `compare` print."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shardwright.planner.records.degrees.schema import Parallel, PartialParallel
from shardwright.planner.records.schema import (
    Axis,
    Bytes,
    ClusterIdentity,
    Count,
    Degree,
    Fraction,
    Memory,
    ModelIdentity,
    Predicted,
    Record,
    Seconds,
    TrainingIdentity,
    Violation,
)

PartName = Literal[
    "compute_s",
    "recompute_s",
    "exposed_tp_s",
    "exposed_cp_s",
    "exposed_ep_s",
    "exposed_pp_s",
    "exposed_dp_s",
    "bubble_s",
    "optimizer_s",
    "other_s",
]


class Figure(Record):
    """Where a figure of a formula comes from."""

    term: str
    origin: Literal["measured", "transferred", "modelled", "datasheet", "assumed"]
    source: str
    median_error: float | None = Field(description="on measurements held out of the fit")


class WaterfallPart(Record):
    """One part of the step on the stage that determines it."""

    part: PartName
    time_s: Seconds
    share: Fraction
    name: str = Field(description="of the formula")
    formula: str
    computed_by: str = Field(description="function that computes it")
    figures: list[Figure]


class Constraint(Record):
    """Something that keeps the plan from being faster."""

    constraint: Literal["memory", "link", "bubble", "memory bandwidth", "host", "compute"]
    part: str = Field(description="part of the step, or of memory")
    what: str | None = Field(description="the link, the operator, or the part of memory")
    share: float = Field(ge=0, description="of the step, at stake")
    because: str


class SlowestLink(Record):
    """The link an axis waits for longest."""

    axis: Axis
    link: str
    collectives: list[str]
    group_size: Degree
    time_s: Seconds
    exposed_s: Seconds
    sent_bytes: float = Field(ge=0, description="by the rank in a step")
    bytes_per_s: float | None = Field(description="sent_bytes over time_s")
    share_of_step: float


class OperatorLoad(Record):
    """A heavy operator under the roof of the device."""

    operator: str
    layer: str
    count_per_step: float
    time_s: Seconds
    share_of_compute: Fraction
    flops: float | None = Field(description="of one run, forward and backward; null where it has no products")
    hbm_bytes: float
    intensity_flops_per_byte: float | None
    bound: Literal["matrix units", "memory"]
    achieved_per_s: float = Field(description="FLOPs; bytes where it has no products")
    ceiling_per_s: float
    attained_fraction: float


class MemoryPart(Record):
    """A part of the memory of a stage."""

    part: str
    bytes: Bytes
    share: Fraction


class PeakMemory(Record):
    """The fullest stage."""

    stage: Count
    parts: list[MemoryPart] = Field(description="largest first")
    total_bytes: Bytes
    capacity_bytes: Bytes
    free_bytes: int


class Change(Record):
    """A plan one or two knobs away."""

    change: str
    turned: list[str]
    fits: bool
    step_time_s: Seconds
    delta_s: float
    delta_fraction: float
    peak_bytes: Bytes
    delta_bytes: int
    shortage_bytes: Bytes


class Winner(Record):
    """The plan that other inputs would dethrone."""

    rank: Degree
    id: str
    among: Degree = Field(description="plans of the ranking that are compared")
    tie_percent: float
    factor_at_most: float = Field(description="inputs are changed up to this factor, either way")


class Switch(Record):
    """The nearest value of an input with which another plan wins."""

    value: float
    change_fraction: float
    rank: Degree = Field(description="of the plan that wins then")
    id: str
    step_time_s: Seconds
    winner_step_time_s: Seconds | None = Field(description="of the first plan then; null where it no longer fits")


class InputFigure(Record):
    """What an input does."""

    key: str = Field(description="as --set names it")
    label: str
    unit: str
    value: float
    elasticity: float | None = Field(description="relative change of the step over that of the input")
    switch: Switch | None = Field(description="null where no value within the factor makes another plan win")


class Compared(Record):
    """Seconds of two plans; delta = b − a."""

    a_s: Seconds
    b_s: Seconds
    delta_s: float


class ComparedPart(Compared):
    """A part of the step."""

    name: PartName


class ComparedTotal(Compared):
    """The step."""

    delta_fraction: float


class ComparedBytes(Record):
    """Peak memory of two plans."""

    a_bytes: Bytes
    b_bytes: Bytes
    delta_bytes: int


class TwoPlans(Record):
    """Two plans by part."""

    step: ComparedTotal
    parts: list[ComparedPart]
    peak_bytes: ComparedBytes


class BestWith(Record):
    """The fastest plan of the search with the axes asked for."""

    plan: dict[str, str]
    step_time_s: Seconds
    delta_s: float
    delta_fraction: float
    peak_bytes: Bytes
    delta_bytes: int


class WhyNot(Record):
    """Another plan than the one explained."""

    asked: dict[str, str]
    followed: dict[str, str] = Field(description="what had to follow from them")
    same: bool = Field(description="whether it is the explained plan")
    feasible: bool
    legal: bool = Field(description="whether it keeps all rules, memory apart")
    violations: list[Violation]
    parallel: Parallel | PartialParallel
    comparison: TwoPlans | None = Field(description="a the explained plan, b the one asked for; null where it has no price")
    best: BestWith | None = Field(description="null where no legal plan with them fits")


class Explanation(Record):
    """What `explain --format json` prints."""

    schema_version: Literal[1] = 1
    kind: Literal["explanation"]
    model: ModelIdentity
    cluster: ClusterIdentity
    training: TrainingIdentity
    rank: Degree | None
    id: str | None
    feasible: bool
    violations: list[Violation]
    parallel: Parallel
    predicted: Predicted
    waterfall: Annotated[list[WaterfallPart], Field(min_length=10, max_length=10)]
    binding: Constraint
    constraints: Annotated[list[Constraint], Field(min_length=1, description="greatest first; computing last")]
    links: list[SlowestLink]
    roofline: list[OperatorLoad]
    memory: PeakMemory
    changes: list[Change]
    winner: Winner | None
    inputs: list[InputFigure]
    why_not: WhyNot | None
    warnings: list[str]


class ComparedSide(Record):
    """One of the two plans."""

    source: str
    form: Literal["plan-result", "estimate", "megatron-arguments"]
    rank: Degree | None
    model: ModelIdentity
    cluster: ClusterIdentity
    training: TrainingIdentity
    feasible: bool
    violations: list[Violation]
    parallel: Parallel
    predicted: Predicted
    memory: Memory


class ChangeStep(Record):
    """One change, and what the plan costs with it and those before it."""

    axis: str
    change: str
    feasible: bool
    step_time_s: Seconds | None
    delta_s: float | None = Field(description="from a")
    delta_fraction: float | None
    peak_bytes: Bytes | None


class FewestChanges(Record):
    """The smallest set of changes of a that realises most of the gain."""

    towards: Literal["b", "neighbour"] = Field(description="b, or the best plan one or two knobs away where b is not faster")
    gain_s: Seconds = Field(description="of all that was turned")
    realised_s: Seconds
    realised_fraction: float
    turned: list[str] = Field(description="all axes that differ, those that follow left out")
    steps: list[ChangeStep]
    flags: list[str] | None = Field(description="Megatron arguments that change; null where the plan is not Megatron's")


class Comparison(TwoPlans):
    """What `compare --format json` prints."""

    schema_version: Literal[1] = 1
    kind: Literal["comparison"]
    a: ComparedSide
    b: ComparedSide
    differs: list[str]
    total_s: float = Field(description="step of b less that of a; the sum of delta_s of the parts")
    tolerance_percent: float | None
    over_tolerance: bool
    changes: FewestChanges | None
