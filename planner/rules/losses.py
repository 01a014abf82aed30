"""Rules of a loss in pieces: how many there can be, and which targets cut it."""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import BoolArray
from shardwright.planner.rules.base import Candidate, Columns, Facts, Rule, closest, divisors
from shardwright.planner.rules.declaring import degree_rule

LOSS_PIECES = 8
"""A loss that is too large is cut into so many times the pieces it has (torchtitan cuts a whole one so)."""

_WHOLE = {"loss_chunks": 1}


def _too_many(c: Columns, f: Facts) -> BoolArray:
    tokens = c["micro_batch"] * f.seq_len // c["cp"]
    return np.asarray(c["loss_chunks"] > np.where(f.graph.origin is None, tokens, 1))


def _tokens(c: Candidate, f: Facts) -> int:
    """Tokens that a rank has of a micro-batch, at least one where it cannot be divided so far."""
    return max(1, c["micro_batch"] * f.seq_len // c["cp"])


def _message(c: Candidate, f: Facts) -> str:
    if f.graph.origin is not None:
        return f"{f.graph.name} was read from a graph file, whose loss is priced as it stands there, not in {c['loss_chunks']}"
    return f"{c['loss_chunks']:,} pieces of the {_tokens(c, f):,} tokens a rank has of a micro-batch"


LOSS_CHUNKS = Rule(
    id="loss-chunks",
    says="a loss has no more pieces than tokens; that of a graph file is whole",
    reads=("cp", "micro_batch", "loss_chunks"),
    broken=_too_many,
    message=_message,
    remedy=lambda c, f: f"use loss_chunks {_tokens(c, f) if f.graph.origin is None else 1}",
)

LOSSES: tuple[Rule, ...] = (LOSS_CHUNKS,)


def _uneven(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((f.seq_len // c["cp"]) % c["loss_chunks"] != 0)


def _even(c: Candidate, f: Facts) -> dict[str, int]:
    return {"loss_chunks": closest(c["loss_chunks"], divisors(f.seq_len // c["cp"]))}


TARGET_LOSSES: tuple[Rule, ...] = (
    degree_rule(
        "whole-loss",
        "head and loss take a micro-batch in one piece",
        reads=("loss_chunks",),
        breaks=lambda c, f: c["loss_chunks"] > 1,
        message="a loss in {loss_chunks} pieces, where the framework takes it whole",
        mend=_WHOLE,
        targets=("megatron", "megatron-bridge", "deepspeed"),
        source="Megatron-Core language_module compute_language_model_loss (fused or not, of all logits of a micro-batch)",
    ),
    degree_rule(
        "torch-loss-chunks",
        "head and loss go in pieces where nothing divides the model: tp 1 and pp 1",
        reads=("tp", "pp", "loss_chunks"),
        breaks=lambda c, f: (c["loss_chunks"] > 1) & ((c["tp"] > 1) | (c["pp"] > 1)),
        message="a loss in {loss_chunks} pieces with tp {tp} and pp {pp}",
        mend=_WHOLE,
        targets=("torchrun",),
        source="losses.py of the PyTorch package",
    ),
    degree_rule(
        "torchtitan-whole-loss",
        "head and loss take a micro-batch in one piece before 0.3",
        reads=("loss_chunks",),
        breaks=lambda c, f: c["loss_chunks"] > 1,
        message="a loss in {loss_chunks} pieces",
        mend=_WHOLE,
        targets=("torchtitan",),
        until="0.3",
        source="torchtitan 0.2 components/loss.py",
    ),
    degree_rule(
        "torchtitan-loss-chunks",
        "the pieces of a loss are equal parts of a sequence on its rank",
        reads=("cp", "loss_chunks"),
        breaks=_uneven,
        message="a loss in {loss_chunks} pieces of {seq_len} tokens over cp {cp}",
        mend=_even,
        targets=("torchtitan",),
        since="0.3",
        source="torchtitan 0.3 ChunkedLossWrapper",
    ),
)
