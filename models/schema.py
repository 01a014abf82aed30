"""The model YAML as a pydantic record, for its JSON Schema (``ModelRecord.model_json_schema()``).

Ranges, words and defaults are those of `ModelSpec`, which reads the files: it also knows relations between fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shardwright.models.spec import MAX_LAYERS, RANGES


def _in(limits: str) -> Any:
    low, high = RANGES[limits]
    return Field(ge=low, le=high)


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class MlaRecord(_Record):
    """Multi-head latent attention."""

    q_rank: Annotated[int, _in("q_rank")] | None = Field(
        None, description="width of the compressed queries; null: projected directly"
    )
    kv_rank: Annotated[int, _in("kv_rank")] = Field(description="width of the compressed keys and values")
    nope_dim: Annotated[int, _in("nope_dim")] = Field(description="part of a query or key head without rotary positions")
    rope_dim: Annotated[int, _in("rope_dim")] = Field(description="part of a query or key head with rotary positions")
    v_dim: Annotated[int, _in("v_dim")] = Field(description="size of a value head")
    index_heads: Annotated[int, _in("index_heads")] | None = Field(
        None, description="heads of the indexer that chooses the tokens a query attends to; null: none"
    )
    index_dim: Annotated[int, _in("index_dim")] | None = Field(None, description="size of a head of the indexer")
    index_topk: Annotated[int, _in("index_topk")] | None = Field(None, description="tokens a query attends to at most")


class MoeRecord(_Record):
    """Experts in place of the feed-forward block."""

    experts: Annotated[int, _in("experts")] = Field(description="routed experts of a layer")
    topk: Annotated[int, _in("topk")] = Field(description="experts a token is sent to")
    expert_ffn: Annotated[int, _in("expert_ffn")] = Field(description="width of one routed expert")
    shared_ffn: Annotated[int, _in("shared_ffn")] = Field(0, description="width of all shared experts together; 0: none")
    shared_gate: bool = Field(False, description="a learned gate scales the shared experts' output")
    dense_layers: list[Annotated[int, _in("dense_layer")]] = Field(
        [], max_length=MAX_LAYERS, description="0-based indices of the layers without experts"
    )
    router_bias: bool = Field(False, description="trainable bias on the router's logits")
    correction_bias: bool = Field(False, description="router bias that is updated outside gradient descent")
    expert_bias: bool = Field(False, description="biases on the experts' projections")
    expert_clamp: bool = Field(False, description="what the experts' activation reads is clamped")
    groups: Annotated[int, _in("groups")] = Field(1, description="expert groups of group-limited routing")
    topk_groups: Annotated[int, _in("topk_groups")] = Field(1, description="groups a token may be sent to")


class ScanRecord(_Record):
    """A recurrence over the sequence in place of attention."""

    kind: Literal["mamba1", "mamba2", "gated-delta", "lightning"] = Field(description="which recurrence")
    heads: Annotated[int, _in("heads")] = Field(description="heads of values (mamba1: channels)")
    head_dim: Annotated[int, _in("head_dim")] = Field(description="size of a value head (mamba1: 1)")
    state: Annotated[int, _in("state")] = Field(description="size of a key head: the state's second dim")
    groups: Annotated[int, _in("groups")] = Field(1, description="heads of keys and queries (mamba: B and C)")
    conv: Annotated[int, _in("conv")] = Field(0, description="taps of the causal convolution; 0: none")
    conv_bias: bool = Field(False, description="bias on the convolution")
    bias: bool = Field(False, description="biases on the projections")
    chunk: Annotated[int, _in("chunk")] = Field(256, description="tokens of a chunk that is computed by products")
    dt_rank: Annotated[int, _in("dt_rank")] | None = Field(None, description="width of the compressed step sizes (mamba1)")
    inner_norms: bool = Field(False, description="step sizes, B and C are normalised (mamba1)")


class ModelRecord(_Record):
    """A decoder-only language model."""

    name: str = Field(min_length=1, max_length=200, description="as shown")
    layers: Annotated[int, _in("layers")] = Field(description="decoder layers, without multi-token prediction")
    hidden: Annotated[int, _in("hidden")] = Field(description="width of the residual stream")
    heads: Annotated[int, _in("heads")] = Field(description="query heads")
    kv_heads: Annotated[int, _in("kv_heads")] | None = Field(None, description="key and value heads; null: as many as heads")
    head_dim: Annotated[int, _in("head_dim")] | None = Field(None, description="size of a head; null: hidden / heads")
    vocab: Annotated[int, _in("vocab")] = Field(description="rows of the word embedding")
    ffn: Annotated[int, _in("ffn")] | None = Field(
        None, description="width of the dense feed-forward block; null: none is dense"
    )
    max_positions: Annotated[int, _in("max_positions")] | None = Field(None, description="context length")
    positions: Literal["rope", "learned", "alibi", "none"] = "rope"
    position_offset: Annotated[int, _in("position_offset")] = Field(
        0, description="rows of learned positions beyond max_positions"
    )
    norm: Literal["rmsnorm", "layernorm", "layernorm-no-bias", "layernorm-plain"] = "rmsnorm"
    norm_at: Literal["before", "after", "both"] = Field("before", description="where norms stand around each block")
    block: Literal["sequential", "parallel", "parallel-one-norm"] = Field(
        "sequential", description="whether attention and feed-forward block stand beside each other"
    )
    embedding_norm: bool = Field(False, description="the embeddings are normalised")
    activation: Literal["swiglu", "geglu", "reglu", "gelu", "relu", "relu2", "silu"] = "swiglu"
    qkv_bias: bool = Field(False, description="biases on the query, key and value projections")
    out_bias: bool = Field(False, description="bias on the attention's output projection")
    mlp_bias: bool = Field(False, description="biases on the feed-forward projections")
    head_bias: bool = Field(False, description="bias on the output head")
    qk_norm: Literal["none", "head", "full", "unit"] = Field(
        "none", description="queries and keys are normalised head by head, over all heads, or head by head without weights"
    )
    attention_gate: bool = Field(False, description="a projected gate scales the attention's output")
    windows: list[Annotated[int, _in("window")] | None] = Field(
        [None],
        min_length=1,
        max_length=MAX_LAYERS,
        description="attention window of each layer, repeated; null: the whole sequence",
    )
    chunked: bool = Field(False, description="windows are chunks that begin at multiples of their length")
    rotary_layers: list[bool] = Field(
        [True], min_length=1, max_length=MAX_LAYERS, description="whether a layer rotates queries and keys, repeated"
    )
    mixers: list[Literal["attention", "scan", "linear", "none"]] = Field(
        ["attention"], min_length=1, max_length=MAX_LAYERS, description="what mixes tokens in each layer, repeated"
    )
    mlps: list[Literal["ffn", "linear", "none"]] = Field(
        ["ffn"], min_length=1, max_length=MAX_LAYERS, description="the feed-forward block of each layer, repeated"
    )
    layer_kv_heads: list[Annotated[int, _in("kv_heads")] | None] = Field(
        [None], min_length=1, max_length=MAX_LAYERS, description="key and value heads of each layer, repeated; null: kv_heads"
    )
    layer_ffn: list[Annotated[int, _in("ffn")] | None] = Field(
        [None], min_length=1, max_length=MAX_LAYERS, description="dense width of each layer, repeated; null: ffn"
    )
    rotary_scale: bool = Field(False, description="the rotation also scales queries and keys, as that of YaRN does")
    sinks: bool = Field(False, description="one learned attention sink a head")
    attention_softcap: bool = Field(False, description="attention scores are capped")
    logits_softcap: bool = Field(False, description="logits are capped")
    dropout: bool = Field(False, description="dropout masks are kept")
    tied_embeddings: bool = Field(False, description="the head uses the word embedding")
    mla: MlaRecord | None = None
    moe: MoeRecord | None = None
    scan: ScanRecord | None = None
    mtp_layers: Annotated[int, _in("mtp_layers")] = Field(0, description="multi-token-prediction blocks trained with the model")
    source: str = Field("", max_length=2000, description="where the figures are from")
    notes: list[str] = Field([], max_length=1000)
