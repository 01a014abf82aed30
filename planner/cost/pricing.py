"""`price`: step time and memory of many plans, the one function behind every printed number.

Per micro-batch a stage takes F forward and B backward, each computation + launches + exposed exchange + sends, recomputing
inside B. With gradient exchange d and update o after the last pass,

    step = when the last stage is done (`pipelines`), + the exchange of tied embeddings between first and last stage

The critical stage is the busiest one, of greatest M·(F + B) + d + o. Its parts are printed: M·compute, M·recompute,
M·exposed, d, o, and the rest of the step as bubble.

Where sequences are packed from documents, M·(f − 1)·attention is added and printed as bubble: what ranks wait for the one whose
documents take the most attention (f of `models.lengths`).

d, and what passes wait for exchange, comes from `exchange`, what stages send each other from `sends`. `price` works in
[plans, runs]; what plans share is computed once (`sharing`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.planner.cost.context import Context
from shardwright.planner.cost.exchange import Tails, exposed_data
from shardwright.planner.cost.memory import FULL, StageMemory, recomputed_share, saved_of, stage_memory
from shardwright.planner.cost.offload import Copied, copies_s, on_nodes, rates_of, update_s
from shardwright.planner.cost.operators import LAYER_AXES
from shardwright.planner.cost.packing import uneven_documents
from shardwright.planner.cost.pipelines import (
    Passes,
    chain_ends,
    exact_ends,
    hidden_exchange,
    passes,
)
from shardwright.planner.cost.sends import send_s, tied_s
from shardwright.planner.cost.sharing import Shared, expert_exchange_s, shared_rows
from shardwright.planner.cost.states import every_pass
from shardwright.planner.plans import BoolArray, FloatArray, IntArray, PlanBatch

TIME_PARTS = (
    *("compute_s", "recompute_s", "exposed_tp_s", "exposed_cp_s", "exposed_ep_s", "exposed_pp_s", "exposed_dp_s"),
    *("bubble_s", "optimizer_s", "other_s"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices of plans.

    Attributes:
        step_s: seconds a step, [plans].
        critical: run that determines it, [plans].
        parts: seconds of each of `TIME_PARTS` on the critical stage, [plans]; they sum to `step_s`.
        forward_s, backward_s: one micro-batch on each run, [plans, runs].
        memory: by part, [plans, runs].
        peak_bytes: total of the fullest stage: the one that exceeds its memory most, or leaves the least of it, [plans].
        peak_run: that run, [plans].
        capacity_bytes: memory of its smallest device, [plans].
        host_peak_bytes, host_short_bytes: host memory of the fullest node, and what it lacks of it, [plans].
    """

    step_s: FloatArray
    critical: IntArray
    parts: dict[str, FloatArray]
    forward_s: FloatArray
    backward_s: FloatArray
    memory: StageMemory
    peak_bytes: FloatArray
    peak_run: IntArray
    capacity_bytes: FloatArray
    host_peak_bytes: FloatArray
    host_short_bytes: FloatArray

    @property
    def fits(self) -> BoolArray:
        """Where every stage is within its memory, and every host within its own, [plans]."""
        return np.asarray((self.peak_bytes <= self.capacity_bytes) & (self.host_short_bytes <= 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What a rank does beside its passes, [plans, runs].

    Attributes:
        tails: data-parallel exchange inside passes and after the last one.
        data_s: all of it in a step.
        update_s: of the optimizer.
        copies_s: waiting for copies from and to the host.
        uneven_s: waiting for the rank whose documents take the most attention.
    """

    tails: Tails
    data_s: FloatArray
    update_s: FloatArray
    copies_s: FloatArray
    uneven_s: FloatArray

    @property
    def total_s(self) -> FloatArray:
        """Seconds that follow the last pass as pipelines are priced."""
        return self.data_s + self.update_s + self.copies_s + self.uneven_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """What every run has to do, whatever the order of a schedule.

    Attributes:
        shared: work and states behind it.
        one: passes of one micro-batch, sends included.
        rest: what ranks do beside them.
        hidden: share of the exposed expert exchange that the schedule hides, [plans].
        sends_s: exposed sends of a pass, [plans].
    """

    shared: Shared
    one: Passes
    rest: Rest
    hidden: FloatArray
    sends_s: FloatArray


def price(context: Context, batch: PlanBatch, key: IntArray, *, exact: bool = False) -> Prices:
    """Prices a batch.

    Args:
        context: made by `make_context` for a batch that includes this one.
        batch: plans.
        key: operator key of each plan.
        exact: by the recurrence of each schedule, as printed; else by its chains, for a scan of very many plans.
    """
    runs = int(context.splits.runs[batch.split].max())
    present, load, tied = _present(context, batch, runs), loads(context, batch, key, runs), tied_s(context, batch, key)
    shared, one, rest, hidden, sends = load.shared, load.one, load.rest, load.hidden, load.sends_s
    tails, count = rest.tails, batch.micro_batches[:, None]
    busy = np.where(present, count * (one.forward_s + one.backward_s) + rest.total_s, -1.0)
    critical = busy.argmax(axis=1)
    at = (np.arange(len(batch)), critical)
    end = np.where(batch.pp > 1, _ends(context, batch, key, one.within(present), (sends, rest.total_s), exact), 0.0)
    parts = _parts(batch, shared, critical, sends)
    parts["exposed_ep_s"] -= batch.micro_batches * hidden * expert_exchange_s(shared)[at]
    parts["exposed_pp_s"] += tied
    parts["exposed_dp_s"], parts["optimizer_s"] = rest.data_s[at], rest.update_s[at]
    parts["other_s"] += rest.copies_s[at]
    parts["bubble_s"] = np.maximum(end - busy[at], 0.0) + rest.uneven_s[at]
    memory, area = memory_of(context, batch, shared, runs), context.splits.standing(batch.split, runs)
    capacity, hosted = _capacity(context, area, present), on_nodes(batch, memory.host_bytes, context.grounds, area)
    peak_run = (memory.total_bytes - capacity).argmax(axis=1)
    return Prices(
        step_s=sum((parts[name] for name in TIME_PARTS), start=np.zeros(1)),
        critical=critical,
        parts=parts,
        forward_s=one.forward_s + tails.forward_s,
        backward_s=one.backward_s + tails.backward_s,
        memory=memory,
        peak_bytes=memory.total_bytes[at[0], peak_run],
        peak_run=peak_run,
        capacity_bytes=capacity[at[0], peak_run],
        host_peak_bytes=hosted[0],
        host_short_bytes=hosted[1],
    )


def loads(context: Context, batch: PlanBatch, key: IntArray, runs: int) -> Loads:
    """What the first `runs` runs of some plans have to do."""
    shared, sends = shared_rows(context, batch, key, runs), send_s(context, batch, key)
    share = recomputed_share(batch, shared.work.layers[shared.row])
    hidden = hidden_exchange(batch, context.problem.stack)
    alone = passes(shared.work, shared.row, share, batch, hidden)
    rest = rest_of(context, batch, shared, alone)
    return Loads(shared=shared, one=alone.plus(sends), rest=rest, hidden=hidden, sends_s=sends)


def rest_of(context: Context, batch: PlanBatch, shared: Shared, alone: Passes) -> Rest:
    """What ranks do beside passes that take `alone`."""
    tails = exposed_data(context, batch, shared, alone.forward_s, alone.backward_s)
    update, copies = _offloaded(context, batch, shared, alone)
    every, attention = every_pass(batch, context.problem.stack), shared.work.attention_s[shared.row]
    return Rest(
        tails=tails,
        data_s=batch.micro_batches[:, None] * (tails.forward_s + tails.backward_s) + tails.after_s,
        update_s=update,
        copies_s=copies,
        uneven_s=uneven_documents(context.machine.packing, batch, every, attention, context.keys.seq_len),
    )


def _offloaded(context: Context, batch: PlanBatch, shared: Shared, alone: Passes) -> tuple[FloatArray, FloatArray]:
    """Time of the update and of waiting for copies from and to the host, [plans, runs]."""
    state, row = shared.state, shared.state_row
    update = state.update_s[row]
    if not batch.offload.any():
        return update, np.zeros_like(update)
    saved = saved_of(batch, shared.work, shared.row)
    held = Copied(updated=state.updated[row], parameters=state.parameters_bytes[row], activations=saved)
    rates = rates_of(context.grounds, context.splits.standing(batch.split, update.shape[1]))
    every = every_pass(batch, context.problem.stack)[:, None]
    waits = copies_s(batch, held, rates, (alone.forward_s, alone.backward_s), every, context.problem)
    return update_s(batch, held, rates, update, context.problem), waits


def _ends(
    context: Context, batch: PlanBatch, key: IntArray, one: Passes, beside: tuple[FloatArray, FloatArray], exact: bool
) -> FloatArray:
    """When the last rank is done, [plans]; by chains also where no order of operations is known."""
    sends, rest = beside
    if not exact:
        return chain_ends(batch, context.splits, context.uneven, one, rest)
    made = exact_ends(batch, key, context.tables, context.splits, context.problem, sends, rest)
    if np.isnan(made[batch.pp > 1]).any():
        made = np.where(np.isnan(made), chain_ends(batch, context.splits, context.uneven, one, rest), made)
    return made


def _capacity(context: Context, area: IntArray, present: BoolArray) -> FloatArray:
    """Memory of each run's smallest device; no limit beyond the last run, [plans, runs]."""
    each = np.array([ground.capacity_bytes for ground in context.grounds], dtype=np.float64)
    return np.where(present, each[area], np.inf)


def _present(context: Context, batch: PlanBatch, runs: int) -> BoolArray:
    return np.asarray(np.arange(runs)[None, :] < context.splits.runs[batch.split][:, None])


def _parts(batch: PlanBatch, shared: Shared, critical: IntArray, sends: FloatArray) -> dict[str, FloatArray]:
    """Parts of the critical stage that repeat with every micro-batch, times their number."""
    work, row, count = shared.work, shared.row, batch.micro_batches
    share = recomputed_share(batch, work.layers[row])[np.arange(len(batch)), critical]
    full = share * (batch.recompute == FULL)
    host = work.host_forward_s + work.host_backward_s
    exposed = work.exposed_forward_s + work.exposed_backward_s
    made = {
        "compute_s": count * (work.compute_forward_s + work.compute_backward_s)[row, critical],
        "recompute_s": count * share * work.again_s[row, batch.recompute, critical],
        "exposed_pp_s": 2.0 * count * sends,
        "other_s": count * host[row, critical],
    }
    for index, axis in enumerate(LAYER_AXES):
        again = full * work.again_exposed_s[row, critical, index]
        made[f"exposed_{axis}_s"] = count * (exposed[row, critical, index] + again)
    return made


def memory_of(context: Context, batch: PlanBatch, shared: Shared, runs: int) -> StageMemory:
    """Memory of every run, [plans, runs]."""
    ends = (context.splits.first_rank[batch.split, :runs], context.splits.last_rank[batch.split, :runs])
    memory = stage_memory(batch, shared.work, shared.row, shared.state, shared.state_row, ends, context.problem)
    if bool(_present(context, batch, runs).all()):
        return memory
    present = _present(context, batch, runs)
    return StageMemory(**{name: np.where(present, getattr(memory, name), 0.0) for name in StageMemory.__slots__})
