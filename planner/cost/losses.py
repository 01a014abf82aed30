"""A loss that goes through head and cross entropy in pieces of a micro-batch's tokens: which operators it cuts, what it holds.

With N pieces of T tokens each piece makes its logits, its loss and, at once, the gradients of its input and of the weight, so
that no logits are left when the next piece begins (Liger's fused linear cross entropy, arXiv 2410.10989; torchtitan's
`ChunkedLossWrapper`; DeepSpeed's `TiledFusedLogitsLoss`):

    time      N · (forward + backward of T / N tokens), all of it in the forward pass          `compute.operator_times`
    logits    (T / N) · V · bytes a logit, of one piece alone, whatever the schedule keeps     `logits_alive`
    beside    the gradient of the head's trained weights, which the pieces are added up in, and that of
              the T · h values it reads, in fp32 (torchtitan; Liger: in 16 bits)               `beside_bytes`

Products of fewer rows are less efficient (`hardware.kernels.gemm_s`), each piece reads the weight again and adds to its
gradient. Implementations that make a piece's logits twice (Megatron's `linear` fusion, a checkpoint around each piece) hold as
much and compute the head's forward product once more; no target here runs them.
"""

from __future__ import annotations

import numpy as np

from shardwright.models.dtypes import Precision
from shardwright.models.graph import LayerGraph, Operator
from shardwright.planner.axes.sharding import LocalSizes
from shardwright.planner.plans import BoolArray, FloatArray
from shardwright.planner.stacks import StackProfile

LOGITS = "vocab"
INPUT_GRADIENT_BYTES = 4.0
"""Of the gradients of what the head reads, which torchtitan gathers in fp32 piece by piece (`GradAccumulator`)."""


def touches_logits(operator: Operator) -> bool:
    """Whether an operator reads or makes logits: the head, the cap of its logits, the loss."""
    return any(LOGITS in t.dims for t in (*operator.inputs, *operator.outputs))


def beside_bytes(head: LayerGraph, sizes: LocalSizes, precision: Precision) -> FloatArray:
    """What a loss in pieces holds beside the logits of one: gradients of the head's weights and input, [keys].

    Args:
        head: the head.
        sizes: of its dims.
        precision: of the job.
    """
    products = [o for o in head.operators if o.gemm is not None and touches_logits(o)]
    weights = {p.name: p for o in products for p in o.parameters if p.trainable}
    read = {t.name: t for o in products for t in o.inputs}
    made = sum((sizes.elements(p) * precision.parameter_bytes for p in weights.values()), start=0.0 * sizes.loss_pieces())
    made = made + sum(sizes.elements(t) * INPUT_GRADIENT_BYTES for t in read.values())
    return np.asarray(np.where(sizes.loss_pieces() > 1, made, 0.0))


def head_gradient_bytes(head: LayerGraph, sizes: LocalSizes, precision: Precision, stack: StackProfile) -> FloatArray:
    """What the head's backward pass holds beside the gradient of the logits, of a loss taken whole, [keys].

    The gradient of what the head reads; under sequence parallelism that of all its tokens and of its own, and what it read
    gathered again (NVIDIA/Megatron-LM, tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication).
    """
    read = {t.name: t for o in head.operators if o.gemm is not None and touches_logits(o) for t in o.inputs}
    own = sum((sizes.elements(t) for t in read.values()), start=0.0 * sizes.loss_pieces())
    whole = sum((sizes.product(t.dims, beside_tensor=True) for t in read.values()), start=0.0 * own)
    copies = 1.0 if stack.keeps_gathered_inputs else 2.0
    made = np.where(sizes.gathers_sequence(), copies * whole + own, own)
    return np.asarray(np.where(sizes.loss_pieces() > 1, 0.0, made * precision.activation_bytes))


def logits_alive(cut: BoolArray, whole: FloatArray, behind: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Micro-batches whose logits, and of whose logits the gradient alone, are alive: one and none where the loss is cut."""
    return np.where(cut[:, None], 1.0, whole), np.where(cut[:, None], 0.0, behind)
