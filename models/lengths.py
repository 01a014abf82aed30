"""Documents of different lengths, packed into sequences: how much attention they take and how unevenly it falls.

With lengths l drawn as the histogram counts them, packed without gaps into sequences of s tokens, attention within
documents only:

    pairs a sequence       s E[P(l)] / E[l]               P(l): pairs of a document        `packed_flops_per_token`
    documents as one       L = E[l^2] / E[l]              s L pairs, full convention       `Lengths.attended`
    spread of T tokens     c = sqrt(E[l] / T) sd(l^2 - L l) / E[l^2]                       `Lengths.packing`

The spread is the standard deviation over the mean of the sum of l^2 over T tokens: documents are drawn until T tokens are
full, so that both sums vary (renewal-reward central limit theorem, Asmussen, Applied Probability and Queues, VI.3). The
expected largest of R such sums (normal, Blom 1958) is (1 + c z) times their mean, z = normal quantile of (R - 3/8) / (R + 1/4),
and never more than that of the longest documents alone: `Packing.expected_maximum`, `Packing.imbalance`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from shardwright.errors import InvalidValueError
from shardwright.models.checks import sequence, whole
from shardwright.models.graph import Convention, LayerGraph, ModelGraph

MAX_LENGTHS = 200_000
MAX_LENGTH = 100_000_000
MAX_COUNT = 10**15
WHERE = "--length-histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Packed documents as pricing sees them.

    Attributes:
        attended: tokens of equal documents that take as much attention.
        spread: standard deviation over the mean of the sum of l^2, times the root of the tokens it is over.
        limit: the most that sum can be, over its mean.
    """

    attended: float
    spread: float
    limit: float

    def expected_maximum(self, ranks: int, tokens: float) -> float:
        """Expected largest sum of l^2 among so many ranks of so many tokens each, over the mean; 1 for one rank."""
        quantile = NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
        return min(1.0 + self.spread / math.sqrt(tokens) * quantile, self.limit)

    def imbalance(self, *, dp: int, cp: int, tokens: float, micro_batches: int) -> float:
        """Attention of the slowest rank over that of the mean rank.

        Context-parallel ranks wait for each other in every micro-batch, data-parallel ranks once in `micro_batches`.

        Args:
            dp: data-parallel ranks.
            cp: context-parallel ranks.
            tokens: of a micro-batch, over all context-parallel ranks.
            micro_batches: whose sum data-parallel ranks wait for.
        """
        across = self.expected_maximum(dp, tokens * micro_batches)
        return min(self.expected_maximum(cp, tokens / cp) * across, self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How many documents there are of each length.

    Attributes:
        rows: pairs of length (tokens) and count, ascending by length, each length once.
    """

    rows: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.rows) <= MAX_LENGTHS:
            said = f"{len(self.rows):,} lengths"
            raise InvalidValueError(said, where=WHERE, hint=f"give 1 to {MAX_LENGTHS:,} rows of length,count")
        for length, count in self.rows:
            whole(length, "length", 1, MAX_LENGTH)
            whole(count, "count", 0, MAX_COUNT)
        if not self.documents:
            raise InvalidValueError("all counts are 0", where=WHERE, hint="count at least one document")

    @property
    def documents(self) -> int:
        """Number of documents."""
        return sum(count for _, count in self.rows)

    @property
    def tokens(self) -> int:
        """Tokens of all of them."""
        return self.moment(1)

    @property
    def longest(self) -> int:
        """Tokens of the longest document there is."""
        return max(length for length, count in self.rows if count)

    @property
    def mean(self) -> float:
        """Tokens of a document."""
        return self.tokens / self.documents

    @property
    def attended(self) -> float:
        """Length of equal documents that take as much attention: sum of l^2 over sum of l."""
        return self.moment(2) / self.tokens

    def moment(self, power: int) -> int:
        """Sum of l^power over all documents."""
        return sum(count * length**power for length, count in self.rows)

    def packing(self) -> Packing:
        """What pricing needs of them."""
        attended, squares = self.attended, self.moment(2) / self.documents
        variance = sum(count * (length**2 - attended * length) ** 2 for length, count in self.rows) / self.documents
        spread = float(variance**0.5 / squares * self.mean**0.5)
        return Packing(attended=attended, spread=spread, limit=max(self.longest / attended, 1.0))

    def check_within(self, seq_len: int) -> None:
        """Refuses documents that are longer than a sequence.

        Raises:
            InvalidValueError: one is.
        """
        if self.longest > seq_len:
            message = f"a document of {self.longest:,} tokens in sequences of {seq_len:,}"
            raise InvalidValueError(message, where=WHERE, hint=f"cut documents, or give --seq-len {self.longest}")

    def to_list(self) -> list[list[int]]:
        """The JSON form."""
        return [[length, count] for length, count in self.rows]

    @classmethod
    def from_list(cls, data: Any) -> Lengths:
        """The record of rows of length and count; equal lengths are added up.

        Raises:
            InvalidValueError: anything else.
        """
        counts: dict[int, int] = {}
        for row in sequence(data, "length_histogram", MAX_LENGTHS):
            length, count = pair(row)
            counts[length] = counts.get(length, 0) + count
        return cls(rows=tuple(sorted(counts.items())))


def packed_flops_per_token(graph: ModelGraph, seq_len: int, convention: Convention, lengths: Lengths) -> float:
    """Model FLOPs a token of forward and backward where attention stays within documents."""
    plain = graph.flops_per_token(seq_len, convention)
    causal = convention == "causal"
    counts = zip(graph.kind_counts, graph.layer_kinds, strict=True)
    units = [*counts, *([(graph.mtp_layers, graph.mtp)] if graph.mtp is not None else [])]
    saved = sum(count * _attention_saved(unit, seq_len, causal, lengths) for count, unit in units)
    return plain - 3 * saved


def _attention_saved(unit: LayerGraph, seq_len: int, causal: bool, lengths: Lengths) -> float:
    """FLOPs a token of attention across documents, forward."""
    total = 0.0
    for operator in unit.operators:
        shape = operator.attention
        if shape is not None:
            each = unit.dims[shape.heads] * (unit.dims[shape.qk_dim] + unit.dims[shape.v_dim])
            within = sum(count * shape.twice_pairs(length, causal=causal) for length, count in lengths.rows)
            total += each * (shape.twice_pairs(seq_len, causal=causal) / seq_len - within / lengths.tokens)
    return total


def pair(row: object) -> tuple[int, int]:
    """A length and a count.

    Raises:
        InvalidValueError: anything else.
    """
    if not isinstance(row, (list, tuple)) or len(row) != 2:
        raise InvalidValueError("a row of the histogram is no pair", where="length_histogram", hint="give [length, count]")
    return whole(row[0], "length", 1, MAX_LENGTH), whole(row[1], "count", 0, MAX_COUNT)
