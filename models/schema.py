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
    groups: Annotated[int, _in("groups")] = Field(1, description="expert groups of group-limited routing")
    topk_groups: Annotated[int, _in("topk_groups")] = Field(1, description="groups a token may be sent to")


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
    positions: Literal["rope", "learned", "none"] = "rope"
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    activation: Literal["swiglu", "geglu", "reglu", "gelu", "relu", "relu2", "silu"] = "swiglu"
    qkv_bias: bool = Field(False, description="biases on the query, key and value projections")
    out_bias: bool = Field(False, description="bias on the attention's output projection")
    mlp_bias: bool = Field(False, description="biases on the feed-forward projections")
    qk_norm: Literal["none", "head"] = Field("none", description="head: queries and keys are normalised head by head")
    windows: list[Annotated[int, _in("window")] | None] = Field(
        [None],
        min_length=1,
        max_length=MAX_LAYERS,
        description="attention window of each layer, repeated; null: the whole sequence",
    )
    sinks: bool = Field(False, description="one learned attention sink a head")
    dropout: bool = Field(False, description="dropout masks are kept")
    tied_embeddings: bool = Field(False, description="the head uses the word embedding")
    mla: MlaRecord | None = None
    moe: MoeRecord | None = None
    mtp_layers: Annotated[int, _in("mtp_layers")] = Field(0, description="multi-token-prediction blocks trained with the model")
    source: str = Field("", max_length=2000, description="where the figures are from")
    notes: list[str] = Field([], max_length=1000)
