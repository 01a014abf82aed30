"""The records of the account of a search: what became of every candidate, size by size."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Degree = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Objective = Literal["throughput", "cost", "energy", "goodput"]


class Record(BaseModel):
    """A record without unknown keys, whose values are of the very type."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Subset(Record):
    """One size of a search that may use fewer nodes."""

    nodes: Degree
    gpus: Degree
    status: Literal["searched", "pruned", "nothing fits", "no legal plan", "states too large", "never runs", "not reached"]
    effort: Literal["scan", "search", "prove"] | None
    best_step_time_s: Seconds | None
    best_objective: float | None
    least_objective: float | None = Field(description="no plan of this size has a smaller value")


class Division(Record):
    """How far layers were divided freely: by program, beyond the candidates."""

    families: Count = Field(description="meshes with their micro-batch, ZeRO stage and schedule")
    tasks: Count = Field(description="pipelines of those in each recompute mode that could fit")
    solved: Count = Field(description="tasks whose bound was below the best plan and that were looked at")
    programs: Count
    variables: Count = Field(description="of the largest program")
    plans: Count = Field(description="plans found that were better than all known")


class KindAlone(Record):
    """What the nodes of one kind of a mixed cluster reach by themselves."""

    node: str
    gpus: Degree
    status: Literal["searched", "nothing fits", "no legal plan"]
    best_step_time_s: Seconds | None
    usd_per_1m_tokens: float | None
    rate_fraction: float | None = Field(description="of the rate of the best plan on all nodes")
    cost_fraction: float | None = Field(description="of the cost of a token there")


class Constraint(Record):
    """Something that was asked and that, with others, excludes every plan."""

    constraint: str
    detail: str | None = Field(description="of memory: the stage that is too large, and what fills it")


class Relaxation(Record):
    """What giving up one constraint brings, all others held; no step where still no plan is left."""

    change: str
    feasible: bool
    step_time_s: Seconds | None


class Conflict(Record):
    """A smallest set of constraints that excludes every plan: without any one of them, all else given up, some plan is left."""

    constraints: list[Constraint]
    relaxations: list[Relaxation] = Field(description="those that cost no hardware first, then the fastest")


class ReversedOrder(Record):
    """The groups of a mixed cluster last to first."""

    nodes: list[str]
    best_step_time_s: Seconds | None
    rate_fraction: float | None = Field(description="of the rate of the best plan in the order of the file")


class Search(Record):
    """The account of the search: candidates = Σ rejected + pruned_by_bound + priced."""

    space: dict[str, list[Any]]
    candidates: Count
    rejected: dict[str, Count]
    pruned_by_bound: Count
    priced: Count
    fits: Count
    best_step_time_s: Seconds | None
    lower_bound_step_time_s: Seconds | None
    gap: Fraction | None
    proven_optimal: bool
    stopped: Literal["effort_limit", "time_limit", "interrupted"] | None
    objective: Objective = Field("throughput", description="what the gap and the bound are of")
    objective_unit: str | None = Field(None, description="where plans may use fewer nodes: what is made least")
    best_objective: float | None = Field(None, description="the least value found")
    lower_bound_objective: float | None = Field(None, description="no plan has a smaller value")
    division: Division | None = Field(None, description="null in results of earlier versions")
    subsets: list[Subset] = Field(default_factory=list, description="sizes of the cluster that were searched")
    kinds_alone: list[KindAlone] = Field(default_factory=list, description="where a cluster mixes nodes: each kind alone")
    reversed_order: ReversedOrder | None = Field(None, description="where a cluster mixes nodes")


class Run(Record):
    """What differs from run to run."""

    wall_s: Seconds
    cpu_s: Seconds
    version: str
    solver: str | None
