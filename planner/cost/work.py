"""Work of pipeline stages: what their units add up to per micro-batch, by recompute mode.

For a stage that holds c_u of unit u every quantity q of `cost.operators` is Σ_u c_u·q_u. Plans that differ only in what does
not reach into a stage's work (batch, schedule, ZeRO, recompute) share one row; `stage_work` makes the distinct rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.planner.cost.operators import UnitTables
from shardwright.planner.cost.stages import SplitTable
from shardwright.planner.plans import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """Work of one micro-batch; [rows, runs], with modes [rows, modes, runs], with axes [rows, runs, axes].

    Attributes:
        compute_forward_s, compute_backward_s, host_forward_s, host_backward_s: seconds.
        weight_s: of computing backward, gradients of weights.
        exposed_forward_s, exposed_backward_s: exposed exchange, with axes.
        hidden_forward_s, hidden_backward_s: exchange hidden behind computation.
        network_forward_s, network_backward_s: of the exposed exchange, what goes over links between nodes.
        again_s: recomputed forward time, with modes.
        again_exposed_s: exchange repeated under full recompute, with axes.
        saved_bytes, live_bytes: activations kept, and those of the layer being recomputed, with modes.
        backward_bytes: gradients of activations alive in the backward pass of a layer, the largest.
        dispatch_bytes: buffers that the dispatcher of routed layers registers.
        stand_in_bytes: gradients that stand in for those of the weights of the largest layer and of the head.
        made_bytes: what gradients of a layer's weights add to `backward_bytes` before they are added.
        border_bytes: what the stage reads of the one before it.
        workspace_bytes: of matrix products.
        attention_s: of computing, attention cores both ways.
        hbm_bytes: device-memory traffic.
        layers: layers of the stage.
        logits: logits of one micro-batch, or of one piece of its loss, where the stage holds the head.
        beside_loss: bytes that a loss in pieces holds beside them.
        head_gradients: bytes that the head's backward pass holds beside the gradient of logits.
    """

    compute_forward_s: FloatArray
    compute_backward_s: FloatArray
    host_forward_s: FloatArray
    host_backward_s: FloatArray
    weight_s: FloatArray
    exposed_forward_s: FloatArray
    exposed_backward_s: FloatArray
    hidden_forward_s: FloatArray
    hidden_backward_s: FloatArray
    network_forward_s: FloatArray
    network_backward_s: FloatArray
    again_s: FloatArray
    again_exposed_s: FloatArray
    saved_bytes: FloatArray
    live_bytes: FloatArray
    backward_bytes: FloatArray
    dispatch_bytes: FloatArray
    stand_in_bytes: FloatArray
    made_bytes: FloatArray
    border_bytes: FloatArray
    workspace_bytes: FloatArray
    attention_s: FloatArray
    hbm_bytes: FloatArray
    layers: FloatArray
    logits: FloatArray
    beside_loss: FloatArray
    head_gradients: FloatArray


def stage_work(key: IntArray, split: IntArray, tables: UnitTables, splits: SplitTable, runs: int) -> StageWork:
    """Rows of work for pairs of operator key and split.

    Args:
        key: operator key of each row.
        split: split of each row.
        tables: quantities of units.
        splits: units of stages.
        runs: how many runs to fill.
    """
    counts = splits.counts[split, :runs]

    def plain(table: FloatArray) -> FloatArray:
        return np.asarray(np.einsum("pru,pu->pr", counts, table[key]))

    def by_axis(table: FloatArray) -> FloatArray:
        return np.asarray(np.einsum("pru,pux->prx", counts, table[key]))

    def by_mode(table: FloatArray) -> FloatArray:
        return np.asarray(np.einsum("pru,pum->pmr", counts, table[key]))

    def present(table: FloatArray) -> FloatArray:
        return np.where(counts > 0, table[key][:, None, :], 0.0)

    def largest(table: FloatArray) -> FloatArray:
        return np.asarray(present(table).max(axis=2))

    def largest_layer(table: FloatArray) -> FloatArray:
        return np.asarray(present(table)[:, :, splits.layer_units(counts.shape[2])].max(axis=2, initial=0.0))

    head = splits.held(counts, splits.kinds + 1)
    live = np.where(counts[:, None] > 0, tables.live_bytes[key].transpose(0, 2, 1)[:, :, None, :], 0.0).max(axis=3)
    return StageWork(
        compute_forward_s=plain(tables.compute_forward_s),
        compute_backward_s=plain(tables.compute_backward_s),
        host_forward_s=plain(tables.host_forward_s),
        host_backward_s=plain(tables.host_backward_s),
        weight_s=plain(tables.weight_s),
        exposed_forward_s=by_axis(tables.exposed_forward_s),
        exposed_backward_s=by_axis(tables.exposed_backward_s),
        hidden_forward_s=plain(tables.hidden_forward_s),
        hidden_backward_s=plain(tables.hidden_backward_s),
        network_forward_s=plain(tables.network_forward_s),
        network_backward_s=plain(tables.network_backward_s),
        again_s=by_mode(tables.again_s),
        again_exposed_s=by_axis(tables.again_exposed_s),
        saved_bytes=by_mode(tables.saved_bytes),
        live_bytes=live,
        backward_bytes=largest(tables.backward_bytes),
        dispatch_bytes=largest(tables.dispatch_bytes),
        stand_in_bytes=largest_layer(tables.stand_in_bytes) + splits.held(present(tables.stand_in_bytes), splits.kinds + 1),
        made_bytes=largest_layer(tables.made_bytes),
        border_bytes=largest(tables.border_bytes),
        workspace_bytes=largest(tables.workspace_bytes),
        attention_s=plain(tables.attention_s),
        hbm_bytes=plain(tables.hbm_bytes),
        layers=splits.layers[split, :runs],
        logits=head * tables.logits[key][:, None],
        beside_loss=head * tables.beside_loss[key][:, None],
        head_gradients=head * tables.head_gradients[key][:, None],
    )
