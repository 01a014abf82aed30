"""DeepSpeed's JSON as a configuration.

    train_batch_size = train_micro_batch_size_per_gpu · gradient_accumulation_steps · dp

Any two give the third, one alone counts one accumulation; all three must agree. dp = GPUs / (tp · pp · sequence_parallel_size),
and DeepSpeed takes it from the ranks that are started: a launch of one rank breaks every batch. Model, sequence and pipeline
are not in the JSON: they stand beside it. `auto`, which the Hugging Face Trainer fills in, is an open value (`defined`).

DeepSpeed passes over a key it does not know, so that `zero_optimisation` trains with ZeRO 0 in silence: that is an error here.

Source: DeepSpeed 0.19 `runtime/config.py`, `runtime/constants.py`, `runtime/zero/config.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.errors import InvalidValueError
from shardwright.models.catalog import load_model
from shardwright.planner.offloading import Offload
from shardwright.planner.plans import Degrees
from shardwright.planner.readers.configuration import Beside, Configuration, Finding
from shardwright.planner.readers.documents import read_json
from shardwright.planner.readers.stated import Stated, StatedSettings, typed


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


KEYS = _names(
    """
train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps optimizer scheduler fp16 bf16 bfloat16
zero_optimization zero_allow_untested_optimizer zero_force_ds_cpu_optimizer gradient_clipping prescale_gradients
gradient_predivide_factor gradient_allreduce_op sparse_gradients communication_data_type
seq_parallel_communication_data_type steps_per_print wall_clock_breakdown memory_breakdown dump_state disable_allgather
disable_python_gc dataloader_drop_last log_level amp torch_autocast activation_checkpointing flops_profiler autotuning
comms_logger tensorboard wandb csv_monitor comet monitor_config elasticity compression_training data_efficiency
curriculum_learning progressive_layer_drop eigenvalue sparse_attention aio checkpoint data_types nebula hybrid_engine
pipeline tensor_parallel expert_parallel sequence_parallel_size use_data_before_expert_parallelism
managed_gradient_accumulation legacy_fusion graph_harvesting use_node_local_storage timers compile weight_quantization
quantize_training vocabulary_size zenflow datastates_ckpt inference train_iters
"""
)
"""Keys at the top."""

ZERO_KEYS = _names(
    """
stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce allgather_partitions
allgather_bucket_size overlap_comm compute_grad_norm load_from_fp32_weights elastic_checkpoint offload_param
offload_optimizer zenflow sub_group_size cpu_offload_param cpu_offload_use_pin_memory cpu_offload
stage3_prefetch_bucket_size stage3_param_persistence_threshold stage3_model_persistence_threshold
stage3_max_live_parameters stage3_max_reuse_distance stage3_gather_16bit_weights_on_model_save
stage3_module_granularity_threshold stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential
stage3_gather_fp16_weights_on_model_save prefetch_bucket_size param_persistence_threshold model_persistence_threshold
max_live_parameters max_reuse_distance gather_16bit_weights_on_model_save module_granularity_threshold
use_all_reduce_for_fetch_params allgather_sequential ignore_unused_parameters legacy_stage1 round_robin_gradients
parameter_alignment zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights
zero_quantized_gradients mics_shard_size mics_hierarchical_params_gather memory_efficient_linear
pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings enable_sanity_checks
save_muon_momentum_buffer_in_memory leaf_module
"""
)
"""Keys of `zero_optimization`."""

_GROUPS = _names(
    """
zero_optimization zero_optimization.offload_optimizer zero_optimization.offload_param optimizer fp16 bf16 bfloat16
torch_autocast data_types tensor_parallel activation_checkpointing
"""
)
"""What is read key by key, and so has to be a mapping."""

_OPTIMIZERS: Mapping[str, str] = {
    "adam": "adam", "adamw": "adam", "fusedadam": "adam", "onebitadam": "adam", "zerooneadam": "adam", "lamb": "adam",
    "onebitlamb": "adam", "adagrad": "sgd", "sgd": "sgd", "muon": "muon", "lion": "sgd",
}  # fmt: skip
_AXES = frozenset(("sequence_parallel_size", "tensor_parallel.autotp_size"))
"""What the JSON says of axes besides data parallelism."""

_BATCH, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Batch, micro-batch and accumulations, and what of them cannot be."""

    batch: int
    micro: int
    steps: int
    broken: tuple[Finding, ...] = ()


def deepspeed_configuration(path: Path, beside: Beside) -> Configuration:
    """The configuration of a JSON file.

    Raises:
        ShardwrightError: the file cannot be read, misses what a price needs, or has one value where a mapping belongs.
    """
    settings = _filled(read_json(path), beside.defined)
    _refuse_flat(settings)
    if beside.model is None or beside.seq_len is None:
        missing = "MODEL" if beside.model is None else "--seq-len"
        hint = "the JSON says neither model nor sequence: name MODEL and --seq-len beside it"
        raise InvalidValueError(f"missing {missing}", where=missing, hint=hint)
    given = dict(beside.degrees)
    tp = settings.whole("tensor_parallel.autotp_size", given.pop("tp", 1), least=0) or 1
    cp = settings.whole("sequence_parallel_size", given.pop("cp", 1)) or 1
    pp = given.pop("pp", 1)
    ranks = beside.world_size or beside.gpus
    batch = _batch(settings, max(ranks // (tp * cp * pp), 1))
    stage = settings.whole("zero_optimization.stage", 0, least=0)
    graph = load_model(beside.model)
    derived = {_BATCH: batch.batch, _MICRO: batch.micro, _STEPS: batch.steps}
    launched = {} if beside.world_size is None else {"launch.world_size": beside.world_size}
    return Configuration(
        source=str(path),
        framework="deepspeed",
        graph=graph,
        seq_len=beside.seq_len,
        global_batch=batch.batch,
        precision=_precision(settings),
        optimizer=_optimizer(settings),
        grad_dtype=_grad_dtype(settings),
        degrees=Degrees(tp=tp, cp=cp, pp=pp, micro_batch=batch.micro, zero=stage, offload=_offload(settings, stage), **given),
        settings=derived | settings.values() | launched,
        found=(*_unknown(settings), *batch.broken, *_both(settings), *_heads(graph.spec.heads, cp)),
        waived=frozenset(("deepspeed-axes",)) if settings.stated.keys() & _AXES else frozenset(),
        warnings=_unpriced(settings),
    )


def _refuse_flat(settings: StatedSettings) -> None:
    """Refuses one value where a mapping belongs: what the mapping would say must not be taken as unsaid.

    Raises:
        InvalidValueError: `"offload_param": "cpu"`, for one.
    """
    for name in sorted(settings.stated.keys() & _GROUPS):
        value = settings.known(name)
        if value is not None and str(value) != "{}":  # an empty mapping says nothing
            hint = f'give its keys: "{name.rpartition(".")[2]}": {{...}}'
            raise InvalidValueError(f"{str(value)[:40]!r} is no mapping", where=settings.where(name), hint=hint)


def _found(rule: str, message: str, remedy: str, *settings: str) -> Finding:
    return Finding(rule=rule, message=message, remedy=remedy, settings=frozenset(settings))


def _filled(settings: StatedSettings, defined: Mapping[str, str]) -> StatedSettings:
    """Open values (`auto`) replaced by those that are defined; what is open and not needed is left out."""
    made = {}
    for name, one in settings.stated.items():
        value = defined.get(name, one.value)
        if value == "auto" and name in {_BATCH, _MICRO, _STEPS, "zero_optimization.stage"}:
            hint = f"the Hugging Face Trainer fills it in; give it by --define {name}=N"
            raise InvalidValueError(f"{name} is auto", where=one.where, hint=hint)
        if value != "auto":
            made[name] = Stated(value=typed(value) if isinstance(value, str) else value, where=one.where)
    for name, text in defined.items():
        made.setdefault(name, Stated(value=typed(text), where="--define"))
    return StatedSettings(source=settings.source, stated=made)


def _batch(settings: StatedSettings, dp: int) -> _Batch:
    batch, micro, steps = (settings.whole(name) for name in (_BATCH, _MICRO, _STEPS))
    if batch is None and micro is None:
        hint = f"give {_MICRO}, and {_STEPS} or {_BATCH}"
        raise InvalidValueError(f"neither {_BATCH} nor {_MICRO} is given", where=settings.source, hint=hint)
    if batch is None:
        steps = steps or 1
        return _Batch(batch=(micro or 1) * steps * dp, micro=micro or 1, steps=steps)
    if micro is None:
        micro = batch // (dp * (steps or 1))
    if steps is None:
        steps = batch // (micro * dp) if micro else 0
    if micro * steps * dp == batch:
        return _Batch(batch=batch, micro=micro, steps=steps)
    product = f"{_MICRO} {micro} · {_STEPS} {steps} · dp {dp} = {micro * steps * dp}"
    step = max(micro * max(steps, 1) * dp, dp)
    near = max(round(batch / step), 1) * step
    remedy = f"set {_BATCH} {near}, or start the ranks that make it {batch}"
    broken = (_found("deepspeed-batch-identity", f"{_BATCH} {batch} is not {product}", remedy, _BATCH, _MICRO, _STEPS),)
    return _Batch(batch=batch, micro=max(micro, 1), steps=max(steps, 1), broken=broken)


_OFFLOADS = {"optimizer": "offload_optimizer", "parameters": "offload_param"}


def _offload(settings: StatedSettings, stage: int | None) -> Offload | None:
    """What ZeRO keeps in host memory; parameters under stage 3 alone, whatever the document says."""
    held = {}
    for part, name in _OFFLOADS.items():
        key = f"zero_optimization.{name}"
        if settings.text(f"{key}.device") in {"cpu", "nvme"} and (part == "optimizer" or stage == 3):
            held[part] = settings.share(f"{key}.ratio", 1.0)
    if settings.on("zero_optimization.cpu_offload"):  # of DeepSpeed before 0.3.16
        held.setdefault("optimizer", 1.0)
    return Offload(**held) if held else None


def _precision(settings: StatedSettings) -> str:
    if settings.on("bf16.enabled") or settings.on("bfloat16.enabled"):
        return "bf16"
    if settings.on("torch_autocast.enabled"):
        return "fp16" if settings.text("torch_autocast.dtype") == "float16" else "bf16"
    return "fp16" if settings.on("fp16.enabled") else "fp32"


def _optimizer(settings: StatedSettings) -> str:
    return _OPTIMIZERS.get((settings.text("optimizer.type") or "adam").lower().replace("_", ""), "adam")


def _grad_dtype(settings: StatedSettings) -> str | None:
    word = settings.text("data_types.grad_accum_dtype")
    return {"fp32": "fp32", "bf16": "bf16", "fp16": "bf16"}.get(word or "")


def _heads(heads: int, size: int) -> tuple[Finding, ...]:
    """Ulysses shares out the heads between sequence-parallel ranks."""
    if heads % size == 0:
        return ()
    near = max(d for d in range(1, min(size, heads) + 1) if heads % d == 0)
    message = f"{heads} attention heads cannot be shared by sequence_parallel_size {size}"
    return (_found("deepspeed-ulysses-heads", message, f"set sequence_parallel_size {near}"),)


def _both(settings: StatedSettings) -> tuple[Finding, ...]:
    if settings.on("fp16.enabled") and (settings.on("bf16.enabled") or settings.on("bfloat16.enabled")):
        return (_found("deepspeed-precision", "fp16 and bf16 are both enabled", "enable one of them"),)
    return ()


def _unknown(settings: StatedSettings) -> tuple[Finding, ...]:
    """Keys that DeepSpeed would pass over, or refuse inside `zero_optimization`."""
    made = []
    for name, one in settings.stated.items():
        top, _, rest = name.partition(".")
        inner = rest.split(".")[0]
        if top not in KEYS and not one.where.startswith("--"):
            near = difflib.get_close_matches(top, KEYS, n=1, cutoff=0.6)
            remedy = f"write {near[0]}" if near else "leave it out"
            made.append(_found("deepspeed-key", f"DeepSpeed passes over the key {top} in silence ({one.where})", remedy))
        elif top == "zero_optimization" and inner and inner not in ZERO_KEYS:
            near = difflib.get_close_matches(inner, ZERO_KEYS, n=1, cutoff=0.6)
            remedy = f"write {near[0]}" if near else "leave it out"
            made.append(_found("deepspeed-key", f"zero_optimization has no key {inner} ({one.where})", remedy))
    return tuple({(one.message.split("(")[0]): one for one in made}.values())


def _unpriced(settings: StatedSettings) -> tuple[str, ...]:
    found = []
    for part in _OFFLOADS.values():
        key = f"zero_optimization.{part}.device"
        if settings.text(key) == "nvme":
            found.append(f"{settings.where(key)}: what goes to NVMe is priced in host memory")
    if settings.on("activation_checkpointing.cpu_checkpointing"):
        where = settings.where("activation_checkpointing.cpu_checkpointing")
        found.append(f"{where}: checkpointed activations are priced on the device")
    said: dict[str, Any] = {
        "zero_optimization.zero_hpz_partition_size": "secondary shards are not priced",
        "zero_optimization.mics_shard_size": "states are priced as sharded over all ranks",
        "zero_optimization.zero_quantized_weights": "gathers are priced in 16 bits",
        "zero_optimization.zero_quantized_gradients": "reductions are priced in full precision",
    }
    found += [f"{settings.where(key)}: {text}" for key, text in said.items() if settings.known(key) not in (None, False, 1)]
    name = (settings.text("optimizer.type") or "adam").lower().replace("_", "")
    if name not in {"adam", "adamw", "fusedadam", "sgd", "muon"}:
        found.append(f"{settings.where('optimizer.type')}: priced with the states of {_optimizer(settings)}")
    return tuple(found)
