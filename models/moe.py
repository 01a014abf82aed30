"""The feed-forward block with experts: operators from what it reads to ``mlp_out``, which is added to the stream.

With E experts of width f_e, k chosen a token, t = b s tokens of a rank and R = routed rows its experts get:

    router        m = t, n = E, k = h; logits in fp32, never divided by tensor parallelism
    topk          scores, choice of k, normalisation: elementwise on t x E
    permute       reads t x h, writes t x k x h in the order of the experts
    dispatch      all-to-all: t x k x h -> R x h, and the R probabilities
    expert_up     grouped GEMM, m = R over E groups, n = f_e + f_e, k = h
    moe_act       reads 2 f_e, writes f_e per row, scaled by the probability
    expert_down   grouped GEMM, m = R, n = h, k = f_e
    combine       all-to-all: R x h -> t x k x h
    unpermute     sums the k copies of a token
    shared_*      the shared experts (one block of their joint width), added at the end

Saved (16-bit activations): per token 2 h + 2 h (norm) + 4 E (scores, fp32) + 4 k (places) + what shared experts
keep; per routed row 2 h + 4 f_e + 2 f_e + 4 (probability). Sources: arXiv 2401.06066 (shared experts), arXiv
2412.19437 section 2.1.2, arXiv 2211.15841 (grouped GEMM without dropped tokens).
"""

from __future__ import annotations

from shardwright.models.dims import ROUTED, TOKENS
from shardwright.models.feedforward import MADE, feed_forward
from shardwright.models.graph import CLAMP, GemmShape, Operator, OperatorKind, TensorSpec
from shardwright.models.parts import FP32, activation, hidden, optional, parameter
from shardwright.models.spec import ModelSpec, MoeSpec

ROUTED_OUT = hidden("routed_out")
SHARED_OUT = hidden("shared_out")
INT32 = 4.0


def moe_dims(moe: MoeSpec) -> dict[str, int]:
    """Sizes of the fixed dims of the block."""
    shared = {"shared_ffn": moe.shared_ffn} if moe.shared_ffn else {}
    scale = {"shared_scale": 1} if moe.shared_ffn and moe.shared_gate else {}
    routing = {"router_experts": moe.experts, "experts": moe.experts, "topk": moe.topk, "expert_ffn": moe.expert_ffn}
    groups = {"expert_groups": moe.groups, "topk_groups": moe.topk_groups} if moe.groups > 1 else {}
    return {**routing, **groups, **shared, **scale}


def moe_block(spec: ModelSpec, moe: MoeSpec, source: TensorSpec) -> tuple[Operator, ...]:
    """Operators of the feed-forward block with experts, from what it reads to ``mlp_out``."""
    shared = bool(moe.shared_ffn)
    return (
        *_routing(moe, source),
        *_experts(spec, moe, source, ROUTED_OUT if shared else MADE),
        *(_shared(spec, moe, source) if shared else ()),
    )


def _routing(moe: MoeSpec, source: TensorSpec) -> tuple[Operator, ...]:
    logits = TensorSpec(name="router_logits", dims=(*TOKENS, "router_experts"), bytes_per_element=FP32)
    scores = TensorSpec(name="router_scores", dims=logits.dims, bytes_per_element=FP32)
    router = Operator(
        name="router",
        kind=OperatorKind.GEMM,
        module="moe",
        inputs=(source,),
        outputs=(logits,),
        parameters=(
            parameter("router_weight", "hidden", "router_experts"),
            *optional(moe.router_bias, parameter("router_bias", "router_experts")),
        ),
        saved=(source,),
        gemm=GemmShape(m=TOKENS, n=(("router_experts",),), k=("hidden",)),
        quantizable=False,
    )
    topk = Operator(
        name="topk",
        kind=OperatorKind.ROUTER,
        module="moe",
        inputs=(logits,),
        outputs=(scores, _probabilities(), _places()),
        saved=(scores,),
        whole=("router_experts", "topk"),
    )
    return router, topk


def _experts(spec: ModelSpec, moe: MoeSpec, source: TensorSpec, target: TensorSpec) -> tuple[Operator, ...]:
    copies, returned = activation("routed_copies", "topk", "hidden"), activation("returned_copies", "topk", "hidden")
    received, produced = _rows("expert_in", "hidden"), _rows("expert_out", "hidden")
    row_probabilities = TensorSpec(name="routed_probabilities", dims=(ROUTED,), bytes_per_element=FP32)
    permute = _move("permute", OperatorKind.ELEMENTWISE, (source, _places()), (copies,), saved=(_places(),))
    dispatch = _move("dispatch", OperatorKind.DISPATCH, (copies, _probabilities()), (received, row_probabilities))
    combine = _move("combine", OperatorKind.COMBINE, (produced,), (returned,))
    unpermute = _move("unpermute", OperatorKind.ELEMENTWISE, (returned, _places()), (target,), saved=(_places(),))
    return (permute, dispatch, *_expert_gemms(spec, moe, received, row_probabilities, produced), combine, unpermute)


def _expert_gemms(
    spec: ModelSpec, moe: MoeSpec, received: TensorSpec, row_probabilities: TensorSpec, produced: TensorSpec
) -> tuple[Operator, ...]:
    parts = ("gate", "up") if spec.gated else ("up",)
    wide = tuple(_rows(f"expert_{part}", "expert_ffn") for part in parts)
    acted = _rows("expert_act_out", "expert_ffn")
    kept = (*wide, row_probabilities)
    act = Operator(
        name="moe_act",
        kind=OperatorKind.ELEMENTWISE,
        module="moe_act",
        inputs=kept,
        outputs=(acted,),
        saved=kept,
        recompute_drops=(acted.name,),
        beside=(CLAMP,) if moe.expert_clamp else (),
    )
    return _grouped("expert_up", moe, received, wide), act, _grouped("expert_down", moe, acted, (produced,))


def _grouped(name: str, moe: MoeSpec, source: TensorSpec, outputs: tuple[TensorSpec, ...]) -> Operator:
    """A grouped GEMM over all experts, from the last dim of `source` to those of `outputs`."""
    inner = source.dims[-1]
    stems = [name if len(outputs) == 1 else output.name for output in outputs]
    weights = tuple(
        parameter(f"{stem}_weight", "experts", inner, out.dims[-1]) for stem, out in zip(stems, outputs, strict=True)
    )
    biases = tuple(parameter(f"{stem}_bias", "experts", out.dims[-1]) for stem, out in zip(stems, outputs, strict=True))
    return Operator(
        name=name,
        kind=OperatorKind.GROUPED_GEMM,
        module="moe",
        inputs=(source,),
        outputs=outputs,
        parameters=weights + optional(moe.expert_bias, *biases),
        saved=(source,),
        gemm=GemmShape(m=(ROUTED,), n=tuple((out.dims[-1],) for out in outputs), k=(inner,), groups=("experts",)),
    )


def _shared(spec: ModelSpec, moe: MoeSpec, source: TensorSpec) -> tuple[Operator, ...]:
    modules = ("shared_experts", "shared_experts")
    block = feed_forward(spec, source, SHARED_OUT, width="shared_ffn", prefix="shared_", modules=modules)
    scale, scaled = activation("shared_scale_logit", "shared_scale"), moe.shared_gate
    add = Operator(
        name="shared_add",
        kind=OperatorKind.ELEMENTWISE,
        module="moe",
        inputs=(ROUTED_OUT, SHARED_OUT, *optional(scaled, scale)),
        outputs=(MADE,),
        saved=optional(scaled, SHARED_OUT, scale),
    )
    return (*block, *((_shared_scale(scale, source),) if scaled else ()), add)


def _shared_scale(scale: TensorSpec, source: TensorSpec) -> Operator:
    """The learned gate: one logit a token, whose sigmoid scales what the shared experts give."""
    return Operator(
        name="shared_scale",
        kind=OperatorKind.GEMM,
        module="shared_experts",
        inputs=(source,),
        outputs=(scale,),
        parameters=(parameter("shared_scale_weight", "hidden", "shared_scale"),),
        saved=(source,),
        gemm=GemmShape(m=TOKENS, n=(("shared_scale",),), k=("hidden",)),
        quantizable=False,
    )


def _move(
    name: str,
    kind: OperatorKind,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    saved: tuple[TensorSpec, ...] = (),
) -> Operator:
    return Operator(name=name, kind=kind, module="moe", inputs=inputs, outputs=outputs, saved=saved, whole=("topk",))


def _rows(name: str, width: str) -> TensorSpec:
    return TensorSpec(name=name, dims=(ROUTED, width))


def _probabilities() -> TensorSpec:
    return TensorSpec(name="probabilities", dims=(*TOKENS, "topk"), bytes_per_element=FP32)


def _places() -> TensorSpec:
    return TensorSpec(name="places", dims=(*TOKENS, "topk"), bytes_per_element=INT32)
