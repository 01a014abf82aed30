"""Megatron: world size, rank order, tensor and sequence parallelism, and the environment they need.

Checked by `validate_args` (megatron/training/arguments.py), `ModelParallelConfig.__post_init__` and
`parallel_state.initialize_model_parallel`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from shardwright.planner.plans import BoolArray, IntArray
from shardwright.planner.rules.base import Candidate, Changes, Columns, Facts, Rule, closest, divisors
from shardwright.planner.rules.declaring import MEGATRON, degree_rule, setting_rule
from shardwright.planner.rules.settings import Settings

_args = partial(setting_rule, source="Megatron-LM validate_args")
_CONNECTIONS = "env.CUDA_DEVICE_MAX_CONNECTIONS"
_WEIGHTS, _INSTANCES = "tensor_parallel_num_weight_shards", "num_distributed_optimizer_instances"
_SHARDED = ("use_torch_fsdp2", "use_megatron_fsdp", "use_custom_fsdp")


def fsdp(s: Settings) -> bool:
    """Whether parameters are sharded by torch FSDP2 or Megatron-FSDP."""
    return any(s.on(name) for name in _SHARDED)


def _needs_one(s: Settings) -> bool:
    """No setting asks for more than one hardware queue."""
    return not fsdp(s) and not s.on("overlap_moe_expert_parallel_comm") and s.text(_CONNECTIONS) != "1"


def _weights_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    shards = s.number(_WEIGHTS)
    return np.asarray((shards > 0) & ((shards < c["tp"]) | (shards % c["tp"] != 0)))


def _instances_off(s: Settings, c: Columns, f: Facts) -> BoolArray:
    count = max(s.number(_INSTANCES), 1)
    return np.asarray(((c["dp"] * c["cp"]) % count != 0) | ((c["edp"] % count != 0) & (f.graph.spec.moe is not None)))


def _experts_dp(s: Settings, c: Columns | Candidate, f: Facts) -> IntArray:
    """Data-parallel degree of the experts' mesh, which Megatron lays out for dense models too (etp = tp unless given)."""
    etp = c["etp"] if f.graph.spec.moe is not None else (s.number("expert_tensor_parallel_size") or c["tp"])
    return np.asarray(c["tp"] * c["cp"] * c["dp"] // (etp * c["ep"]))


def _fewer_instances(s: Settings, c: Candidate, f: Facts) -> Changes:
    shared = np.gcd(c["dp"] * c["cp"], c["edp"]) if f.graph.spec.moe else c["dp"] * c["cp"]
    wanted = s.number(_INSTANCES)
    return {_INSTANCES: closest(wanted, divisors(int(shared)))}


WORLD_RULES: tuple[Rule, ...] = (
    degree_rule(
        "megatron-moe-sp",
        "Megatron needs sequence parallelism for experts with tp above 1 (a warning at start, an error in the first forward)",
        reads=("tp", "sp"),
        breaks=lambda c, f: (c["tp"] > 1) & (c["sp"] == 0) & (f.graph.spec.moe is not None),
        message="experts with tp {tp} and no sequence parallelism",
        mend={"sp": 1},
        targets=MEGATRON,
        source="Megatron-Core MoELayer.forward",
    ),
    _args(
        "megatron-tp-overlap",
        "overlapping tensor-parallel communication needs sequence parallelism",
        settings=("tp_comm_overlap",),
        reads=("tp", "sp"),
        breaks=lambda s, c, f: s.on("tp_comm_overlap") & ((c["sp"] == 0) | (c["tp"] == 1)),
        message="--tp-comm-overlap without --sequence-parallel (tp {tp})",
        mend=lambda s, c, f: {"sp": 1} if c["tp"] > 1 else {"tp_comm_overlap": None},
    ),
    _args(
        "megatron-sp-alone",
        "sequence parallelism with tp 1 is switched off",
        settings=("sequence_parallel",),
        reads=("tp",),
        breaks=lambda s, c, f: s.on("sequence_parallel") & (c["tp"] == 1),
        message="--sequence-parallel with tp {tp} is switched off",
        mend={"sequence_parallel": None},
        severity="changed",
    ),
    _args(
        "megatron-connections",
        "before Blackwell, tensor and context parallelism need CUDA_DEVICE_MAX_CONNECTIONS=1",
        settings=(_CONNECTIONS, *_SHARDED, "overlap_moe_expert_parallel_comm"),
        reads=("tp", "cp"),
        breaks=lambda s, c, f: ((c["tp"] > 1) | (c["cp"] > 1)) & (f.compute_capability < 10) & _needs_one(s),
        message=lambda s, c, f: (
            f"CUDA_DEVICE_MAX_CONNECTIONS is {s.text(_CONNECTIONS) or 'unset'} with tp {c['tp']}, cp {c['cp']}"
        ),
        mend={_CONNECTIONS: "1"},
    ),
    _args(
        "megatron-connections-blackwell",
        "Megatron-Core 0.12 wants CUDA_DEVICE_MAX_CONNECTIONS=1 with tensor parallelism on every device",
        settings=(_CONNECTIONS, *_SHARDED),
        reads=("tp",),
        breaks=lambda s, c, f: (c["tp"] > 1) & (f.compute_capability >= 10) & _needs_one(s),
        message=lambda s, c, f: f"CUDA_DEVICE_MAX_CONNECTIONS is {s.text(_CONNECTIONS) or 'unset'} with tp {c['tp']}",
        mend={_CONNECTIONS: "1"},
        until="0.13",
    ),
    _args(
        "megatron-fsdp-connections",
        "FSDP needs more than one hardware queue: CUDA_DEVICE_MAX_CONNECTIONS must not be 1",
        settings=(_CONNECTIONS, *_SHARDED),
        breaks=lambda s, c, f: fsdp(s) & (s.text(_CONNECTIONS) == "1"),
        message="CUDA_DEVICE_MAX_CONNECTIONS is 1 with FSDP",
        mend={_CONNECTIONS: None},
    ),
    _args(
        "megatron-fsdp-tp",
        "FSDP and tensor or context parallelism want different CUDA_DEVICE_MAX_CONNECTIONS before Blackwell",
        settings=_SHARDED,
        reads=("tp", "cp"),
        breaks=lambda s, c, f: fsdp(s) & ((c["tp"] > 1) | (c["cp"] > 1)) & (f.compute_capability < 10),
        message="FSDP with tp {tp}, cp {cp}: one hardware queue is too few for FSDP, more slow down the others",
        mend={"tp": 1, "cp": 1},
        severity="warning",
    ),
    _args(
        "megatron-rank-order",
        "with the pipeline before data parallelism in the rank order, experts must have the data-parallel degree of the rest",
        settings=("use_tp_pp_dp_mapping", "expert_tensor_parallel_size"),
        reads=("tp", "cp", "pp", "dp", "ep", "etp"),
        breaks=lambda s, c, f: s.on("use_tp_pp_dp_mapping") & (c["pp"] > 1) & (_experts_dp(s, c, f) != c["dp"]),
        message=lambda s, c, f: (
            f"--use-tp-pp-dp-mapping with pp {c['pp']}, data parallelism of {c['dp']} and of experts {_experts_dp(s, c, f)}"
        ),
        mend={"use_tp_pp_dp_mapping": None},
    ),
    _args(
        "megatron-optimizer-instances",
        "the optimizer's instances divide dp · cp, and the experts' data-parallel degree",
        settings=(_INSTANCES,),
        reads=("dp", "cp", "edp"),
        breaks=_instances_off,
        message="{num_distributed_optimizer_instances} optimizer instances over dp·cp of {dp}·{cp} and edp {edp}",
        mend=_fewer_instances,
    ),
    setting_rule(
        "megatron-optimizer-instances-alone",
        "several instances of the optimizer need the distributed optimizer",
        settings=(_INSTANCES, "use_distributed_optimizer"),
        breaks=lambda s, c, f: (s.number(_INSTANCES) > 1) & (not s.on("use_distributed_optimizer")),
        message="{num_distributed_optimizer_instances} optimizer instances without --use-distributed-optimizer",
        mend={"use_distributed_optimizer": True},
        source="Megatron-Core param_and_grad_buffer: gradients are summed inside an instance alone",
    ),
    _args(
        "megatron-weight-shards",
        "the number of weight shards is a multiple of tp",
        settings=(_WEIGHTS,),
        reads=("tp",),
        breaks=_weights_off,
        message="{tensor_parallel_num_weight_shards} weight shards with tp {tp}",
        mend=lambda s, c, f: {"tensor_parallel_num_weight_shards": max(round(s.number(_WEIGHTS) / c["tp"]), 1) * c["tp"]},
        since="0.19",
    ),
    _args(
        "megatron-weight-shards-world",
        "weight shards (in place of tp) · cp · pp divides the GPUs",
        settings=(_WEIGHTS,),
        reads=("cp", "pp"),
        breaks=lambda s, c, f: (s.number(_WEIGHTS) > 0) & (f.gpus % (max(s.number(_WEIGHTS), 1) * c["cp"] * c["pp"]) != 0),
        message="{tensor_parallel_num_weight_shards} weight shards · cp {cp} · pp {pp} do not divide {gpus} GPUs",
        mend={_WEIGHTS: None},
        since="0.19",
    ),
    _args(
        "megatron-weight-shards-checkpoint",
        "more weight shards than tp are saved as torch or torch_dist, and not averaged in the collective",
        settings=(_WEIGHTS, "ckpt_format", "ddp_average_in_collective"),
        reads=("tp",),
        breaks=lambda s, c, f: (
            (s.number(_WEIGHTS) > c["tp"])
            & ((s.text("ckpt_format") not in {"torch", "torch_dist"}) | s.on("ddp_average_in_collective"))
        ),
        message="{tensor_parallel_num_weight_shards} weight shards with --ckpt-format {ckpt_format}",
        mend={"ckpt_format": "torch_dist", "ddp_average_in_collective": None},
        since="0.19",
    ),
)
