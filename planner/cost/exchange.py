"""Data-parallel exchange that stays exposed: gradients and parameters, inside passes and after the last one.

once a step    d = max(f·R, R − B) + max(f·G, G − F)      R reduction, G gathering, f the stack's exposed floor
ZeRO 2, 3 where every pass exchanges: it takes max(c, x) + i·min(c, x) + k
c computing, x exchanging, i interference, k copies out of and into buffers
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.planner.cost.context import Context
from shardwright.planner.cost.sharing import Shared
from shardwright.planner.cost.states import every_pass
from shardwright.planner.plans import FloatArray, PlanBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Tails:
    """Data-parallel exchange that stays exposed: inside passes (ZeRO 3) and after the last one; [plans, runs]."""

    forward_s: FloatArray
    backward_s: FloatArray
    after_s: FloatArray


def exposed_data(context: Context, batch: PlanBatch, shared: Shared, forward: FloatArray, backward: FloatArray) -> Tails:
    """Exposed exchange of gradients and parameters.

    What a pass hides already cannot hide it too, nor can the time in which other axes keep the same links between nodes busy.
    """
    stack, zero, state, row = context.problem.stack, batch.zero[:, None], shared.state, shared.state_row
    reduce, gather = state.reduce_s[row], state.gather_s[row]
    work = shared.work
    forward = forward - _taken(shared, work.hidden_forward_s, work.network_forward_s)
    backward = backward - _taken(shared, work.hidden_backward_s, work.network_backward_s)
    floor = stack.dp_exposed_floor
    once = np.maximum(floor * reduce, reduce - backward) + np.maximum(floor * gather, gather - forward)
    repeated = every_pass(batch, stack)[:, None]
    gathered = np.where(zero >= 3, gather, 0.0)
    behind = _behind(forward, gathered, state.interference_forward[row])
    behind_backward = _behind(backward, gathered + reduce, state.interference_backward[row])
    updated = np.maximum(floor * gather, gather - forward)
    return Tails(
        forward_s=np.where(repeated, behind + state.copies_forward_s[row], 0.0),
        backward_s=np.where(repeated, behind_backward + state.copies_backward_s[row], 0.0),
        after_s=np.where(repeated, np.where(zero == 2, updated, 0.0), once),
    )


def _taken(shared: Shared, hidden: FloatArray, network: FloatArray) -> FloatArray:
    """Time of a pass that cannot hide exchange of states: it hides other exchange, or other exchange has their links."""
    plain = hidden[shared.row]
    if not network.any():
        return plain
    return np.where(shared.state.network[shared.state_row], (hidden + network)[shared.row], plain)


def _behind(compute: FloatArray, exchange: FloatArray, interference: FloatArray) -> FloatArray:
    """What an exchange adds to the computation it runs beside."""
    return np.maximum(exchange - compute, 0.0) + interference * np.minimum(compute, exchange)
