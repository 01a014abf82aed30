"""The program: one choice a chunk so that the longest row is least.

    Σ_e x[s, e] = 1                                  every chunk s has one choice e
    Σ_e [next place of e = o] x[s, e] = Σ_e [place of e = o] x[s + 1, e]       choices follow one another
    Σ_{s, e} layers(e)·x[s, e] = L
    Σ_v y[r, v] = 1, Σ_{s on r, e} kinds(e)·x[s, e] = Σ_v kinds(v)·y[r, v]     what rank r holds, where it has several chunks
    T >= Σ_{s, e} row(s, e)·x[s, e] + tails          for every row
    minimise T < limit

Coefficients are whole numbers of a unit, rounded down, so that the solver's bound is one of every division. Memory is in the
menu: choices that do not fit are not there. CP-SAT, one thread, a deterministic limit: the same input gives the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.planner.plans import FloatArray, IntArray
from shardwright.planner.search.stages.clock import ENDLESS, Clock
from shardwright.planner.search.stages.menu import Menu
from shardwright.planner.search.stages.rows import Chains

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

UNITS = 5 * 10**6
"""Units of time in the limit: rounding down loses at most a unit for each chunk and rank of a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What the program found.

    Attributes:
        choices: one choice a chunk, [chunks]; None where none was found.
        bound_s: no division takes less, or the limit where none takes less than that.
        finished: whether the solver was not stopped by its limit.
        work: deterministic seconds it took.
        variables, rows: size of the program.
    """

    choices: IntArray | None
    bound_s: float
    finished: bool
    work: float
    variables: int
    rows: int


def coefficients(menu: Menu, chains: Chains) -> tuple[FloatArray, FloatArray]:
    """Seconds that each choice, and each set, adds to each row, [rows, choices] and [rows, sets]."""
    n = menu.chunks
    forward, input_, weight = (chains.counts[:, at * n : (at + 1) * n] for at in range(3))
    tail = chains.counts[:, 3 * n :]
    made = forward[:, menu.chunk] * menu.forward_s + input_[:, menu.chunk] * menu.input_s
    made = made + weight[:, menu.chunk] * menu.weight_s
    if len(menu.set_rank):
        return made, tail[:, menu.set_rank] * menu.tail_s
    return made + tail[:, menu.ranks[menu.chunk]] * menu.tail_s, np.zeros((len(made), 0))


def solve(
    menu: Menu, chains: Chains, limit_s: float, *, effort: float, hint: IntArray | None = None, clock: Clock = ENDLESS
) -> Solved:
    """Solves the program.

    Args:
        menu: choices.
        chains: rows.
        limit_s: solutions of less are looked for.
        effort: deterministic seconds at most.
        hint: choices of a known division.
        clock: wall-clock time that is left.
    """
    from ortools.sat.python import cp_model

    unit = limit_s / UNITS
    model = cp_model.CpModel()
    x = [model.new_bool_var("") for _ in range(len(menu.chunk))]
    y = [model.new_bool_var("") for _ in range(len(menu.set_rank))]
    step = model.new_int_var(0, UNITS - 1, "")
    _divide(model, menu, x)
    _gather(model, menu, x, y)
    of_choice, of_set = (np.floor(part / unit).astype(np.int64) for part in coefficients(menu, chains))
    total = cp_model.LinearExpr.weighted_sum
    for row, more in zip(of_choice, of_set, strict=True):
        model.add(total(x, row) + total(y, more) <= step if y else total(x, row) <= step)
    model.minimize(step)
    for variable in hint.tolist() if hint is not None else ():
        model.add_hint(x[variable], 1)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.catch_sigint_signal = False  # its handler would leave the one that kills behind
    solver.parameters.max_deterministic_time = effort
    if clock.deadline is not None:
        solver.parameters.max_time_in_seconds = clock.left_s
    status = solver.solve(model)
    finished = status in {cp_model.OPTIMAL, cp_model.INFEASIBLE}
    known = status in {cp_model.OPTIMAL, cp_model.FEASIBLE}
    choices = np.array([at for at, v in enumerate(x) if solver.value(v)], dtype=np.int64) if known else None
    bound = limit_s if status == cp_model.INFEASIBLE else max(solver.best_objective_bound, 0.0) * unit
    return Solved(
        choices=choices,
        bound_s=min(bound, limit_s),
        finished=finished,
        work=float(solver.response_proto.deterministic_time),
        variables=len(x) + len(y) + 1,
        rows=len(of_choice),
    )


def _divide(model: cp_model.CpModel, menu: Menu, x: list[Any]) -> None:
    """One choice a chunk, each beginning where the one before ends, all layers together."""
    by_chunk = [np.flatnonzero(menu.chunk == chunk).tolist() for chunk in range(menu.chunks)]
    for members in by_chunk:
        model.add_exactly_one([x[e] for e in members])
    for before, after in pairwise(by_chunk):
        places = sorted({int(menu.next_place[e]) for e in before} | {int(menu.place[e]) for e in after})
        for place in places if len(places) > 1 else ():
            ends = [x[e] for e in before if menu.next_place[e] == place]
            begins = [x[e] for e in after if menu.place[e] == place]
            model.add(sum(ends) == sum(begins))
    _weighted(model, x, menu.held, menu.layers)


def _gather(model: cp_model.CpModel, menu: Menu, x: list[Any], y: list[Any]) -> None:
    """What each rank holds is one of its sets."""
    if not y:
        return
    rank = menu.ranks[menu.chunk]
    for r in range(menu.pp):
        mine, sets = np.flatnonzero(rank == r), np.flatnonzero(menu.set_rank == r)
        model.add_exactly_one([y[v] for v in sets.tolist()])
        for kind in range(menu.kinds.shape[1]):
            variables = [x[e] for e in mine.tolist()] + [y[v] for v in sets.tolist()]
            _weighted(model, variables, np.concatenate((menu.kinds[mine, kind], -menu.set_kinds[sets, kind])), 0)


def _weighted(model: cp_model.CpModel, variables: list[Any], weights: IntArray, total: int) -> None:
    from ortools.sat.python import cp_model

    model.add(cp_model.LinearExpr.weighted_sum(variables, weights) == total)
