"""`price`: step time and memory of many plans, the one function behind every printed number.

Per micro-batch a stage takes F forward and B backward, each computation + launches + exposed exchange + sends, recomputing
inside B. With gradient exchange d and update o after the last pass,

    step = when the last stage is done (`pipelines`), + the exchange of tied embeddings between first and last stage

The critical stage is the busiest one, of greatest M·(F + B) + d + o. Its parts are printed: M·compute, M·recompute,
M·exposed, d, o, and the rest of the step as bubble.

Where sequences are packed from documents, M·(f − 1)·attention is added and printed as bubble: what ranks wait for the one whose
documents take the most attention (f of `models.lengths`).

    once a step    d = max(f·R, R − B) + max(f·G, G − F)      R reduction, G gathering, f the stack's exposed floor
    ZeRO 2, 3 where every pass exchanges: it takes max(c, x) + i·min(c, x) + k
      c computing, x exchanging, i interference, k copies out of and into buffers

`price` works in [plans, runs]; what plans share is computed once (`indexing.distinct`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardwright.planner.axes.sharding import OperatorKeys
from shardwright.planner.cost.compute import Machine
from shardwright.planner.cost.grounds import Ground, grounds_of, joined_tables
from shardwright.planner.cost.indexing import distinct
from shardwright.planner.cost.memory import FULL, StageMemory, recomputed_share, saved_of, stage_memory
from shardwright.planner.cost.network import Network
from shardwright.planner.cost.offload import Copied, copies_s, on_nodes, rates_of, update_s
from shardwright.planner.cost.operators import LAYER_AXES, UnitTables
from shardwright.planner.cost.packing import uneven_documents
from shardwright.planner.cost.pipelines import (
    EXPERTS,
    Passes,
    chain_ends,
    exact_ends,
    hidden_exchange,
    passes,
    uneven_splits,
)
from shardwright.planner.cost.routed import operator_keys
from shardwright.planner.cost.stages import SplitTable
from shardwright.planner.cost.states import StateTables, every_pass, held, states
from shardwright.planner.cost.work import StageWork, stage_work
from shardwright.planner.plans import BoolArray, FloatArray, IntArray, PlanBatch
from shardwright.planner.problem import Problem
from shardwright.planner.schedules.registry import SCHEDULES
from shardwright.planner.schedules.uneven import Repeating

FOLDED = np.array([schedule.folded for schedule in SCHEDULES])
"""Schedules whose chunks stand on ranks like a V."""

TIME_PARTS = (
    *("compute_s", "recompute_s", "exposed_tp_s", "exposed_cp_s", "exposed_ep_s", "exposed_pp_s", "exposed_dp_s"),
    *("bubble_s", "optimizer_s", "other_s"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What pricing needs beside the plans: the problem, its machine and network, and tables for every operator key.

    Attributes:
        machine: of the first kind of node; what all kinds have in common is read here.
        network: of the whole cluster.
        grounds: what stages stand on, one an area of the cluster.
        uneven: what is known of interleaved splits whose chunks differ, by split.
    """

    problem: Problem
    machine: Machine
    network: Network
    grounds: tuple[Ground, ...]
    keys: OperatorKeys
    tables: UnitTables
    splits: SplitTable
    uneven: Mapping[int, Repeating]

    def ground(self, split: int, run: int) -> Ground:
        """What a run of a split stands on."""
        return self.grounds[0 if self.splits.area is None else int(self.splits.area[split, run])]


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
class Shared:
    """Rows of work and states that the plans of a batch share, and each plan's rows."""

    work: StageWork
    row: IntArray
    state: StateTables
    state_row: IntArray


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
class Tails:
    """Data-parallel exchange that stays exposed: inside passes (ZeRO 3) and after the last one; [plans, runs]."""

    forward_s: FloatArray
    backward_s: FloatArray
    after_s: FloatArray


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


def make_context(problem: Problem, batch: PlanBatch, splits: SplitTable, network: Network) -> tuple[Context, IntArray]:
    """The context for a batch, and each plan's operator key."""
    grounds = grounds_of(problem, network)
    keys, key = operator_keys(problem, batch)
    used = None if splits.area is None else np.isin(np.arange(len(grounds)), splits.area)
    context = Context(
        problem=problem,
        machine=grounds[0].machines[0],
        network=network,
        grounds=grounds,
        keys=keys,
        tables=joined_tables(problem.graph, keys, grounds, used),
        splits=splits,
        uneven=uneven_splits(splits.splits),
    )
    return context, key


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


def shared_rows(context: Context, batch: PlanBatch, key: IntArray, runs: int) -> Shared:
    """Distinct rows of work (by key and split) and of states (by what shards and splits parameters)."""
    first, row = distinct(key, batch.split)
    work = stage_work(key[first], batch.split[first], context.tables, context.splits, runs)
    single = (batch.micro_batches == 1).astype(np.int64)
    columns = (batch.tp, batch.cp, batch.ep, batch.etp, batch.split, batch.dp, batch.dp_replicate, batch.zero, single)
    one, state_row = distinct(*columns)
    some = batch.take(one)
    own = held(some, key[one], context.tables, context.splits, runs)
    state = states(some, own, context.problem, context.grounds, context.splits.standing(some.split, runs))
    return Shared(work=work, row=row, state=state, state_row=state_row)


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


def expert_exchange_s(shared: Shared) -> FloatArray:
    """Exposed expert exchange of one micro-batch, both ways, [plans, runs]."""
    work = shared.work
    return np.asarray((work.exposed_forward_s + work.exposed_backward_s)[shared.row, :, EXPERTS])


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
