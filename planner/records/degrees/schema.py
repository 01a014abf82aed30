"""The records of the degrees and switches of a plan."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shardwright.planner.records.search.schema import Count, Degree, Fraction, Record

Schedule = Literal["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v"]


class Recompute(Record):
    """What is computed again in the backward pass."""

    mode: Literal["none", "selective", "full"]
    modules: list[str]
    layers: list[Count] | Count | None = Field(description="layers recomputed on each stage")


class Offload(Record):
    """Fractions held in host memory."""

    activations: Fraction
    optimizer: Fraction
    parameters: Fraction


class Overlap(Record):
    """Which exchanges run beside computation."""

    tp: bool
    dp_gather: bool
    dp_reduce: bool
    p2p: bool
    ep: bool
    cp: bool


class AskedParallel(Record):
    """Degrees that are chosen."""

    tp: Degree
    sequence_parallel: bool
    cp: Degree
    pp: Degree
    vpp: Degree
    zero_stage: Annotated[int, Field(ge=0, le=3)]
    ep: Degree
    etp: Degree
    micro_batch: Degree
    schedule: Schedule


class Parallel(AskedParallel):
    """Degrees: world_size = tp·cp·pp·dp = etp·ep·pp·edp, dp = dp_replicate·dp_shard."""

    world_size: Degree
    dp: Degree
    dp_replicate: Degree
    dp_shard: Degree
    edp: Degree
    micro_batches: Degree
    cp_comm: Literal["p2p", "a2a", "allgather", "a2a+p2p"]
    recompute: Recompute
    offload: Offload
    overlap: Overlap
    moe_dispatcher: Literal["allgather", "alltoall", "deepep", "hybridep"]
    loss_chunks: Degree
    reshard_after_forward: bool


class PartialParallel(AskedParallel):
    """Degrees that do not multiply up: what follows from them is null."""

    world_size: Degree | None
    dp: Degree | None
    dp_replicate: Degree | None
    dp_shard: Degree | None
    edp: Degree | None
    micro_batches: Degree | None
    cp_comm: str | None = None
    recompute: Recompute | None = None
    offload: Offload | None = None
    overlap: Overlap | None = None
    moe_dispatcher: str | None = None
    loss_chunks: Degree | None = None
    reshard_after_forward: bool | None = None
