"""From a `ModelSpec` to a `ModelGraph`: embedding, distinct layers, head, MTP block.

    layer i    = attention block (window of layer i) + dense or expert block         `_layer`
    embedding  : rows of the word table, + learned positions, dropout                `_embedding`
    head       : final norm, GEMM m = b s, n = vocab, k = h, cross entropy           `_head`
    MTP        : norm of the next token's embedding and of the stream, GEMM 2 h -> h, one layer like the
                 last, final norm, the model's head (arXiv 2412.19437 section 2.2)   `_mtp`

The cross entropy keeps its softmax in fp32 (4 bytes a logit). A Llama layer (rotary positions, gate, no
dropout, fused attention) therefore saves per token, with 16-bit activations,

    2 (4 h + 2 a d + 2 g d + 3 f) + 4 a + 8 bytes

and a classic GPT layer (four-fold width, dropout) 34 h + 4 a + 16: equation 1 of arXiv 2205.05198 without its
5 a s / h part, plus the statistics of attention (4 a) and of two LayerNorms (8 each), which that paper neglects.
"""

from __future__ import annotations

from shardwright.models.attention import attention_block, attention_dims
from shardwright.models.dims import TOKENS
from shardwright.models.feedforward import dense_block
from shardwright.models.graph import GemmShape, LayerGraph, ModelGraph, Operator, OperatorKind, TensorSpec
from shardwright.models.moe import moe_block, moe_dims
from shardwright.models.parts import FP32, MASK, activation, hidden, norm, optional, parameter
from shardwright.models.spec import ModelSpec

WORD_EMBEDDING = "word_embedding"
HEAD_WEIGHT = "head_weight"
TOKEN_BYTES = 8.0


def build_graph(spec: ModelSpec) -> ModelGraph:
    """The model graph of a spec."""
    dense = frozenset(range(spec.layers) if spec.moe is None else spec.moe.dense_layers)
    keys = [(layer not in dense, spec.window_of(layer)) for layer in range(spec.layers)]
    kinds = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    return ModelGraph(
        name=spec.name,
        spec=spec,
        embedding=_embedding(spec),
        layer_kinds=tuple(_layer(spec, moe, window) for moe, window in kinds),
        pattern=tuple(kinds[key] for key in keys),
        head=_head(spec),
        mtp=_mtp(spec, *keys[-1]) if spec.mtp_layers else None,
        mtp_layers=spec.mtp_layers,
        tied_embeddings=spec.tied_embeddings,
    )


def _layer(spec: ModelSpec, moe: bool, window: int | None) -> LayerGraph:
    kind = ("moe" if moe else "dense") + ("" if window is None else f"-window-{window}")
    return LayerGraph(kind=kind, dims=_layer_dims(spec, moe), operators=_layer_operators(spec, moe, window))


def _layer_dims(spec: ModelSpec, moe: bool) -> dict[str, int]:
    if moe and spec.moe is not None:
        return {**attention_dims(spec), **moe_dims(spec.moe)}
    return {**attention_dims(spec), "ffn": spec.ffn or 0}


def _layer_operators(spec: ModelSpec, moe: bool, window: int | None) -> tuple[Operator, ...]:
    block = moe_block(spec, spec.moe) if moe and spec.moe is not None else dense_block(spec)
    return (*attention_block(spec, window), *block)


def _embedding(spec: ModelSpec) -> LayerGraph:
    learned = spec.positions == "learned"
    positions = {"positions": spec.max_positions or 0} if learned else {}
    target = hidden("hidden_in")
    mask = TensorSpec(name="embedding_mask", dims=target.dims, bytes_per_element=MASK)
    lookup = Operator(
        name="embedding",
        kind=OperatorKind.EMBEDDING,
        module="embedding",
        inputs=(_tokens(),),
        outputs=(target, *optional(spec.dropout, mask)),
        parameters=(_word_embedding(), *optional(learned, parameter("position_embedding", "positions", "hidden"))),
        saved=(_tokens(), *optional(spec.dropout, mask)),
    )
    return LayerGraph(kind="embedding", dims={"hidden": spec.hidden, "vocab": spec.vocab, **positions}, operators=(lookup,))


def _head(spec: ModelSpec) -> LayerGraph:
    normed = hidden("final_normed")
    operators = (norm(spec, "final_norm", hidden("hidden_in"), normed), *_output(spec, normed, ""))
    return LayerGraph(kind="head", dims={"hidden": spec.hidden, "vocab": spec.vocab}, operators=operators)


def _output(spec: ModelSpec, normed: TensorSpec, prefix: str) -> tuple[Operator, ...]:
    """The output GEMM and the loss."""
    logits = activation(f"{prefix}logits", "vocab")
    softmax = TensorSpec(name=f"{prefix}softmax", dims=logits.dims, bytes_per_element=FP32)
    loss = TensorSpec(name=f"{prefix}loss", dims=TOKENS, bytes_per_element=FP32)
    labels = TensorSpec(name=f"{prefix}labels", dims=TOKENS, bytes_per_element=TOKEN_BYTES)
    weight = _word_embedding() if spec.tied_embeddings else parameter(HEAD_WEIGHT, "vocab", "hidden")
    gemm = Operator(
        name=f"{prefix}head",
        kind=OperatorKind.GEMM,
        module="head",
        inputs=(normed,),
        outputs=(logits,),
        parameters=(weight,),
        saved=(normed,),
        gemm=GemmShape(m=TOKENS, n=(("vocab",),), k=("hidden",)),
        quantizable=False,
    )
    entropy = Operator(
        name=loss.name,
        kind=OperatorKind.LOSS,
        module="head",
        inputs=(logits, labels),
        outputs=(loss,),
        saved=(softmax, labels),
        recompute_drops=(softmax.name,),
    )
    return gemm, entropy


def _mtp(spec: ModelSpec, moe: bool, window: int | None) -> LayerGraph:
    stream, embedded, normed = hidden("mtp_stream"), hidden("mtp_embedded"), hidden("mtp_final_normed")
    joined = (hidden("mtp_stream_normed"), hidden("mtp_embedded_normed"))
    operators = (
        _mtp_lookup(embedded),
        norm(spec, "mtp_stream_norm", stream, joined[0]),
        norm(spec, "mtp_embedded_norm", embedded, joined[1]),
        _mtp_join(joined),
        *_layer_operators(spec, moe, window),
        norm(spec, "mtp_final_norm", hidden("hidden_out"), normed),
        *_output(spec, normed, "mtp_"),
    )
    dims = {**_layer_dims(spec, moe), "vocab": spec.vocab, "mtp_parts": 2}
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
