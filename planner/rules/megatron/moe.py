"""Megatron: experts, their dispatchers, routing, and overlapping of their exchange.

Checked by `TransformerConfig.__post_init__` and `validate_args`. That ep divides the experts, and etp · ep the ranks of a
stage, is in `rules.elementary`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from shardwright.planner.plans import BoolArray
from shardwright.planner.rules.base import Candidate, Changes, Columns, Facts, Rule, closest, divisors
from shardwright.planner.rules.declaring import setting_rule
from shardwright.planner.rules.settings import Settings

_args = partial(setting_rule, source="Megatron-LM validate_args")
_config = partial(setting_rule, source="Megatron-Core TransformerConfig")

_DISPATCHER, _BACKEND = "moe_token_dispatcher_type", "moe_flex_dispatcher_backend"
_BALANCE, _COEFF, _CAPACITY = "moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_expert_capacity_factor"
_OVERLAP = "overlap_moe_expert_parallel_comm"
_AUXILIARY = {"aux_loss", "seq_aux_loss", "global_aux_loss", "none"}
_DISPATCHERS = ("allgather", "alltoall", "flex")


def routed(s: Settings, f: Facts) -> bool:
    """Whether the configuration has experts: as it says, or else as the model has."""
    return s.number("num_experts") > 0 if s["num_experts"] is not None else f.graph.spec.moe is not None


def _shared(s: Settings, f: Facts) -> bool:
    """Whether the configuration has shared experts: as it says, or else as the model has."""
    given = s["moe_shared_expert_intermediate_size"]
    return bool(given) if given is not None else f.graph.spec.moe is not None and f.graph.spec.moe.shared_ffn > 0


def _experts(s: Settings, f: Facts) -> int:
    return s.number("num_experts") or (f.graph.spec.moe.experts if f.graph.spec.moe else 0)


def _groups_off(s: Settings, c: Columns, f: Facts) -> bool:
    groups, chosen = s.number("moe_router_num_groups"), s.number("moe_router_group_topk")
    return chosen > 0 and (groups == 0 or _experts(s, f) % groups != 0 or chosen > groups)


def _groups_mend(s: Settings, c: Candidate, f: Facts) -> Changes:
    legal = tuple(d for d in divisors(max(_experts(s, f), 1)) if d >= s.number("moe_router_group_topk"))
    groups = closest(s.number("moe_router_num_groups"), legal or (1,))
    return {"moe_router_num_groups": groups, "moe_router_group_topk": min(s.number("moe_router_group_topk"), groups)}


def _backend_off(s: Settings, c: Columns, f: Facts) -> bool:
    return (s.on("moe_enable_deepep") or s.text(_BACKEND) == "ncclep") and s.text(_DISPATCHER) != "flex"


def _padding_off(s: Settings, c: Columns, f: Facts) -> bool:
    deepep = s.on("moe_enable_deepep") or s.text(_BACKEND) == "deepep"
    return s.text(_DISPATCHER) == "flex" and deepep and s.on("moe_pad_expert_input_to_capacity")


def _one_topk(s: Settings, c: Columns, f: Facts) -> bool:
    softmax = s.text("moe_router_score_function") in {"", "softmax"}
    balanced = "sinkhorn" not in s.words(_BALANCE)
    return routed(s, f) and s.number("moe_router_topk") == 1 and softmax and balanced and not s.on("moe_router_pre_softmax")


def _balance_lists(s: Settings, c: Columns, f: Facts) -> bool:
    kinds = s.words(_BALANCE)
    return len(kinds) > 1 and len(s.words(_COEFF)) != len(kinds)


def _overlap_degrees(s: Settings, c: Columns, f: Facts) -> BoolArray:
    return np.asarray(s.on(_OVERLAP) & ((c["ep"] == 1) | ((c["pp"] > 1) & (c["vpp"] == 1))))


def _overlap_settings(s: Settings) -> list[str]:
    """Settings that exclude overlapping of the experts' exchange."""
    found = [name for name in ("recompute_method", "recompute_num_layers") if s[name] is not None]
    if s.text("recompute_granularity") == "full":
        found.append("recompute_granularity")
    if s.on("moe_shared_expert_overlap"):
        found.append("moe_shared_expert_overlap")
    if s.number("mtp_num_layers") > 1:
        found.append("mtp_num_layers")
    return found


MOE_RULES: tuple[Rule, ...] = (
    _config(
        "megatron-experts-none",
        "expert parallelism needs experts",
        settings=("num_experts",),
        reads=("ep",),
        breaks=lambda s, c, f: (c["ep"] > 1) & (not routed(s, f)),
        message="ep {ep} without --num-experts",
        mend={"ep": 1},
    ),
    _config(
        "megatron-expert-ffn",
        "an expert width without experts is refused",
        settings=("moe_ffn_hidden_size", "num_experts"),
        breaks=lambda s, c, f: (s["moe_ffn_hidden_size"] is not None) & (not routed(s, f)),
        message="--moe-ffn-hidden-size {moe_ffn_hidden_size} without --num-experts",
        mend={"moe_ffn_hidden_size": None},
    ),
    _args(
        "megatron-expert-ffn-default",
        "experts without a width of their own take the dense width",
        settings=("moe_ffn_hidden_size", "num_experts"),
        breaks=lambda s, c, f: (
            (s.number("num_experts") > 0)
            & (s["moe_ffn_hidden_size"] is None)
            & (f.graph.spec.moe is not None and f.graph.spec.moe.expert_ffn != (f.graph.spec.ffn or 0))
        ),
        message="--num-experts {num_experts} without --moe-ffn-hidden-size takes --ffn-hidden-size",
        mend=lambda s, c, f: {"moe_ffn_hidden_size": f.graph.spec.moe.expert_ffn if f.graph.spec.moe else None},
    ),
    _config(
        "megatron-dispatcher",
        "the token dispatcher is allgather, alltoall or flex",
        settings=(_DISPATCHER, "num_experts"),
        breaks=lambda s, c, f: routed(s, f) & (s.text(_DISPATCHER) not in {*_DISPATCHERS, "alltoall_seq"}),
        message="--moe-token-dispatcher-type {moe_token_dispatcher_type}",
        mend={_DISPATCHER: "alltoall"},
    ),
    _config(
        "megatron-dispatcher-backend",
        "DeepEP and NCCL-EP are backends of the flex dispatcher",
        settings=("moe_enable_deepep", _BACKEND, _DISPATCHER),
        breaks=_backend_off,
        message="DeepEP or NCCL-EP with --moe-token-dispatcher-type {moe_token_dispatcher_type}",
        mend={_DISPATCHER: "flex"},
    ),
    _config(
        "megatron-dispatcher-two",
        "one backend of the flex dispatcher at a time",
        settings=("moe_enable_deepep", _BACKEND),
        breaks=lambda s, c, f: s.on("moe_enable_deepep") & (s.text(_BACKEND) == "hybridep"),
        message="--moe-enable-deepep with --moe-flex-dispatcher-backend {moe_flex_dispatcher_backend}",
        mend={"moe_enable_deepep": None},
        since="0.16",
    ),
    _config(
        "megatron-dispatcher-padding",
        "DeepEP takes no padding to capacity",
        settings=("moe_enable_deepep", _BACKEND, _DISPATCHER, "moe_pad_expert_input_to_capacity"),
        breaks=_padding_off,
        message="--moe-pad-expert-input-to-capacity with DeepEP ({moe_flex_dispatcher_backend})",
        mend={"moe_pad_expert_input_to_capacity": None},
    ),
    setting_rule(
        "megatron-dispatcher-ranks",
        "DeepEP and NCCL-EP need more than one rank to exchange with (etp · ep above 1)",
        settings=("moe_enable_deepep", _BACKEND, _DISPATCHER, "num_experts"),
        reads=("ep", "etp"),
        breaks=lambda s, c, f: (
            (s.text(_DISPATCHER) == "flex")
            & routed(s, f)
            & (s.on("moe_enable_deepep") | (s.text(_BACKEND) in {"deepep", "ncclep"}))
            & (c["ep"] * c["etp"] == 1)
        ),
        message="the flex dispatcher with etp {etp} · ep {ep}",
        mend={_DISPATCHER: "alltoall", "moe_enable_deepep": None, _BACKEND: None},
        source="Megatron-Core MoEFlexTokenDispatcher",
    ),
    _config(
        "megatron-shared-overlap",
        "overlapping shared experts needs the alltoall dispatcher",
        settings=("moe_shared_expert_overlap", _DISPATCHER),
        breaks=lambda s, c, f: s.on("moe_shared_expert_overlap") & (s.text(_DISPATCHER) != "alltoall"),
        message="--moe-shared-expert-overlap with --moe-token-dispatcher-type {moe_token_dispatcher_type}",
        mend={_DISPATCHER: "alltoall"},
        until="0.18",
    ),
    _config(
        "megatron-shared-overlap-flex",
        "overlapping shared experts needs the alltoall or flex dispatcher",
        settings=("moe_shared_expert_overlap", _DISPATCHER),
        breaks=lambda s, c, f: s.on("moe_shared_expert_overlap") & (s.text(_DISPATCHER) not in {"alltoall", "flex"}),
        message="--moe-shared-expert-overlap with --moe-token-dispatcher-type {moe_token_dispatcher_type}",
        mend={_DISPATCHER: "alltoall"},
        since="0.18",
    ),
    _config(
        "megatron-shared-recompute",
        "overlapping shared experts excludes recomputing them",
        settings=("moe_shared_expert_overlap", "recompute_granularity", "recompute_modules"),
        breaks=lambda s, c, f: (
            s.on("moe_shared_expert_overlap")
            & (s.text("recompute_granularity") == "selective")
            & ("shared_experts" in s.words("recompute_modules"))
        ),
        message="--moe-shared-expert-overlap with --recompute-modules {recompute_modules}",
        mend={"moe_shared_expert_overlap": None},
        since="0.14",
    ),
    _config(
        "megatron-capacity",
        "a capacity factor goes with auxiliary-loss balancing or none",
        settings=(_CAPACITY, _BALANCE),
        breaks=lambda s, c, f: (s[_CAPACITY] is not None) & (not set(s.words(_BALANCE)) <= _AUXILIARY),
        message="--moe-expert-capacity-factor {moe_expert_capacity_factor} with balancing {moe_router_load_balancing_type}",
        mend={_CAPACITY: None, "moe_pad_expert_input_to_capacity": None},
    ),
    _config(
        "megatron-capacity-padding",
        "padding to capacity needs a capacity factor",
        settings=("moe_pad_expert_input_to_capacity", _CAPACITY),
        breaks=lambda s, c, f: s.on("moe_pad_expert_input_to_capacity") & (s[_CAPACITY] is None),
        message="--moe-pad-expert-input-to-capacity without --moe-expert-capacity-factor",
        mend={"moe_pad_expert_input_to_capacity": None},
    ),
    _config(
        "megatron-dispatcher-lengths",
        "the allgather dispatcher takes no varying sequence lengths",
        settings=(_DISPATCHER, "variable_seq_lengths"),
        breaks=lambda s, c, f: routed(s, f) & (s.text(_DISPATCHER) == "allgather") & s.on("variable_seq_lengths"),
        message="varying sequence lengths with --moe-token-dispatcher-type {moe_token_dispatcher_type}",
        mend={_DISPATCHER: "alltoall"},
    ),
    _config(
        "megatron-shared-bias",
        "shared experts have no biases",
        settings=("add_bias_linear", "moe_shared_expert_intermediate_size", "num_experts"),
        breaks=lambda s, c, f: s.on("add_bias_linear") & routed(s, f) & _shared(s, f),
        message="biases with shared experts beside {experts} routed ones",
        mend={"add_bias_linear": False},
    ),
    _config(
        "megatron-expert-bias-etp",
        "biases in experts need etp 1",
        settings=("add_bias_linear", "num_experts"),
        reads=("etp",),
        breaks=lambda s, c, f: s.on("add_bias_linear") & routed(s, f) & (c["etp"] > 1),
        message="biases in experts with etp {etp}",
        mend={"add_bias_linear": False},
    ),
    _config(
        "megatron-router-topk",
        "a single expert a token needs softmax before the choice (else the router gets no gradient)",
        settings=("moe_router_topk", "moe_router_score_function", "moe_router_pre_softmax", _BALANCE, "num_experts"),
        breaks=_one_topk,
        message="--moe-router-topk {moe_router_topk} without --moe-router-pre-softmax",
        mend={"moe_router_pre_softmax": True},
    ),
    _config(
        "megatron-router-bias",
        "a router bias outside gradient descent needs sigmoid scores (since 0.18 also sqrtsoftplus)",
        settings=("moe_router_enable_expert_bias", "moe_router_score_function"),
        breaks=lambda s, c, f: s.on("moe_router_enable_expert_bias") & (s.text("moe_router_score_function") != "sigmoid"),
        message="--moe-router-enable-expert-bias with scores {moe_router_score_function}",
        mend={"moe_router_score_function": "sigmoid"},
        until="0.18",
    ),
    _config(
        "megatron-router-bias-score",
        "a router bias outside gradient descent needs sigmoid or sqrtsoftplus scores",
        settings=("moe_router_enable_expert_bias", "moe_router_score_function"),
        breaks=lambda s, c, f: (
            s.on("moe_router_enable_expert_bias") & (s.text("moe_router_score_function") not in {"sigmoid", "sqrtsoftplus"})
        ),
        message="--moe-router-enable-expert-bias with scores {moe_router_score_function}",
        mend={"moe_router_score_function": "sigmoid"},
        since="0.18",
    ),
    _config(
        "megatron-router-groups",
        "group-limited routing: groups divide the experts, and no more are chosen than there are",
        settings=("moe_router_group_topk", "moe_router_num_groups", "num_experts"),
        breaks=_groups_off,
        message="{moe_router_group_topk} of {moe_router_num_groups} groups of the experts ({experts})",
        mend=_groups_mend,
    ),
    _config(
        "megatron-router-losses",
        "each kind of balancing has its coefficient",
        settings=(_BALANCE, _COEFF),
        breaks=_balance_lists,
        message="balancing {moe_router_load_balancing_type} with coefficients {moe_aux_loss_coeff}",
        mend=lambda s, c, f: {_BALANCE: s.words(_BALANCE)[:1], _COEFF: s.words(_COEFF)[:1]},
        since="0.14",
    ),
    _args(
        "megatron-grouped-gemm",
        "grouped GEMM needs compute capability 8 or more",
        settings=("moe_grouped_gemm",),
        breaks=lambda s, c, f: s.on("moe_grouped_gemm") & (f.compute_capability < 8),
        message=lambda s, c, f: f"--moe-grouped-gemm on compute capability {f.compute_capability}",
        mend={"moe_grouped_gemm": None},
    ),
    _args(
        "megatron-grouped-gemm-dtype",
        "grouped GEMM of experts runs in bf16 alone",
        settings=("moe_grouped_gemm", "bf16"),
        breaks=lambda s, c, f: s.on("moe_grouped_gemm") & (not s.on("bf16")),
        message="--moe-grouped-gemm without --bf16",
        mend={"moe_grouped_gemm": None},
        until="0.16",
    ),
    _config(
        "megatron-ep-overlap",
        "overlapping the experts' exchange needs ep above 1, and virtual stages with a pipeline",
        settings=(_OVERLAP,),
        reads=("ep", "pp", "vpp"),
        breaks=_overlap_degrees,
        message="--overlap-moe-expert-parallel-comm with ep {ep}, pp {pp}, vpp {vpp}",
        mend={_OVERLAP: None},
        since="0.14",
    ),
    _config(
        "megatron-ep-overlap-dispatcher",
        "overlapping the experts' exchange needs the alltoall or flex dispatcher, in bf16 or fp16",
        settings=(_OVERLAP, _DISPATCHER, "bf16", "fp16"),
        breaks=lambda s, c, f: (
            s.on(_OVERLAP) & ((s.text(_DISPATCHER) not in {"alltoall", "flex"}) | (not s.on("bf16") and not s.on("fp16")))
        ),
        message="--overlap-moe-expert-parallel-comm with dispatcher {moe_token_dispatcher_type}, bf16 {bf16}, fp16 {fp16}",
        mend=lambda s, c, f: {_DISPATCHER: "alltoall"} | ({} if s.on("bf16") or s.on("fp16") else {"bf16": True}),
        since="0.14",
    ),
    _config(
        "megatron-ep-overlap-alone",
        "overlapping the experts' exchange excludes full recomputing, shared-expert overlap and more than one MTP layer",
        settings=(
            _OVERLAP,
            "recompute_granularity",
            "recompute_method",
            "recompute_num_layers",
            "moe_shared_expert_overlap",
            "mtp_num_layers",
        ),
        breaks=lambda s, c, f: s.on(_OVERLAP) and bool(_overlap_settings(s)),
        message=lambda s, c, f: (
            "--overlap-moe-expert-parallel-comm with " + ", ".join(f"{name} {s[name]}" for name in _overlap_settings(s))
        ),
        mend=lambda s, c, f: dict.fromkeys(_overlap_settings(s)),
        since="0.14",
    ),
    _config(
        "megatron-ep-overlap-mtp",
        "overlapping the experts' exchange with an MTP layer needs a pipeline",
        settings=(_OVERLAP, "mtp_num_layers"),
        reads=("pp",),
        breaks=lambda s, c, f: s.on(_OVERLAP) & (s.number("mtp_num_layers") == 1) & (c["pp"] == 1),
        message="--overlap-moe-expert-parallel-comm with {mtp_num_layers} MTP layer and pp {pp}",
        mend={_OVERLAP: None},
        since="0.16",
        until="0.18",
    ),
    _config(
        "megatron-delay-wgrad",
        "delaying weight gradients needs overlapping of the experts' exchange and Transformer Engine",
        settings=("delay_wgrad_compute", _OVERLAP, "transformer_impl"),
        breaks=lambda s, c, f: (
            s.on("delay_wgrad_compute") & ((not s.on(_OVERLAP)) | (s.text("transformer_impl") != "transformer_engine"))
        ),
        message="--delay-wgrad-compute with overlap {overlap_moe_expert_parallel_comm}, {transformer_impl}",
        mend={"delay_wgrad_compute": None},
        since="0.14",
    ),
)
