"""What the model of the package has not: features that are refused, never left out in silence."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.models.spec import ModelSpec
from shardwright.planner.emit.base import Refusal

_Test = Callable[[ModelSpec], bool]

_UNSAID: tuple[tuple[str, _Test, str], ...] = (
    ("positions", lambda s: s.positions == "alibi", "ALiBi positions"),
    ("position_offset", lambda s: s.position_offset > 0, "rows before the first position"),
    ("norm_at", lambda s: s.norm_at != "before", "norms behind a block"),
    ("block", lambda s: s.block != "sequential", "parallel blocks"),
    ("embedding_norm", lambda s: s.embedding_norm, "a norm after the embedding"),
    ("qk_norm", lambda s: s.qk_norm not in ("none", "head"), "norms over all heads or without weights"),
    ("attention_gate", lambda s: s.attention_gate, "a gate on attention"),
    ("windows", lambda s: any(s.windows), "attention windows"),
    ("rotary_layers", lambda s: s.positions == "rope" and not all(s.rotary_layers), "layers without rotation"),
    ("mixers", lambda s: set(s.mixers) != {"attention"}, "layers without attention"),
    ("mlps", lambda s: set(s.mlps) != {"ffn"}, "layers without a feed-forward block"),
    ("layer_kv_heads", lambda s: any(k is not None for k in s.layer_kv_heads), "layers with heads of their own"),
    ("layer_ffn", lambda s: any(f is not None for f in s.layer_ffn), "layers with a width of their own"),
    ("sinks", lambda s: s.sinks, "attention sinks"),
    ("attention_softcap", lambda s: s.attention_softcap, "capped attention scores"),
    ("logits_softcap", lambda s: s.logits_softcap, "capped logits"),
    ("dropout", lambda s: s.dropout, "dropout"),
    ("mtp_layers", lambda s: s.mtp_layers > 0, "multi-token prediction"),
    ("moe.shared_gate", lambda s: s.moe is not None and s.moe.shared_gate, "a gate on shared experts"),
    ("moe.expert_bias", lambda s: s.moe is not None and s.moe.expert_bias, "biases in experts"),
    ("mla.index_heads", lambda s: s.mla is not None and s.mla.index_heads is not None, "an indexer of sparse attention"),
)


def model_refusals(spec: ModelSpec) -> tuple[Refusal, ...]:
    """The features of a model that `model.py` has not."""
    remedy = "use a target that has it (megatron), or leave it out by --set"
    return tuple(
        Refusal(field=f"model.{field}", message=f"the package has no {what}", remedy=remedy)
        for field, test, what in _UNSAID
        if test(spec)
    )


UNSAID_OF_MODELS = {f"model.{field}": what for field, _, what in _UNSAID}
"""Fields of a model -> what of them the package has not."""
