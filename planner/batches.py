"""The global batch as a user states it: sequences, tokens, or a range of sequences.

    sequences = tokens / seq_len, a whole number                                  `batch_of_tokens`
    points of a range: its ends, and multiples of the number of GPUs within it    `BatchRange.points`
                       (evenly thinned to `MAX_POINTS` in all)

A multiple of the number of GPUs divides evenly over every data-parallel degree that divides the GPUs. Where the range holds
none, multiples of the largest power of two that it holds are taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.errors import InvalidValueError
from shardwright.models.job import MAX_GLOBAL_BATCH

MAX_POINTS = 8
SEPARATOR = ".."
WHERE, TOKENS = "--global-batch", "--tokens-per-batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """Global batches from `low` to `high` sequences, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high <= MAX_GLOBAL_BATCH:
            hint = f"give a range within 1 to {MAX_GLOBAL_BATCH:,}, the lower end first"
            raise InvalidValueError(f"the range {self}", where=WHERE, hint=hint)

    def __str__(self) -> str:
        return f"{self.low}{SEPARATOR}{self.high}"

    def points(self, gpus: int) -> tuple[int, ...]:
        """Global batches to try, ascending, at most `MAX_POINTS`."""
        step = gpus
        if self.high // gpus * gpus < self.low:
            step = max(2**k for k in range(self.high.bit_length()) if self.high // 2**k * 2**k >= self.low)
        first, last = -(-self.low // step), self.high // step
        inner = _thinned(first, last, MAX_POINTS - 2)
        return tuple(sorted({self.low, self.high, *(step * multiple for multiple in inner)}))


def parse_batch(text: str) -> int | BatchRange:
    """A number of sequences, or a range of them, as a user writes it: ``1024`` or ``1024..2048``.

    Raises:
        InvalidValueError: neither.
    """
    low, separator, high = text.partition(SEPARATOR)
    try:
        return BatchRange(low=int(low), high=int(high)) if separator else int(text)
    except ValueError as error:
        message = f"{text[:40]!r} is no whole number of sequences"
        raise InvalidValueError(message, where=WHERE, hint="write 1024, or the range 1024..2048") from error


def batch_of_tokens(tokens: int, seq_len: int) -> int:
    """Sequences of a batch of so many tokens.

    Raises:
        InvalidValueError: not a whole number of sequences (the nearest ones are offered).
    """
    if tokens < 1 or seq_len < 1:
        raise InvalidValueError(f"{tokens} tokens in sequences of {seq_len}", where=TOKENS, hint="give 1 or more of both")
    batch, rest = divmod(tokens, seq_len)
    if rest:
        near = [count * seq_len for count in (batch, batch + 1) if count]
        hint = "nearest: " + " or ".join(f"{value} ({value // seq_len} sequence{'s' * (value != seq_len)})" for value in near)
        raise InvalidValueError(f"{tokens} tokens are no whole number of sequences of {seq_len}", where=TOKENS, hint=hint)
    return batch


def _thinned(first: int, last: int, count: int) -> list[int]:
    """At most so many whole numbers from first to last, evenly spread."""
    span = last - first
    if span < count:
        return list(range(first, last + 1))
    return [first + span * index // (count - 1) for index in range(count)]
