"""The plan and the job that Megatron-LM arguments describe.

    degrees_of(settings)    tp pp cp ep etp, virtual stages and the split of the layers, ZeRO, recompute
    job_of(settings)        sequence, batch, precision, optimizer, dtype of gradients
    unpriced(settings)      what the arguments ask for and a price does not see

Shards of states: the distributed optimizer is ZeRO 1; Megatron-FSDP shards what `--data-parallel-sharding-strategy` says; torch
FSDP2 shards everything. Sequence parallelism, sharding and recompute are off where no argument switches them on.

Source: Megatron-LM `megatron/training/arguments.py` and `validate_args`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.errors import ShardwrightError
from shardwright.models.spec import ModelSpec
from shardwright.planner.megatron_splits import SplitFlags, stage_chunks
from shardwright.planner.offloading import Offload
from shardwright.planner.plans import MOE_DISPATCHERS, PRICED_CP_COMM, Degrees
from shardwright.planner.readers.configuration import Finding
from shardwright.planner.readers.stated import StatedSettings

SPLIT_SETTINGS = frozenset((
    "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split", "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
    "pipeline_model_parallel_layout",
))  # fmt: skip

_FSDP = ("use_megatron_fsdp", "use_custom_fsdp")
_SHARDED = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_FP8 = {"delayed": "fp8-delayed", "tensorwise": "fp8-tensorwise", "blockwise": "fp8-blockwise", "mxfp8": "mxfp8"}
_OPTIMIZERS = {"adam": "adam", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}
_MOMENTS = {"fp32": "adam", "bf16": "adam-bf16", "fp16": "adam-bf16", "fp8": "adam-8bit"}
_BATCH = "give it in the file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained with what."""

    seq_len: int
    micro_batch: int
    global_batch: int | None
    precision: str
    optimizer: str
    grad_dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Degrees, and what of them cannot be."""

    degrees: Degrees
    found: tuple[Finding, ...] = ()


def job_of(settings: StatedSettings) -> Job:
    """Sequence, batch, precision, optimizer.

    Raises:
        InvalidValueError: one that Megatron demands is missing.
    """
    precision = _precision(settings)
    return Job(
        seq_len=settings.required("seq_length", _BATCH),
        micro_batch=settings.required("micro_batch_size", _BATCH),
        global_batch=settings.whole("global_batch_size"),
        precision=precision,
        optimizer=_optimizer(settings),
        grad_dtype=_grad_dtype(settings, precision),
    )


def _precision(settings: StatedSettings) -> str:
    if settings.known("fp4") is not None:
        return "nvfp4"
    if settings.known("fp8") not in (None, False):
        return _FP8[settings.word("fp8_recipe", (*_FP8, "custom"), "delayed") or ""] if _named(settings) else "fp8-tensorwise"
    return "bf16" if settings.on("bf16") else "fp16" if settings.on("fp16") else "fp32"


def _named(settings: StatedSettings) -> bool:
    return settings.text("fp8_recipe") != "custom"


def _optimizer(settings: StatedSettings) -> str:
    name = settings.word("optimizer", (*_OPTIMIZERS, "lion", "soap", "adaptive_muon"), "adam") or "adam"
    if name == "adam" and settings.on("use_precision_aware_optimizer"):
        return _MOMENTS[settings.word("exp_avg_dtype", tuple(_MOMENTS), "fp32") or "fp32"]
    return _OPTIMIZERS.get(name, "muon" if name == "adaptive_muon" else "sgd")


def _grad_dtype(settings: StatedSettings, precision: str) -> str:
    """bf16 accumulates in fp32 unless told otherwise, fp16 in 16 bits unless told otherwise."""
    own = settings.text("megatron_fsdp_main_grads_dtype") or settings.text("main_grads_dtype")
    if own in {"fp32", "bf16"} and (settings.on("use_precision_aware_optimizer") or sharded_by_fsdp(settings)):
        return own
    if precision == "fp32" or settings.on("accumulate_allreduce_grads_in_fp32"):
        return "fp32"
    return "bf16" if precision == "fp16" or settings.on("grad_reduce_in_bf16") else "fp32"


def sharded_by_fsdp(settings: StatedSettings) -> bool:
    """Whether some kind of FSDP holds the states."""
    return any(settings.on(name) for name in (*_FSDP, "use_torch_fsdp2"))


def plan_of(settings: StatedSettings, job: Job, spec: ModelSpec, *, newest_default: bool = True) -> Plan:
    """The plan.

    Args:
        settings: what the file states.
        job: the job of the same file.
        spec: the model.
        newest_default: whether Megatron-FSDP shards everything where no strategy is named (since 0.17).
    """
    tp = settings.whole("tensor_model_parallel_size", 1) or 1
    pp = settings.whole("pipeline_model_parallel_size", 1) or 1
    settings.wholes("hierarchical_context_parallel_sizes")
    flags = split_flags(settings)
    found: tuple[Finding, ...] = ()
    try:
        chunks = stage_chunks(flags, layers=spec.layers, mtp_layers=spec.mtp_layers, pp=pp)
        vpp = len(chunks) // pp
    except ShardwrightError as error:
        place = f" ({error.where})" if error.where else ""
        found = (Finding(rule="megatron-split", message=error.message + place, remedy=error.hint, settings=SPLIT_SETTINGS),)
        chunks, vpp = (), 1
    mode, recomputed = _recompute(settings, vpp)
    degrees = Degrees(
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=settings.whole("context_parallel_size", 1) or 1,
        ep=settings.whole("expert_model_parallel_size", 1) or 1,
        etp=settings.whole("expert_tensor_parallel_size") if spec.moe is not None else None,
        dp_replicate=settings.whole("num_distributed_optimizer_instances"),
        micro_batch=job.micro_batch,
        zero=_zero(settings, newest_default),
        sequence_parallel=settings.on("sequence_parallel"),
        recompute=mode,
        recompute_layers=recomputed,
        layers_per_stage=chunks or None,
        cp_comm=_cp_comm(settings),
        offload=_offload(settings, spec.layers),
        moe_dispatcher=_dispatcher(settings),
    )
    return Plan(degrees=degrees, found=found)


def _cp_comm(settings: StatedSettings) -> str | None:
    """The exchange of context parallelism, where all layers have one that is priced."""
    kinds = set(settings.words("cp_comm_type"))
    return kinds.pop() if len(kinds) == 1 and kinds <= set(PRICED_CP_COMM) else None


def _dispatcher(settings: StatedSettings) -> str | None:
    """How tokens reach their experts: by an exchange of the library, or by a backend of the flexible one."""
    kind = settings.text("moe_token_dispatcher_type") or "allgather"
    if kind != "flex":
        return kind if kind in MOE_DISPATCHERS else "alltoall"
    backend = settings.text("moe_flex_dispatcher_backend")
    return backend if backend in MOE_DISPATCHERS else "deepep"


def _offload(settings: StatedSettings, layers: int) -> Offload | None:
    """The fraction of the optimizer on the host (all where none is named), and the layers whose activations go there."""
    fraction = settings.share("optimizer_offload_fraction", 1.0) if settings.on("optimizer_cpu_offload") else 0.0
    count = min(settings.whole("cpu_offloading_num_layers", 0, least=0) or 0, layers)
    return Offload(activations=count / layers, optimizer=fraction) if fraction or count else None


def split_flags(settings: StatedSettings) -> SplitFlags:
    """The arguments that say how the layers are split; one virtual stage is none (`validate_args`)."""
    virtual = settings.whole("num_virtual_stages_per_pipeline_rank")
    return SplitFlags(
        first=settings.whole("decoder_first_pipeline_num_layers"),
        last=settings.whole("decoder_last_pipeline_num_layers"),
        embedding=settings.on("account_for_embedding_in_pipeline_split"),
        loss=settings.on("account_for_loss_in_pipeline_split"),
        layers_per_virtual_stage=settings.whole("num_layers_per_virtual_pipeline_stage"),
        virtual_stages_per_rank=None if virtual == 1 else virtual,
        layout=settings.text("pipeline_model_parallel_layout"),
    )


def grouped_micro_batches(settings: StatedSettings, degrees: Degrees, global_batch: int, replicas: int) -> bool:
    """Whether the arguments group micro-batches so that the interleaved schedule takes their number.

    The group lies between pp and the micro-batches, and what is left over is none or at least pp (Megatron-Core schedules).
    """
    group = settings.whole("microbatch_group_size_per_vp_stage")
    micro_batches = global_batch // (degrees.micro_batch * replicas)
    if group is None or not degrees.pp <= group <= micro_batches:
        return False
    return micro_batches % group == 0 or micro_batches % group >= degrees.pp


def _zero(settings: StatedSettings, newest_default: bool) -> int:
    if settings.on("use_torch_fsdp2"):
        return 3 if settings.on("torch_fsdp2_reshard_after_forward", True) else 2
    if any(settings.on(name) for name in _FSDP):
        default = "optim_grads_params" if newest_default else "no_shard"
        return _SHARDED[settings.word("data_parallel_sharding_strategy", tuple(_SHARDED), default) or default]
    return int(settings.on("use_distributed_optimizer") or settings.text("optimizer") == "dist_muon")


def _recompute(settings: StatedSettings, vpp: int) -> tuple[str, int | None]:
    """The mode, and layers of a stage: `block` counts them by chunk, `uniform` covers all."""
    mode = settings.word("recompute_granularity", ("full", "selective"))
    if mode is None and settings.on("recompute_activations"):
        mode = "selective"
    if mode != "full":
        return mode or "none", None
    layers = settings.whole("recompute_num_layers")
    if settings.word("recompute_method", ("uniform", "block")) == "block" and layers is not None:
        return "full", layers * vpp
    return "full", None


_UNPRICED: Mapping[str, str] = {
    "rampup_batch_size": "the batch is priced as it is after the ramp",
    "step_batch_size_schedule": "the batch is priced as --global-batch-size says",
    "cpu_offloading": "what is offloaded is priced by --cpu-offloading-num-layers",
    "fine_grained_activation_offloading": "activations of single modules are priced on the device",
    "fp8_param": "parameters are priced in 16 bits",
    "fp8_param_gather": "parameters are priced in 16 bits",
    "fp4_param": "parameters are priced in 16 bits",
    "moe_expert_capacity_factor": "experts are priced with a balanced load",
    "hierarchical_context_parallel_sizes": "context parallelism is priced as one ring",
    "hybrid_context_parallel": "context parallelism is priced as one ring",
    "overlap_moe_expert_parallel_comm": "how much of it is hidden is the stack profile's",
    "cuda_graph_impl": "launches are priced as the stack profile says",
    "enable_cuda_graph": "launches are priced as the stack profile says",
    "distribute_saved_activations": "kept activations are priced whole on every rank",
    "gtp_weight_remat_size": "weights are priced on every rank of their group",
    "tensor_parallel_num_weight_shards": "weights are priced on every rank of their group",
    "freeze_LM": "all modules are priced as trained",
    "apply_residual_connection_post_layernorm": "norms are priced before each block",
}


def unpriced(settings: StatedSettings) -> tuple[str, ...]:
    """Warnings for what a price does not see."""
    found = []
    for name, said in _UNPRICED.items():
        value = settings.known(name)
        if value not in (None, False, "none", 1):
            found.append(f"{settings.where(name)}: {said}")
    modules = settings.words("recompute_modules")
    if settings.text("recompute_granularity") == "selective" and modules and set(modules) != {"core_attn"}:
        found.append(f"{settings.where('recompute_modules')}: selective recompute is priced as the stack profile's modules")
    if settings.on("optimizer_cpu_offload") and not settings.on("overlap_cpu_optimizer_d2h_h2d"):
        where = settings.where("optimizer_cpu_offload")
        found.append(f"{where}: copies are priced beside the update, as with --overlap-cpu-optimizer-d2h-h2d")
    odd = set(settings.words("cp_comm_type")) - {"p2p"}
    if settings.whole("context_parallel_size", 1) != 1 and odd and _cp_comm(settings) is None:
        found.append(f"{settings.where('cp_comm_type')}: context parallelism is priced as a ring (p2p)")
    layout = settings.text("pipeline_model_parallel_layout")
    if layout is not None and "m" in layout and not layout.rstrip("L,").endswith("m"):
        found.append(f"{settings.where('pipeline_model_parallel_layout')}: multi-token prediction is priced with the loss")
    if settings.text("recompute_method") == "uniform" and (settings.whole("recompute_num_layers", 1) or 1) > 1:
        found.append(f"{settings.where('recompute_num_layers')}: the input of every layer is priced as kept")
    if settings.text("optimizer") in {"lion", "soap", "adaptive_muon"}:
        found.append(f"{settings.where('optimizer')}: priced with the states of {_optimizer(settings)}")
    return tuple(found)
