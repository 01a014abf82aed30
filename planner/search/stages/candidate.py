"""One candidate: its best division of layers, and a bound of all of them.

    solve the program -> price its division by `cost.pricing.price` -> add the chain that was longest there -> solve again

Every chain is a row that no step undercuts and the longest one is exact at the times it was found at, so the program's least
step rises to the least price. The candidate is done when its bound meets the best price known, when the same division comes
again (its row is there already: rounding, or times that are not exact), or after `ROUNDS` or the given effort.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.planner.cost.context import Context
from shardwright.planner.cost.pricing import price
from shardwright.planner.cost.stages import Split, fold
from shardwright.planner.plans import FloatArray, IntArray, PlanBatch
from shardwright.planner.schedules.registry import FOLDED, SCHEDULE_IDS
from shardwright.planner.schedules.shape import Shape
from shardwright.planner.schedules.timing import ChunkTimes, chunk_times
from shardwright.planner.search.stages.clock import ENDLESS, Clock
from shardwright.planner.search.stages.menu import Menu, menu_of
from shardwright.planner.search.stages.program import coefficients, solve
from shardwright.planner.search.stages.rows import Chains, first_chains, longest

ROUNDS = 40
"""Programs solved for one candidate at most."""

TOWARDS_EVEN = (0.0, 0.3, 0.6, 0.85)
"""How far towards equal chunks lie the times whose longest chains are added."""

ACTIVE, ADDED = 24, 8
"""Rows of the first program beside two a rank, and rows of the pool added at once."""

OPERATIONS, LOOKING, BUILDING, BUILT, SOLVING = 2.0e7, 0.002, 0.008, 5e-7, 1.3
"""What counts as a deterministic second, as measured to be about one of a core: operations of pipelines priced and traced; and
seconds for the menu of a plan, for a program, for a variable in a row of it, and for one that the solver counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is known of a candidate.

    Attributes:
        chunks: its best division found, layers of each chunk; None where none beats the limit.
        which: whose of the plans it is.
        step_s: the price of that; infinite without one.
        bound_s: no division of the candidate takes less; the limit where none takes less than that.
        work: deterministic seconds.
        rows: chains found to be longest, [rows, columns].
        programs: programs solved.
        variables: of the largest of them.
    """

    chunks: tuple[int, ...] | None
    which: int
    step_s: float
    bound_s: float
    work: float
    rows: FloatArray
    programs: int
    variables: int


def shape_of(plan: PlanBatch) -> Shape:
    """Shape of the pipeline of one plan."""
    return Shape(
        schedule=SCHEDULE_IDS[int(plan.schedule[0])],
        pp=int(plan.pp[0]),
        vpp=int(plan.vpp[0]),
        micro_batches=int(plan.micro_batches[0]),
    )


def best_division(
    context: Context,
    plans: PlanBatch,
    key: IntArray,
    limit_s: float,
    *,
    tied_s: float = 0.0,
    chains: Chains | None = None,
    effort: float = 1.0,
    clock: Clock = ENDLESS,
) -> Found:
    """The best division of the layers of one plan that fits and takes less than a limit.

    Args:
        context: tables and network.
        plans: one plan, whose division is of no matter; or several as `menu_of` takes them, for a bound of all of them.
        key: operator key of each.
        limit_s: step to beat.
        tied_s: what the plan's step takes beyond its pipeline (tied embeddings).
        chains: rows known for its shape.
        effort: deterministic seconds at most.
        clock: wall-clock time that is left.
    """
    none = np.zeros((0, 0))
    menu, plan = menu_of(context, plans, key, limit_s - tied_s), plans.take(np.zeros(1, dtype=np.int64))
    if menu is None:
        work = LOOKING * len(plans)
        return Found(chunks=None, which=0, step_s=np.inf, bound_s=limit_s, work=work, rows=none, programs=0, variables=0)
    shape = shape_of(plan)
    if np.isinf(limit_s):
        longest = np.bincount(menu.chunk, weights=menu.forward_s + menu.input_s + menu.weight_s)
        limit_s = tied_s + float(longest.sum() * (shape.micro_batches + shape.pp) + menu.tail_s.max())
    made = chains or first_chains(shape, *(float(np.median(t)) for t in (menu.forward_s, menu.input_s, menu.weight_s)))
    return _rounds(context, plans, key, menu, made, (limit_s, tied_s, effort, clock))


def _rounds(
    context: Context, plans: PlanBatch, key: IntArray, menu: Menu, chains: Chains, limits: tuple[float, float, float, Clock]
) -> Found:
    """Solves, prices and adds rows until the bound meets the best."""
    limit_s, tied_s, effort, clock = limits
    shape, pool = shape_of(plans), chains
    active = _first_rows(menu, pool)
    best: tuple[float, tuple[int, ...] | None, int] = (np.inf, None, 0)
    bound, work, programs, hint = 0.0, LOOKING * len(plans), 0, None
    seen: set[tuple[int, ...]] = set()
    while programs < ROUNDS and work < effort and not clock.expired:
        beat_s, left = min(limit_s, best[0]) - tied_s, (effort - work) / SOLVING
        solved = solve(menu, active, beat_s, effort=left, hint=hint, clock=clock)
        programs, bound = programs + 1, max(bound, solved.bound_s)
        work += SOLVING * solved.work + BUILDING + BUILT * solved.variables * solved.rows
        if solved.choices is None or bound + tied_s >= min(best[0], limit_s):
            break
        times = times_of(menu, solved.choices, shape)
        longer = _longer_rows(pool, active, times)
        chunks = tuple(menu.held[solved.choices].tolist())
        if chunks in seen:
            if len(longer.counts) == len(active.counts):
                break
            active = longer
            continue
        seen.add(chunks)
        steps = price_division(context, plans, key, chunks)
        work += operations(plans) / OPERATIONS
        if steps.min() < best[0]:
            best, hint = (float(steps.min()), chunks, int(steps.argmin())), solved.choices
        rows = longest(shape, _between(times))
        pool, active = pool.with_rows(rows), longer.with_rows(rows)
    return Found(
        chunks=best[1],
        which=best[2],
        step_s=best[0],
        bound_s=min(bound + tied_s, limit_s, best[0]),
        work=work,
        rows=pool.counts,
        programs=programs,
        variables=len(menu.chunk) + len(menu.set_rank) + 1,
    )


def _first_rows(menu: Menu, pool: Chains) -> Chains:
    """The rows to begin with: those that are longest when every choice of a chunk is as likely."""
    of_choice, of_set = coefficients(menu, pool)
    likely = 1.0 / np.bincount(menu.chunk)[menu.chunk]
    length = of_choice @ likely
    if len(menu.set_rank):
        length = length + of_set @ (1.0 / np.bincount(menu.set_rank)[menu.set_rank])
    order = np.argsort(-length, kind="stable")[: ACTIVE + 2 * menu.pp]
    return Chains(counts=pool.counts[np.sort(order)])


def _longer_rows(pool: Chains, active: Chains, times: ChunkTimes) -> Chains:
    """With the rows of the pool that are longer at some times than all active ones, the longest few."""
    reached = float(active.length_s(times).max())
    lengths = pool.length_s(times)[0]
    order = np.argsort(-lengths, kind="stable")[:ADDED]
    return active.with_rows(pool.counts[order[lengths[order] > reached]])


def _between(times: ChunkTimes) -> ChunkTimes:
    """Times of a division, and those on the way from it to equal chunks: their longest chains hold nearby divisions off too."""
    parts = []
    for part in (times.forward_s, times.input_s, times.weight_s):
        even = np.full_like(part, part.mean())
        parts.append(np.concatenate([part + share * (even - part) for share in TOWARDS_EVEN]))
    return chunk_times(*parts, pp=times.tail_s.shape[1], tail_s=np.repeat(times.tail_s, len(TOWARDS_EVEN), axis=0))


def operations(plan: PlanBatch) -> float:
    """Operations of one plan's pipeline."""
    return float(plan.pp[0] * plan.vpp[0] * plan.micro_batches[0] * 3)


def times_of(menu: Menu, choices: IntArray, shape: Shape) -> ChunkTimes:
    """Times of a division as the menu has them."""
    order = np.argsort(menu.chunk[choices])
    chosen = choices[order]
    if len(menu.set_rank) == 0:
        tail = menu.tail_s[chosen]
    else:
        held = np.zeros((menu.pp, menu.kinds.shape[1]), dtype=np.int64)
        np.add.at(held, menu.ranks[menu.chunk[chosen]], menu.kinds[chosen])
        same = (menu.set_kinds == held[menu.set_rank]).all(axis=1)
        tail = np.zeros(menu.pp)
        tail[menu.set_rank[same]] = menu.tail_s[same]
    parts = (t[chosen][None] for t in (menu.forward_s, menu.input_s, menu.weight_s))
    return chunk_times(*parts, pp=shape.pp, tail_s=tail[None])


def price_division(context: Context, plans: PlanBatch, key: IntArray, chunks: tuple[int, ...]) -> FloatArray:
    """Steps of plans with a division, as printed; infinite where it does not fit, [plans]."""
    split = Split(chunks=chunks, pp=int(plans.pp[0]), vpp=int(plans.vpp[0]), folded=bool(FOLDED[plans.schedule[0]]))
    table = fold(context.problem.graph, [split])
    some = replace(plans, split=np.zeros(len(plans), dtype=np.int64))
    made = price(replace(context, splits=table, uneven={}), some, key, exact=True)
    return np.where(made.fits, made.step_s, np.inf)
