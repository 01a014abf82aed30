"""What a pipeline holds to hand activations, and their gradients, from stage to stage.

S are the bytes that a stage reads of the one before it, M micro-batches, n chunks on a rank, of which n' read what another
stage made and n'' make what another reads, and a micro-batches in flight, whose inputs `activations` counts already:

    every     S·(n'·(M − a) + n''·M − 1)   a buffer to receive into for every micro-batch, made at the first step and kept
              (pytorch/pytorch, distributed/pipelining/stage.py, args_recv_info and grad_recv_info); one of them is the
              gradient of the stream that `activations.backward_bytes` counts
    one       2·S   with several chunks: what arrives, of either kind, while a chunk computes
              (NVIDIA/Megatron-LM, pipeline_parallel/schedules.py, fwd_recv_buffer and bwd_recv_buffer)
    outputs   S·n''·a, or a tensor-parallel rank's part of it   where those in flight are kept until their backward pass
              (pytorch/pytorch, fwd_cache; deepspeedai/DeepSpeed, runtime/pipe/engine.py, PartitionedTensor)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.planner.plans import FloatArray, IntArray, PlanBatch
from shardwright.planner.schedules.registry import FOLDED
from shardwright.planner.stacks import StackProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Bytes a rank holds beside its stage's own, [plans, runs].

    Attributes:
        always: also between passes.
        passing: while passes run.
    """

    always: FloatArray
    passing: FloatArray


def handover(
    batch: PlanBatch, border: FloatArray, alive: FloatArray, ends: tuple[IntArray, IntArray], stack: StackProfile
) -> Handover:
    """What the ranks of every run hold.

    Args:
        batch: plans.
        border: bytes that a stage reads of the one before it, [plans, runs].
        alive: micro-batches in flight, [plans, runs].
        ends: first and last rank of each run, [plans, runs].
        stack: who keeps what.
    """
    pp, chunks, count = batch.pp[:, None], batch.vpp[:, None], batch.micro_batches[:, None]
    first = ends[0] == 0
    reading = chunks - first
    read = chunks - np.where(FOLDED[batch.schedule][:, None], first, ends[1] == pp - 1)
    always, passing = np.zeros_like(alive), np.zeros_like(alive)
    if stack.pipeline_receives == "every":
        always = reading * np.maximum(count - alive, 0.0) + np.maximum(read * count - 1.0, 0.0)
    else:
        passing = np.where(chunks > 1, 2.0, 0.0) * np.ones_like(alive)
    if stack.pipeline_outputs != "freed":
        parts = np.where((stack.pipeline_outputs == "divided") & (batch.sp == 0), batch.tp, 1)[:, None]
        passing = passing + read * alive / parts
    piped = np.where(pp > 1, border, 0.0)
    return Handover(always=always * piped, passing=passing * piped)
