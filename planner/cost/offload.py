"""What offloading to the host takes off a device, puts into host memory, and costs in time.

With the fractions a, o, p of activations, optimizer states and parameters in host memory, n parameters updated on a rank, s
bytes of states each (master and moments), w bytes of a parameter, A activations kept by a rank's micro-batches in flight:

    device    optimizer     (1 − o)·states
              gradients     (1 − o)·gradients where the stack moves them as they are reduced (ZeRO 2, 3)
              parameters    (1 − p)·shard; what is gathered or prefetched stays (`states`: two units)
              activations   (1 − a)·A + a·(`IN_FLIGHT` layers: the one in use and the one that is copied)
    host      o·n·s + R·(o·n·(4 + (1 − p)·w) + p·shard + a·A)       R: pinned memory comes in powers of two
    pass      forward   copies out a·(activations of a micro-batch), in p·shard
              backward  copies in both, out the gradients of o·n where the stack moves them after every micro-batch
              what of the longer direction the pass does not hide is exposed, each time
    update    (1 − o)·(on the device) + max(o·n·(4 + 2·s + w) / host bandwidth, gradients out, parameters in)

The update on the host is bound by memory: a fused Adam reads 4 bytes of gradient, reads and writes s of states, writes w
(ZeRO-Offload, arXiv 2101.06840 section 5.1). Stacks that move gradients as they are reduced hide their copies behind the
backward pass; others copy them beside the update, as parameters are copied back (DeepSpeed's Adam copies tile by tile,
Megatron-LM's `--overlap-cpu-optimizer-d2h-h2d` group by group): the longest of the three counts.

`relieved` changes the states of a stage, `activations_left` its activations; `copies_s`
and `update_s` price time; the rates are `hardware.host`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.planner.cost.grounds import Ground
from shardwright.planner.offloading import fractions
from shardwright.planner.plans import BoolArray, FloatArray, IntArray, PlanBatch
from shardwright.planner.problem import Problem

IN_FLIGHT = 2
"""Layers whose activations stay on the device while those of others are copied (double buffer)."""

HOST_UPDATE_SHARE = 0.45
"""Share of the host's memory bandwidth that a vectorised Adam reaches: 1e10 parameters of 30 bytes each in 2.57 s on a DGX-2 of
256 GB/s (arXiv 2101.06840, table of Adam latencies)."""

GRADIENT_BYTES = 4
"""Bytes of a gradient as optimizers on the host read it: fp32 (deepspeedai/DeepSpeed runtime/zero; NVIDIA/Megatron-LM
optimizer/cpu_offloading)."""

PINNED_ROUNDING = 1.44
"""Pinned bytes over bytes asked for: PyTorch's host allocator rounds up to powers of two, 1 / ln 2 in the mean of sizes spread
evenly over an octave (pytorch/pytorch aten/src/ATen/core/CachingHostAllocator.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Fractions in host memory of every plan, [plans, 1]; parameters are there under ZeRO 3 alone."""

    activations: FloatArray
    optimizer: FloatArray
    parameters: FloatArray
    gradients: FloatArray

    @staticmethod
    def of(batch: PlanBatch, problem: Problem) -> Shares:
        """The fractions of a batch; gradients follow the states where the stack moves them as they are reduced."""
        held = {part: fractions(batch.offload, part)[:, None] for part in ("activations", "optimizer", "parameters")}
        held["parameters"] = np.where(batch.zero[:, None] >= 3, held["parameters"], 0.0)
        moves = problem.stack.offload_moves_gradients & (batch.zero >= 2)
        return Shares(**held, gradients=np.where(moves[:, None], held["optimizer"], 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What each run has of its host, bytes a second, [plans, runs]: copies each way, updates in its memory."""

    link: FloatArray
    memory: FloatArray


def rates_of(grounds: Sequence[Ground], area: IntArray) -> Rates:
    """The rates of the grounds that runs stand on.

    Raises:
        InvalidValueError: the rate of a host link is not known.
    """
    hosts = [ground.host for ground in grounds]
    link = np.array([host.link_bytes_per_s for host in hosts])
    memory = HOST_UPDATE_SHARE * np.array([host.memory_bytes_per_s for host in hosts])
    return Rates(link=link[area], memory=memory[area])


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a rank copies, [plans, runs]: parameters it updates, bytes of its own, and of what one micro-batch keeps."""

    updated: FloatArray
    parameters: FloatArray
    activations: FloatArray


def _state_bytes(batch: PlanBatch, problem: Problem) -> FloatArray:
    """Bytes an updated parameter has on the host beside itself: master and moments, [plans, 1].

    Where sharded parameters are their own masters (ZeRO 3 of some stacks), the moments alone.
    """
    job, stack = problem.job, problem.stack
    own = (batch.zero[:, None] >= 3) & (stack.doubled_bytes(job.optimizer, job.precision) > 0)
    return job.optimizer.state_bytes(job.precision) - np.where(own, float(job.optimizer.state_master_bytes(job.precision)), 0.0)


def relieved(
    batch: PlanBatch,
    parts: Mapping[str, FloatArray],
    updated: FloatArray,
    kept: FloatArray,
    problem: Problem,
) -> tuple[dict[str, FloatArray], FloatArray]:
    """What is left of a stage's states on the device, and bytes in host memory; [plans, runs].

    Args:
        batch: plans.
        parts: bytes of the states by part, without offloading.
        updated: parameters whose update is a rank's.
        kept: activations of all micro-batches in flight, bytes.
        problem: precision and stack.
    """
    shares, width = Shares.of(batch, problem), problem.job.precision.parameter_bytes
    copies = shares.optimizer * updated * (GRADIENT_BYTES + (1 - shares.parameters) * width)
    pinned = copies + shares.parameters * parts["parameters_bytes"] + shares.activations * kept
    left = {
        "parameters_bytes": (1 - shares.parameters) * parts["parameters_bytes"],
        "gradients_bytes": (1 - shares.gradients) * parts["gradients_bytes"],
        "optimizer_bytes": (1 - shares.optimizer) * parts["optimizer_bytes"],
    }
    states = shares.optimizer * updated * _state_bytes(batch, problem)
    return {**parts, **left}, np.ceil(states + PINNED_ROUNDING * pinned)


def activations_left(batch: PlanBatch, kept: FloatArray, saved: FloatArray, layers: FloatArray) -> FloatArray:
    """What is left on the device of activations, [plans, runs].

    Args:
        batch: plans.
        kept: those of all micro-batches in flight, bytes.
        saved: what one micro-batch keeps, bytes.
        layers: of the stage.
    """
    share = fractions(batch.offload, "activations")[:, None]
    return np.asarray(kept - share * (kept - np.minimum(IN_FLIGHT * saved / np.maximum(layers, 1.0), kept)))


def on_nodes(
    batch: PlanBatch, host_bytes: FloatArray, grounds: Sequence[Ground], area: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Bytes in the host memory of the fullest node, and by how much a node exceeds what it has, [plans].

    A node is taken to be full of ranks of one stage; where the size of its memory is not known nothing exceeds it.
    """
    if not batch.offload.any():
        return np.zeros(len(batch)), np.zeros(len(batch))
    hosts = [ground.host for ground in grounds]
    room = np.array([np.inf if host.memory_bytes is None else float(host.memory_bytes) for host in hosts])
    node = host_bytes * np.array([float(host.gpus) for host in hosts])[area]
    return node.max(axis=1), np.maximum(node - room[area], 0.0).max(axis=1)


def copies_s(
    batch: PlanBatch,
    held: Copied,
    rates: Rates,
    passes_s: tuple[FloatArray, FloatArray],
    every: BoolArray,
    problem: Problem,
) -> FloatArray:
    """Seconds a step that passes wait for copies from and to the host, [plans, runs].

    Args:
        batch: plans.
        held: what is copied.
        rates: of the host.
        passes_s: forward and backward pass of a micro-batch, that hide copies.
        every: where gradients leave with every micro-batch, [plans, 1].
        problem: stack, and bytes of a gradient.
    """
    shares, count = Shares.of(batch, problem), batch.micro_batches[:, None]
    forward, backward = passes_s
    activations = shares.activations * held.activations / rates.link
    parameters = shares.parameters * held.parameters / rates.link
    gradients = shares.gradients * held.updated * problem.job.grad_bytes / rates.link
    ahead = np.maximum(np.maximum(activations, parameters) - forward, 0.0)
    back = np.maximum(np.maximum(activations + parameters, np.where(every, gradients, 0.0)) - backward, 0.0)
    last = np.where(every, 0.0, np.maximum(gradients - backward, 0.0))
    return np.asarray(count * (ahead + back) + last)


def update_s(batch: PlanBatch, held: Copied, rates: Rates, device_s: FloatArray, problem: Problem) -> FloatArray:
    """Seconds of the update, on the device and on the host, with the copies that follow the backward pass; [plans, runs]."""
    shares, job = Shares.of(batch, problem), problem.job
    own = shares.optimizer * held.updated
    width, state = job.precision.parameter_bytes, job.optimizer.state_bytes(job.precision)
    host = own * (GRADIENT_BYTES + 2 * state + width) / rates.memory
    out = np.where(shares.gradients > 0, 0.0, own * job.grad_bytes / rates.link)
    back = (1 - shares.parameters) * own * width / rates.link
    return np.asarray((1 - shares.optimizer) * device_s + np.maximum(host, np.maximum(out, back)))
