"""One layer: its mixer (attention, scan, a projection), its feed-forward block, and the stream between them.

    sequential          mid = in + mixer(norm in);  out = mid + mlp(norm mid)
    parallel            out = in + mixer(norm in) + mlp(norm' in)          one norm: norm' = norm  (arXiv 2204.06745)
    norm after          out = mid + norm(mlp(mid))                         both: norms before and after

`layer_graph` builds the graph of a `LayerShape`; a layer without mixer or without feed-forward block has the other alone.
"""

from __future__ import annotations

from shardwright.models.attention import MIXED, attention_block, attention_dims
from shardwright.models.feedforward import MADE, dense_block
from shardwright.models.graph import LayerGraph, Operator, OperatorKind, TensorSpec
from shardwright.models.moe import moe_block, moe_dims
from shardwright.models.parts import closed, hidden, norm, opened, projection, residual
from shardwright.models.scan import scan_block, scan_dims
from shardwright.models.spec import LayerShape, ModelSpec

IN, MID, OUT = hidden("hidden_in"), hidden("hidden_mid"), hidden("hidden_out")
ATTN_NORMED, MLP_NORMED = hidden("attn_normed"), hidden("mlp_normed")


def layer_graph(spec: ModelSpec, shape: LayerShape) -> LayerGraph:
    """The graph of a layer."""
    return LayerGraph(kind=_kind(spec, shape), dims=layer_dims(spec, shape), operators=layer_operators(spec, shape))


def layer_dims(spec: ModelSpec, shape: LayerShape) -> dict[str, int]:
    """Sizes of the fixed dims of a layer."""
    dims = {"hidden": spec.hidden}
    if shape.mixer == "attention":
        dims |= attention_dims(spec, shape)
    if shape.mixer == "scan" and spec.scan is not None:
        dims |= scan_dims(spec.scan)
    if shape.mlp == "moe" and spec.moe is not None:
        dims |= moe_dims(spec.moe)
    return dims | ({"ffn": shape.ffn} if shape.ffn is not None else {})


def layer_operators(spec: ModelSpec, shape: LayerShape) -> tuple[Operator, ...]:
    """Operators from ``hidden_in`` to ``hidden_out``."""
    mixes, feeds = shape.mixer != "none", shape.mlp != "none"
    if not (mixes or feeds):
        return (Operator(name="skip", kind=OperatorKind.ELEMENTWISE, module="residual", inputs=(IN,), outputs=(OUT,)),)
    if spec.block != "sequential":
        return _parallel(spec, shape)
    mid = (MID if feeds else OUT) if mixes else IN
    return (*(_mixing(spec, shape, mid) if mixes else ()), *(_feeding(spec, shape, mid) if feeds else ()))


def _mixing(spec: ModelSpec, shape: LayerShape, target: TensorSpec) -> tuple[Operator, ...]:
    source, before = opened(spec, "input_norm", IN, ATTN_NORMED)
    return (*before, *_mixer(spec, shape, source), *closed(spec, "attn", MIXED, IN, target))


def _feeding(spec: ModelSpec, shape: LayerShape, stream: TensorSpec) -> tuple[Operator, ...]:
    source, before = opened(spec, "post_norm", stream, MLP_NORMED)
    return (*before, *_mlp(spec, shape, source), *closed(spec, "mlp", MADE, stream, OUT))


def _parallel(spec: ModelSpec, shape: LayerShape) -> tuple[Operator, ...]:
    """Mixer and feed-forward block beside each other."""
    own = spec.block == "parallel"
    source = MLP_NORMED if own else ATTN_NORMED
    return (
        norm(spec, "input_norm", IN, ATTN_NORMED),
        *_mixer(spec, shape, ATTN_NORMED),
        *((norm(spec, "post_norm", IN, MLP_NORMED),) if own else ()),
        *_mlp(spec, shape, source),
        residual(spec, "layer_residual", (MIXED, MADE), IN, OUT),
    )


def _mixer(spec: ModelSpec, shape: LayerShape, source: TensorSpec) -> tuple[Operator, ...]:
    if shape.mixer == "scan" and spec.scan is not None:
        return scan_block(spec.scan, source)
    if shape.mixer == "linear":
        return (projection("attn_linear", source, MIXED, module="attn"),)
    return attention_block(spec, shape, source)


def _mlp(spec: ModelSpec, shape: LayerShape, source: TensorSpec) -> tuple[Operator, ...]:
    if shape.mlp == "moe" and spec.moe is not None:
        return moe_block(spec, spec.moe, source)
    if shape.mlp == "linear":
        return (projection("mlp_linear", source, MADE, module="mlp"),)
    return dense_block(spec, source)


def _kind(spec: ModelSpec, shape: LayerShape) -> str:
    """A name for the shape: what a plain layer has goes without saying."""
    mixer = spec.scan.kind if shape.mixer == "scan" and spec.scan is not None else shape.mixer
    feeds = shape.mlp != "none"
    named = {"attention": "" if feeds else mixer, "none": "only" if feeds else "skip", "linear": "linear-mixer"}
    words = [named.get(mixer, mixer), {"none": "", "linear": "linear-mlp"}.get(shape.mlp, shape.mlp)]
    if shape.window is not None:
        words += ["chunk" if spec.chunked else "window", str(shape.window)]
    if shape.mixer == "attention" and spec.positions == "rope" and not shape.rotary:
        words += ["nope"]
    if shape.kv_heads is not None and any(spec.layer_kv_heads):
        words += ["kv", str(shape.kv_heads)]
    if shape.ffn is not None and any(spec.layer_ffn):
        words += ["ffn", str(shape.ffn)]
    return "-".join(filter(None, words))
