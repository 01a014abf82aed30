"""Where our verdict and a framework's may differ, each with its reason, and the words of the framework that go with a rule.

`Lax` says that a framework accepts what a rule of ours refuses, and where. `NOT_IN_CORE` lists rules that megatron-core cannot
check, since only Megatron-LM's arguments, a launch line or a device show what they are about; the recorded verdicts of
Megatron-LM hold most of those. `CORE_REASONS` pairs every other rule with what megatron-core says when it refuses for it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cases import Case


@dataclass(frozen=True, kw_only=True)
class Lax:
    """Where a framework does not check a rule: why ours refuses all the same, and in which versions (none named: in all)."""

    why: str
    where: Callable[[Case], bool] = lambda _: True
    versions: tuple[str, ...] = ()


CORE_LAX: Mapping[str, Lax] = {
    "expert-width": Lax(
        why="expert tensor parallelism of a model without experts goes unused; a plan that names it is for another model",
        where=lambda case: case.graph.spec.moe is None,
    ),
    "megatron-distribute": Lax(
        why="validate_args wants tp above 1 and full recomputing; TransformerConfig only refuses sequence parallelism"
    ),
    "megatron-recompute-selective": Lax(
        why="validate_args refuses a method beside selective recomputing; TransformerConfig lets it stand unused",
        where=lambda case: "recompute_method" in dict(case.settings),
    ),
}

_ARGUMENTS = "read by Megatron-LM's validate_args alone: the recorded verdicts try it"
_DEVICE = "needs Transformer Engine or a device to show"
_DEGREES = "says what this project's plans can be; no configuration of the framework's that is built here breaks it"
_ARITHMETIC = "the framework finds it under another rule first"

NOT_IN_CORE: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "launched-world", "megatron-argument", "megatron-buckets", "megatron-connections", "megatron-counting",
            "megatron-cp-hierarchy", "megatron-cp-kinds", "megatron-data", "megatron-ends-virtual-size", "megatron-fake-flex",
            "megatron-format-dcp", "megatron-format-fsdp", "megatron-fsdp-connections", "megatron-fsdp-format",
            "megatron-fsdp2", "megatron-fsdp2-degrees", "megatron-gather-dtype", "megatron-gather-fp8",
            "megatron-gather-reduce", "megatron-gather-sharded", "megatron-gather-step", "megatron-gather-step-virtual",
            "megatron-gloo", "megatron-graphs-nan", "megatron-graphs-segments", "megatron-grouped-gemm", "megatron-head-size",
            "megatron-hybrid-cp", "megatron-hybrid-cp-even", "megatron-hybrid-cp-loss", "megatron-least-rate",
            "megatron-mla-groups", "megatron-mtp-positions", "megatron-muon", "megatron-muon-overlap",
            "megatron-offload-optimizer", "megatron-optimizer-instances-alone", "megatron-positions", "megatron-quarter",
            "megatron-rank-order", "megatron-reuse-buffer", "megatron-save", "megatron-split-ways", "megatron-token-loss",
            "megatron-tp-overlap", "megatron-user-buffers", "megatron-virtual-alone", "megatron-virtual-sends",
            "megatron-warmup", "megatron-expert-ffn", "megatron-expert-ffn-default",
        ),
        _ARGUMENTS,
    ),
    **dict.fromkeys(
        (
            "megatron-graphs-dropout", "megatron-graphs-moe", "megatron-graphs-recompute", "megatron-linear-cp",
            "megatron-linear-heads", "megatron-mla-rope", "megatron-offload-fine", "megatron-offload-modules",
            "megatron-cp-heads", "cp-heads", "megatron-recompute-fp8", "megatron-optimizer-dtypes", "megatron-precision-aware",
        ),
        _DEVICE,
    ),
    **dict.fromkeys(
        (
            "dp-replicate", "expert-replicate", "replicas", "megatron-optimizer", "megatron-precision", "megatron-schedule",
            "megatron-zero", "megatron-vocabulary", "schedule-chunks", "schedule-rounds", "loss-chunks", "whole-loss",
            "megatron-offload-layers", "megatron-offload-states", "offload-parameters",
        ),
        _DEGREES,
    ),
    **dict.fromkeys(("layers-stages", "expert-sequence", "virtual-stages"), _ARITHMETIC),
    **dict.fromkeys(("graph-axes", "megatron-graph"), "about models read from graph files, which Megatron does not know"),
}  # fmt: skip

CORE_REASONS: Mapping[str, str] = {
    "attention-heads": "num_attention_heads .* must be a multiple",
    "batch-dp": "global batch size .* is not divisible",
    "batch-micro": "global batch size .* is not divisible",
    "expert-mesh": "not divisible by expert_tensor_model_pipeline_parallel size",
    "experts-ep": "when instantiating MoELayer|num_moe_experts must be non None",
    "interleaved-batch": "remainder of M|contiguous micro-batches",
    "kv-heads": "must be a multiple or divisor",
    "megatron-capacity": "only works with aux_loss",
    "megatron-capacity-padding": "must be set to use moe_pad_expert_input_to_capacity",
    "megatron-cp-sizes": "AssertionError",
    "megatron-defer-embedding": "defer embedding wgrad|Wgrad deferral limit",
    "megatron-delay-wgrad": "when enabling delay_wgrad_compute",
    "megatron-dispatcher": "Unsupported token dispatcher type",
    "megatron-dispatcher-backend": "only supported with flex token dispatcher",
    "megatron-dispatcher-lengths": "does not support variable sequence length",
    "megatron-dispatcher-padding": "does not support moe_pad_expert_input_to_capacity",
    "megatron-dispatcher-ranks": "requires TPxEP > 1",
    "megatron-dispatcher-two": "Only one backend is supported",
    "megatron-ends": "middle",
    "megatron-ends-alone": "Mismatch",
    "megatron-ends-counted": "set at the same time with account_for",
    "megatron-ends-positive": "must be larger than 0",
    "megatron-ends-virtual": "virtual ?pipeline",
    "megatron-ep-overlap": "EP A2A overlap|only supported with expert model parallelism",
    "megatron-ep-overlap-alone": "when enabling overlap_moe_expert_parallel_comm",
    "megatron-ep-overlap-dispatcher": "with alltoall/flex token dispatcher|with bf16 or fp16",
    "megatron-ep-overlap-mtp": "overlap_moe_expert_parallel_comm with MTP layer",
    "megatron-expert-bias-etp": "only supported when ETP==1",
    "megatron-experts-none": "num_moe_experts must be non None",
    "megatron-group": "contiguous micro-batches",
    "megatron-half": "Only one of self.fp16",
    "megatron-layers-even": "divisible ?by ?(middle )?pipeline_model_parallel_size",
    "megatron-layers-virtual": "divisible by ?(vp_size|virtual)",
    "megatron-layout": "layout|layer|Embedding|Loss|MTP|mtp|Layer|decoder",
    "megatron-layout-alone": "cannot be set with other pipeline layout arguments",
    "megatron-moe-sp": "During training, performance may degrade",
    "megatron-offload": "CPU offloading",
    "megatron-optimizer-instances": "partial DistOpt shard factor",
    "megatron-recompute-activation": "moe_act in recompute_modules",
    "megatron-recompute-full": "recompute_method must be|recompute_num_layers must be between",
    "megatron-recompute-kind": 'must be "full"',
    "megatron-recompute-latent": "mla_up_proj in recompute_modules",
    "megatron-recompute-modules": "Invalid choices for recompute_modules",
    "megatron-router-bias": "Expert bias for aux-loss-free routing",
    "megatron-router-groups": "group limited routing|moe_router_num_groups",
    "megatron-router-losses": "moe_aux_loss_coeff must be a list",
    "megatron-router-topk": "moe-router-pre-softmax",
    "megatron-shared-bias": "bias is not supported in the shared experts",
    "megatron-shared-overlap": "only works with alltoall",
    "megatron-shared-recompute": "shared_experts recompute cannot work",
    "megatron-qkv-width": "is not divisible by .*SelfAttention",
    "mlp-width": "is not divisible by",
    "sequence-cp": "is invalid for input of size",
    "sequence-sp": "First dimension of the tensor should be divisible",
    "world-size": "world_size .* is not divisible",
}
"""Rule -> words of megatron-core's message when this rule alone is broken."""

_DROPPING = ("0.13", "0.14", "0.15")
"""Versions that build only the layers of the named ends, and train another model in silence."""

ARGUMENTS_LAX: Mapping[str, Lax] = {
    "megatron-ends": Lax(why="layers between the ends are dropped where no stage is between", versions=_DROPPING),
    "megatron-ends-alone": Lax(why="with pp 1 all layers but those of an end are dropped", versions=_DROPPING),
    "expert-width": Lax(
        why="expert tensor parallelism of a model without experts goes unused; a plan that names it is for another model",
        where=lambda case: case.graph.spec.moe is None,
    ),
    "megatron-layers-even": Lax(
        why="with virtual stages by number only get_num_layers_to_build divides", where=lambda c: c.vpp > 1
    ),
    "megatron-layers-virtual": Lax(
        why="virtual stages by number are divided by get_num_layers_to_build alone", where=lambda c: c.vpp > 1
    ),
}

_AT_START = "checked when groups, micro-batches, optimizer or layers are made, not by the arguments"

NOT_IN_ARGUMENTS: Mapping[str, str] = {
    **dict.fromkeys(("megatron-split-flags", "loss-chunks", "whole-loss"), _DEGREES),
} | dict.fromkeys(
    (
        "batch-dp", "batch-micro", "expert-mesh", "expert-sequence", "interleaved-batch", "layers-stages",
        "megatron-moe-sp", "megatron-optimizer-instances",
        "megatron-optimizer-instances-alone", "megatron-precision-aware", "megatron-qkv-width",
        "mlp-width", "sequence-sp",
    ),
    _AT_START,
)  # fmt: skip
"""Rules that Megatron-LM's arguments do not check, though a start of the run does."""

TORCH_STRICTER: Mapping[str, str] = {
    "interleaved-batch": "interleaving is priced in whole groups of pp micro-batches; torch also runs other rounds",
}
"""Rules that refuse schedules torch would run, each with the reason."""

DEEPSPEED_LAX: Mapping[str, Lax] = {
    "deepspeed-key": Lax(why="keys of the top level that are not known are passed over, and ZeRO is off"),
    "deepspeed-offload-parameters": Lax(why="below stage 3 parameters stay where they are, whatever the document says"),
}

TITAN_CHECKED = ("torchtitan-world", "torchtitan-etp", "world-size")
"""Rules of torchtitan that `ParallelDims` itself checks; others show in its trainer and models, or, like ep in 0.3, later."""

TITAN_LAX: Mapping[str, Lax] = {
    "torchtitan-etp": Lax(why="without expert parallelism etp goes unused", where=lambda case: case.ep == 1),
}
