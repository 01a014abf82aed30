"""One candidate: its best division of layers, and a bound of all of them.

    solve the program -> price its division by `cost.pricing.price` -> add the chain that was longest there -> solve again

Every chain is a row that no step undercuts and the longest one is exact at the times it was found at, so the program's least step
rises to the least price. The candidate is done when its bound meets the best price known, when the same division comes
again (its row is there already: rounding, or times that are not exact), or after `ROUNDS` or the given effort.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.planner.cost.pricing import FOLDED, Context, price
from shardwright.planner.cost.stages import Split, fold
from shardwright.planner.plans import FloatArray, IntArray, PlanBatch
from shardwright.planner.schedules.registry import SCHEDULE_IDS, SCHEDULES
from shardwright.planner.schedules.shape import Shape
from shardwright.planner.schedules.timing import ChunkTimes, chunk_times
from shardwright.planner.search.stages.menu import Menu, menu_of
from shardwright.planner.search.stages.program import solve
from shardwright.planner.search.stages.rows import Chains, first_chains, longest

ROUNDS = 40
"""Programs solved for one candidate at most."""

OPERATIONS = 2.0e7
"""Operations of a pipeline gone through in about a second, to count pricing as work."""

BUILDING = 2.0e-5
"""Work of building a program, a variable and row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is known of a candidate.

    Attributes:
        chunks: its best division found, layers of each chunk; None where none beats the limit.
        step_s: the price of that; infinite without one.
        bound_s: no division of the candidate takes less; the limit where none takes less than that.
        work: deterministic seconds.
        rows: chains found to be longest, [rows, columns].
        programs: programs solved.
        variables: of the largest of them.
    """

    chunks: tuple[int, ...] | None
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
    plan: PlanBatch,
    key: IntArray,
    limit_s: float,
    *,
    tied_s: float = 0.0,
    chains: Chains | None = None,
    effort: float = 1.0,
    within: float = 0.0,
) -> Found:
    """The best division of the layers of one plan that fits and takes less than a limit.

    Args:
        context: tables and network.
        plan: one plan, whose division is of no matter.
        key: its operator key, [1].
        limit_s: step to beat.
        tied_s: what the plan's step takes beyond its pipeline (tied embeddings).
        chains: rows known for its shape.
        effort: deterministic seconds at most.
        within: relative gap at which to stop.
    """
    none = np.zeros((0, 0))
    menu = menu_of(context, plan, key, limit_s - tied_s)
    if menu is None:
        return Found(chunks=None, step_s=np.inf, bound_s=limit_s, work=0.002, rows=none, programs=0, variables=0)
    shape = shape_of(plan)
    if np.isinf(limit_s):
        longest = np.bincount(menu.chunk, weights=menu.forward_s + menu.input_s + menu.weight_s)
        limit_s = tied_s + float(longest.sum() * (shape.micro_batches + shape.pp) + menu.tail_s.max())
    made = chains or first_chains(shape, *(float(np.median(t)) for t in (menu.forward_s, menu.input_s, menu.weight_s)))
    return _rounds(context, plan, key, menu, shape, made, limit_s, tied_s, effort, within)


def _rounds(
    context: Context,
    plan: PlanBatch,
    key: IntArray,
    menu: Menu,
    shape: Shape,
    chains: Chains,
    limit_s: float,
    tied_s: float,
    effort: float,
    within: float,
) -> Found:
    """Solves, prices and adds rows until the bound meets the best."""
    best: tuple[float, tuple[int, ...] | None] = (np.inf, None)
    bound, work, programs, hint = 0.0, 0.0, 0, None
    seen: set[tuple[int, ...]] = set()
    added = []
    each = operations(plan) / OPERATIONS
    while programs < ROUNDS and work < effort:
        cap = min(limit_s, best[0]) - tied_s
        solved = solve(menu, chains, cap, effort=effort - work, hint=hint)
        programs += 1
        work += solved.work + BUILDING * solved.variables + each
        bound = max(bound, solved.bound_s)
        if solved.choices is None:
            break
        chunks = tuple(menu.held[solved.choices].tolist())
        if chunks in seen:
            break
        seen.add(chunks)
        step, peak = price_division(context, plan, key, chunks)
        if step < best[0] and peak <= context.problem.device.memory_bytes:
            best, hint = (step, chunks), solved.choices
        rows = longest(shape, times_of(menu, solved.choices, shape))
        added.append(rows)
        chains = chains.with_rows(rows)
        if bound + tied_s >= (1 - within) * min(best[0], limit_s):
            break
    rows = np.concatenate(added) if added else np.zeros((0, chains.counts.shape[1]))
    return Found(
        chunks=best[1],
        step_s=best[0],
        bound_s=min(bound + tied_s, limit_s, best[0]),
        work=work,
        rows=np.concatenate((chains.counts, rows)),
        programs=programs,
        variables=len(menu.chunk) + len(menu.set_rank) + 1,
    )


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


def price_division(context: Context, plan: PlanBatch, key: IntArray, chunks: tuple[int, ...]) -> tuple[float, float]:
    """Step and peak of a plan with a division, as printed."""
    split = Split(chunks=chunks, pp=int(plan.pp[0]), vpp=int(plan.vpp[0]), folded=bool(FOLDED[plan.schedule[0]]))
    table = fold(context.problem.graph, [split])
    one = replace(plan, split=np.zeros(1, dtype=np.int64))
    made = price(replace(context, splits=table, uneven={}), one, key, exact=True)
    return float(made.step_s[0]), float(made.peak_bytes[0])
