"""Stack profiles: what a training framework does that physics does not decide, as data.

`load_stack(id)` reads one profile; `stack_for(framework name)` finds the profile a framework name belongs to.
Each number in a profile says where it comes from in the profile's own `sources`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any

import numpy as np

from shardwright.documents import parse_yaml, rounded
from shardwright.errors import DamagedFileError, InvalidValueError, unknown_name
from shardwright.models.dtypes import Optimizer, Precision
from shardwright.planner.plans import MOE_DISPATCHERS, BoolArray, FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StackProfile:
    """Facts of a training stack.

    Attributes:
        framework: the target family: megatron, torchtitan, pytorch or deepspeed.
        fused_attention: False where the scores are written to memory (two batched GEMMs and a softmax).
        attention_backend: key of the kernel fit's backend factors.
        kernels_per_layer: kernels launched by one forward pass of a dense layer.
        moe_kernels_per_layer: kernels a routed layer adds.
        host_s_per_kernel: time the host needs to launch one kernel.
        launches_block: whether the host waits for each kernel (CUDA_LAUNCH_BLOCKING), so that launching overlaps with nothing.
        elementwise_factor: memory traffic of elementwise operators relative to fully fused kernels.
        score_bytes_forward, score_bytes_backward: traffic per attention score where attention is not fused.
        score_saved_bytes: bytes kept per attention score where attention is not fused.
        softmax_heads_multiple, softmax_most_keys: what heads times sequences on a rank must be a multiple of, and how many keys
            there may be, for one kernel to do mask and softmax where attention is not fused.
        eager_scores: whether mask and softmax are operators of their own, which multiprocessors bound before memory does.
        fused_gate: False where a gated activation runs operator by operator and keeps the activated gate too.
        fused_norms: False where root-mean-square norms run operator by operator in fp32 and keep a copy in fp32.
        norms_in_products: whether a norm that one product alone reads runs within it, a part of its recompute module.
        keeps_gathered_inputs: whether column-parallel products keep their input as gathered under sequence parallelism.
        keeps_quantised_inputs: whether products below 16 bits keep their input quantised; False: in 16 bits.
        activation_input_8bit: whether a recipe below 16 bits keeps the input of the activation quantised.
        frozen_8bit: whether such a recipe holds frozen weights of products in 8 bits alone.
        stand_in_gradients: whether memory stands in for gradients of weights that are added to the main ones at once.
        pipeline_receives: "one" or "every": micro-batches that a stage has buffers to receive for.
        pipeline_outputs: what is kept of a stage's output until its backward pass: "freed" (nothing), "divided" (a
            tensor-parallel rank's part) or "kept" (all).
        keeps_both_gradients: whether autograd's gradients stay beside the wider ones they are accumulated in.
        tp_exposed, ep_exposed: fraction of that axis' collective time that computation does not hide.
        gathers_quantised: whether inputs of products are quantised before tensor-parallel ranks gather them.
        quantiser: the library that quantises operands of products: transformer-engine or torchao.
        tp_exposed_unsequenced: the same of the backward pass without sequence parallelism; all of its forward pass is exposed.
        cp_hidden: fraction of the attention time that hides context-parallel exchange.
        p2p_exposed, p2p_exposed_interleaved: fraction of pipeline sends that is not hidden.
        p2p_scattered: without sequence parallelism every tensor-parallel rank sends its part of the activations between stages,
            and they are gathered after the network.
        dualpipe_ep_hidden: fraction of the exposed expert exchange that passes which run together hide under DualPipe-V.
        dp_exposed_floor: fraction of gradient reduction that stays exposed at least.
        fsdp_interference: slowdown of the overlapped part under fully sharded data parallelism.
        fsdp_gathers_per_step: "micro-batch" or "step": how often sharded parameters are gathered when pp > 1.
        gather_copy_bytes, reduce_copy_bytes: memory traffic per parameter of copying out of the buffer of a gather, and into
            that of a reduction, where every pass exchanges sharded states.
        moe_dispatcher: how tokens reach their experts where a plan does not say.
        moe_dispatch_8bit: whether a recipe below 16 bits sends rows to experts in 8 bits.
        fused_experts: False where biases of experts, clamps before their activation and padding of their rows run operator by
            operator.
        fused_rotary_scale: False where a rotation that also scales runs operator by operator.
        turns_scans: whether scans of several sequences are copied into an order with the sequence within, and back.
        moe_load_imbalance: rows of the busiest expert over the mean of all; 1 where routing is balanced.
        deepep_multiprocessors, hybridep_multiprocessors: multiprocessors that kernels of a dispatcher take while they run.
        moe_host_forward_s, moe_host_backward_s: host synchronisation of one routed layer.
        moe_launch_s, moe_product_launch_s: time the host needs to launch a small kernel of one expert, and a product of it; 0
            where kernels are those of all experts.
        broadcast_s_per_rank: ZeRO-1 parameter update by one broadcast a rank (0: one all-gather).
        recompute_stops_early: whether full recomputing of a layer ends at the last tensor its backward pass needs.
        selective_modules: operator modules recomputed by `selective`.
        optimizer_bytes_per_sharded_parameter, optimizer_bytes_per_parameter: traffic of the optimizer step.
        update_bytes: memory a parameter that the update takes for its time, of the states that are a rank's.
        casts_gradients: whether the update makes gradients of 16 bits fp32 first.
        optimizer_scratch_bytes: memory an optimizer keeps per parameter besides its states, sharded as they are.
        master_remainders: whether of the fp32 master of a bf16 parameter only the 16 bits that the parameter lacks are held.
        fp32_shards: whether full sharding shards fp32 parameters, cast as they are gathered, so that no other master is held.
        keeps_ends_gathered: whether fully sharded embedding and head are one unit that stays gathered through both passes.
        logit_bytes: memory traffic per logit of the loss, forward and backward.
        logit_saved_bytes: bytes per logit held at the peak of the loss.
        blas_workspaces, engine_workspaces: workspaces of products that the allocator holds, PyTorch's and Transformer Engine's.
        context_bytes, nccl_bytes_per_group: memory that the driver and each communicator take.
        communicators_beside: communicators a rank uses beside one an axis in use (all ranks).
        communicators_pipelined: those it uses further where there are pipeline ranks (pairs of them, tied embeddings).
        allocator_slack: reserved over allocated memory, minus one.
        grad_bytes: bytes of a gradient where the user names none.
        weight_gradient_bytes: traffic a parameter of the result of the product that makes its gradient.
        accumulation_bytes: traffic a parameter of adding a micro-batch's gradient, where the product does not.
        sums_biases: whether gradients of the biases of products are sums of their own over the gradients of outputs.
        zero1_reduces_whole: whether gradients are all-reduced though their states are sharded by ZeRO-1.
        zero_stage: ZeRO stage where the user names none.
        bucket_bytes: communication buffers of gradient reduction, with gradients of `grad_bytes`.
        offload_moves_gradients: whether gradients go to the host as they are reduced, where the optimizer is offloaded.
        sequence_parallel: whether sequence parallelism is on by default when tp > 1.
        flops_convention: how the stack's own MFU counts attention: full or causal.
        aliases: names of frameworks and releases this profile describes.
        released: year and month of the (first) release it describes, as 2024-07; None where nobody knows.
        sources: where each number comes from.
    """

    id: str
    framework: str
    description: str
    fused_attention: bool
    attention_backend: str
    kernels_per_layer: float
    moe_kernels_per_layer: float
    host_s_per_kernel: float
    launches_block: bool
    elementwise_factor: float
    score_bytes_forward: float
    score_bytes_backward: float
    score_saved_bytes: float
    eager_scores: bool
    softmax_heads_multiple: int
    softmax_most_keys: int
    fused_gate: bool
    fused_norms: bool
    norms_in_products: bool
    keeps_gathered_inputs: bool
    keeps_quantised_inputs: bool
    activation_input_8bit: bool
    frozen_8bit: bool
    stand_in_gradients: bool
    pipeline_receives: str
    pipeline_outputs: str
    keeps_both_gradients: bool
    tp_exposed: float
    tp_exposed_unsequenced: float
    ep_exposed: float
    gathers_quantised: bool
    quantiser: str
    cp_hidden: float
    p2p_exposed: float
    p2p_exposed_interleaved: float
    p2p_scattered: bool
    dualpipe_ep_hidden: float
    dp_exposed_floor: float
    fsdp_interference: float
    fsdp_gathers_per_step: str
    gather_copy_bytes: float
    reduce_copy_bytes: float
    moe_dispatcher: str
    moe_dispatch_8bit: bool
    fused_experts: bool
    fused_rotary_scale: bool
    turns_scans: bool
    moe_load_imbalance: float
    deepep_multiprocessors: int
    hybridep_multiprocessors: int
    moe_host_forward_s: float
    moe_host_backward_s: float
    moe_launch_s: float
    moe_product_launch_s: float
    broadcast_s_per_rank: float
    recompute_stops_early: bool
    selective_modules: tuple[str, ...]
    optimizer_bytes_per_sharded_parameter: float
    optimizer_bytes_per_parameter: float
    update_bytes: float
    casts_gradients: bool
    optimizer_scratch_bytes: float
    master_remainders: bool
    fp32_shards: bool
    keeps_ends_gathered: bool
    logit_bytes: float
    logit_saved_bytes: float
    blas_workspaces: int
    engine_workspaces: int
    context_bytes: int
    nccl_bytes_per_group: int
    communicators_beside: int
    communicators_pipelined: int
    allocator_slack: float
    grad_bytes: int
    weight_gradient_bytes: float
    accumulation_bytes: float
    sums_biases: bool
    zero1_reduces_whole: bool
    zero_stage: int
    bucket_bytes: int
    sequence_parallel: bool
    offload_moves_gradients: bool
    flops_convention: str
    aliases: tuple[str, ...]
    released: str | None
    sources: Mapping[str, str]

    @property
    def routing(self) -> str:
        """How rows are spread over experts, in words."""
        skew = self.moe_load_imbalance
        return "balanced" if skew == 1 else f"busiest expert {skew:g} times the mean"

    def routing_in_force(self, *, routed: bool) -> tuple[tuple[str, str | float], ...]:
        """How uneven routing is, for assumptions; and what of it is hidden, where a model routes at all."""
        stated: tuple[tuple[str, str | float], ...] = (
            ("moe.routing", self.routing),
            ("moe.routing_skew", self.moe_load_imbalance),
        )
        host_s = self.moe_host_forward_s + self.moe_host_backward_s
        return (*stated, ("moe.ep_exposed", self.ep_exposed), ("moe.host_s", rounded(host_s))) if routed else stated

    def communicators(self, groups: FloatArray, pipelined: BoolArray) -> FloatArray:
        """Communicators of a rank: one for each of so many axes in use, and those beside them, of the shape of both."""
        further = self.communicators_beside + self.communicators_pipelined * pipelined
        return np.asarray(groups + further * (groups > 0))

    def optimizer_bytes(self, optimizer: Optimizer, precision: Precision) -> float:
        """Bytes an optimizer holds per trained parameter: states, master copy and scratch."""
        remainder = self.master_remainders and optimizer.master_bytes > REMAINDER and precision.has_bf16_parameters
        less = optimizer.master_bytes - REMAINDER if remainder else 0
        return optimizer.state_bytes(precision) - less + self.optimizer_scratch_bytes

    def adds_in_products(self, parameter_bytes: int) -> bool:
        """Whether products add to gradients themselves: they move more than a gradient they would write."""
        return self.weight_gradient_bytes > parameter_bytes

    def doubled_bytes(self, optimizer: Optimizer, precision: Precision) -> float:
        """Bytes per trained parameter that full sharding holds less: its fp32 shard is parameter and master in one."""
        return float(precision.parameter_bytes) if self.fp32_shards and optimizer.state_master_bytes(precision) else 0.0


REMAINDER = 2
"""Bytes of an fp32 number that bf16 leaves out."""

FRACTIONS = frozenset(
    {
        "tp_exposed",
        "tp_exposed_unsequenced",
        "ep_exposed",
        "cp_hidden",
        "p2p_exposed",
        "p2p_exposed_interleaved",
        "dualpipe_ep_hidden",
        "dp_exposed_floor",
        "fsdp_interference",
        "allocator_slack",
    }
)
"""Fields that are shares of a whole."""

LEAST: Mapping[str, float] = {"softmax_heads_multiple": 1.0, "moe_load_imbalance": 1.0}
"""Fields that cannot be as small as 0."""

ADDED: Mapping[str, Any] = {
    "moe_load_imbalance": 1.0,
    "released": None,
    "eager_scores": False,
    "softmax_heads_multiple": 1,
    "softmax_most_keys": 1_000_000_000,
    "gathers_quantised": False,
    "quantiser": "transformer-engine",
    "communicators_beside": 0,
    "communicators_pipelined": 0,
    "master_remainders": False,
    "fp32_shards": False,
    "keeps_ends_gathered": False,
    "keeps_quantised_inputs": True,
    "gather_copy_bytes": 0.0,
    "recompute_stops_early": False,
    "reduce_copy_bytes": 0.0,
    "moe_dispatcher": "alltoall",
    "moe_dispatch_8bit": False,
    "fused_experts": True,
    "fused_rotary_scale": True,
    "turns_scans": False,
    "moe_launch_s": 0.0,
    "moe_product_launch_s": 0.0,
    "deepep_multiprocessors": 20,
    "hybridep_multiprocessors": 16,
    "offload_moves_gradients": False,
    "tp_exposed_unsequenced": 1.0,
    "launches_block": False,
    "weight_gradient_bytes": 8.0,
    "accumulation_bytes": 0.0,
    "sums_biases": False,
    "zero1_reduces_whole": False,
    "stand_in_gradients": False,
    "pipeline_receives": "one",
    "pipeline_outputs": "freed",
    "update_bytes": 0.0,
    "casts_gradients": False,
    "blas_workspaces": 0,
    "engine_workspaces": 0,
}
"""What holds for profiles saved before a field was added."""

MONTH = re.compile(r"(20\d\d)-(0[1-9]|1[0-2])")
"""Year and month of a release."""

MOST = 1e12
"""No number of a profile is larger (bytes of a buffer are the largest)."""

WORDS: Mapping[str, tuple[Any, ...]] = {
    "framework": ("megatron", "torchtitan", "pytorch", "deepspeed"),
    "attention_backend": ("unfused", "table", "cudnn", "fa1", "fa2", "fa3", "fa4", "triton", "fp8"),
    "fsdp_gathers_per_step": ("step", "micro-batch"),
    "quantiser": ("transformer-engine", "torchao"),
    "pipeline_receives": ("one", "every"),
    "pipeline_outputs": ("freed", "divided", "kept"),
    "flops_convention": ("full", "causal"),
    "moe_dispatcher": MOE_DISPATCHERS,
    "zero_stage": (0, 1, 2, 3),
    "grad_bytes": (2, 4),
}
"""Fields with a few allowed values."""

#: The stack used for a `--framework`; `any` plans with Megatron-Core's facts.
DEFAULT_STACKS: Mapping[str, str] = {
    "any": "megatron-core",
    "megatron": "megatron-core",
    "torchtitan": "torchtitan",
    "pytorch": "pytorch-fsdp2",
    "torchrun": "pytorch-fsdp2",
    "deepspeed": "deepspeed",
}


def stack_ids() -> tuple[str, ...]:
    """Ids of all profiles, sorted."""
    folder = resources.files("shardwright.planner.stacks")
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml")))


@functools.cache
def load_stack(stack_id: str) -> StackProfile:
    """One profile.

    Raises:
        UnknownNameError: there is no such profile.
        DamagedFileError: the profile lacks a field or has one too many.
    """
    if stack_id not in stack_ids():
        raise unknown_name("stack", stack_id, stack_ids(), where="--stack")
    text = resources.files("shardwright.planner.stacks").joinpath(f"{stack_id}.yaml").read_text(encoding="utf-8")
    return stack_from_dict(_inherited(parse_yaml(text, f"{stack_id}.yaml").data))


def stack_from_dict(data: Mapping[str, Any]) -> StackProfile:
    """A profile from its mapping (the exact fields of `StackProfile`)."""
    data = {**ADDED, **data}
    wanted = {f.name for f in fields(StackProfile)}
    if set(data) != wanted:
        odd = sorted(set(data) ^ wanted)
        said = f"the stack profile {data.get('id')!r} has missing or unknown fields: {', '.join(odd)}"
        hint = "where another release wrote the file, use that one, or plan again"
        raise DamagedFileError(said, where="stack", hint=hint)
    made: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    for field in fields(StackProfile):
        _check(field.name, str(field.type), made[field.name])
    _check_month("stack.released", made["released"])
    return StackProfile(**made)


def _check(name: str, kind: str, value: object) -> None:
    """A field of the right type within what is allowed.

    Raises:
        InvalidValueError: anything else.
    """
    where = f"stack.{name}"
    if name in WORDS:
        if value not in WORDS[name]:
            raise InvalidValueError(f"{where} is {value!r}", where=where, hint="allowed: " + ", ".join(map(str, WORDS[name])))
    elif kind in {"float", "int"}:
        least, most = LEAST.get(name, 0.0), 1.0 if name in FRACTIONS else MOST
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise InvalidValueError(f"{where} is {value!r}", where=where, hint=f"give a number from {least:g} to {most:g}")
    elif kind == "bool" and not isinstance(value, bool):
        raise InvalidValueError(f"{where} is {value!r}", where=where, hint="give true or false")
    elif kind == "str" and not isinstance(value, str):
        raise InvalidValueError(f"{where} is {value!r}", where=where, hint="give text")
    elif kind.startswith("tuple") and not (isinstance(value, tuple) and all(isinstance(v, str) for v in value)):
        raise InvalidValueError(f"{where} is no list of words", where=where, hint="give a list of text")
    elif kind.startswith("Mapping") and not isinstance(value, Mapping):
        raise InvalidValueError(f"{where} is no mapping", where=where, hint="give a mapping of names to text")


def _check_month(where: str, value: object) -> None:
    if value is not None and not (isinstance(value, str) and MONTH.fullmatch(value)):
        raise InvalidValueError(f"{where} is {value!r}", where=where, hint="give year and month, as 2024-07")


def stack_for(framework_name: str) -> str | None:
    """Id of the profile that lists the longest alias found at the start of a framework name, or None."""
    name = framework_name.lower()
    matches = [
        (len(alias), stack_id)
        for stack_id in stack_ids()
        for alias in load_stack(stack_id).aliases
        if name.startswith(alias.lower())
    ]
    return max(matches)[1] if matches else None


def _inherited(data: dict[str, Any]) -> dict[str, Any]:
    """The fields of the profile named by `extends`, overlaid by this one's own; aliases and release are never inherited."""
    parent = data.pop("extends", None)
    if parent is None:
        return data
    base = load_stack(parent)
    merged = {f.name: getattr(base, f.name) for f in fields(base)}
    return merged | {"aliases": [], "released": None} | data | {"sources": dict(base.sources) | data.get("sources", {})}
