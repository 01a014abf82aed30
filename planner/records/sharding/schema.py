"""The record that `shard --format json` prints: every operator's placements and costs, the tensors that reshard."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shardwright.planner.records.schema import Bytes, Count, Degree, Job, Record, Seconds
from shardwright.planner.records.search.schema import Run

Placement = Annotated[dict[str, str], Field(description="mesh axis -> R (whole), P (summand), S(dim) (divided)")]
Divides = Annotated[dict[str, str | None], Field(description="mesh axis -> dim it divides; null: the same work on every rank")]
Collective = Literal["slice", "all-gather", "reduce-scatter", "all-reduce", "all-to-all"]
Level = Literal["replicated", "states sharded", "sharded"]


class MeshAxis(Record):
    """An axis of the mesh."""

    axis: str
    size: Degree
    stride: Degree


class RunnerUp(Record):
    """The best other strategy, all other operators as they are."""

    divides: Divides
    difference_s: float = Field(description="what it costs more a layer; negative is never faster within the budget")


class ShardedOperator(Record):
    """How an operator is divided, and what it costs on a rank."""

    name: str
    kind: str
    divides: Divides
    reads: dict[str, Placement]
    writes: dict[str, Placement]
    parameters: dict[str, Placement] = Field(description="as they are used")
    held: dict[str, Level | None] = Field(description="mesh axis -> how parameters are held; null: the axis divides them")
    strategies: Degree
    forward_s: Seconds
    backward_s: Seconds
    exchange_s: Seconds = Field(description="of parameters and gradients, a pass, before it is hidden")
    states_bytes: Bytes
    runner_up: RunnerUp | None


class Reshard(Record):
    """A tensor that is read in another layout than it was written in."""

    tensor: str
    writer: str
    readers: list[str]
    written: Placement
    read: Placement
    forward: dict[str, Collective]
    backward: dict[str, Collective] = Field(description="of its gradient")
    forward_s: Seconds
    backward_s: Seconds


class ShardedLayer(Record):
    """A distinct layer; times and bytes are of one of them."""

    layer: str
    count: Degree
    forward_s: Seconds
    backward_s: Seconds
    states_bytes: Bytes
    saved_bytes: Bytes
    transient_bytes: Bytes
    operators: list[ShardedOperator]
    resharding: list[Reshard]


class ShardPrediction(Record):
    """A micro-batch through all layers."""

    forward_s: Seconds
    backward_s: Seconds
    pass_s: Seconds
    memory_bytes: Bytes = Field(description="states, activations of the micro-batches in flight, largest transient")


class OperatorPlacements(Record):
    """DTensor placements of what an operator reads and writes."""

    inputs: dict[str, list[str]]
    outputs: dict[str, list[str]]


class DTensorPlan(Record):
    """Placements as torch.distributed.tensor names them, one a mesh axis."""

    parameters: dict[str, list[str]] = Field(description="at rest")
    operators: dict[str, OperatorPlacements]


class ShardProgram(Record):
    """The integer program and what is proven of its answer."""

    operators: Degree
    strategies: Degree
    choices: Degree = Field(description="strategies, times the ways to hold parameters that are worth it")
    edge_variables: Count
    folded_layers: Degree
    solver: str
    lp_bound_s: Seconds | None
    lower_bound_s: Seconds | None
    proven_optimal: bool


class Sharding(Job):
    """What `shard --format json` prints."""

    kind: Literal["sharding"]
    mesh: list[MeshAxis]
    framework: str
    variant: str | None = Field(description="what all operators had to agree on for the framework")
    layer: str | None
    batch: Degree = Field(description="sequences of a micro-batch on the whole mesh")
    micro_batches: Degree
    in_flight: Degree
    recompute: Literal["none", "selective", "full"]
    budget_bytes: Bytes | None
    layers: list[ShardedLayer] = Field(description="empty where nothing fits")
    predicted: ShardPrediction | None
    dtensor: DTensorPlan | None
    least_memory_bytes: Bytes | None = Field(description="that some sharding needs, where nothing fits")
    program: ShardProgram
    run: Run
