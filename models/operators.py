r"""Operators of a layer: what each reads, writes, keeps for the backward pass, and how many FLOPs it takes.

    GEMM        FLOPs = 2 m n k                                            `GemmShape.flops`
    attention   FLOPs = 2 b a (d_qk + d_v) P                               `AttentionShape.flops`
                P = s w            query-key pairs, full convention        `AttentionShape.twice_pairs` (2 P, so
                P = s w - w^2 / 2  causal (s^2 / 2 where w = s)             that all counts stay integers)
                P = s w or s w / 2 where windows are chunks that begin at multiples of w (a last chunk is shorter)
    scan        FLOPs = b s (2 c u + 2 q a d n), u / 2 causal              `ScanShape.flops`

with b sequences of s tokens, a heads, w = min(window, s); a scan in chunks of c tokens with a state of d x n a head and q
products with the state. Everything else counts bytes, not FLOPs.
Backward: a GEMM takes two of its size, one where its weight is frozen (the input's gradient alone); a fused attention kernel
recomputes the scores, so it executes 2.5 times its forward (5 matrix products for 2), of which 2 times are model FLOPs (arXiv
2307.08691 section 4.1). A scan recomputes its states and the products within chunks and so executes 3 times its forward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class OperatorKind(StrEnum):
    """What decides the cost of an operator."""

    GEMM = "gemm"
    GROUPED_GEMM = "grouped-gemm"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    EMBEDDING = "embedding"
    ROUTER = "router"
    DISPATCH = "dispatch"
    COMBINE = "combine"
    SCAN = "scan"
    LOSS = "loss"
    VIEW = "view"


def product(dims: tuple[str, ...], sizes: Mapping[str, int]) -> int:
    """The product of the sizes of the dims; 1 for none."""
    return math.prod(sizes[dim] for dim in dims)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor or parameter by the names of its dims.

    Attributes:
        name: unique within a layer; operators are connected by it.
        dims: names of the dims, outermost first.
        bytes_per_element: None stands for the activation dtype of the job (parameters: its parameter dtype).
        trainable: of a parameter: whether it is trained.
    """

    name: str
    dims: tuple[str, ...]
    bytes_per_element: float | None = None
    trainable: bool = True

    def elements(self, sizes: Mapping[str, int]) -> int:
        """Number of elements, given the size of every dim."""
        return product(self.dims, sizes)

    def bytes(self, sizes: Mapping[str, int], activation_bytes: float) -> float:
        """Bytes, given the size of every dim and the bytes of the job's activation dtype."""
        each = activation_bytes if self.bytes_per_element is None else self.bytes_per_element
        return self.elements(sizes) * each


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmShape:
    """The shape of a GEMM; m and k are products of dims, n is a sum of products.

    Attributes:
        m: dims of the rows; of a grouped GEMM all rows of all groups.
        n: one product of dims a fused part (Q, K and V, or gate and up).
        k: dims that are summed over.
        groups: dims of the number of groups; they do not multiply the FLOPs.
    """

    m: tuple[str, ...]
    n: tuple[tuple[str, ...], ...]
    k: tuple[str, ...]
    groups: tuple[str, ...] = ()

    def columns(self, sizes: Mapping[str, int]) -> int:
        """The sum of products n."""
        return sum(product(part, sizes) for part in self.n)

    def flops(self, sizes: Mapping[str, int]) -> int:
        """2 m n k."""
        return 2 * product(self.m, sizes) * self.columns(sizes) * product(self.k, sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The shape of the attention core (scores, softmax, weighted sum).

    Attributes:
        heads: dim of the query heads.
        kv_heads: dim of the key and value heads.
        qk_dim: dim of the size of a query or key head.
        v_dim: dim of the size of a value head.
        rows: dims of sequences that know nothing of each other.
        queries: dim of the length of the queries.
        keys: dim of the length of keys and values.
        window: tokens a query sees at most; None is all.
        causal: whether a query sees only what stands before it.
        chunked: whether a query sees the part of its chunk of `window` tokens, not the last `window` tokens.
    """

    qk_dim: str
    v_dim: str
    heads: str = "heads"
    kv_heads: str = "kv_heads"
    rows: tuple[str, ...] = ("batch",)
    queries: str = "seq"
    keys: str = "seq"
    window: int | None = None
    causal: bool = True
    chunked: bool = False

    def twice_pairs(self, seq: int, *, causal: bool) -> int:
        """Two times the query-key pairs of one sequence and head, counted full or causal."""
        width = seq if self.window is None else min(self.window, seq)
        if self.chunked:
            squares = seq // width * width**2 + (seq % width) ** 2
            return squares if causal and self.causal else 2 * squares
        return 2 * seq * width - (width * width if causal and self.causal else 0)

    def flops(self, sizes: Mapping[str, int], *, causal: bool) -> int:
        """FLOPs of both products of the forward pass, counted full or causal."""
        depth = sizes[self.qk_dim] + sizes[self.v_dim]
        rows, keys = product(self.rows, sizes) * sizes[self.heads], sizes[self.keys]
        pairs = self.twice_pairs(keys, causal=causal) if self.queries == self.keys else 2 * sizes[self.queries] * keys
        return rows * depth * pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanShape:
    """The shape of a recurrence over the sequence with a state of head_dim x state a head.

    Within a chunk of c tokens the recurrence is a masked product, between chunks it passes the state on:

        selective     b s a (9 n + 1)                                 no products (arXiv 2312.00752 section 3.3.2)
        state-space   u = g n + a d,      q = 2                       (arXiv 2405.21060 section 6)
        linear        u = a (n + d),      q = 2                       (arXiv 2401.04658)
        delta         u = a (3 n + 2 d),  q = 3, and a c^2 / 3 for the inverse of a triangle (arXiv 2412.06464)

    Attributes:
        method: selective, state-space, linear or delta.
        chunk: tokens of a chunk (c).
        heads: dim of the heads (a).
        groups: dim of the heads of keys and queries (g).
        head_dim: dim of the state's first size (d).
        state: dim of the state's second size (n).
    """

    method: str
    chunk: int
    heads: str = "scan_heads"
    groups: str = "scan_groups"
    head_dim: str = "scan_head_dim"
    state: str = "scan_state"

    def flops(self, sizes: Mapping[str, int], *, causal: bool) -> int:
        """FLOPs of the forward pass; the products within chunks counted full or causal."""
        each = self.token_flops(sizes, min(self.chunk, sizes["seq"]), causal=causal)
        return int(sizes["batch"] * sizes["seq"] * each)

    def token_flops(self, sizes: Mapping[str, Any], chunk: int, *, causal: bool) -> Any:
        """FLOPs of a token in chunks of that length; sizes may be arrays."""
        heads, depth, state = sizes[self.heads], sizes[self.head_dim], sizes[self.state]
        if self.method == "selective":
            return heads * depth * (9 * state + 1)
        inverse = heads * chunk * chunk // 3 if self.method == "delta" else 0
        within = chunk * self._width(sizes) * (1 if causal else 2)
        return within + inverse + 2 * self.state_products * heads * depth * state

    @property
    def state_products(self) -> int:
        """Products of a token with the state."""
        return 3 if self.method == "delta" else 2

    def state_bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes of the state of all sequences, in fp32."""
        return 4 * sizes["batch"] * sizes[self.heads] * sizes[self.head_dim] * sizes[self.state]

    def _width(self, sizes: Mapping[str, Any]) -> Any:
        heads, depth, state = sizes[self.heads], sizes[self.head_dim], sizes[self.state]
        if self.method == "state-space":
            return sizes[self.groups] * state + heads * depth
        return heads * (3 * state + 2 * depth) if self.method == "delta" else heads * (state + depth)


CLAMP, SCALE, CONVOLVE, GATED_NORM = "clamp", "scale", "convolve", "gated-norm"
"""What an operator may do beside what its kind usually does (`Operator.beside`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalised:
    """Dims that an operator normalises over (a norm, a softmax in a loss).

    Ranks that hold parts of such a dim can share the work if they reduce statistics, one fp32 number a row each time.

    Attributes:
        dims: the dims.
        forward: reductions in the forward pass (a norm: one; a cross entropy: maximum, sum, logit of the label).
        backward: reductions in the backward pass.
    """

    dims: tuple[str, ...]
    forward: int = 1
    backward: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator of a layer.

    Attributes:
        name: unique within the layer.
        kind: what decides its cost.
        module: the recompute module it belongs to (layernorm, core_attn, mlp_act, moe_act, mla_up_proj, mlp, moe,
            shared_experts, attn, embedding, head), ``residual`` for the additions between modules, or ``adapter``.
        inputs: tensors read, parameters apart.
        outputs: tensors written.
        parameters: its parameters, trained or not.
        saved: tensors kept for the backward pass; what two operators keep counts once a layer (by name).
        gemm: shape of a GEMM.
        attention: shape of an attention core.
        scan: shape of a recurrence over the sequence.
        recompute_drops: names of saved tensors that need not be kept where this operator alone is run again.
        quantizable: whether an 8- or 4-bit recipe runs its GEMM in that precision (not the router, not the head).
        whole: dims that every rank must hold whole: pairs within them are mixed, without a cheap statistic.
        read_whole: (tensor, dim) of inputs that are read whole in a dim, whichever part of it is written (keys and values).
        normalised: dims that can be divided if statistics are reduced.
        summed: dims that are added up beside those of a product: a mean over places, the loss of a batch.
        beside: what the usual kernel of the operator does not do: `CLAMP` its inputs, `SCALE` its outputs, `CONVOLVE` over the
            sequence, be the `GATED_NORM` of Mamba-2.

    How an operator can be divided among ranks follows from its dims alone: a dim that is written is divided freely, one that
    a product sums over, or that a table is looked up in, leaves partial sums; the last four attributes say more.
    """

    name: str
    kind: OperatorKind
    module: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    parameters: tuple[TensorSpec, ...] = ()
    saved: tuple[TensorSpec, ...] = ()
    gemm: GemmShape | None = None
    attention: AttentionShape | None = None
    scan: ScanShape | None = None
    recompute_drops: tuple[str, ...] = ()
    quantizable: bool = True
    whole: tuple[str, ...] = ()
    read_whole: tuple[tuple[str, str], ...] = ()
    normalised: Normalised | None = None
    summed: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether the backward pass makes gradients of its weights; products without parameters have two inputs."""
        return not self.parameters or any(parameter.trainable for parameter in self.parameters)

    def flops_forward(self, sizes: Mapping[str, int], *, causal: bool) -> int:
        """FLOPs of the forward pass."""
        if self.gemm is not None:
            return self.gemm.flops(sizes)
        if self.attention is not None:
            return self.attention.flops(sizes, causal=causal)
        return 0 if self.scan is None else self.scan.flops(sizes, causal=causal)

    def flops_backward(self, sizes: Mapping[str, int], *, causal: bool) -> int:
        """FLOPs executed in the backward pass: 2 x forward (1 x frozen), 2.5 x for fused attention, 3 x for a scan."""
        forward = self.flops_forward(sizes, causal=causal)
        if self.scan is not None:
            return 3 * forward
        return forward * 5 // 2 if self.attention is not None else (2 if self.trains else 1) * forward
