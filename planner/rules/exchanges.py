"""Rules of how axes exchange: what context parallelism divides, and which ways of it and to experts the targets have."""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import ALL_TO_ALL, DEEP_EP, GATHER, HYBRID_EP, RING, SWAP, BoolArray
from shardwright.planner.rules.base import Candidate, Columns, Facts, Rule, divisors, nearest
from shardwright.planner.rules.declaring import degree_rule

_NAMED = ("cp_comm_type", "sequence_parallel_size")
"""Settings of Megatron-LM and DeepSpeed that say how sequences are exchanged."""


def _heads_off(c: Columns, f: Facts) -> BoolArray:
    """Heads that tp · cp does not divide; configurations that name the exchange have rules of their own."""
    spec, degree = f.graph.spec, c["tp"] * c["cp"]
    swapped = (c["cp_comm"] == SWAP) & (c["cp"] > 1) & all(f.settings[name] is None for name in _NAMED)
    return np.asarray(swapped & ((spec.heads % degree != 0) | (spec.kv_heads % degree != 0)))


def _heads_remedy(c: Candidate, f: Facts) -> str:
    both = divisors(int(np.gcd(f.graph.spec.heads, f.graph.spec.kv_heads)))
    able = tuple(d // c["tp"] for d in both if d % c["tp"] == 0)
    fewer = f"use cp {nearest(c['cp'], able)}, or " if able else ""
    return f"{fewer}use cp_comm p2p or allgather"


CP_HEADS = Rule(
    id="cp-heads",
    says="exchanging heads (cp_comm a2a) divides heads and key/value heads by tp · cp",
    reads=("tp", "cp", "cp_comm"),
    broken=_heads_off,
    message=lambda c, f: (
        f"{f.graph.spec.heads} heads and {f.graph.spec.kv_heads} key/value heads cannot be divided by "
        f"tp·cp = {c['tp']}·{c['cp']} = {c['tp'] * c['cp']}"
    ),
    remedy=_heads_remedy,
    source="arXiv 2309.14509; Transformer Engine context_parallel (a2a)",
)

EXCHANGES: tuple[Rule, ...] = (CP_HEADS,)

TARGET_EXCHANGES: tuple[Rule, ...] = (
    degree_rule(
        "torchtitan-cp-comm",
        "context parallelism passes keys and values round a ring or gathers them",
        reads=("cp", "cp_comm"),
        breaks=lambda c, f: (c["cp"] > 1) & (c["cp_comm"] != RING) & (c["cp_comm"] != GATHER),
        message="cp_comm {cp_comm} with cp {cp}",
        mend={"cp_comm": RING},
        targets=("torchtitan",),
        source="torch.distributed.tensor.experimental (rotate method alltoall or allgather)",
    ),
    degree_rule(
        "torchtitan-dispatcher",
        "tokens reach their experts by an all-to-all or by DeepEP",
        reads=("ep", "moe_dispatcher"),
        breaks=lambda c, f: (c["ep"] > 1) & (c["moe_dispatcher"] != ALL_TO_ALL) & (c["moe_dispatcher"] != DEEP_EP),
        message="moe_dispatcher {moe_dispatcher} with ep {ep}",
        mend={"moe_dispatcher": ALL_TO_ALL},
        targets=("torchtitan",),
        source="torchtitan config/job_config.py (expert_parallel_comm_backend standard or deepep)",
    ),
    degree_rule(
        "deepspeed-dispatcher",
        "tokens reach their experts by an all-to-all",
        reads=("ep", "moe_dispatcher"),
        breaks=lambda c, f: (c["ep"] > 1) & (c["moe_dispatcher"] != ALL_TO_ALL),
        message="moe_dispatcher {moe_dispatcher} with ep {ep}",
        mend={"moe_dispatcher": ALL_TO_ALL},
        targets=("deepspeed",),
        source="deepspeedai/DeepSpeed moe/sharded_moe.py (_AllToAll)",
    ),
    degree_rule(
        "megatron-dispatcher-hybrid",
        "HybridEP came with the backends of the flex dispatcher in 0.16",
        reads=("ep", "moe_dispatcher"),
        breaks=lambda c, f: (c["ep"] > 1) & (c["moe_dispatcher"] == HYBRID_EP),
        message="moe_dispatcher {moe_dispatcher} with ep {ep}",
        mend={"moe_dispatcher": DEEP_EP},
        targets=("megatron", "megatron-bridge"),
        until="0.16",
        source="Megatron-Core transformer_config.py of 0.16 (moe_flex_dispatcher_backend)",
    ),
)
