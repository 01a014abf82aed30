"""Parts of an architecture's record: latent attention, experts, and scans over the sequence.

`MlaSpec`, `MoeSpec` and `ScanSpec` stand under ``mla``, ``moe`` and ``scan`` of a `ModelSpec`, each checked when made.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.models.checks import choice, sequence, whole
from shardwright.models.records import MAX_LAYERS, RANGES, check_flags, check_optional, check_ranges

SCANS = ("mamba1", "mamba2", "gated-delta", "lightning")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec:
    """Multi-head latent attention (arXiv 2405.04434 section 2.1).

    Attributes:
        kv_rank: width of the compressed keys and values.
        nope_dim: part of a query or key head without rotary positions.
        rope_dim: part with rotary positions, shared by all key heads.
        v_dim: size of a value head.
        q_rank: width of the compressed queries; None where queries are projected directly.
        index_heads: heads of the indexer that chooses which tokens a query attends to; None for none.
        index_dim: size of a head of the indexer.
        index_topk: tokens a query attends to at most.
    """

    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    q_rank: int | None = None
    index_heads: int | None = None
    index_dim: int | None = None
    index_topk: int | None = None

    def __post_init__(self) -> None:
        check_ranges(self, ("kv_rank", "nope_dim", "rope_dim", "v_dim"), "mla.")
        check_optional(self, ("q_rank", "index_heads", "index_dim", "index_topk"), "mla.")
        given = [name for name in ("index_heads", "index_dim", "index_topk") if getattr(self, name) is not None]
        if given and (len(given) < 3 or self.q_rank is None):
            raise ConflictError(
                f"mla.{given[0]} needs the other sizes of the indexer and q_rank",
                where=f"mla.{given[0]}",
                hint="give index_heads, index_dim, index_topk and q_rank, or no indexer",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """Routed (and shared) experts in place of the feed-forward block.

    Attributes:
        experts: routed experts of a layer.
        topk: experts a token is sent to.
        expert_ffn: width of one routed expert.
        shared_ffn: width of all shared experts together; 0 for none.
        shared_gate: whether a learned gate scales the shared experts' output.
        dense_layers: 0-based indices of the layers that keep a dense feed-forward block.
        router_bias: trainable bias on the router's logits.
        correction_bias: router bias updated outside gradient descent (a buffer; arXiv 2412.19437 section 2.1.2).
        expert_bias: biases on the experts' projections.
        expert_clamp: whether what the experts' activation reads is clamped (arXiv 2508.10925).
        groups: expert groups for group-limited routing; 1 for none.
        topk_groups: groups a token may be sent to.
    """

    experts: int
    topk: int
    expert_ffn: int
    shared_ffn: int = 0
    shared_gate: bool = False
    dense_layers: tuple[int, ...] = ()
    router_bias: bool = False
    correction_bias: bool = False
    expert_bias: bool = False
    expert_clamp: bool = False
    groups: int = 1
    topk_groups: int = 1

    def __post_init__(self) -> None:
        check_ranges(self, ("experts", "topk", "expert_ffn", "shared_ffn", "groups", "topk_groups"), "moe.")
        check_flags(self, ("shared_gate", "router_bias", "correction_bias", "expert_bias", "expert_clamp"), "moe.")
        self._check_topk()
        self._check_dense_layers()

    def _check_topk(self) -> None:
        if self.topk > self.experts:
            raise ConflictError(
                f"moe.topk is {self.topk}, more than the {self.experts} experts",
                where="moe.topk",
                hint=f"at most {self.experts}",
            )
        if self.experts % self.groups:
            raise ConflictError(f"{self.experts} experts cannot form {self.groups} equal groups", where="moe.groups")
        if self.topk_groups > self.groups:
            raise ConflictError(
                f"moe.topk_groups is {self.topk_groups}, more than the {self.groups} groups", where="moe.topk_groups"
            )

    def _check_dense_layers(self) -> None:
        for index in sequence(self.dense_layers, "moe.dense_layers", MAX_LAYERS):
            whole(index, "moe.dense_layers", *RANGES["dense_layer"])
        if len(set(self.dense_layers)) != len(self.dense_layers):
            raise InvalidValueError("moe.dense_layers names a layer twice", where="moe.dense_layers")
        object.__setattr__(self, "dense_layers", tuple(sorted(self.dense_layers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSpec:
    """A recurrence over the sequence in place of attention.

    Attributes:
        kind: mamba1 (selective scan, arXiv 2312.00752), mamba2 (state-space dual, arXiv 2405.21060), gated-delta (gated delta
            rule, arXiv 2412.06464) or lightning (linear attention with decay, arXiv 2401.04658).
        heads: heads of what is written into the state (mamba1: channels).
        head_dim: size of such a head, the state's first dim (mamba1: 1).
        state: the state's second dim (the size of a key head).
        groups: heads of keys and queries (mamba: of B and C); divides `heads`.
        conv: taps of the causal convolution before the scan; 0 for none.
        conv_bias: bias on that convolution.
        bias: biases on the input and output projections.
        chunk: tokens of a chunk in which the scan turns into products.
        dt_rank: width of the compressed step sizes (mamba1).
        inner_norms: step sizes, B and C are normalised (mamba1).
    """

    kind: str
    heads: int
    head_dim: int
    state: int
    groups: int = 1
    conv: int = 0
    conv_bias: bool = False
    bias: bool = False
    chunk: int = 256
    dt_rank: int | None = None
    inner_norms: bool = False

    def __post_init__(self) -> None:
        choice(self.kind, "scan.kind", SCANS)
        check_ranges(self, ("heads", "head_dim", "state", "groups", "conv", "chunk"), "scan.")
        check_optional(self, ("dt_rank",), "scan.")
        check_flags(self, ("conv_bias", "bias", "inner_norms"), "scan.")
        if self.heads % self.groups:
            raise ConflictError(f"scan.groups {self.groups} does not divide scan.heads {self.heads}", where="scan.groups")
        if (self.kind == "mamba1") != (self.dt_rank is not None):
            raise ConflictError(
                f"scan.dt_rank is {self.dt_rank}, and the scan is {self.kind}",
                where="scan.dt_rank",
                hint="it belongs to mamba1, and to nothing else",
            )
        if self.kind == "mamba1" and (self.head_dim, self.groups) != (1, 1):
            raise ConflictError(
                "scan.head_dim and scan.groups of mamba1 are 1", where="scan.head_dim", hint="heads are its channels"
            )
