"""The training stack of a measured run, and the switches its notes name.

    framework column -> profile with the longest matching alias, else by the way it shards      `profile_of`
    notes            -> fields of that profile that the run itself states                        `switched`
    blank cells      -> what the stack's own launch scripts do                                   `BLANKS`

Notes are free text; only `key=value` settings as configuration files spell them and the few words of
`WORDS` are read. A device without a fused attention kernel in its stack's release (Volta) writes its scores, and so does a
model that the notes name as run without flash attention; of Megatron such a device ran a release before Transformer Engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwright.hardware.device import Device
from shardwright.planner.runs.table import RunRow
from shardwright.planner.stacks import StackProfile, load_stack, stack_for

EAGER_ELEMENTWISE = 3.0
"""Traffic of unfused norms (36 bytes an element instead of 4), complex rotary embedding in fp32 (20 instead of 4) and SwiGLU
(10 instead of 6), with residuals: 144 h instead of 46 h bytes a token and layer at ffn = 3.5 h; counted."""

EAGER_KERNELS = 40.0
EAGER_HOST_S = 1.0e-5
BACKWARD_OVERLAP = 0.6
"""Exposed share of tensor-parallel collectives where only the backward pass hides any: 6 of 10 a layer with sequence
parallelism (input gathers behind data gradients, gradient scatters behind weight gradients)."""

GRAPH_SHARE = 0.25
"""Host time of a kernel in a replayed graph over that of a launch (modelling prior)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blanks:
    """What stands for the blank cells of runs of a stack.

    Attributes:
        recompute: none, selective, full, or "fits": the cheapest of them whose memory fits.
        micro_batch: sequences a micro-batch by (largest number of parameters, value) in rising order.
        global_batch: sequences a step; None for one micro-batch a replica.
        seq_len: tokens a sequence; None where a run without one cannot be priced.
        vocab: rows of the embedding; None for the model family's.
        precision: precision of its launch scripts, in fp32 where the device lacks it; None for 16 bits.
        by_cost: whether pipeline stages are cut by cost, the head among the blocks.
        fp8: precision of runs said to be in 8 bits without a recipe; None for the default of the library that quantises.
        low_precision: the newest precision below 16 bits that the device has, where the column is blank.
        shards_to_fit: whether optimizer states are sharded where whole ones do not fit, and the column is blank.
        full_share: share of the layers that are recomputed where full recomputing is named without the count it takes.
    """

    recompute: str = "none"
    micro_batch: tuple[tuple[float, int], ...] = ((float("inf"), 1),)
    global_batch: int | None = None
    seq_len: int | None = None
    vocab: int | None = None
    precision: str | None = None
    fp8: str | None = None
    low_precision: bool = False
    by_cost: bool = False
    full_share: float = 1.0
    shards_to_fit: bool = False


_BY_SIZE = ((10e9, 4), (100e9, 2), (float("inf"), 1))

_BRIDGE = Blanks(fp8="fp8-tensorwise")
"""Megatron-Bridge scales by tensors at hand (NVIDIA-NeMo/Megatron-Bridge, mixed_precision.py fp8_recipe; its performance
recipes are fp8_cs, fp8_mx and nvfp4)."""

DEFAULT_FP8: Mapping[str, str] = {"transformer-engine": "fp8-delayed", "torchao": "fp8-tensorwise"}
"""Recipe of 8 bits where none is named, by who quantises (NVIDIA/Megatron-LM, --fp8-recipe; Transformer Engine's autocast;
pytorch/ao, Float8LinearConfig)."""

BLANKS: Mapping[str, Blanks] = {
    "megatron-core-2025": _BRIDGE,
    "megatron-core-2026": _BRIDGE,
    "megatron-core-graphs": _BRIDGE,
    "megatron-2021": Blanks(micro_batch=_BY_SIZE),
    "megatron-2022": Blanks(micro_batch=_BY_SIZE),
    "nemo-launcher": Blanks(recompute="fits", micro_batch=_BY_SIZE, global_batch=2048),
    "torchtitan": Blanks(recompute="selective"),
    "torchtitan-eager": Blanks(recompute="selective"),
    "jax": Blanks(recompute="fits"),
    "llm-foundry": Blanks(recompute="fits"),
    "fms-fsdp": Blanks(recompute="fits", micro_batch=((float("inf"), 2),)),
    "internevo": Blanks(seq_len=2048),
    "nanotron": Blanks(seq_len=4096, vocab=131_072, by_cost=True),
    "mlperf-nemo": Blanks(low_precision=True),
    "megatron-core-rocm": Blanks(low_precision=True, full_share=21 / 80),
    "megatron-deepspeed": Blanks(shards_to_fit=True),
    "megatron-deepspeed-eager-softmax": Blanks(precision="tf32", shards_to_fit=True),
}
"""By profile; a profile that is not listed has the defaults of `Blanks`. On ROCm the published configurations with full
recomputing recompute 21 of 80 layers (ACG, ACM and ACL of MI300X and of two nodes of MI325X, all of Llama-2-70B:
mlcommons/training_results_v5.1, AMD, Dell, Krai, MangoBoost and others); other models get the same share, which stands among
what was assumed of a run."""


BEFORE_TRANSFORMER_ENGINE = "megatron-2021"
"""What Megatron's releases without Transformer Engine are, which needs Ampere or later (NVIDIA/TransformerEngine, README)."""

NO_FLASH = re.compile(r"(\S+) without flash attention")


def blanks_of(stack: StackProfile) -> Blanks:
    """What stands for blank cells of runs of a stack."""
    return BLANKS.get(stack.id, Blanks())


def fp8_of(stack: StackProfile) -> str:
    """Id of the precision of runs of a stack in 8 bits whose recipe is not named."""
    return blanks_of(stack).fp8 or DEFAULT_FP8[stack.quantiser]


def profile_of(row: RunRow, device: Device) -> tuple[StackProfile, tuple[str, ...]]:
    """The profile of a row with the switches it states, and what was assumed."""
    found = stack_for(row.framework) if row.framework else None
    notes: tuple[str, ...] = ()
    if found is None:
        found = _by_sharding(row)
        notes = (f"stack={found}",)
    volta = device.arch.lower() == "volta"
    if volta and load_stack(found).fused_attention and load_stack(found).framework == "megatron":
        found = BEFORE_TRANSFORMER_ENGINE
        notes = (f"stack={found}",)
    stack, switches = switched(_with_optimizer(load_stack(found), row), row)
    named = NO_FLASH.search(row.notes)
    without = volta or (named is not None and named.group(1).lower() in row.model.lower())
    if stack.fused_attention and without:
        old = load_stack(BEFORE_TRANSFORMER_ENGINE)
        names = ("fused_attention", "attention_backend", "score_bytes_forward", "score_bytes_backward", "score_saved_bytes")
        stack = replace(stack, **{name: getattr(old, name) for name in names})
        notes += ("attention=unfused",)
    return stack, notes + switches


def _with_optimizer(stack: StackProfile, row: RunRow) -> StackProfile:
    """The profile with what a named optimizer of DeepSpeed does to gradients."""
    if "bf16optimizer" not in row.zero_or_fsdp.lower():
        return stack
    own = load_stack("megatron-deepspeed-bf16")
    names = ("grad_bytes", "bucket_bytes", "weight_gradient_bytes", "accumulation_bytes", "zero1_reduces_whole")
    return replace(stack, **{name: getattr(own, name) for name in names})


def _by_sharding(row: RunRow) -> str:
    text = row.zero_or_fsdp.lower()
    if "fsdp2" in text:
        return "pytorch-fsdp2"
    if "fsdp" in text or "hsdp" in text:
        return "pytorch-fsdp1"
    if "megatron" in row.framework.lower() or "dist-opt" in text or (row.tp or 1) * (row.pp or 1) > 1:
        return "megatron-core"
    return "deepspeed" if "zero" in text else "pytorch-fsdp2"


def switched(stack: StackProfile, row: RunRow) -> tuple[StackProfile, tuple[str, ...]]:
    """The profile with what the row's notes state, and the names of what they changed."""
    notes = row.notes
    changes: dict[str, Any] = {}
    for pattern, effect in SWITCHES:
        if re.search(pattern, notes):
            changes |= effect(stack)
    changes = {key: value for key, value in changes.items() if value != getattr(stack, key)}
    return (replace(stack, **changes) if changes else stack), tuple(f"stack.{key}={value}" for key, value in changes.items())


def _eager(stack: StackProfile) -> dict[str, Any]:
    return {
        "elementwise_factor": max(stack.elementwise_factor, EAGER_ELEMENTWISE),
        "kernels_per_layer": max(stack.kernels_per_layer, EAGER_KERNELS),
        "host_s_per_kernel": max(stack.host_s_per_kernel, EAGER_HOST_S),
        "fused_gate": False,
    }


def _whole_graph(stack: StackProfile) -> dict[str, Any]:
    base = load_stack("megatron-core")
    return {
        "host_s_per_kernel": min(stack.host_s_per_kernel, GRAPH_SHARE * base.host_s_per_kernel),
        "moe_host_forward_s": 0.0,
        "moe_host_backward_s": 0.0,
    }


def _router_graph(_stack: StackProfile) -> dict[str, Any]:
    """Router and preprocessing are replayed as a graph: about half of the host's part of a routed layer stays."""
    base = load_stack("megatron-core")
    halved = {name: getattr(base, name) / 2 for name in ("moe_host_forward_s", "moe_host_backward_s")}
    return halved | _one_by_one()


def _experts_outside(_stack: StackProfile) -> dict[str, Any]:
    """No graph holds the experts: the host waits for the counts of rows, whatever the release can do."""
    base = load_stack("megatron-core")
    return {name: getattr(base, name) for name in ("moe_host_forward_s", "moe_host_backward_s")} | _one_by_one()


def _one_by_one() -> dict[str, Any]:
    """Products of experts outside graphs start one by one."""
    base = load_stack("megatron-core")
    return {name: getattr(base, name) for name in ("moe_launch_s", "moe_product_launch_s", "fused_experts")}


def _padded_to_capacity(_stack: StackProfile) -> dict[str, Any]:
    """Experts take as many rows as their capacity says: nobody waits for counts, and graphs hold the experts.

    Recipes of such runs record whole layers as graphs where small batches would wait for launches (NVIDIA-NeMo/Megatron-Bridge,
    release tag v0.1.0rc4, scripts/performance/configs/qwen3: cuda_graphs).
    """
    names = ("moe_host_forward_s", "moe_host_backward_s", "moe_launch_s", "moe_product_launch_s")
    return dict.fromkeys(names, 0.0)


def _value(field: str, value: Any) -> Callable[[StackProfile], dict[str, Any]]:
    return lambda _stack: {field: value}


SWITCHES: tuple[tuple[str, Callable[[StackProfile], dict[str, Any]]], ...] = (
    (r"(?i)(^|[;,] *)eager\b", _eager),
    (r"cuda_graph=(None:None|transformer_engine:)", _experts_outside),
    (r"cuda_graph=[a-z_]+:\[[^\]]*moe_router", _router_graph),
    (r"cuda_graph=(none:)?full_iteration", _whole_graph),
    (r"(?i)\btoken-?drop\b", _padded_to_capacity),
    (r"CUDA_LAUNCH_BLOCKING=1\b", _value("launches_block", True)),
    (r"(?i)TP_COMM_OVERLAP=(False|0)\b", _value("tp_exposed", BACKWARD_OVERLAP)),
    (r"(?i)TP_COMM_OVERLAP=(True|1)\b", _value("tp_exposed", 0.5)),
    (r"(?i)\bvanillaTP\b", _value("tp_exposed", 1.0)),
    (r"(?i)\basyncTP\b", _value("tp_exposed", 0.5)),
    (r"(?i)FP8_DPA=(True|1)\b", _value("attention_backend", "fp8")),
    (r"dispatcher=deepep\b", _value("moe_dispatcher", "deepep")),
    (r"dispatcher=hybridep\b", _value("moe_dispatcher", "hybridep")),
    (r"(?i)a2a_overlap=(False|None)", _value("ep_exposed", 1.0)),
    (r"(?i)a2a_overlap=True", _value("ep_exposed", 0.4)),
)
"""Patterns of notes and what each says of the stack, later ones on top."""
