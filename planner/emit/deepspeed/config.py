"""`ds_config.json`: the plan in DeepSpeed's keys.

    train_batch_size = train_micro_batch_size_per_gpu · gradient_accumulation_steps · dp

All three are written, so that DeepSpeed itself stops when another number of ranks is started. Gradients are exchanged
(`communication_data_type`) and accumulated (`data_types.grad_accum_dtype`) in the bytes the plan was priced with. The two
buckets, of reduction and of gathering, take `bucket_bytes` of the stack together. Keys of stage 3 that a plan does not state
(prefetching, persistence) are left to DeepSpeed.

Source: DeepSpeed 0.19 `runtime/config.py`, `runtime/constants.py`, `runtime/zero/config.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.emit.base import Request

OPTIMIZERS = {"adam": "AdamW", "sgd": "SGD"}
HALVES = ("bf16", "fp16")
PRECISIONS = (*HALVES, "fp32")
LR = 1e-4


def deepspeed_config(request: Request) -> dict[str, Any]:
    """The document."""
    parallel, training = request.parallel, request.training
    return {
        "train_batch_size": training["global_batch"],
        "train_micro_batch_size_per_gpu": parallel["micro_batch"],
        "gradient_accumulation_steps": parallel["micro_batches"],
        "steps_per_print": request.launch.steps,
        "optimizer": {"type": OPTIMIZERS[training["optimizer"]], "params": {"lr": LR}},
        **({"zero_allow_untested_optimizer": True} if _untested(request) else {}),
        **_precision(request),
        "zero_optimization": _zero(request),
    }


def gradient_bytes(request: Request) -> int:
    """Bytes of a gradient that is exchanged; in fp32 nothing is rounded."""
    return int(request.training["grad_bytes"]) if request.training["precision"] in HALVES else 4


def _untested(request: Request) -> bool:
    """ZeRO knows Adam; others it takes only when told to."""
    return bool(request.training["optimizer"] != "adam" and request.parallel["zero_stage"])


def _precision(request: Request) -> dict[str, Any]:
    precision = request.training["precision"]
    if precision not in HALVES:
        return {}
    kind = precision if gradient_bytes(request) == 2 else "fp32"
    scaling = {"loss_scale": 0} if precision == "fp16" else {}  # 0: dynamic
    return {
        precision: {"enabled": True, **scaling},
        "communication_data_type": kind,
        "data_types": {"grad_accum_dtype": kind},
    }


def _zero(request: Request) -> dict[str, Any]:
    stage = request.parallel["zero_stage"]
    if stage == 0:
        return {"stage": 0}
    elements = max(1, int(request.stack["bucket_bytes"]) // (2 * gradient_bytes(request)))
    gathered = {"allgather_bucket_size": elements} if stage < 3 else {}
    overlap = bool(request.parallel["overlap"]["dp_reduce"])
    hosted = _offload(request.parallel["offload"])
    return {"stage": stage, "overlap_comm": overlap, "reduce_bucket_size": elements, **gathered, **hosted}


def _offload(held: Mapping[str, float]) -> dict[str, Any]:
    """What goes to pinned host memory, the ratio where it is a part."""
    made: dict[str, Any] = {}
    for part, name in (("optimizer", "offload_optimizer"), ("parameters", "offload_param")):
        if held[part]:
            ratio = {"ratio": held[part]} if held[part] < 1 else {}
            made[name] = {"device": "cpu", "pin_memory": True, **ratio}
    return made
