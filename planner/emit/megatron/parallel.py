"""The plan as Megatron arguments.

    parallel_words(request)      degrees, pipeline, experts, ZeRO, recompute, offload, overlap, precision
    environment(request)         CUDA_DEVICE_MAX_CONNECTIONS and allocator settings

Megatron's two ways to shard states: the distributed optimizer (ZeRO 1) and Megatron-FSDP (ZeRO 3). CUDA_DEVICE_MAX_CONNECTIONS
must be 1 for tensor or context parallelism before Blackwell (so that a collective queued first starts first; core 0.12 wants it
there too) and must not be 1 under FSDP (`validate_args`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwright.planner.emit.base import Request, Word
from shardwright.planner.emit.megatron.arguments import flag, option
from shardwright.planner.emit.megatron.pipeline import pipeline_words
from shardwright.planner.emit.megatron.versions import has
from shardwright.planner.rules.offloading import whole_layers

_FP8 = {
    "fp8-delayed": ("hybrid", "delayed"),
    "fp8-tensorwise": ("hybrid", "tensorwise"),
    "fp8-blockwise": ("e4m3", "blockwise"),
    "mxfp8": ("e4m3", "mxfp8"),
}
_OLD_DEVICES = ("volta", "ampere", "ada", "hopper")
RECOMPUTED_MODULES = ("core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts")


def parallel_words(request: Request) -> tuple[Word, ...]:
    """The arguments of the plan."""
    return (
        *_degree_words(request),
        *pipeline_words(request),
        *(_expert_words(request) if request.spec.moe else ()),
        *_state_words(request),
        *_recompute_words(request),
        *_offload_words(request),
        *_overlap_words(request),
    )


def job_words(request: Request) -> tuple[Word, ...]:
    """Batch, sequence, precision and optimizer."""
    training = request.training
    positions = max(training["seq_len"], request.spec.max_positions or 0)
    return (
        *option("micro-batch-size", request.parallel["micro_batch"]),
        *option("global-batch-size", training["global_batch"]),
        *option("seq-length", training["seq_len"]),
        *option("max-position-embeddings", positions),
        *_precision_words(training["precision"]),
        *_optimizer_words(training["optimizer"]),
        *_gradient_words(training["precision"], training["grad_bytes"]),
    )


def _gradient_words(precision: str, grad_bytes: int) -> tuple[Word, ...]:
    """Dtype gradients are summed in: fp16 alone sums in its own unless told otherwise."""
    if precision == "fp16":
        return flag("accumulate-allreduce-grads-in-fp32", grad_bytes == 4)
    return flag("grad-reduce-in-bf16", grad_bytes == 2 and precision != "fp32")


def sharded(parallel: dict[str, Any] | Any) -> bool:
    """Whether Megatron-FSDP is used."""
    return int(parallel["zero_stage"]) == 3


def environment(request: Request) -> dict[str, str]:
    """Variables the command needs."""
    parallel = request.parallel
    made = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    if sharded(parallel):
        return made | {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    old = request.machines.arch in _OLD_DEVICES or not has(request.version, "many-connections")
    if old or parallel["tp"] == parallel["cp"] == 1:
        made["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    return made


def _degree_words(request: Request) -> tuple[Word, ...]:
    parallel = request.parallel
    return (
        *option("tensor-model-parallel-size", parallel["tp"]),
        *flag("sequence-parallel", parallel["sequence_parallel"]),
        *option("context-parallel-size", parallel["cp"]),
        *(option("cp-comm-type", parallel["cp_comm"]) if parallel["cp"] > 1 else ()),
    )


def _expert_words(request: Request) -> tuple[Word, ...]:
    parallel = request.parallel
    return (
        *option("expert-model-parallel-size", parallel["ep"]),
        *option("expert-tensor-parallel-size", parallel["etp"]),
        *_dispatcher_words(parallel["moe_dispatcher"], request.version),
    )


def _dispatcher_words(dispatcher: str, version: str) -> tuple[Word, ...]:
    if dispatcher in ("allgather", "alltoall"):
        return option("moe-token-dispatcher-type", dispatcher)
    flex = option("moe-token-dispatcher-type", "flex")
    if has(version, "moe-flex-dispatcher-backend"):
        return (*flex, *option("moe-flex-dispatcher-backend", dispatcher))
    return (*flex, *flag("moe-enable-deepep", True))


def _state_words(request: Request) -> tuple[Word, ...]:
    parallel = request.parallel
    if sharded(parallel):
        fsdp = "use-megatron-fsdp" if has(request.version, "use-megatron-fsdp") else "use-custom-fsdp"
        checkpoint = option("ckpt-format", "fsdp_dtensor") if has(request.version, "use-megatron-fsdp") else ()
        return (
            *flag(fsdp, True),
            *flag("use-distributed-optimizer", True),
            *option("data-parallel-sharding-strategy", "optim_grads_params"),
            *flag("no-gradient-accumulation-fusion", True),
            *checkpoint,
        )
    if parallel["zero_stage"] != 1:
        return flag("use-distributed-optimizer", _precision_aware(request))
    instances = parallel["dp_replicate"]
    return (
        *flag("use-distributed-optimizer", True),
        *(option("num-distributed-optimizer-instances", instances) if instances > 1 else ()),
    )


def _precision_aware(request: Request) -> bool:
    """Whether ZeRO 0 has to be said as a distributed optimizer, as precision-aware ones are: on hosts, or with no sharing."""
    parallel = request.parallel
    alone = parallel["dp"] * parallel["cp"] == 1
    hosted = bool(parallel["offload"]["optimizer"])
    return bool(parallel["zero_stage"] == 0 and (hosted or (alone and request.training["optimizer"] == "adam-bf16")))


def recomputed_modules(request: Request) -> tuple[str, ...]:
    """Modules recomputed selectively: those of the plan that the model has."""
    spec = request.spec
    dense = any(not spec.is_moe(layer) for layer in range(spec.layers))
    absent = (() if dense else ("mlp", "mlp_act")) + (() if spec.moe else ("moe", "moe_act", "shared_experts"))
    absent += () if spec.mla else ("mla_up_proj",)
    return tuple(module for module in request.parallel["recompute"]["modules"] if module not in absent)


def all_recomputed(request: Request) -> bool:
    """Whether every layer is recomputed in full: said as `uniform`, for `block` counts the layers of a chunk."""
    recompute = request.parallel["recompute"]
    return bool(recompute["mode"] == "full" and recompute["layers"] >= request.largest_stage)


def _recompute_words(request: Request) -> tuple[Word, ...]:
    recompute = request.parallel["recompute"]
    if recompute["mode"] == "selective":
        return (*option("recompute-granularity", "selective"), *option("recompute-modules", *recomputed_modules(request)))
    if recompute["mode"] != "full":
        return ()
    whole = all_recomputed(request)
    return (
        *option("recompute-granularity", "full"),
        *option("recompute-method", "uniform" if whole else "block"),
        *option("recompute-num-layers", 1 if whole else recompute["layers"] // request.parallel["vpp"]),
    )


def offloaded_layers(request: Request) -> int | None:
    """Layers whose activations are offloaded; None where the fraction is that of no whole number, or of all of them."""
    fraction, layers = request.parallel["offload"]["activations"], request.spec.layers
    return round(fraction * layers) if bool(whole_layers(np.array(fraction), layers)) else None


def _offload_words(request: Request) -> tuple[Word, ...]:
    """The hybrid optimizer, which reuses the precision-aware one, and layers of activations."""
    parallel, fraction = request.parallel, request.parallel["offload"]["optimizer"]
    layers = option("cpu-offloading-num-layers", offloaded_layers(request)) if parallel["offload"]["activations"] else ()
    if not fraction:
        return layers
    return (
        *layers,
        *flag("optimizer-cpu-offload", True),
        *option("optimizer-offload-fraction", fraction),
        *flag("overlap-cpu-optimizer-d2h-h2d", True),
        *flag("use-precision-aware-optimizer", request.training["optimizer"] != "adam-bf16"),
    )


def _overlap_words(request: Request) -> tuple[Word, ...]:
    overlap, parallel = request.parallel["overlap"], request.parallel
    reduce = bool(overlap["dp_reduce"]) and parallel["dp"] * parallel["cp"] > 1
    gather = bool(overlap["dp_gather"]) and reduce and parallel["zero_stage"] in (1, 3)
    tensor = bool(overlap["tp"]) and parallel["sequence_parallel"]
    return (
        *flag("tp-comm-overlap", tensor),
        *flag("overlap-grad-reduce", reduce),
        *flag("overlap-param-gather", gather),
    )


def _precision_words(precision: str) -> tuple[Word, ...]:
    if precision == "fp32":
        return ()
    if precision in _FP8:
        form, recipe = _FP8[precision]
        return (*flag("bf16", True), *option("fp8-format", form), *option("fp8-recipe", recipe))
    if precision == "nvfp4":
        return (*flag("bf16", True), *option("fp4-format", "e2m1"), *option("fp4-recipe", "nvfp4"))
    return flag(precision, True)


def _optimizer_words(optimizer: str) -> tuple[Word, ...]:
    if optimizer == "adam-bf16":
        moments = (*option("exp-avg-dtype", "bf16"), *option("exp-avg-sq-dtype", "bf16"))
        return (*option("optimizer", "adam"), *flag("use-precision-aware-optimizer", True), *moments)
    return option("optimizer", optimizer)
