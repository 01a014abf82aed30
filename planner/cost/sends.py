"""What pipeline stages exchange: activations from stage to stage, and gradients of tied embeddings between the ends."""

from __future__ import annotations

import numpy as np

from shardwright.planner.cost.context import Context
from shardwright.planner.cost.indexing import distinct
from shardwright.planner.plans import FloatArray, IntArray, PlanBatch
from shardwright.planner.schedules.registry import FOLDED


def send_s(context: Context, batch: PlanBatch, key: IntArray) -> FloatArray:
    """Exposed sends of one pass of one micro-batch: vpp sends of its activations, less what the stack hides, [plans].

    Where the stack scatters, tp ranks send a part each and gather the whole (arXiv 2104.04473 section 4.1).
    """
    distance = stage_distance(batch)
    one, row = distinct(key, distance, batch.split * (context.problem.graph.origin is not None))
    message, scattered = send_bytes(context, key[one], batch.split[one]), send_parts(context)[key[one]]
    seconds = context.network.between("send", distance[one], message).time_s
    gathering = np.where(distance[one] > 0, scattered, 1)
    seconds = seconds + context.network.seconds("all_gather", gathering, np.ones_like(gathering), message * scattered)
    stack = context.problem.stack
    exposed = np.where(batch.vpp > 1, stack.p2p_exposed_interleaved, stack.p2p_exposed)
    return seconds[row] * batch.vpp * exposed


def stage_distance(batch: PlanBatch) -> IntArray:
    """Ranks between neighbouring pipeline stages; 0 without a pipeline, [plans]."""
    return np.where(batch.pp > 1, batch.tp * batch.cp * batch.dp, 0)


def send_bytes(context: Context, key: IntArray, split: IntArray) -> FloatArray:
    """Bytes of the activations that one rank sends from stage to stage, the most of any border, for pairs of key and split."""
    keys, job = context.keys, context.problem.job
    width = job.precision.activation_bytes
    if context.problem.graph.origin is None:
        rows = keys.micro_batch * keys.seq_len / (keys.cp * keys.sequence_split * send_parts(context))
        return np.asarray(rows * context.problem.graph.spec.hidden * width)[key]
    crossings = context.problem.graph.origin.crossings
    made = np.zeros(len(key))
    for index, (batch, one) in enumerate(zip(keys.micro_batch[key].tolist(), split.tolist(), strict=True)):
        borders = np.cumsum(context.splits.splits[one].chunks)[:-1]
        made[index] = max((sum(c.bytes(batch, keys.seq_len, width) for c in crossings[b]) for b in borders), default=0.0)
    return made


def send_parts(context: Context) -> IntArray:
    """Ranks that scatter the activations of a send among them; 1 where each has its own part of the sequence, [keys]."""
    keys = context.keys
    return np.where((keys.sp == 0) & context.problem.stack.p2p_scattered, keys.tp, 1)


def tied_s(context: Context, batch: PlanBatch, key: IntArray) -> FloatArray:
    """Sum of the gradients of tied embeddings over the first and the last stage, once a step, [plans]."""
    message = tied_bytes(context)
    if not message.any():
        return np.zeros(len(batch))
    distance = tied_distance(batch)
    one, row = distinct(key, distance)
    return context.network.between("all_reduce", distance[one], message[key[one]]).time_s[row]


def tied_distance(batch: PlanBatch) -> IntArray:
    """Ranks between embedding and head; 0 where one pipeline rank holds both, as the first one of a V does, [plans]."""
    return np.where(FOLDED[batch.schedule], 0, stage_distance(batch) * (batch.pp - 1))


def tied_bytes(context: Context) -> FloatArray:
    """Gradients of what embedding and head share, on one rank, [keys]."""
    return context.tables.trained_shared * float(context.problem.job.grad_bytes)
