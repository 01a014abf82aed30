"""`config.yaml` of the package: the model, the plan and the job in numbers.

It is written as JSON, which YAML includes, so that the package reads it without any library.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from shardwright.planner.emit.base import Request
from shardwright.planner.emit.torch_offload import all_states_on_host
from shardwright.planner.emit.torch_schedules import SCHEDULES

OPTIMIZERS = ("adam", "sgd", "adafactor")
MIB = 2**20
_MODEL = (
    *("vocab", "hidden", "heads", "kv_heads", "head_dim", "ffn", "max_positions", "positions", "norm", "activation"),
    *("qkv_bias", "out_bias", "mlp_bias", "head_bias", "qk_norm", "tied_embeddings", "mla", "moe"),
)
_PLAN = (
    *("world_size", "tp", "sequence_parallel", "cp", "cp_comm", "pp", "vpp", "dp_replicate", "dp_shard", "zero_stage", "ep"),
    *("micro_batch", "micro_batches", "loss_chunks", "reshard_after_forward"),
)


def package_config(request: Request) -> dict[str, Any]:
    """What the package reads."""
    return {"model": model_config(request), "job": job_config(request, lr=1e-4), "plan": _plan(request)}


def model_config(request: Request) -> dict[str, Any]:
    """The model in numbers, as `model.py` reads it."""
    model = request.spec.to_dict()
    return {name: model[name] for name in _MODEL}


def job_config(request: Request, *, lr: float) -> dict[str, Any]:
    """Batch, steps and the layers of every pipeline chunk."""
    ends = list(accumulate(request.chunks))
    return {
        "seq_len": request.training["seq_len"],
        "global_batch": request.training["global_batch"],
        "steps": request.launch.steps,
        "seed": 1234,
        "lr": lr,
        "chunks": [list(range(end - count, end)) for count, end in zip(request.chunks, ends, strict=True)],
    }


def bucket_mb(request: Request) -> int:
    """Size of DDP's buckets, in MiB."""
    return max(1, round(int(request.stack["bucket_bytes"]) / MIB))


def replicated(parallel: Mapping[str, Any]) -> bool:
    """Whether the package replicates by DDP; with another axis FSDP2 does it over replicas."""
    alone = parallel["tp"] * parallel["pp"] * parallel["ep"] == 1
    return bool(alone and parallel["zero_stage"] == 0 and parallel["dp"] * parallel["cp"] > 1)


def _plan(request: Request) -> dict[str, Any]:
    parallel, recompute = request.parallel, request.parallel["recompute"]
    made = {name: parallel[name] for name in _PLAN}
    if parallel["zero_stage"] == 2:
        made["reshard_after_forward"] = False
    whole = recompute["layers"] >= request.largest_stage
    each = max(request.chunks) if whole else recompute["layers"] // parallel["vpp"]
    return made | {
        "schedule": SCHEDULES[parallel["schedule"]],
        "precision": request.training["precision"],
        "optimizer": request.training["optimizer"],
        "grad_bytes": request.training["grad_bytes"],
        "bucket_mb": bucket_mb(request),
        "states_on_host": all_states_on_host(request),
        "recompute": {"mode": recompute["mode"], "layers_per_chunk": each if recompute["mode"] == "full" else 0},
    }
