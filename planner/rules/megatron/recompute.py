"""Megatron: recomputing, offloading and CUDA graphs.

Checked by `TransformerConfig.__post_init__` and `validate_args`.
"""

from __future__ import annotations

from functools import partial

from shardwright.planner.rules.base import Candidate, Changes, Columns, Facts, Rule
from shardwright.planner.rules.declaring import setting_rule
from shardwright.planner.rules.megatron.moe import routed
from shardwright.planner.rules.settings import Settings

_args = partial(setting_rule, source="Megatron-LM validate_args")
_config = partial(setting_rule, source="Megatron-Core TransformerConfig")

_HOW, _METHOD, _COUNT, _MODULES = "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"
_GRAPHS, _SCOPES = "cuda_graph_impl", ("cuda_graph_scope", "cuda_graph_modules")
_OFFLOAD = "cpu_offloading_num_layers"
_FINE, _OFFLOADED = "fine_grained_activation_offloading", "offload_modules"

MODULES_UNTIL_0_14 = frozenset({"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe"})
MODULES = MODULES_UNTIL_0_14 | {"shared_experts"}
MODULES_SINCE_0_20 = MODULES | {"gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc"}
OFFLOADABLE = frozenset(
    {"core_attn", "attn_proj", "expert_fc1", "fused_group_mlp", "moe_act", "attn_norm", "mlp_norm", "qkv_linear", "gdp_qkv"}
)


def selected(s: Settings) -> frozenset[str]:
    """Modules recomputed under selective recomputing."""
    return frozenset(s.words(_MODULES)) if s.text(_HOW) == "selective" else frozenset()


def _modules_rule(name: str, known: frozenset[str], since: str | None, until: str | None) -> Rule:
    def kept(s: Settings) -> tuple[str, ...]:
        return tuple(module for module in s.words(_MODULES) if module in known) or ("core_attn",)

    return _config(
        name,
        "modules to recompute are " + ", ".join(sorted(known)),
        settings=(_HOW, _MODULES),
        breaks=lambda s, c, f: not selected(s) <= known,
        message="--recompute-modules {recompute_modules}",
        mend=lambda s, c, f: {_MODULES: kept(s)},
        since=since,
        until=until,
    )


def _incomplete(s: Settings, c: Columns, f: Facts) -> bool:
    return s.text(_HOW) == "full" and (s.text(_METHOD) not in {"block", "uniform"} or s[_COUNT] is None)


def _completed(s: Settings, c: Candidate, f: Facts) -> Changes:
    method = s.text(_METHOD) if s.text(_METHOD) in {"block", "uniform"} else "uniform"
    return {_METHOD: method, _COUNT: s[_COUNT] if s[_COUNT] is not None else 1}


def _needless(s: Settings, module: str) -> Changes:
    """The modules without one of them."""
    return {_MODULES: tuple(m for m in s.words(_MODULES) if m != module) or ("core_attn",)}


def _registers(s: Settings, c: Columns, f: Facts) -> bool:
    expandable = "expandable_segments:True" in s.text("env.PYTORCH_CUDA_ALLOC_CONF")
    return s.text(_GRAPHS) == "transformer_engine" and expandable and s.text("env.NCCL_GRAPH_REGISTER") != "0"


def _captured(s: Settings) -> frozenset[str]:
    """Modules that graphs capture, under the older or the newer name of the setting."""
    return frozenset(word for name in _SCOPES for word in s.words(name))


def _full_iteration(s: Settings) -> bool:
    return s.text(_GRAPHS) == "full_iteration" or "full_iteration" in _captured(s)


def _without(s: Settings, module: str) -> Changes:
    return {name: tuple(w for w in s.words(name) if w != module) or None for name in _SCOPES if module in s.words(name)}


RECOMPUTE_RULES: tuple[Rule, ...] = (
    _config(
        "megatron-recompute-kind",
        "--recompute-granularity is full or selective",
        settings=(_HOW,),
        breaks=lambda s, c, f: s.text(_HOW) not in {"", "full", "selective"},
        message="--recompute-granularity {recompute_granularity}",
        mend={_HOW: "selective"},
    ),
    _config(
        "megatron-recompute-full",
        "full recomputing needs a method (block or uniform) and a number of layers",
        settings=(_HOW, _METHOD, _COUNT),
        breaks=_incomplete,
        message="full recomputing with method {recompute_method}, {recompute_num_layers} layers",
        mend=_completed,
    ),
    _config(
        "megatron-recompute-selective",
        "selective recomputing has neither method nor number of layers",
        settings=(_HOW, _METHOD, _COUNT),
        breaks=lambda s, c, f: (s.text(_HOW) == "selective") & ((s[_METHOD] is not None) | (s[_COUNT] is not None)),
        message="selective recomputing with method {recompute_method}, {recompute_num_layers} layers",
        mend={_METHOD: None, _COUNT: None},
    ),
    _modules_rule("megatron-recompute-modules", MODULES_UNTIL_0_14, None, "0.14"),
    _modules_rule("megatron-recompute-modules", MODULES, "0.14", "0.20"),
    _modules_rule("megatron-recompute-modules", MODULES_SINCE_0_20, "0.20", None),
    _config(
        "megatron-recompute-activation",
        "recomputing of the experts' activation needs grouped GEMM",
        settings=(_HOW, _MODULES, "moe_grouped_gemm"),
        breaks=lambda s, c, f: ("moe_act" in selected(s)) & (not s.on("moe_grouped_gemm")),
        message="--recompute-modules {recompute_modules} without --moe-grouped-gemm",
        mend={"moe_grouped_gemm": True},
    ),
    _config(
        "megatron-recompute-latent",
        "recomputing of the up-projection needs latent attention",
        settings=(_HOW, _MODULES, "multi_latent_attention"),
        breaks=lambda s, c, f: ("mla_up_proj" in selected(s)) & (not s.on("multi_latent_attention")),
        message="--recompute-modules {recompute_modules} without --multi-latent-attention",
        mend=lambda s, c, f: _needless(s, "mla_up_proj"),
    ),
    _config(
        "megatron-recompute-fp8",
        "delayed fp8 scaling excludes recomputing of norms and of the experts' activation",
        settings=(_HOW, _MODULES, "fp8", "fp8_recipe"),
        breaks=lambda s, c, f: (
            (s["fp8"] is not None) & (s.text("fp8_recipe") == "delayed") & bool(selected(s) & {"moe_act", "layernorm"})
        ),
        message="--recompute-modules {recompute_modules} with --fp8-recipe {fp8_recipe}",
        mend={_MODULES: ("core_attn",)},
    ),
    _config(
        "megatron-recompute-hyper",
        "recomputing of hyper-connections needs them, and excludes mlp and fine-grained offloading",
        settings=(_HOW, _MODULES, "enable_mhc_connections", _FINE),
        breaks=lambda s, c, f: (
            ("mhc" in selected(s)) & ((not s.on("enable_mhc_connections")) | ("mlp" in selected(s)) | s.on(_FINE))
        ),
        message="--recompute-modules {recompute_modules}, hyper-connections {enable_mhc_connections}",
        mend=lambda s, c, f: _needless(s, "mhc"),
        since="0.20",
    ),
    _args(
        "megatron-distribute",
        "distributing saved activations needs tp above 1, full recomputing, and no sequence parallelism",
        settings=("distribute_saved_activations", _HOW, _METHOD),
        reads=("tp", "sp"),
        breaks=lambda s, c, f: (
            s.on("distribute_saved_activations")
            & ((c["tp"] == 1) | (c["sp"] > 0) | (s.text(_HOW) != "full") | (s[_METHOD] is None))
        ),
        message="--distribute-saved-activations with tp {tp}, sequence parallelism {sp}, recompute {recompute_granularity}",
        mend={"distribute_saved_activations": None},
    ),
    _config(
        "megatron-offload",
        "offloading layers needs pp 1, no recomputing, and fewer layers than there are",
        settings=(_OFFLOAD, _HOW),
        reads=("pp",),
        breaks=lambda s, c, f: (
            (s.number(_OFFLOAD) > 0) & ((c["pp"] > 1) | (s[_HOW] is not None) | (s.number(_OFFLOAD) >= f.graph.spec.layers))
        ),
        message="{cpu_offloading_num_layers} of {layers} layers offloaded with pp {pp}, recompute {recompute_granularity}",
        mend={_OFFLOAD: None},
    ),
    _config(
        "megatron-offload-fine",
        "fine-grained offloading needs Transformer Engine, NVTE_CPU_OFFLOAD_V1=1, and no offloading of layers",
        settings=(_FINE, "transformer_impl", "env.NVTE_CPU_OFFLOAD_V1", _OFFLOAD),
        breaks=lambda s, c, f: (
            s.on(_FINE)
            & (
                (s.text("transformer_impl") != "transformer_engine")
                | (s.text("env.NVTE_CPU_OFFLOAD_V1") != "1")
                | (s.number(_OFFLOAD) > 0)
            )
        ),
        message=lambda s, c, f: (
            f"--fine-grained-activation-offloading with {s.text('transformer_impl')}, "
            f"NVTE_CPU_OFFLOAD_V1 {s.text('env.NVTE_CPU_OFFLOAD_V1') or 'unset'}, {s.number(_OFFLOAD)} offloaded layers"
        ),
        mend={"transformer_impl": "transformer_engine", "env.NVTE_CPU_OFFLOAD_V1": "1", _OFFLOAD: None},
        since="0.16",
    ),
    _config(
        "megatron-offload-modules",
        "fine-grained offloading names its modules, and attn_proj with core_attn alone",
        settings=(_FINE, _OFFLOADED),
        breaks=lambda s, c, f: (
            s.on(_FINE)
            & (
                (not s.words(_OFFLOADED))
                | (not set(s.words(_OFFLOADED)) <= OFFLOADABLE)
                | (("attn_proj" in s.words(_OFFLOADED)) & ("core_attn" not in s.words(_OFFLOADED)))
            )
        ),
        message="--offload-modules {offload_modules}",
        mend={_OFFLOADED: ("core_attn",)},
        since="0.16",
    ),
    _config(
        "megatron-offload-recompute",
        "nothing inside recomputed experts can be offloaded",
        settings=(_FINE, _OFFLOADED, _HOW, _MODULES),
        breaks=lambda s, c, f: (
            s.on(_FINE) & ("moe" in selected(s)) & bool({"moe_act", "expert_fc1", "fused_group_mlp"} & set(s.words(_OFFLOADED)))
        ),
        message="--offload-modules {offload_modules} with --recompute-modules {recompute_modules}",
        mend=lambda s, c, f: _needless(s, "moe"),
        since="0.18",
    ),
    _config(
        "megatron-graphs-recompute",
        "full recomputing is captured in a graph of the full iteration alone",
        settings=(_GRAPHS, *_SCOPES, _HOW),
        breaks=lambda s, c, f: (s.text(_GRAPHS) != "none") & (s.text(_HOW) == "full") & (not _full_iteration(s)),
        message="--cuda-graph-impl {cuda_graph_impl} with full recomputing",
        mend={_GRAPHS: None, **dict.fromkeys(_SCOPES)},
        since="0.15",
    ),
    _config(
        "megatron-graphs-moe",
        "graphs capture moe or moe_router, not both, and moe only where experts drop and pad",
        settings=(_GRAPHS, *_SCOPES, "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity", "num_experts"),
        breaks=lambda s, c, f: (
            (s.text(_GRAPHS) != "none")
            & ("moe" in _captured(s))
            & (
                ("moe_router" in _captured(s))
                | (not routed(s, f))
                | (s["moe_expert_capacity_factor"] is None)
                | (not s.on("moe_pad_expert_input_to_capacity"))
            )
        ),
        message=lambda s, c, f: (
            f"--cuda-graph-scope {' '.join(sorted(_captured(s)))} with capacity factor {s.said('moe_expert_capacity_factor')}"
        ),
        mend=lambda s, c, f: _without(s, "moe"),
        since="0.15",
    ),
    _config(
        "megatron-graphs-dropout",
        "graphed recomputing of attention excludes attention dropout",
        settings=(_GRAPHS, *_SCOPES, _HOW, _MODULES, "attention_dropout"),
        breaks=lambda s, c, f: (
            (s.text(_GRAPHS) != "none")
            & ("core_attn" in selected(s))
            & (s["attention_dropout"] != 0)
            & ((not _captured(s)) | bool({"attn", "full_iteration"} & _captured(s)))
        ),
        message="--recompute-modules {recompute_modules} in a graph with --attention-dropout {attention_dropout}",
        mend={"attention_dropout": 0.0},
        since="0.16",
    ),
    _args(
        "megatron-graphs-nan",
        "a graph of the full iteration cannot look for NaN in loss and gradients",
        settings=(_GRAPHS, *_SCOPES, "check_for_nan_in_loss_and_grad"),
        breaks=lambda s, c, f: _full_iteration(s) & s.on("check_for_nan_in_loss_and_grad"),
        message="a graph of the full iteration ({cuda_graph_impl}) with the check for NaN on",
        mend={"check_for_nan_in_loss_and_grad": False},
        since="0.15",
    ),
    _args(
        "megatron-graphs-segments",
        "expandable segments with graphs need NCCL_GRAPH_REGISTER=0",
        settings=(_GRAPHS, "env.PYTORCH_CUDA_ALLOC_CONF", "env.NCCL_GRAPH_REGISTER"),
        breaks=_registers,
        message=lambda s, c, f: f"graphs with PYTORCH_CUDA_ALLOC_CONF={s.text('env.PYTORCH_CUDA_ALLOC_CONF')}",
        mend={"env.NCCL_GRAPH_REGISTER": "0"},
        since="0.16",
    ),
)
