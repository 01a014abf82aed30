"""The plan of a measured run: cluster, precision, degrees, from its columns and their documented defaults.

    nodes            NODE:COUNT[xG], truncated to the GPUs used, in equal blocks    `cluster_of`
    precision        column text, else 16 bits (or the stack's own)                 `precision_of`
    zero, replicas   `zero_or_fsdp` text                                            `sharding_of`
    recompute        `recompute` text                                               `recompute_of`
    offload          `offload` text                                                 `offloaded`
    layers a stage   even, else embedding and head counted as a layer each          `split_of`
    micro-batches    batch / (dp x micro-batch), rounded to a whole number          `batch_of`

A row whose text says something that cannot be read is refused by name rather than priced as something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from shardwright.errors import ConflictError, InvalidValueError, UnsupportedError
from shardwright.hardware.catalog import load_cluster, load_node
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.device import Device
from shardwright.planner.cost.recompute import by_operator
from shardwright.planner.offloading import Offload
from shardwright.planner.runs.stack import blanks_of, fp8_of
from shardwright.planner.runs.table import RunRow
from shardwright.planner.stacks import StackProfile

SELECTIVE_POLICIES = {
    "save_dot_with_context_except_mlp": ("layernorm", "mlp", "mlp_act"),
    "save_dot_except_mlp": ("layernorm", "core_attn", "mlp", "mlp_act"),
    "save_qkv_proj": ("layernorm", "core_attn", "mlp", "mlp_act"),
    "minimal": ("layernorm", "mlp_act"),
    "minimal_flash": ("layernorm", "mlp_act"),
    "attention": ("core_attn",),
}
"""Selective policies by the names frameworks give them, and the modules each recomputes."""

FP8_PARTS = re.compile(r"(?i)\bFP8_(DPA|PARAMS)=(True|1)\b")
"""Settings of parts that only an fp8 recipe has: attention and parameters in 8 bits."""

_EVERY = {"other": 2, "second": 2, "third": 3}

MODULES = ("layernorm", "core_attn", "mlp_act", "moe_act", "mla_up_proj", "mlp", "moe", "shared_experts", "attn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How a global batch is cut.

    Attributes:
        sequences: sequences priced, a multiple of dp x micro-batch.
        micro_batch: sequences of one micro-batch.
        scale: sequences of the run over sequences priced.
    """

    sequences: int
    micro_batch: int
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """What is recomputed.

    Attributes:
        mode: none, selective, full, or "fits" (the cheapest that fits).
        layer_share: share of the layers that are recomputed (mode full).
        modules: modules recomputed (mode selective); None for the stack's.
    """

    mode: str
    layer_share: float = 1.0
    modules: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How states are sharded.

    Attributes:
        zero: ZeRO stage.
        replicas: data-parallel replicas of the sharding group.
        grad_dtype: dtype of gradients where the text states it, else None.
    """

    zero: int
    replicas: int = 1
    grad_dtype: str | None = None


def cluster_of(row: RunRow) -> tuple[Cluster, tuple[str, ...]]:
    """The machine of a row with the GPUs it used, and what was assumed.

    Where a scale-up domain spans nodes (NVL72) and a job needs several, it gets equal blocks of nodes, one a domain.

    Raises:
        UnknownNameError: no node preset of that name.
        UnsupportedError: no count of GPUs.
    """
    if row.gpus is None:
        raise UnsupportedError("the row states no count of GPUs")
    return _cluster(row.node, row.gpus, row.gpus_per_node)


@lru_cache(maxsize=1024)
def _cluster(name: str, gpus: int, per_node: int | None) -> tuple[Cluster, tuple[str, ...]]:
    node = load_node(name)
    usable = min(per_node or node.gpus, node.gpus, gpus)
    machine = load_cluster(f"{node.id}:{-(-gpus // usable)}" + (f"x{usable}" if usable != node.gpus else ""))
    machine = machine.truncated(gpus) if machine.gpus != gpus else machine
    placed = machine.in_equal_blocks()
    block = placed.node.scaleup_domain_gpus
    return placed, () if block == node.scaleup_domain_gpus else (f"scaleup_domain_gpus={block}",)


def precision_of(row: RunRow, device: Device, stack: StackProfile) -> tuple[str, tuple[str, ...]]:
    """Id of the precision of a row, and what was assumed.

    Raises:
        UnsupportedError: a text that names none.
    """
    text = re.sub(r"\s", "", row.precision.upper())
    if not text:
        parts = FP8_PARTS.search(row.notes) and "fp8" in device.peak_flops
        chosen = fp8_of(stack) if parts else _blank_precision(device, stack)
        return chosen, (f"precision={chosen}",)
    starts = (
        ("NVFP4", "nvfp4"), ("FP4", "nvfp4"), ("MXFP8", "mxfp8"), ("FP8-MX", "mxfp8"), ("FP8-SC", "fp8-blockwise"),
        ("FP8BLOCK", "fp8-blockwise"), ("FP8-BLOCK", "fp8-blockwise"), ("FP8-CS", "fp8-tensorwise"),
        ("FP8TENSOR", "fp8-tensorwise"), ("FP8-TENSOR", "fp8-tensorwise"), ("FP8-DELAYED", "fp8-delayed"),
        ("FP8-DS", "fp8-delayed"), ("FP8DELAYED", "fp8-delayed"), ("FP8ROWWISE_WITH_GW_HP", "fp8-rowwise-gw-hp"),
        ("FP8-ROWWISE-GW-HP", "fp8-rowwise-gw-hp"), ("FP8ROW", "fp8-rowwise"), ("FP8-ROW", "fp8-rowwise"),
        ("FP8", fp8_of(stack)), ("BF16", "bf16"), ("FP16", "fp16"), ("HALF", "fp16"), ("FP32", "fp32"), ("TF32", "tf32"),
    )  # fmt: skip
    found = next((name for start, name in starts if text.startswith(start)), None)
    found = found or next((name for start, name in starts if start in text), None)
    if found is None:
        raise UnsupportedError(f"the precision {row.precision[:40]!r} is not known")
    return found, ()


def _blank_precision(device: Device, stack: StackProfile) -> str:
    own = blanks_of(stack).precision
    if own is not None:
        return own if own in device.peak_flops else "fp32"
    if "bf16" not in device.peak_flops or device.arch.lower() == "volta":
        return "fp16"
    recent = device.arch.lower() not in ("ampere", "hopper", "ada") and "fp8" in device.peak_flops
    return fp8_of(stack) if blanks_of(stack).low_precision and recent else "bf16"


def data_parallel(row: RunRow) -> int:
    """Data-parallel degree of a row.

    Raises:
        UnsupportedError: more than one GPU and no parallel sizes.
        ConflictError: sizes whose product does not divide the GPUs.
    """
    gpus = row.gpus or 1
    if gpus > 1 and row.tp is None and row.pp is None and row.dp is None:
        raise UnsupportedError("the row states no parallel sizes")
    model = (row.tp or 1) * (row.pp or 1) * (row.cp or 1)
    if gpus % model:
        raise ConflictError(f"tp x pp x cp = {model} does not divide the {gpus} GPUs")
    return gpus // model


def batch_of(row: RunRow, stack: StackProfile, parameters: int, dp: int) -> tuple[Batch, tuple[str, ...]]:
    """The batch of a row, and what was assumed."""
    blanks = blanks_of(stack)
    by_size = next(value for limit, value in blanks.micro_batch if parameters <= limit)
    micro_batch = row.micro_batch or _dividing(by_size, row.global_batch, dp)
    stated = row.global_batch or blanks.global_batch or dp * micro_batch
    count = max(round(stated / (dp * micro_batch)), 1)
    batch = Batch(sequences=count * dp * micro_batch, micro_batch=micro_batch, scale=stated / (count * dp * micro_batch))
    notes = [] if row.micro_batch else [f"micro_batch={micro_batch}"]
    notes += [] if row.global_batch else [f"global_batch={stated}"]
    notes += [] if batch.scale == 1 else [f"priced_batch={batch.sequences}"]
    return batch, tuple(notes)


def _dividing(wanted: int, global_batch: int | None, dp: int) -> int:
    if global_batch is None:
        return wanted
    return max((size for size in range(1, wanted + 1) if global_batch % (size * dp) == 0), default=1)


def sharding_of(row: RunRow, stack: StackProfile, dp: int) -> tuple[Sharding, tuple[str, ...]]:
    """ZeRO stage and replicas of a row, and what was assumed.

    Raises:
        UnsupportedError: a text that names no way of sharding.
        InvalidValueError: groups that do not divide the data-parallel ranks.
    """
    text = row.zero_or_fsdp.lower()
    zero = stack.zero_stage if not text else _zero_stage(text)
    notes = () if text else (f"zero={zero}",)
    if dp * (row.cp or 1) == 1:
        return Sharding(zero=0), notes
    replicas, assumed = _replicas(row, text, dp)
    if dp % replicas:
        raise InvalidValueError(f"{row.zero_or_fsdp!r} does not divide the {dp} data-parallel ranks")
    grads = "fp32" if "bf16optimizer" in text else "bf16" if "pure" in row.precision.lower() else None
    return Sharding(zero=zero, replicas=replicas if zero else 1, grad_dtype=grads), notes + assumed


def _zero_stage(text: str) -> int:
    if "shard_grad_op" in text or re.search(r"zero-?2", text):
        return 2
    if "fsdp" in text or "hsdp" in text or re.search(r"zero-?3|full_shard", text):
        return 3
    if re.search(r"zero-?1|dist-?opt|distributed.optimizer", text):
        return 1
    if re.search(r"zero-?0|\bd?dp\b|data.parallel|\bno(ne)?\b", text):
        return 0
    raise UnsupportedError(f"the sharding {text[:40]!r} is not known")


def _replicas(row: RunRow, text: str, dp: int) -> tuple[int, tuple[str, ...]]:
    groups = re.search(r"groups? of (\d+)", text)
    if groups:
        return max(dp // max(int(groups.group(1)), 1), 1), ()
    stated = re.search(r"replicas?\D{0,3}(\d+)", text)
    if stated:
        return max(int(stated.group(1)), 1), ()
    if "hsdp" not in text:
        return 1, ()
    inside = max((row.gpus_per_node or 8) // ((row.tp or 1) * (row.cp or 1)), 1)
    shard = inside if dp % inside == 0 else 1
    return dp // shard, (f"dp_replicate={dp // shard}",)


def recompute_of(row: RunRow, stack: StackProfile) -> tuple[Recompute, tuple[str, ...]]:
    """What a row recomputes, and what was assumed.

    Raises:
        UnsupportedError: a text that says nothing known.
    """
    text = row.recompute.lower()
    if not text:
        mode = blanks_of(stack).recompute
        found = _selective("selective", row, stack) if mode == "selective" else Recompute(mode=mode)
        return found, (f"recompute={mode}",)
    if re.match(r"none|no\b|off\b|false", text):
        return Recompute(mode="none"), ()
    counted = re.match(r"full:\w+:(\d+|none) ?layers", text)
    if counted:
        return _counted(counted.group(1), row, blanks_of(stack).full_share)
    if re.match(r"full|yes|on\b|true|uniform|block|all\b", text):
        return Recompute(mode="full"), ()
    if "selective" in text:
        return _selective(text, row, stack), ()
    raise UnsupportedError(f"the recompute {row.recompute[:40]!r} is not known")


def _counted(count: str, row: RunRow, usual: float) -> tuple[Recompute, tuple[str, ...]]:
    """Megatron's granularity, method and layers of a stage (`full:block:21layers`); `none` where the count is not known."""
    if count != "none" and row.layers:
        return Recompute(mode="full", layer_share=min(int(count) * (row.pp or 1) / row.layers, 1.0)), ()
    return Recompute(mode="full", layer_share=usual), (f"recompute.layer_share={usual:g}",) if usual < 1 else ()


def _selective(text: str, row: RunRow, stack: StackProfile) -> Recompute:
    inner = text.partition("selective")[2].strip(" :()")
    named = tuple(name for name in re.split(r"[+, ]+", inner) if name in MODULES)
    if named:
        return Recompute(mode="selective", modules=named)
    policy = re.sub(r"\s*policy$", "", inner)
    if policy in SELECTIVE_POLICIES:
        return Recompute(mode="selective", modules=SELECTIVE_POLICIES[policy])
    every = re.search(r"every (other|second|third|[1-9]\d{0,3})", inner)
    if every:
        return Recompute(mode="full", layer_share=1 / (_EVERY.get(every.group(1)) or int(every.group(1))))
    if by_operator(stack):
        return Recompute(mode="selective")
    share = _share_from_hfu(row)
    return Recompute(mode="full", layer_share=share) if share is not None else Recompute(mode="selective")


def _share_from_hfu(row: RunRow) -> float | None:
    """Share of the forward pass that hardware FLOPs over model FLOPs say was repeated: 3 (HFU / MFU - 1)."""
    stated = re.search(r"HFU\s*=\s*([\d.]+)", f"{row.flops_definition_note} {row.notes}")
    if not stated or not row.mfu_reported:
        return None
    share = 3 * (float(stated.group(1).rstrip(".")) / row.mfu_reported - 1)
    return min(share, 1.0) if share > 0.02 else None


def offloaded(row: RunRow, layers: int, zero: int) -> Offload | None:
    """What a row keeps in host memory: "activations:40layers", "optimizer+params"; "full cpu offload" is all of it.

    Raises:
        UnsupportedError: a text that names nothing known.
    """
    text = row.offload.lower().strip()
    if not text or re.match(r"none|no\b|off\b", text):
        return None
    counted = re.search(r"activations?\D{0,3}(\d{1,6}) ?layers", text)
    whole = bool(re.search(r"full|everything|\ball\b", text))
    share = min(int(counted.group(1)) / layers, 1.0) if counted else float(whole or "activation" in text)
    optimizer, parameters = (whole or bool(re.search(words, text)) for words in (r"optim", r"param"))
    if not (share or optimizer or parameters):
        raise UnsupportedError(f"offload of {row.offload[:40]!r} is not known")
    return Offload(activations=share, optimizer=float(optimizer), parameters=float(parameters and zero == 3))


def split_of(layers: int, stages: int) -> tuple[int, ...] | None:
    """Layers of each chunk where they do not divide evenly, else None.

    The embedding and the head count as one layer each if that makes the chunks even (as Megatron-Core's
    `--account-for-embedding-in-pipeline-split` and `--account-for-loss-in-pipeline-split` do); otherwise the
    chunks in the middle take one layer more.
    """
    if stages <= 1 or layers % stages == 0 or layers < stages:
        return None
    if (layers + 2) % stages == 0:
        each = (layers + 2) // stages
        return (each - 1, *[each] * (stages - 2), each - 1)
    if (layers + 1) % stages == 0:
        each = (layers + 1) // stages
        return (*[each] * (stages - 1), each - 1)
    each, more = divmod(layers, stages)
    first = (stages - more) // 2
    return tuple(each + (first <= index < first + more) for index in range(stages))
