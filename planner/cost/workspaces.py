"""Workspaces of matrix products, which PyTorch's allocator holds from the first product on.

    PyTorch              one for each thread that starts products (the program's and autograd's): 32 MiB on Hopper, else
                         8.125 MiB; on AMD 128 MiB from CDNA 3 on, else 32 MiB
                         (pytorch/pytorch, aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize; pull
                         requests 86167 and 89027; `CUBLAS_WORKSPACE_CONFIG` sets another)
    Transformer Engine   one for all its products and, with experts, one for each stream of grouped products: 32 MiB from Hopper
                         on, else 4 MiB (NVIDIA/TransformerEngine, pytorch/cpp_extensions/gemm.py, get_cublas_workspace)

Blackwell's were 32 MiB for a few months of 2026 (pytorch/pytorch pull requests 175344 and 182669).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shardwright.planner.axes.sharding import OperatorKeys
from shardwright.planner.cost.compute import Machine
from shardwright.planner.plans import FloatArray

MIB = 2**20
PYTORCH_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("volta", "turing", "ampere", "ada", "blackwell", "blackwell-ultra"), 2 * 4096 * 1024 + 8 * 16 * 1024),
    "hopper": 32 * MIB,
    "cdna2": 32 * MIB,
    "cdna3": 128 * MIB,
    "cdna4": 128 * MIB,
}
"""By architecture; none where PyTorch has no such products."""

ENGINE_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("volta", "turing", "ampere", "ada"), 4 * MIB),
    **dict.fromkeys(("hopper", "blackwell", "blackwell-ultra", "cdna2", "cdna3"), 32 * MIB),
    "cdna4": 64 * MIB,
}
"""By architecture (CDNA: ROCm/TransformerEngine)."""

STREAMS = 4
"""Of grouped products (NVIDIA/TransformerEngine, common/util/multi_stream.cpp)."""


def workspace_bytes(keys: OperatorKeys, machine: Machine, *, routed: bool) -> FloatArray:
    """Workspaces that a rank holds, with a layer that is `routed` or one that is not; bytes, [keys]."""
    stack = machine.stack
    engine = stack.engine_workspaces * (1 + STREAMS * routed)
    each = (PYTORCH_BYTES.get(machine.arch, 0), ENGINE_BYTES.get(machine.arch, 0))
    return np.full(len(keys), float(stack.blas_workspaces * each[0] + engine * each[1]))
