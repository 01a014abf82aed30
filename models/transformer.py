"""From a `ModelSpec` to a `ModelGraph`: embedding, distinct layers, head, MTP block.

    layer i    = mixer + feed-forward block, by its shape                            `layers.layer_graph`
    embedding  : rows of the word table, + learned positions, dropout, norm          `_embedding`
    head       : final norm, GEMM m = b s, n = vocab, k = h, cap, cross entropy      `_head`
    MTP        : norm of the next token's embedding and of the stream, GEMM 2 h -> h, one layer like the
                 last, final norm, the model's head (arXiv 2412.19437 section 2.2)   `_mtp`

The cross entropy keeps its softmax in fp32 (4 bytes a logit). A Llama layer (rotary positions, gate, no
dropout, fused attention) therefore saves per token, with 16-bit activations,

    2 (4 h + 2 a d + 2 g d + 3 f) + 4 a + 8 bytes

and a classic GPT layer (four-fold width, dropout) 34 h + 4 a + 16: equation 1 of arXiv 2205.05198 without its
5 a s / h part, plus the statistics of attention (4 a) and of two LayerNorms (8 each), which that paper neglects.
"""

from __future__ import annotations

from shardwright.models.dims import TOKENS
from shardwright.models.graph import GemmShape, LayerGraph, ModelGraph, Normalised, Operator, OperatorKind, TensorSpec
from shardwright.models.layers import layer_dims, layer_graph, layer_operators
from shardwright.models.parts import FP32, MASK, activation, hidden, norm, optional, parameter
from shardwright.models.spec import LayerShape, ModelSpec

WORD_EMBEDDING = "word_embedding"
HEAD_WEIGHT = "head_weight"
TOKEN_BYTES = 8.0


def build_graph(spec: ModelSpec) -> ModelGraph:
    """The model graph of a spec."""
    shapes = spec.shapes()
    kinds = {shape: index for index, shape in enumerate(dict.fromkeys(shapes))}
    return ModelGraph(
        name=spec.name,
        spec=spec,
        embedding=_embedding(spec),
        layer_kinds=tuple(layer_graph(spec, shape) for shape in kinds),
        pattern=tuple(kinds[shape] for shape in shapes),
        head=_head(spec),
        mtp=_mtp(spec, shapes[-1]) if spec.mtp_layers else None,
        mtp_layers=spec.mtp_layers,
        tied_embeddings=spec.tied_embeddings,
    )


def _embedding(spec: ModelSpec) -> LayerGraph:
    learned = spec.positions == "learned"
    positions = {"positions": (spec.max_positions or 0) + spec.position_offset} if learned else {}
    stream = hidden("hidden_in")
    target = hidden("hidden_embedded") if spec.embedding_norm else stream
    mask = TensorSpec(name="embedding_mask", dims=target.dims, bytes_per_element=MASK)
    lookup = Operator(
        name="embedding",
        kind=OperatorKind.EMBEDDING,
        module="embedding",
        inputs=(_tokens(),),
        outputs=(target, *optional(spec.dropout, mask)),
        parameters=(_word_embedding(), *optional(learned, parameter("position_embedding", "positions", "hidden"))),
        saved=(_tokens(), *optional(spec.dropout, mask)),
        whole=("positions",),
    )
    normed = optional(spec.embedding_norm, norm(spec, "embedding_norm", target, stream, kept=False))
    dims = {"hidden": spec.hidden, "vocab": spec.vocab, **positions}
    return LayerGraph(kind="embedding", dims=dims, operators=(lookup, *normed))


def _head(spec: ModelSpec) -> LayerGraph:
    normed = hidden("final_normed")
    operators = (norm(spec, "final_norm", hidden("hidden_in"), normed), *_output(spec, normed, ""))
    return LayerGraph(kind="head", dims={"hidden": spec.hidden, "vocab": spec.vocab}, operators=operators)


def _output(spec: ModelSpec, normed: TensorSpec, prefix: str) -> tuple[Operator, ...]:
    """The output GEMM, the cap of the logits, and the loss."""
    logits = activation(f"{prefix}logits", "vocab")
    capped = activation(f"{prefix}logits_capped", "vocab")
    weight = _word_embedding() if spec.tied_embeddings else parameter(HEAD_WEIGHT, "vocab", "hidden")
    gemm = Operator(
        name=f"{prefix}head",
        kind=OperatorKind.GEMM,
        module="head",
        inputs=(normed,),
        outputs=(logits,),
        parameters=(weight, *optional(spec.head_bias, parameter("head_bias", "vocab"))),
        saved=(normed,),
        gemm=GemmShape(m=TOKENS, n=(("vocab",),), k=("hidden",)),
        quantizable=False,
    )
    if not spec.logits_softcap:
        return gemm, _loss(prefix, logits)
    cap = Operator(
        name=f"{prefix}logits_cap",
        kind=OperatorKind.ELEMENTWISE,
        module="head",
        inputs=(logits,),
        outputs=(capped,),
        saved=(capped,),
    )
    return gemm, cap, _loss(prefix, capped)


def _loss(prefix: str, logits: TensorSpec) -> Operator:
    """Cross entropy, which keeps its softmax."""
    softmax = TensorSpec(name=f"{prefix}softmax", dims=logits.dims, bytes_per_element=FP32)
    loss = TensorSpec(name=f"{prefix}loss", dims=TOKENS, bytes_per_element=FP32)
    labels = TensorSpec(name=f"{prefix}labels", dims=TOKENS, bytes_per_element=TOKEN_BYTES)
    return Operator(
        name=loss.name,
        kind=OperatorKind.LOSS,
        module="head",
        inputs=(logits, labels),
        outputs=(loss,),
        saved=(softmax, labels),
        recompute_drops=(softmax.name,),
        normalised=Normalised(dims=("vocab",), forward=3, backward=0),
    )


def _mtp(spec: ModelSpec, shape: LayerShape) -> LayerGraph:
    stream, embedded, normed = hidden("mtp_stream"), hidden("mtp_embedded"), hidden("mtp_final_normed")
    joined = (hidden("mtp_stream_normed"), hidden("mtp_embedded_normed"))
    operators = (
        _mtp_lookup(embedded),
        norm(spec, "mtp_stream_norm", stream, joined[0]),
        norm(spec, "mtp_embedded_norm", embedded, joined[1]),
        _mtp_join(joined),
        *layer_operators(spec, shape),
        norm(spec, "mtp_final_norm", hidden("hidden_out"), normed),
        *_output(spec, normed, "mtp_"),
    )
    dims = {**layer_dims(spec, shape), "vocab": spec.vocab, "mtp_parts": 2}
    return LayerGraph(kind="mtp", dims=dims, operators=operators)


def _mtp_lookup(target: TensorSpec) -> Operator:
    return Operator(
        name="mtp_embedding",
        kind=OperatorKind.EMBEDDING,
        module="embedding",
        inputs=(_tokens(),),
        outputs=(target,),
        parameters=(_word_embedding(),),
        saved=(_tokens(),),
    )


def _mtp_join(joined: tuple[TensorSpec, ...]) -> Operator:
    return Operator(
        name="mtp_join",
        kind=OperatorKind.GEMM,
        module="mlp",
        inputs=joined,
        outputs=(hidden("hidden_in"),),
        parameters=(parameter("mtp_join_weight", "mtp_parts", "hidden", "hidden"),),
        saved=joined,
        gemm=GemmShape(m=TOKENS, n=(("hidden",),), k=("mtp_parts", "hidden")),
    )


def _tokens() -> TensorSpec:
    return TensorSpec(name="tokens", dims=TOKENS, bytes_per_element=TOKEN_BYTES)


def _word_embedding() -> TensorSpec:
    return parameter(WORD_EMBEDDING, "vocab", "hidden")
