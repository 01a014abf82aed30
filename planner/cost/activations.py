"""Activations of a layer: what its backward pass keeps, by recompute mode, and what it makes while it runs.

    none        union by name of the tensors that its operators keep (`Operator.saved`)
    selective   without what the stack's modules can make again (`recompute.dropped`)
    full        the layer's input
    backward    gradients alive at once: of the stream (of a layer read from a graph: of all it reads of others), and of what
    one operator read and wrote, with what sequence parallelism gathers for it and fp32 sums of gradients of queries, less
    what only operators behind it kept, which have let go of it; the largest over operators

Operators that a stack runs eagerly keep more than one fused kernel would: a gated activation also the activated gate (f a
token), a root-mean-square norm its input in fp32 and the normalised input in place of its input (4 h + 2 h for 2 h). Below
16 bits a product keeps its input as it read it, quantised, and what other operators keep of it stays in 16 bits
(Transformer Engine), or it keeps 16 bits and casts them again (torchao; `keeps_quantised_inputs`), the input of the
activation in 8 bits where the stack stores it so (Megatron-Core `activation_func_fp8_input_store`). Under sequence
parallelism a column-parallel product keeps its part of the input and gathers it again (Megatron-LM), or keeps it as
gathered (DTensor, `keeps_gathered_inputs`). Where context parallelism swaps sequence for heads, an attention core keeps its
output in both forms, and all it reads and writes stands twice while it runs; where keys and values are gathered, those of
the other ranks and their gradients stand beside it (Transformer Engine `context_parallel`). Logits are left out: they are
counted apart (`memory`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from shardwright.models.graph import LayerGraph, Operator, OperatorKind, TensorSpec
from shardwright.planner.axes.context import core_bytes
from shardwright.planner.axes.sharding import LocalSizes, OperatorKeys, has_tensor_dim
from shardwright.planner.cost.compute import SCORE_WIDTH, Machine
from shardwright.planner.cost.losses import LOGITS
from shardwright.planner.cost.recompute import dropped, read_again, repeated
from shardwright.planner.cost.standins import made_bytes
from shardwright.planner.plans import GATHER, RECOMPUTE_MODES, RING, SWAP, FloatArray

FP32 = 4.0
STREAM = ("batch", "seq", "hidden")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A tensor kept for the backward pass.

    Attributes:
        tensor: the tensor.
        width: bytes an element where the tensor states none.
        gathered: whether it is kept with the whole sequence of its tensor-parallel group.
        beside: whether it is also kept gathered, so that it counts only where that is another tensor.
    """

    tensor: TensorSpec
    width: float
    gathered: bool
    beside: bool = False

    def bytes(self, sizes: LocalSizes) -> FloatArray:
        """Bytes on one rank, [keys]."""
        each = self.width if self.tensor.bytes_per_element is None else self.tensor.bytes_per_element
        made = sizes.product(self.tensor.dims, beside_tensor=True if self.gathered else None) * each
        return made * sizes.gathers_sequence() if self.beside else made


def saved_bytes(unit: LayerGraph, sizes: LocalSizes, keys: OperatorKeys, machine: Machine) -> FloatArray:
    """Activations kept per micro-batch, [keys, modes]; embedding and head keep theirs in every mode."""
    again = frozenset(o.name for o in repeated(unit, machine.stack))
    kept, without = kept_tensors(unit, machine), kept_tensors(unit, machine, again)
    scores = _score_bytes(unit, sizes, keys, machine)
    none = _total((k.bytes(sizes) for k in kept), keys) + scores + _swapped_outputs(unit, sizes, keys, machine)
    if unit.kind in {"embedding", "head"}:
        return np.stack([none] * len(RECOMPUTE_MODES), axis=1)
    gone = dropped(unit, machine.stack)
    kept_scores = 0.0 if {"core_attn", "attn"}.intersection(machine.stack.selective_modules) else scores
    left = [k for k in without if k.tensor.name not in gone]
    width = float(machine.precision.activation_bytes)
    read = [t for t in read_again(unit, machine.stack) if t.name not in {k.tensor.name for k in left}]
    selective = _total((*(k.bytes(sizes) for k in left), *(sizes.bytes(t, width) for t in read)), keys) + kept_scores
    selective = selective + _swapped_outputs(unit, sizes, keys, machine, again)
    full = border_bytes(unit, sizes, width)
    return np.stack([none, np.minimum(selective, none), np.minimum(full, none)], axis=1)


def backward_bytes(unit: LayerGraph, sizes: LocalSizes, keys: OperatorKeys, machine: Machine) -> tuple[FloatArray, FloatArray]:
    """Gradients of activations alive at once in the backward pass of a layer, and what gradients of weights add, [keys].

    They come beside all that the layer keeps, of which it lets go as its operators finish; logits are counted apart. What is
    added is the gradient of each product's weights, where it is made before it is added (`standins.made_bytes`).
    """
    width = float(machine.precision.activation_bytes)
    stream = border_bytes(unit, sizes, width)

    logits = logit_names(unit)

    def beside(operator: Operator) -> FloatArray:
        tensors = [t for t in (*operator.inputs, *operator.outputs) if t.name not in logits]
        own = _total((sizes.bytes(t, width) for t in tensors), keys)
        return own + _gathered(operator, sizes, keys, machine) + _summed_queries(operator, sizes, keys, machine)

    needed = first_needed(unit, machine)
    left = np.zeros(len(keys))
    alive, with_made = [left], [left]
    for operator in reversed(unit.operators):
        alive.append(beside(operator) + _exchanged(operator, sizes, keys, width) - left)
        with_made.append(alive[-1] + made_bytes(operator, sizes, keys, machine))
        left = left + _total((k.bytes(sizes) for k in needed.get(operator.name, ())), keys)
    most = np.max(alive, axis=0)
    return np.asarray(stream + most), np.asarray(np.max(with_made, axis=0) - most)


def _gathered(operator: Operator, sizes: LocalSizes, keys: OperatorKeys, machine: Machine) -> FloatArray:
    """What sequence parallelism holds gathered in a product's backward pass, beside a rank's part of it, [keys].

    Of a column-parallel product its input, where it is not kept so, and the gradient of that before it is scattered; of a
    row-parallel one the gradient of its output (NVIDIA/TransformerEngine, pytorch/module/linear.py).
    """
    sides = [any(has_tensor_dim(t.dims) for t in tensors) for tensors in (operator.inputs, operator.outputs)]
    if operator.gemm is None or sides[0] == sides[1]:
        return np.zeros(len(keys))
    tensors, copies = (
        (operator.outputs, 1.0) if sides[0] else (operator.inputs, 1.0 if _keeps_gathered(operator, machine) else 2.0)
    )
    width = float(machine.precision.activation_bytes)
    whole = _total((sizes.product(t.dims, beside_tensor=True) * width for t in tensors), keys)
    return np.where(sizes.gathers_sequence(), copies * whole, 0.0)


def _summed_queries(operator: Operator, sizes: LocalSizes, keys: OperatorKeys, machine: Machine) -> FloatArray:
    """The gradient of queries, which fused attention sums in fp32, [keys] (Dao-AILab/flash-attention, mha_bwd, dq_accum)."""
    if operator.attention is None or not machine.stack.fused_attention:
        return np.zeros(len(keys))
    return core_bytes(operator.attention, sizes, FP32).query


def first_needed(unit: LayerGraph, machine: Machine) -> dict[str, list[Kept]]:
    """What is kept, under the first operator that keeps it: once that one's backward pass is over, it is let go."""
    found: dict[str, list[Kept]] = {}
    seen: set[tuple[str, float, bool]] = set()
    kept = {(k.tensor.name, k.width, k.gathered): k for k in kept_tensors(unit, machine)}
    for operator in unit.operators:
        names = {t.name for t in operator_saves(operator, machine)}
        gathered = _keeps_gathered(operator, machine)
        for key, tensor in kept.items():
            if key[0] in names and key[2] == gathered and key not in seen:
                seen.add(key)
                found.setdefault(operator.name, []).append(tensor)
    return found


def _swapped_outputs(
    unit: LayerGraph, sizes: LocalSizes, keys: OperatorKeys, machine: Machine, again: frozenset[str] = frozenset()
) -> FloatArray:
    """Outputs of attention cores kept with the whole sequence of some heads, but of those that run again, [keys]."""
    swapped = (keys.cp_comm == SWAP) & (keys.cp > 1)
    cores = [o.attention for o in unit.operators if o.attention is not None and o.name not in again]
    if not swapped.any():
        return np.zeros(len(keys))
    width = float(machine.precision.activation_bytes)
    return _total((swapped * core_bytes(core, sizes, width).output for core in cores), keys)


def _exchanged(operator: Operator, sizes: LocalSizes, keys: OperatorKeys, width: float) -> FloatArray:
    """What the exchange of context parallelism holds beside a core in its backward pass, [keys]."""
    if operator.attention is None or not ((keys.cp_comm != RING) & (keys.cp > 1)).any():
        return np.zeros(len(keys))
    core = core_bytes(operator.attention, sizes, width)
    gathered = 2.0 * (keys.cp - 1) * (core.key + core.value)
    swapped = np.where((keys.cp_comm == SWAP) & (keys.cp > 1), core.total, 0.0)
    return np.where(keys.cp_comm == GATHER, gathered, swapped)


def border_bytes(unit: LayerGraph, sizes: LocalSizes, width: float) -> FloatArray:
    """Bytes of what a layer reads of other layers: the stream, or the tensors of its border, [keys]."""
    if unit.border is None:
        return sizes.product(STREAM, beside_tensor=False) * width
    return np.asarray(sum((sizes.bytes(t, width) for t in unit.border), start=sizes.product((), beside_tensor=False) * 0.0))


def kept_tensors(unit: LayerGraph, machine: Machine, again: frozenset[str] = frozenset()) -> list[Kept]:
    """Tensors that operators keep for the backward pass and their bytes an element.

    Args:
        unit: the layer.
        machine: stack and precision.
        again: names of operators that are run again: what only their eager forms keep is not there.
    """
    precision = machine.precision
    low = precision.gemm_input_bytes < precision.activation_bytes
    widths = {False: float(precision.activation_bytes), True: precision.gemm_input_bytes}
    logits = logit_names(unit)
    kept: dict[tuple[str, bool, bool], Kept] = {}
    for operator in unit.operators:
        quantised, gathered = low and _quantises(operator, machine), _keeps_gathered(operator, machine)
        saved = operator.saved if operator.name in again else operator_saves(operator, machine)
        for tensor in (t for t in saved if t.name not in logits):
            narrow = quantised and tensor.bytes_per_element is None
            kept[tensor.name, narrow, gathered] = Kept(tensor=tensor, width=widths[narrow], gathered=gathered)
    return [replace(k, beside=not k.gathered and (name, narrow, True) in kept) for (name, narrow, _), k in kept.items()]


def logit_names(unit: LayerGraph) -> frozenset[str]:
    """Tensors of logits: of the vocabulary's width; in a head read from a graph what its losses read first and keep in fp32."""
    if unit.border is None:
        tensors = (t for o in unit.operators for t in (*o.inputs, *o.outputs, *o.saved))
        return frozenset(t.name for t in tensors if LOGITS in t.dims)
    if unit.kind != "head":
        return frozenset()
    losses = [o for o in unit.operators if o.kind is OperatorKind.LOSS]
    return frozenset(n for o in losses for n in (o.inputs[0].name, *(t.name for t in o.saved if t.bytes_per_element == FP32)))


def operator_saves(operator: Operator, machine: Machine) -> tuple[TensorSpec, ...]:
    """What an operator keeps in a stack: that of one fused kernel, or of the eager operators it stands for."""
    if _is_activation(operator) and not machine.stack.fused_gate:
        gates = [t for t in operator.saved if t.bytes_per_element is None][:-1]
        return (*operator.saved, *(TensorSpec(name=f"{gate.name}_activated", dims=gate.dims) for gate in gates))
    if operator.attention is not None and not machine.stack.fused_attention:
        return tuple(t for t in operator.saved if not t.name.endswith("_stats"))
    if _is_rms_norm(operator) and not machine.stack.fused_norms:
        wide = machine.precision.activation_bytes < FP32
        return tuple(
            kept for pair in zip(operator.inputs, operator.outputs, strict=True) for kept in _eager_norm(*pair, wide)
        ) + (tuple(t for t in operator.saved if t not in operator.inputs))
    return operator.saved


def _eager_norm(source: TensorSpec, target: TensorSpec, wide: bool) -> tuple[TensorSpec, TensorSpec]:
    """What a norm in fp32 keeps beside its statistics: its input in fp32, and the normalised input before its weight."""
    copy = TensorSpec(name=f"{source.name}_fp32", dims=source.dims, bytes_per_element=FP32)
    return copy if wide else source, TensorSpec(name=f"{target.name}_unscaled", dims=target.dims)


def _quantises(operator: Operator, machine: Machine) -> bool:
    """Whether an operator keeps what it reads in the low precision of the job."""
    if _is_activation(operator):
        return machine.stack.activation_input_8bit
    return operator.gemm is not None and operator.quantizable and machine.stack.keeps_quantised_inputs


def _keeps_gathered(operator: Operator, machine: Machine) -> bool:
    """Whether a column-parallel product keeps its input as gathered under sequence parallelism."""
    column = operator.kind is OperatorKind.GEMM and any(has_tensor_dim(t.dims) for t in operator.outputs)
    return column and machine.stack.keeps_gathered_inputs and not any(has_tensor_dim(t.dims) for t in operator.inputs)


def _is_activation(operator: Operator) -> bool:
    return operator.kind is OperatorKind.ELEMENTWISE and operator.name in {"act", "moe_act", "shared_act"}


def _is_rms_norm(operator: Operator) -> bool:
    """Norms with one statistic a row each: of the stream, or of queries and keys."""
    stats = [t for t in operator.saved if t not in operator.inputs]
    named = operator.kind is OperatorKind.ELEMENTWISE and all(t.name.endswith("_stats") for t in stats)
    return named and len(stats) == len(operator.inputs) == len(operator.outputs) and stats[0].bytes_per_element == FP32


def _score_bytes(unit: LayerGraph, sizes: LocalSizes, keys: OperatorKeys, machine: Machine) -> FloatArray:
    """Attention scores kept where attention is not fused (5as/h of arXiv 2205.05198 eq. 2)."""
    if machine.stack.fused_attention:
        return np.zeros(len(keys))
    cores = [o.attention for o in unit.operators if o.attention is not None]
    scores = (sizes.product((*c.rows, c.queries, c.heads), beside_tensor=True) * sizes.whole(c.keys) for c in cores)
    return _total(scores, keys) * machine.stack.score_saved_bytes * machine.precision.activation_bytes / SCORE_WIDTH


def _total(parts: Iterable[FloatArray], keys: OperatorKeys) -> FloatArray:
    return sum(parts, start=np.zeros(len(keys)))
