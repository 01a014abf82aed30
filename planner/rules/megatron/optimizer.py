"""Megatron: optimizer, gradient reduction, FSDP, checkpoints and precision.

Checked by `validate_args`, `OptimizerConfig.__post_init__`, `DistributedDataParallelConfig.__post_init__` and
`TransformerConfig.__post_init__`.
"""

from __future__ import annotations

from functools import partial

from shardwright.planner.rules.base import Changes, Columns, Facts, Rule
from shardwright.planner.rules.declaring import setting_rule
from shardwright.planner.rules.settings import Settings

_args = partial(setting_rule, source="Megatron-LM validate_args")
_optimizer = partial(setting_rule, source="Megatron-Core OptimizerConfig")
_ddp = partial(setting_rule, source="Megatron-Core DistributedDataParallelConfig")

_SHARD, _GATHER, _REDUCE = "use_distributed_optimizer", "overlap_param_gather", "overlap_grad_reduce"
_FSDP, _FSDP2, _STEP = "use_megatron_fsdp", "use_torch_fsdp2", "overlap_param_gather_with_optimizer_step"
_DTYPES = ("main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
_AWARE = "use_precision_aware_optimizer"


def _emerging(s: Settings) -> bool:
    """Whether the optimizer is one of Muon's kind."""
    return s.text("optimizer") not in {"adam", "sgd", ""}


def _fsdp2_off(s: Settings) -> Changes:
    """Settings torch FSDP2 refuses, with the values it takes."""
    wanted: dict[str, object] = {}
    if s.on(_SHARD):
        wanted[_SHARD] = None
    if s.on("gradient_accumulation_fusion"):
        wanted["gradient_accumulation_fusion"] = False
    if s.text("ckpt_format") not in {"torch_dist", "torch_dcp"}:
        wanted["ckpt_format"] = "torch_dist"
    if not s.on("untie_embeddings_and_output_weights"):
        wanted["untie_embeddings_and_output_weights"] = True
    if s.on("fp16"):
        wanted |= {"fp16": None, "bf16": True}
    return wanted


def _step_off(s: Settings, c: Columns, f: Facts) -> bool:
    return s.on(_STEP) and (not s.on(_SHARD) or not s.on(_GATHER) or s.text("ckpt_format") != "torch")


def _odd_dtypes(s: Settings) -> list[str]:
    return [name for name in _DTYPES if s.text(name) not in {"", "fp32"}]


def _gather_dtype(s: Settings, c: Columns, f: Facts) -> bool:
    return (s.on("fp8_param_gather") and s["fp8"] is None) or (s.on("fp4_param_gather") and s["fp4"] is None)


def _gather_sharded(s: Settings, c: Columns, f: Facts) -> bool:
    return s.on("fp8_param_gather") and not (s.on(_SHARD) or s.on(_FSDP) or s.on(_FSDP2))


def _muon_format(s: Settings, c: Columns, f: Facts) -> bool:
    return _emerging(s) and (s.on(_FSDP) or s.on(_FSDP2) or s.text("ckpt_format") not in {"torch", "torch_dist"})


def _muon_before(s: Settings) -> list[str]:
    return [name for name in (_REDUCE, _GATHER, _SHARD) if s.on(name)]


OPTIMIZER_RULES: tuple[Rule, ...] = (
    _args(
        "megatron-gather-sharded",
        "overlapping the gathering of parameters needs the distributed optimizer or Megatron-FSDP (or distributed Muon)",
        settings=(_GATHER, _SHARD, _FSDP, "use_custom_fsdp", "optimizer"),
        breaks=lambda s, c, f: (
            s.on(_GATHER) and not (s.on(_SHARD) or s.on(_FSDP) or s.on("use_custom_fsdp") or s.text("optimizer") == "dist_muon")
        ),
        message="--overlap-param-gather without --use-distributed-optimizer (optimizer {optimizer})",
        mend={_SHARD: True},
    ),
    _args(
        "megatron-gather-strategy",
        "before 0.14, sharding strategy optim_grads_params overlaps gathers by itself, which needs the distributed optimizer",
        settings=("data_parallel_sharding_strategy", _SHARD, "use_custom_fsdp"),
        breaks=lambda s, c, f: (
            s.text("data_parallel_sharding_strategy") == "optim_grads_params" and not (s.on(_SHARD) or s.on("use_custom_fsdp"))
        ),
        message="--data-parallel-sharding-strategy {data_parallel_sharding_strategy} without --use-distributed-optimizer",
        mend={_SHARD: True},
        until="0.14",
    ),
    _args(
        "megatron-gather-reduce",
        "overlapping the gathering of parameters needs overlapping of the reduction of gradients",
        settings=(_GATHER, _REDUCE),
        breaks=lambda s, c, f: s.on(_GATHER) and not s.on(_REDUCE),
        message="--overlap-param-gather without --overlap-grad-reduce",
        mend={_REDUCE: True},
    ),
    _args(
        "megatron-gather-step",
        "gathers overlap with the optimizer's step under the distributed optimizer, overlapped gathers, and the torch format",
        settings=(_STEP, _SHARD, _GATHER, "ckpt_format"),
        breaks=_step_off,
        message="--overlap-param-gather-with-optimizer-step with --ckpt-format {ckpt_format}, gathers {overlap_param_gather}",
        mend={_STEP: None},
    ),
    _args(
        "megatron-gather-step-virtual",
        "overlapping gathers with the optimizer's step needs virtual stages",
        settings=(_STEP,),
        reads=("vpp",),
        breaks=lambda s, c, f: s.on(_STEP) & (c["vpp"] == 1),
        message="--overlap-param-gather-with-optimizer-step with vpp {vpp}",
        mend={_STEP: None},
    ),
    _args(
        "megatron-fsdp2-degrees",
        "torch FSDP2 in Megatron runs without pipeline and without expert parallelism",
        settings=(_FSDP2,),
        reads=("pp", "ep"),
        breaks=lambda s, c, f: s.on(_FSDP2) & ((c["pp"] > 1) | (c["ep"] > 1)),
        message="--use-torch-fsdp2 with pp {pp}, ep {ep}",
        mend={"pp": 1, "ep": 1},
    ),
    _args(
        "megatron-fsdp2",
        "torch FSDP2 in Megatron wants untied embeddings, torch_dist or torch_dcp, no distributed optimizer, fusion or fp16",
        settings=(
            _FSDP2,
            _SHARD,
            "gradient_accumulation_fusion",
            "ckpt_format",
            "untie_embeddings_and_output_weights",
            "fp16",
        ),
        breaks=lambda s, c, f: s.on(_FSDP2) and bool(_fsdp2_off(s)),
        message=lambda s, c, f: "--use-torch-fsdp2 with " + ", ".join(f"{name} {s[name]}" for name in _fsdp2_off(s)),
        mend=lambda s, c, f: _fsdp2_off(s),
    ),
    _args(
        "megatron-fsdp-format",
        "Megatron-FSDP saves as fsdp_dtensor",
        settings=(_FSDP, "ckpt_format"),
        breaks=lambda s, c, f: s.on(_FSDP) & (s.text("ckpt_format") != "fsdp_dtensor"),
        message="--use-megatron-fsdp with --ckpt-format {ckpt_format}",
        mend={"ckpt_format": "fsdp_dtensor"},
        since="0.14",
    ),
    _args(
        "megatron-fsdp-sharding",
        "Megatron-FSDP shards nothing unless --data-parallel-sharding-strategy says so (its default was no_shard before 0.18)",
        settings=(_FSDP, "data_parallel_sharding_strategy"),
        breaks=lambda s, c, f: s.on(_FSDP) & (s.text("data_parallel_sharding_strategy") == "no_shard"),
        message="--use-megatron-fsdp with --data-parallel-sharding-strategy {data_parallel_sharding_strategy} replicates",
        mend={"data_parallel_sharding_strategy": "optim_grads_params"},
        severity="warning",
    ),
    _args(
        "megatron-fsdp-optimizer",
        "Megatron-FSDP trains with adam or sgd",
        settings=(_FSDP, "optimizer"),
        breaks=lambda s, c, f: s.on(_FSDP) & (s.text("optimizer") not in {"adam", "sgd"}),
        message="--use-megatron-fsdp with --optimizer {optimizer}",
        mend={"optimizer": "adam"},
        since="0.18",
    ),
    _args(
        "megatron-fsdp-v1",
        "Megatron-FSDP switches the distributed optimizer on",
        settings=(_FSDP, _SHARD, "megatron_fsdp_version"),
        breaks=lambda s, c, f: s.on(_FSDP) & (not s.on(_SHARD)) & (s.text("megatron_fsdp_version") != "2"),
        message="--use-megatron-fsdp without --use-distributed-optimizer switches it on",
        mend={_SHARD: True},
        severity="changed",
        since="0.18",
    ),
    _args(
        "megatron-fsdp-v2",
        "the second version of Megatron-FSDP excludes the distributed optimizer",
        settings=(_FSDP, _SHARD, "megatron_fsdp_version"),
        breaks=lambda s, c, f: s.on(_FSDP) & s.on(_SHARD) & (s.text("megatron_fsdp_version") == "2"),
        message="--megatron-fsdp-version {megatron_fsdp_version} with --use-distributed-optimizer",
        mend={_SHARD: None},
        since="0.20",
    ),
    _args(
        "megatron-fsdp-meta",
        "parameters that are not sharded cannot be made on the meta device",
        settings=(_FSDP, "init_model_with_meta_device", "data_parallel_sharding_strategy"),
        breaks=lambda s, c, f: (
            s.on(_FSDP) & s.on("init_model_with_meta_device") & (s.text("data_parallel_sharding_strategy") == "no_shard")
        ),
        message="--init-model-with-meta-device with --data-parallel-sharding-strategy {data_parallel_sharding_strategy}",
        mend={"init_model_with_meta_device": None},
        since="0.18",
    ),
    _args(
        "megatron-custom-fsdp",
        "custom FSDP needs the distributed optimizer, and no fused gradient accumulation where it shards gradients",
        settings=("use_custom_fsdp", _SHARD, "gradient_accumulation_fusion", "data_parallel_sharding_strategy"),
        breaks=lambda s, c, f: (
            s.on("use_custom_fsdp")
            and (
                not s.on(_SHARD)
                or (
                    s.on("gradient_accumulation_fusion")
                    and s.text("data_parallel_sharding_strategy") in {"optim_grads", "optim_grads_params"}
                )
            )
        ),
        message="--use-custom-fsdp with distributed optimizer {use_distributed_optimizer}, {data_parallel_sharding_strategy}",
        mend={_SHARD: True, "gradient_accumulation_fusion": False},
        until="0.14",
    ),
    _args(
        "megatron-format-dcp",
        "torch_dcp checkpoints need torch FSDP2 with tp 1 and pp 1",
        settings=("ckpt_format", _FSDP2),
        reads=("tp", "pp"),
        breaks=lambda s, c, f: (s.text("ckpt_format") == "torch_dcp") & ((not s.on(_FSDP2)) | (c["tp"] > 1) | (c["pp"] > 1)),
        message="--ckpt-format {ckpt_format} with tp {tp}, pp {pp}",
        mend={"ckpt_format": "torch_dist"},
    ),
    _args(
        "megatron-format-fsdp",
        "fsdp_dtensor checkpoints need Megatron-FSDP",
        settings=("ckpt_format", _FSDP),
        breaks=lambda s, c, f: (s.text("ckpt_format") == "fsdp_dtensor") & (not s.on(_FSDP)),
        message="--ckpt-format {ckpt_format} without --use-megatron-fsdp",
        mend={"ckpt_format": "torch_dist"},
        since="0.14",
    ),
    _args(
        "megatron-offload-optimizer",
        "offloading the optimizer needs --use-precision-aware-optimizer",
        settings=("optimizer_cpu_offload", _AWARE),
        breaks=lambda s, c, f: s.on("optimizer_cpu_offload") and not s.on(_AWARE),
        message="--optimizer-cpu-offload without --use-precision-aware-optimizer",
        mend={_AWARE: True},
    ),
    _optimizer(
        "megatron-optimizer-dtypes",
        "gradients, parameters and moments below fp32 need --use-precision-aware-optimizer",
        settings=(*_DTYPES, _AWARE),
        breaks=lambda s, c, f: bool(_odd_dtypes(s)) and not s.on(_AWARE),
        message=lambda s, c, f: (
            ", ".join(f"--{name.replace('_', '-')} {s[name]}" for name in _odd_dtypes(s))
            + " without --use-precision-aware-optimizer"
        ),
        mend={_AWARE: True},
    ),
    _optimizer(
        "megatron-precision-aware",
        "--use-precision-aware-optimizer needs adam and the distributed optimizer",
        settings=(_AWARE, "optimizer", _SHARD),
        breaks=lambda s, c, f: s.on(_AWARE) & ((s.text("optimizer") != "adam") | (not s.on(_SHARD))),
        message="--use-precision-aware-optimizer with --optimizer {optimizer}, distributed {use_distributed_optimizer}",
        mend={"optimizer": "adam", _SHARD: True},
    ),
    _args(
        "megatron-muon",
        "Muon and its kind run without FSDP and save as torch or torch_dist",
        settings=("optimizer", _FSDP, _FSDP2, "ckpt_format"),
        breaks=_muon_format,
        message="--optimizer {optimizer} with --ckpt-format {ckpt_format}",
        mend={_FSDP: None, _FSDP2: None, "ckpt_format": "torch_dist"},
        since="0.16",
    ),
    _args(
        "megatron-muon-overlap",
        "in 0.16 Muon runs without the distributed optimizer and without overlapped reduction and gathers",
        settings=("optimizer", _REDUCE, _GATHER, _SHARD),
        breaks=lambda s, c, f: ("muon" in s.text("optimizer")) and bool(_muon_before(s)),
        message=lambda s, c, f: f"--optimizer {s.text('optimizer')} with " + ", ".join(_muon_before(s)),
        mend=lambda s, c, f: dict.fromkeys(_muon_before(s)),
        since="0.16",
        until="0.17",
    ),
    _args(
        "megatron-muon-layers",
        "with Muon and its kind the distributed optimizer becomes one that shards whole layers",
        settings=("optimizer", _SHARD),
        breaks=lambda s, c, f: _emerging(s) & s.on(_SHARD),
        message="--use-distributed-optimizer with --optimizer {optimizer} shards whole layers",
        mend={},
        remedy="nothing to do",
        severity="changed",
        since="0.17",
    ),
    _args(
        "megatron-gloo",
        "without Gloo groups the distributed optimizer saves in a distributed format",
        settings=("use_gloo_process_groups", _SHARD, "ckpt_format"),
        breaks=lambda s, c, f: (not s.on("use_gloo_process_groups")) & s.on(_SHARD) & (s.text("ckpt_format") == "torch"),
        message="--disable-gloo-process-groups with --ckpt-format {ckpt_format}",
        mend={"ckpt_format": "torch_dist"},
    ),
    _args(
        "megatron-fake-flex",
        "the fake process group has no flex dispatcher",
        settings=("fake_process_group", "moe_token_dispatcher_type"),
        breaks=lambda s, c, f: s.on("fake_process_group") & (s.text("moe_token_dispatcher_type") == "flex"),
        message="--fake-process-group with --moe-token-dispatcher-type {moe_token_dispatcher_type}",
        mend={"moe_token_dispatcher_type": "alltoall"},
        since="0.16",
    ),
    _args(
        "megatron-half",
        "fp16 or bf16, not both",
        settings=("fp16", "bf16"),
        breaks=lambda s, c, f: s.on("fp16") & s.on("bf16"),
        message="--fp16 and --bf16",
        mend={"fp16": None},
    ),
    _args(
        "megatron-quarter",
        "fp8 or fp4, not both",
        settings=("fp8", "fp4"),
        breaks=lambda s, c, f: (s["fp8"] is not None) & (s["fp4"] is not None),
        message="--fp8-format {fp8} and --fp4-format {fp4}",
        mend={"fp4": None},
        since="0.15",
    ),
    _args(
        "megatron-gather-dtype",
        "gathering parameters in fp8 or fp4 needs that mode",
        settings=("fp8_param_gather", "fp8", "fp4_param_gather", "fp4"),
        breaks=_gather_dtype,
        message="parameters gathered in fp8 ({fp8_param_gather}) or fp4 ({fp4_param_gather}) without that mode",
        mend=lambda s, c, f: {
            name: None for name, mode in (("fp8_param_gather", "fp8"), ("fp4_param_gather", "fp4")) if s[mode] is None
        },
    ),
    _args(
        "megatron-gather-fp8",
        "gathering parameters in fp8 needs the distributed optimizer or FSDP",
        settings=("fp8_param_gather", _SHARD, _FSDP, _FSDP2),
        breaks=_gather_sharded,
        message="--fp8-param-gather without --use-distributed-optimizer",
        mend={_SHARD: True},
    ),
    _ddp(
        "megatron-reuse-buffer",
        "reusing the gradient buffer for gathered parameters needs --fp8-param-gather",
        settings=("reuse_grad_buf_for_mxfp8_param_ag", "fp8_param_gather"),
        breaks=lambda s, c, f: s.on("reuse_grad_buf_for_mxfp8_param_ag") and not s.on("fp8_param_gather"),
        message="--reuse-grad-buf-for-mxfp8-param-ag without --fp8-param-gather",
        mend={"reuse_grad_buf_for_mxfp8_param_ag": None},
        since="0.13",
    ),
    _ddp(
        "megatron-user-buffers",
        "user buffers of NCCL exclude expandable segments",
        settings=("nccl_ub", "env.PYTORCH_CUDA_ALLOC_CONF"),
        breaks=lambda s, c, f: s.on("nccl_ub") and "expandable_segments:True" in s.text("env.PYTORCH_CUDA_ALLOC_CONF"),
        message=lambda s, c, f: f"--use-nccl-ub with PYTORCH_CUDA_ALLOC_CONF={s.text('env.PYTORCH_CUDA_ALLOC_CONF')}",
        mend={"env.PYTORCH_CUDA_ALLOC_CONF": None},
        since="0.13",
    ),
    _ddp(
        "megatron-buckets",
        "buckets are given by number or by size",
        settings=("ddp_num_buckets", "ddp_bucket_size"),
        breaks=lambda s, c, f: (s["ddp_num_buckets"] is not None) & (s["ddp_bucket_size"] is not None),
        message="--ddp-num-buckets {ddp_num_buckets} and --ddp-bucket-size {ddp_bucket_size}",
        mend={"ddp_num_buckets": None},
    ),
    _ddp(
        "megatron-token-loss",
        "a loss per token excludes averaging in the collective",
        settings=("calculate_per_token_loss", "ddp_average_in_collective"),
        breaks=lambda s, c, f: s.on("calculate_per_token_loss") and s.on("ddp_average_in_collective"),
        message="--calculate-per-token-loss with --ddp-average-in-collective",
        mend={"ddp_average_in_collective": None},
    ),
)
