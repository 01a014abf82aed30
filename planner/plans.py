"""Plans: what a user types (`Degrees`), and many plans at once as arrays (`PlanBatch`).

Degrees obey (docs/model.md):

    world_size = tp · cp · pp · dp            dp = dp_replicate · dp_shard
    world_size = etp · ep · pp · edp          micro_batch · micro_batches · dp = global_batch

Ranks are numbered with tp innermost, then cp, dp_shard, dp_replicate, and pp outermost, as Megatron-Core's
default order `tp-cp-ep-dp-pp` and torchtitan's mesh do; the experts' mesh is etp, ep, edp, pp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.offloading import Offload

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

RECOMPUTE_MODES = ("none", "selective", "full")
RECOMPUTE_CHOICES = (*RECOMPUTE_MODES, "full-half", "full-quarter")
"""Recompute modes, and full recompute of a half and of a quarter of each stage's layers."""

RECOMPUTED_SHARE = (0.0, 1.0, 1.0, 0.5, 0.25)
"""Share of a stage's layers that each of `RECOMPUTE_CHOICES` covers."""

ALL_LAYERS = 2**31 - 1
"""`PlanBatch.recompute_layers` where all layers of a stage are recomputed."""

CP_COMM_KINDS = ("p2p", "a2a", "allgather", "a2a+p2p")
"""How context parallelism exchanges: keys and values round a ring, heads for sequence, keys and values gathered, two levels."""

PRICED_CP_COMM = CP_COMM_KINDS[:3]
"""Those of them that have a price."""

RING, SWAP, GATHER = (CP_COMM_KINDS.index(kind) for kind in PRICED_CP_COMM)
MOE_DISPATCHERS = ("allgather", "alltoall", "deepep", "hybridep")
"""How tokens reach their experts: gathered whole, every copy by itself, once a node, once a scale-up domain (`axes.expert`)."""

ALL_GATHER, ALL_TO_ALL, DEEP_EP, HYBRID_EP = range(len(MOE_DISPATCHERS))


def default_cp_comm(framework: str) -> int:
    """How context parallelism exchanges where nobody says: DeepSpeed's sequence parallelism swaps heads (arXiv 2309.14509)."""
    return SWAP if framework == "deepspeed" else RING


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """One plan as a user states it; None means "the default for the framework".

    Attributes:
        vpp: chunks a pipeline rank; None for 1, or 2 with a schedule that folds them.
        layers_per_stage: layers of each pipeline chunk, `pp` or `pp·vpp` numbers in the order the layers run.
        recompute_layers: layers recomputed on each stage (recompute full only); None for all.
        loss_chunks: pieces in which the tokens of a micro-batch go through head and loss.
        offload: what is kept in host memory, as a record or as a user types it.
    """

    tp: int = 1
    pp: int = 1
    vpp: int | None = None
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    dp_replicate: int | None = None
    micro_batch: int = 1
    zero: int | None = None
    schedule: str | None = None
    sequence_parallel: bool | None = None
    recompute: str = "none"
    recompute_layers: int | None = None
    layers_per_stage: tuple[int, ...] | None = None
    cp_comm: str | None = None
    loss_chunks: int = 1
    moe_dispatcher: str | None = None
    offload: Offload | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBatch:
    """Plans as arrays, all of shape [plans].

    Attributes:
        sp: 1 where sequence parallelism is on.
        schedule: index into `schedules.SCHEDULES`.
        recompute: index into `RECOMPUTE_MODES`.
        recompute_layers: layers recomputed on each stage under `full`.
        cp_comm: index into `CP_COMM_KINDS`.
        loss_chunks: pieces in which the tokens of a micro-batch go through head and loss.
        moe_dispatcher: index into `MOE_DISPATCHERS`.
        offload: fractions in host memory, as `Offload.code` holds them.
        split: index into a `SplitTable` of the same problem.
    """

    tp: IntArray
    sp: IntArray
    cp: IntArray
    pp: IntArray
    vpp: IntArray
    ep: IntArray
    etp: IntArray
    dp: IntArray
    dp_replicate: IntArray
    micro_batch: IntArray
    micro_batches: IntArray
    zero: IntArray
    schedule: IntArray
    recompute: IntArray
    recompute_layers: IntArray
    cp_comm: IntArray
    loss_chunks: IntArray
    moe_dispatcher: IntArray
    offload: IntArray
    split: IntArray

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def dp_shard(self) -> IntArray:
        """Data-parallel ranks among which the ZeRO stage shards; 1 under ZeRO 0."""
        return np.where(self.zero > 0, self.dp // self.dp_replicate, 1)

    @property
    def shown_dp_replicate(self) -> IntArray:
        """Replicas as printed: all data-parallel ranks under ZeRO 0."""
        return self.dp // self.dp_shard

    @property
    def world_size(self) -> IntArray:
        """GPUs used."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def edp(self) -> IntArray:
        """Data-parallel degree of the experts."""
        return self.world_size // (self.etp * self.ep * self.pp)

    def take(self, index: NDArray[np.intp] | slice) -> PlanBatch:
        """The plans at an index."""
        return PlanBatch(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    @classmethod
    def joined(cls, batches: Sequence[PlanBatch]) -> PlanBatch:
        """The plans of several batches, one batch after another."""
        return cls(**{f.name: np.concatenate([getattr(batch, f.name) for batch in batches]) for f in fields(cls)})

    @classmethod
    def stack(cls, rows: list[Mapping[str, int]]) -> PlanBatch:
        """A batch from one mapping of column to value a plan; nothing is offloaded where a mapping does not say."""
        whole = [{"offload": 0, **row} for row in rows]
        return cls(**{f.name: np.array([row[f.name] for row in whole], dtype=np.int64) for f in fields(cls)})
