"""Waiting for the rank whose documents take the most attention, where sequences are packed from documents.

M·(f − 1)·attention, with f the work of the fullest rank over the mean (`models.lengths`): a step waits once for all its
micro-batches, or every micro-batch for itself where states are exchanged in every pass.
"""

from __future__ import annotations

import numpy as np

from shardwright.models.lengths import Packing
from shardwright.planner.cost.indexing import distinct
from shardwright.planner.plans import BoolArray, FloatArray, PlanBatch


def uneven_documents(
    packing: Packing | None, batch: PlanBatch, every: BoolArray, attention_s: FloatArray, seq_len: int
) -> FloatArray:
    """What all ranks of a stage wait for the one with the most attention, 0 where sequences are alike; [plans, runs].

    Args:
        packing: how documents fill sequences; None where sequences are alike.
        batch: plans.
        every: where every micro-batch waits for itself, [plans].
        attention_s: attention of one micro-batch, [plans, runs].
        seq_len: tokens a sequence.
    """
    if packing is None:
        return np.zeros_like(attention_s)
    summed = np.where(every, 1, batch.micro_batches)
    first, row = distinct(batch.dp, batch.cp, batch.micro_batch, summed)
    columns = (column[first].tolist() for column in (batch.dp, batch.cp, batch.micro_batch, summed))
    factors = [
        packing.imbalance(dp=dp, cp=cp, tokens=float(size * seq_len), micro_batches=count)
        for dp, cp, size, count in zip(*columns, strict=True)
    ]
    excess = np.array(factors)[row] - 1.0
    return np.asarray((excess * batch.micro_batches)[:, None] * attention_s)
