"""Sizes of named dims on one rank, for many combinations of degrees at once.

One rule serves every operator and tensor; it looks at the roles of dims, never at names of operators:

    tensor          size / tp, rounded up (vocab is padded to a multiple of 128·tp first)
    expert          size / ep            expert-tensor   size / etp
    batch           micro_batch          seq             seq_len / cp, and / tp where sequence parallelism is on
                                                         and nothing beside it has the role tensor
    routed          micro_batch · seq_len / cp · topk / s · g · u  rows the experts of the busiest rank receive

with s = tp under sequence parallelism (each rank routes its own part of the sequence) and g = etp, since the
experts' tensor-parallel group gathers the rows of all its members. With i the rows of the busiest expert over the mean of all,
the busiest of ep ranks, each with E/ep of the E experts, has

    u = 1 + (i − 1) · sqrt((ep − 1) / (E − 1))                      `busiest`

times the mean: 1 where one rank has all experts, i where each has one; in between the mean of E/ep experts drawn without
replacement spreads so much less than one expert does.

`OperatorKeys` are the degrees that operators depend on; `LocalSizes` computes the table above.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import numpy as np

from shardwright.models.dims import ROLES
from shardwright.models.graph import TensorSpec
from shardwright.planner.axes.routing import Routing
from shardwright.planner.plans import ALL_GATHER, DEEP_EP, GATHER, HYBRID_EP, SWAP, BoolArray, FloatArray, IntArray, PlanBatch

COPIES = frozenset({"topk", "hidden"})
"""Dims of rows of tokens on their way to experts."""

VOCAB_MULTIPLE = 128
"""Vocabularies are padded to a multiple of this times tp (Megatron-LM `--make-vocab-size-divisible-by`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorKeys:
    """Degrees that operator times depend on, arrays of shape [keys], the sequence length, and how rows get to experts.

    Attributes:
        imbalance: rows of the busiest expert over the mean.
        dispatch_8bit: whether rows travel to experts in 8 bits.
    """

    tp: IntArray
    sp: IntArray
    cp: IntArray
    ep: IntArray
    etp: IntArray
    micro_batch: IntArray
    cp_comm: IntArray
    loss_chunks: IntArray
    moe_dispatcher: IntArray
    seq_len: int
    imbalance: float = 1.0
    dispatch_8bit: bool = False

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def sequence_split(self) -> IntArray:
        """Further split of the sequence outside tensor-parallel regions."""
        return np.where(self.sp > 0, self.tp, 1)


def unique_keys(
    batch: PlanBatch, seq_len: int, imbalance: float = 1.0, *, dispatch_8bit: bool = False
) -> tuple[OperatorKeys, IntArray]:
    """The distinct keys of a batch and, for each plan, the index of its key.

    Args:
        batch: plans.
        seq_len: tokens a sequence.
        imbalance: rows of the busiest expert over the mean.
        dispatch_8bit: whether rows travel to experts in 8 bits.
    """
    names = [f.name for f in fields(OperatorKeys) if f.name in PlanBatch.__dataclass_fields__]
    columns = [getattr(batch, name) for name in names]
    code = np.zeros(len(batch), dtype=np.int64)
    for column in columns:
        code = code * (int(column.max(initial=0)) + 1) + column
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    distinct = {n: c[first] for n, c in zip(names, columns, strict=True)}
    return OperatorKeys(**distinct, seq_len=seq_len, imbalance=imbalance, dispatch_8bit=dispatch_8bit), inverse


def busiest(keys: OperatorKeys, experts: int) -> FloatArray:
    """Rows of the busiest rank over the mean of all ranks that share the experts, [keys]."""
    spread = np.sqrt((np.minimum(keys.ep, experts) - 1) / max(experts - 1, 1))
    return np.asarray(1.0 + (keys.imbalance - 1.0) * spread)


class LocalSizes:
    """Sizes of a layer's dims on one rank; every method returns arrays of shape [keys].

    Args:
        dims: fixed sizes of the layer's dims.
        keys: degrees.
        pieces: of a micro-batch, of which the sizes are those of one, [keys].

    """

    def __init__(self, dims: Mapping[str, int], keys: OperatorKeys, pieces: IntArray | int = 1) -> None:
        self._dims = dims
        self._keys = keys
        self._pieces = pieces
        self._cache: dict[tuple[str, bool], FloatArray] = {}

    def dim(self, name: str, *, beside_tensor: bool) -> FloatArray:
        """Local size of one dim; `beside_tensor` tells that a dim of role tensor stands beside it."""
        found = self._cache.get((name, beside_tensor))
        if found is None:
            found = self._cache[name, beside_tensor] = self._local(name, beside_tensor)
        return found

    def product(self, dims: Iterable[str], *, beside_tensor: bool | None = None) -> FloatArray:
        """Product of local sizes; whether a tensor dim is among them is seen from the dims if not told."""
        names = tuple(dims)
        beside = has_tensor_dim(names) if beside_tensor is None else beside_tensor
        total = np.ones(len(self._keys))
        for name in names:
            total = total * self.dim(name, beside_tensor=beside)
        return total

    def whole(self, name: str) -> FloatArray:
        """Size of a dim over all ranks that share the sequence."""
        return self.whole_sequence() if name == "seq" else self.dim(name, beside_tensor=True)

    def whole_sequence(self) -> FloatArray:
        """The sequence length, not divided."""
        return np.full(len(self._keys), float(self._keys.seq_len))

    def head_split(self) -> IntArray:
        """Context-parallel ranks that an attention core shares its heads among, with the whole sequence on each."""
        return np.where(self._keys.cp_comm == SWAP, self._keys.cp, 1)

    def gathers_sequence(self) -> BoolArray:
        """Whether regions divided by tensor parallelism read the sequence gathered."""
        return np.asarray(self._keys.sequence_split > 1)

    def sequence_share(self) -> FloatArray:
        """Share of the sequence that a tensor-parallel rank holds where it is not gathered."""
        return np.asarray(1.0 / self._keys.sequence_split)

    def loss_pieces(self) -> IntArray:
        """Pieces in which the tokens of a micro-batch go through head and loss."""
        return self._keys.loss_chunks

    def of_a_loss_piece(self) -> LocalSizes:
        """Sizes where the micro-batch is one piece of the loss."""
        return LocalSizes(self._dims, self._keys, self._keys.loss_chunks)

    def gathers_keys(self) -> BoolArray:
        """Whether a rank with a part of the sequence holds the keys of all of it, rather than passing them round."""
        return np.asarray(self._keys.cp_comm == GATHER)

    def elements(self, tensor: TensorSpec) -> FloatArray:
        """Elements of a tensor on one rank; of a token's copies on the way to experts as many as the dispatcher makes."""
        made = self.product(tensor.dims)
        return made * self.copies() / self._dims["topk"] if set(tensor.dims) >= COPIES else made

    def dispatched_by(self, kind: int) -> BoolArray:
        """Whether rows reach experts of several ranks in a way (index into `MOE_DISPATCHERS`), [keys]."""
        return np.asarray((self._keys.moe_dispatcher == kind) & (self._keys.ep > 1))

    def copies(self) -> FloatArray:
        """Rows a token of this rank that stand between it and its experts' rows, [keys].

        The library's exchange has one a chosen expert; DeepEP one a rank, which it copies for its experts then; HybridEP
        writes rows of experts at once; a gather has the tokens of all ranks.
        """
        found = self._cache.get(("copies", True))
        if found is None:
            keys = self._keys
            ranks = np.asarray(keys.ep, dtype=np.float64)
            distinct = Routing.of(self._dims).places(ranks)
            kinds = {ALL_GATHER: ranks, DEEP_EP: distinct, HYBRID_EP: 0.0 * ranks}
            found = np.full(len(keys), float(self._dims["topk"]))
            for kind, rows in kinds.items():
                found = np.where(keys.moe_dispatcher == kind, rows, found)
            self._cache["copies", True] = found
        return found

    def bytes(self, tensor: TensorSpec, activation_bytes: float) -> FloatArray:
        """Bytes of a tensor on one rank, in the activation type where it states none."""
        width = activation_bytes if tensor.bytes_per_element is None else tensor.bytes_per_element
        return self.elements(tensor) * width

    def _local(self, name: str, beside_tensor: bool) -> FloatArray:
        if name in {"batch", "seq", "routed"}:
            return self._free(name, beside_tensor)
        keys, size = self._keys, self._dims[name]
        if name == "vocab":
            multiple = VOCAB_MULTIPLE * keys.tp
            return np.ceil(size / multiple) * VOCAB_MULTIPLE
        degree = {"tensor": keys.tp, "expert": keys.ep, "expert-tensor": keys.etp}.get(ROLES.get(name, ""))
        return np.full(len(keys), float(size)) if degree is None else np.ceil(size / degree)

    def _free(self, name: str, beside_tensor: bool) -> FloatArray:
        """Local size of a dim that the job sets."""
        keys = self._keys
        if name == "batch":
            return np.asarray(keys.micro_batch / self._pieces)
        if name == "seq":
            return np.asarray(keys.seq_len / (keys.cp if beside_tensor else keys.cp * keys.sequence_split))
        gathered = np.where((keys.tp > 1) & (keys.sp == 0), 1, keys.etp)
        tokens = keys.micro_batch / self._pieces * keys.seq_len / (keys.cp * keys.sequence_split)
        return np.asarray(tokens * self._dims["topk"] * gathered * busiest(keys, self._dims["experts"]))


def has_tensor_dim(dims: Iterable[str]) -> bool:
    """Whether any of the dims is divided by tensor parallelism."""
    return any(ROLES.get(name) == "tensor" for name in dims)
