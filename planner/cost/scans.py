"""Chunked scans as their kernels run: what they move, and what multiprocessors rather than matrix units or memory bound.

A state-space scan is five kernels forward and some fifteen backward, which hand fp32 states and scores to each other through
memory and make states and scores of the forward pass again. Values a token that they move, counted in state-spaces/mamba 2.3,
ops/triton/ssd_combined.py (`_mamba_chunk_scan_combined_fwd` and `_bwd`), ssd_state_passing.py, ssd_bmm.py; a heads of size d,
g groups of n, chunks of c tokens:

                            forward            backward
                            16 bits    fp32    16 bits    fp32
    values, output   a d          3       0         11       0
    keys, queries    g n          4       0         11       4
    states     a d n / c          2       2          5       6
    scores           g c          0       2          0       6
    steps, decay       a          1       6          2      45

Their products are of single chunks, between exponentials, masks and conversions, and a multiprocessor brings them about as
fast on one generation as on the next (`CHUNK_FLOPS_PER_S_PER_SM`). The convolution before a scan and the backward pass of
Mamba-2's norm with its gate have few rows under way in each multiprocessor (`STAGED_BYTES_PER_S_PER_SM`); the convolution runs
once more backward, as its output is not kept.

Profiles are those of full training steps of Nemotron-3-Nano on H100: GiscardBiamby/Automodel-scalingai-f26, mfu/results
(nsys_breakdown of 20260928: 8,192 tokens a micro-batch without recomputing, 24,576 with); tables are those of
ai-dynamo/aiconfigurator 095f58a5, linear_attention.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shardwright.models.graph import CONVOLVE, GATED_NORM, Operator, ScanShape
from shardwright.planner.axes.sharding import LocalSizes
from shardwright.planner.plans import FloatArray
from shardwright.planner.stacks import StackProfile

NARROW, WIDE = 2.0, 4.0
"""Bytes of values of 16 bits and in fp32."""

MOVED: Mapping[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "values": ((3.0, 0.0), (11.0, 0.0)),
    "keys": ((4.0, 0.0), (11.0, 4.0)),
    "states": ((2.0, 2.0), (5.0, 6.0)),
    "scores": ((0.0, 2.0), (0.0, 6.0)),
    "steps": ((1.0, 6.0), (2.0, 45.0)),
}
"""Values of 16 bits and in fp32, forward and backward."""

CHUNK_FLOPS_PER_S_PER_SM: Mapping[str, float] = {
    "ampere": 0.36e12,
    "hopper": 0.75e12,
    "blackwell": 0.75e12,
    "blackwell-ultra": 0.75e12,
    "cdna3": 0.36e12,
    "cdna4": 0.36e12,
}
"""FLOP/s of a multiprocessor in scans by chunks. A forward pass of 64 heads of 64, 8 groups of 128 and chunks of 128 takes
0.044 us a token on B200 (tables, mamba2_perf of trtllm 1.3.0rc15, two sequences of 8,192) and 0.066 on H100 (profiles), less
what it moves 0.030 and 0.035: 0.77 and 0.74e12. Delta rules take what products of chunks do, or this (tables, gdn_perf). A100
and MI300X are rougher: training steps of state-spaces/mamba issue 904 and a layer of ROCm/triton issue 777 less their products.
Other chips are taken to be bound by matrix units."""

CHUNK_BACKWARD = 3.5
"""Time of the products of a backward pass over that of a forward pass: 2.7 times the FLOPs at three quarters of the rate. On
H100 a backward pass takes 0.222 us a token, 0.121 beside what it moves (profiles)."""

STAGED_BYTES_PER_S_PER_SM = 7.5e9
"""What a multiprocessor moves in causal_conv1d's kernels for channels that lie side by side (1.14 TB/s forward and 0.83
backward over the 132 of an H100) and in the backward pass of Mamba-2's gated norm, whose 4 warps a multiprocessor go row by row
(0.8 to 1.05 TB/s; profiles). It grows with multiprocessors, not with memory: on B200 convolutions are 1.2 times as fast as on
H100 (tables, gdn_perf of sglang 0.5.14)."""

CONVOLVED_AGAIN = 1.0
"""Forward passes of the convolution within its backward pass (ssd_combined.py, MambaSplitConv1dScanCombinedFn)."""

TURNED_BYTES = 4.0
"""Bytes a value of 16 bits that is copied into another order."""

Bytes = tuple[FloatArray, FloatArray]


def scan_bytes(shape: ScanShape, local: Mapping[str, FloatArray], tokens: FloatArray, chunk: int) -> Bytes:
    """Bytes that a state-space scan moves, forward and backward, [keys].

    Args:
        shape: of the scan.
        local: sizes of its dims on one rank.
        tokens: of a micro-batch on one rank.
        chunk: tokens of a chunk.
    """
    heads, groups, depth, state = (local[name] for name in (shape.heads, shape.groups, shape.head_dim, shape.state))
    sizes = {
        "values": heads * depth,
        "keys": groups * state,
        "states": heads * depth * state / chunk,
        "scores": groups * chunk,
        "steps": heads,
    }
    forward, backward = (
        sum((sizes[name] * (NARROW * each[way][0] + WIDE * each[way][1]) for name, each in MOVED.items()), start=np.zeros(1))
        for way in (0, 1)
    )
    return tokens * forward, tokens * backward


def staged(operator: Operator) -> tuple[bool, bool]:
    """Whether multiprocessors bound what an operator moves, forward and backward."""
    convolves = CONVOLVE in operator.beside
    return convolves, convolves or GATED_NORM in operator.beside


def turned_bytes(operator: Operator, sizes: LocalSizes, stack: StackProfile) -> Bytes | None:
    """Bytes of copies into the order of scans and back, beside the projections around them; None where there are none.

    What the first projection makes is copied, and so is its gradient; of what the last one reads only the values are, as the
    scan takes its gradient in either order.
    """
    if not stack.turns_scans or operator.module != "scan" or operator.name not in {"in_proj", "out_proj"}:
        return None
    first = operator.name == "in_proj"
    values = sum((sizes.elements(t) for t in (operator.outputs if first else operator.inputs)), start=np.zeros(1))
    several = sizes.product(("batch",), beside_tensor=True) > 1
    moved = TURNED_BYTES * values * several
    return moved, moved * first
