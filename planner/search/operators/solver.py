"""The integer program in HiGHS through MathOpt: one thread, deterministic, its bound reported.

    x[n, c]      one choice of every node                                    Σ_c x = 1
    e[r, p, q]   reader r gets a tensor from layout p in layout q            Σ_q e = Σ of the writer's choices that write p
                                                                             Σ_p e = Σ of the reader's choices that read q
    u[t, p, q]   tensor t is brought from p to q at all                      u >= e of every reader (one reader: u = e)
    V, W         exposed exchange of a pass (`amounts`), T the largest transient, L what is made again at once

    minimise time, subject to states + in-flight · saved + T <= budget

With x whole, e is whole by itself (a transport of one unit), so that only x is declared whole. The linear program is solved
first: its value is the bound that is printed, and where its solution is whole already, it is the answer.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.planner.search.operators import amounts as a
from shardwright.planner.search.operators.program import Program, Tensor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WHOLE_WITHIN = 1e-6
GAP = 1e-9
SCALE_S = 1e-6
"""The unit of time inside the program, so that coefficients are neither tiny nor huge; that of memory is `SCALE_BYTES`."""
SCALE_BYTES = 2.0**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What was found.

    Attributes:
        choice: of every node; None where nothing fits.
        time_s: of the choice, by `Program.total_s`.
        lp_bound_s: value of the linear program.
        bound_s: proven: no choice is faster.
        proven: whether the choice is optimal (within the gap, and 1e-6 for rounding).
        whole_lp: whether the linear program's solution was whole.
        solve_s, build_s: processor seconds.
    """

    choice: tuple[int, ...] | None
    time_s: float | None
    lp_bound_s: float | None
    bound_s: float | None
    proven: bool
    whole_lp: bool
    solve_s: float
    build_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """When a search may stop.

    Attributes:
        limit_s: wall seconds.
        gap: relative.
        nodes: of the search tree; None for no limit.
        aim: what is minimised: "time" within the budget, or "memory".
    """

    limit_s: float = 60.0
    gap: float = GAP
    nodes: int | None = None
    aim: str = "time"


def solve(program: Program, effort: Effort = Effort()) -> Solution:
    """The fastest choice within the budget, or the one of least memory.

    Args:
        program: nodes and tensors.
        effort: when to stop, and what to minimise. Bounds are of time: they are None where memory is minimised.
    """
    start = time.process_time()
    rows = _Rows.of(program, effort.aim)
    model = rows.model()
    built = time.process_time()
    _close(model, rows, effort)
    relaxed = _run(model, None, effort)
    answer = Solution(
        choice=None,
        time_s=None,
        lp_bound_s=None,
        bound_s=None,
        proven=False,
        whole_lp=False,
        solve_s=0.0,
        build_s=built - start,
    )
    if relaxed.values is None:
        return replace(answer, proven=relaxed.infeasible, solve_s=time.process_time() - built)
    x = relaxed.values[: rows.choices]
    whole = bool((np.minimum(x, 1.0 - x) < WHOLE_WITHIN).all())
    found = relaxed if whole else _run(model, rows.choices, effort)
    timed = effort.aim == "time"
    answer = replace(answer, lp_bound_s=relaxed.bound * SCALE_S if timed else None, whole_lp=whole)
    if found.values is None:
        return replace(answer, proven=found.infeasible, solve_s=time.process_time() - built)
    choice = rows.choice_of(found.values)
    total = program.total_s(choice)
    answer = replace(answer, choice=choice, time_s=total, solve_s=time.process_time() - built)
    if not timed:
        return answer
    bound = found.bound * SCALE_S
    return replace(answer, bound_s=min(bound, total), proven=total - bound <= (effort.gap + 1e-6) * total)


def _close(model: Any, rows: _Rows, effort: Effort) -> None:
    """Forbids choices whose transient alone is more than the budget leaves beside the least that is kept in any case.

    The least comes from a linear program, so that nothing that fits is lost; the program that is left is much tighter.
    """
    program = rows.program
    if effort.aim != "time" or not np.isfinite(program.pricing.budget_bytes):
        return
    objective = list(model.objective.linear_coefficients.ids), list(model.objective.linear_coefficients.values)
    index, cost = rows.held()
    if len(program.weights) == 1:  # what is made again is alive with every transient
        index, cost = np.append(index, rows.extra["L0"]), np.append(cost, 1.0)
    _set_objective(model, index, cost)
    least = _run(model, None, effort)
    if least.values is not None:
        transient = np.concatenate([node.costs[:, a.TRANSIENT] for node in program.nodes])
        over = transient > program.pricing.budget_bytes * (1 + 1e-9) - least.bound * SCALE_BYTES
        bounds = np.where(over, 0.0, 1.0).tolist()
        model.variables.upper_bounds[: rows.choices] = bounds
    _set_objective(model, np.array(objective[0], dtype=np.int64), np.array(objective[1]))


def _set_objective(model: Any, index: Ints, cost: Floats) -> None:
    _, at, cost = _merged(np.zeros(len(index), dtype=np.int64), index, cost)
    del model.objective.linear_coefficients.ids[:]
    del model.objective.linear_coefficients.values[:]
    model.objective.linear_coefficients.ids.extend(at.tolist())
    model.objective.linear_coefficients.values.extend(cost.tolist())


@dataclass(slots=True, kw_only=True)
class _Rows:
    """The program as triplets.

    Columns: x of all nodes, e of all readers of all tensors, u of tensors with several readers, then V, W of both passes, T, L.
    """

    program: Program
    first: Ints
    choices: int
    lower: list[Floats] = field(default_factory=list)
    upper: list[Floats] = field(default_factory=list)
    row: list[Ints] = field(default_factory=list)
    column: list[Ints] = field(default_factory=list)
    value: list[Floats] = field(default_factory=list)
    costs: list[tuple[int, Ints, Floats]] = field(default_factory=list)
    rows: int = 0
    columns: int = 0
    extra: dict[str, int] = field(default_factory=dict)
    bounded: int = 0
    aim: str = "time"

    @staticmethod
    def of(program: Program, aim: str) -> _Rows:
        """All rows and columns of a program."""
        counts = [len(n.costs) for n in program.nodes]
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        made = _Rows(program=program, first=first, choices=int(first[-1]), columns=int(first[-1]), aim=aim)
        for at, node in enumerate(program.nodes):
            made.costs.append((node.section, made.of_node(at), node.weight * node.costs))
        made.add(1.0, 1.0, np.repeat(np.arange(len(counts)), counts), np.arange(made.choices), np.ones(made.choices))
        for tensor in program.tensors:
            made.flow(tensor)
        made.bounded = made.columns
        for section in range(len(program.weights)):
            for way in (0, 1):
                made.exposed(section, way)
        made.memory()
        return made

    def of_node(self, node: int) -> Ints:
        """Columns of a node's choices."""
        return np.arange(self.first[node], self.first[node + 1])

    def add(self, low: float, high: float, row: Ints, column: Ints, value: Floats) -> None:
        """Rows, numbered from 0, all with the same bounds."""
        count = int(row.max()) + 1
        self.lower.append(np.full(count, low))
        self.upper.append(np.full(count, high))
        self.row.append(row + self.rows)
        self.column.append(column)
        self.value.append(value)
        self.rows += count

    def flow(self, tensor: Tensor) -> None:
        """Pairs of layouts of every reader, and of the tensor."""
        written, read, _ = tensor.costs.shape
        pair = np.arange(written * read)
        starts = []
        for reader in tensor.readers:
            start = self.columns
            self.columns += written * read
            starts.append(start)
            sides = ((pair // read, tensor.writer, tensor.written), (pair % read, reader.node, reader.layout))
            for side, node, layout in sides:
                column = np.concatenate([start + pair, self.of_node(node)])
                value = np.concatenate([np.ones(len(pair)), -np.ones(len(layout))])
                self.add(0.0, 0.0, np.concatenate([side, layout]), column, value)
        used = starts[0] + pair
        if len(starts) > 1:
            used = self.columns + pair
            self.columns += written * read
            for start in starts:
                both = np.concatenate([pair, pair])
                value = np.concatenate([np.ones(len(pair)), -np.ones(len(pair))])
                self.add(0.0, np.inf, both, np.concatenate([used, start + pair]), value)
        section = self.program.nodes[tensor.writer].section
        self.costs.append((section, used, tensor.weight * tensor.costs.reshape(written * read, -1)))

    def totals(self, columns: list[tuple[int, float]], section: int | None = None) -> tuple[Ints, Floats]:
        """Coefficients of a weighted sum of cost columns, of one section or of all."""
        parts = [(at, costs) for owner, at, costs in self.costs if section is None or owner == section]
        index = np.concatenate([at for at, _ in parts])
        value = np.concatenate([np.sum([share * costs[:, c] for c, share in columns], axis=0) for _, costs in parts])
        kept = value != 0
        return index[kept], value[kept]

    def single(self, low: float, high: float, parts: list[tuple[Ints, Floats]]) -> None:
        """One row."""
        column = np.concatenate([c for c, _ in parts])
        value = np.concatenate([v for _, v in parts])
        self.add(low, high, np.zeros(len(column), dtype=np.int64), column, value)

    def one(self, name: str, value: float) -> tuple[Ints, Floats]:
        """An extra column, made where it is new, with a coefficient."""
        if name not in self.extra:
            self.extra[name] = self.columns
            self.columns += 1
        return np.array([self.extra[name]]), np.array([value])

    def exposed(self, section: int, way: int) -> None:
        """V and W of a pass through a section."""
        compute, _, each, once = a.PASSES[way]
        pricing, unit = self.program.pricing, 1.0 / SCALE_S
        share = 1.0 - pricing.interference
        v, w = f"V{way}.{section}", f"W{way}.{section}"
        hidden = self.totals([(compute, unit), (each, -unit)], section)
        self.single(0.0, np.inf, [self.one(v, 1.0), hidden])
        floor = self.totals([(once, -pricing.floor * unit)], section)
        self.single(0.0, np.inf, [self.one(w, 1.0), self.one(v, -share), floor])
        late = self.totals([(compute, share * unit), (each, -share * unit), (once, -unit)], section)
        self.single(0.0, np.inf, [self.one(w, 1.0), late])

    def memory(self) -> None:
        """Transient of every node, what is made again in its layer, and the budget."""
        pricing, unit, weights = self.program.pricing, 1.0 / SCALE_BYTES, self.program.weights
        if not np.isfinite(pricing.budget_bytes) and self.aim == "time":
            return
        for section, weight in enumerate(weights):
            gone = self.totals([(a.DROPPED, -unit / weight)], section)
            self.single(0.0, np.inf, [self.one(f"L{section}", 1.0), gone])
        for at, node in enumerate(self.program.nodes):
            made = (self.of_node(at), -unit * node.costs[:, a.TRANSIENT])
            self.single(0.0, np.inf, [self.one("T", 1.0), self.one(f"L{node.section}", -1.0), made])
        held = self.held()
        if np.isfinite(pricing.budget_bytes):
            self.single(-np.inf, pricing.budget_bytes * unit, [self.one("T", 1.0), held])

    def held(self) -> tuple[Ints, Floats]:
        """Coefficients of states and activations kept."""
        return self.totals([(a.STATES, 1.0 / SCALE_BYTES), (a.SAVED, self.program.pricing.in_flight / SCALE_BYTES)])

    def objective(self) -> tuple[Ints, Floats]:
        """Coefficients of time, or of memory."""
        pricing, unit = self.program.pricing, 1.0 / SCALE_S
        if self.aim != "time":
            index, value = self.held()
            return np.append(index, self.extra["T"]), np.append(value, 1.0)
        mixed = [(c, unit) for way in a.PASSES for c in way[:2]] + [(way[2], unit * pricing.interference) for way in a.PASSES]
        index, value = self.totals(mixed)
        passes = float(pricing.micro_batches)
        shares = {"V": (1.0 - pricing.interference) * (passes - 1.0) / passes, "W": 1.0 / passes}
        extra = [(at, shares[name[0]]) for name, at in self.extra.items() if name[0] in shares]
        index = np.concatenate([index, np.array([c for c, _ in extra], dtype=np.int64)])
        return index, np.concatenate([value, np.array([v for _, v in extra])])

    def choice_of(self, values: Floats) -> tuple[int, ...]:
        """The choice of every node."""
        return tuple(int(np.argmax(values[self.of_node(at)])) for at in range(len(self.program.nodes)))

    def model(self) -> Any:
        """The MathOpt proto, all columns continuous."""
        from ortools.math_opt import model_pb2  # type: ignore[import-untyped]

        made = model_pb2.ModelProto()
        made.variables.ids.extend(range(self.columns))
        made.variables.lower_bounds.extend([0.0] * self.columns)
        made.variables.upper_bounds.extend([1.0] * self.bounded + [float("inf")] * (self.columns - self.bounded))
        made.variables.integers.extend([False] * self.columns)
        made.linear_constraints.ids.extend(range(self.rows))
        made.linear_constraints.lower_bounds.extend(np.concatenate(self.lower).tolist())
        made.linear_constraints.upper_bounds.extend(np.concatenate(self.upper).tolist())
        row, column, value = _merged(np.concatenate(self.row), np.concatenate(self.column), np.concatenate(self.value))
        made.linear_constraint_matrix.row_ids.extend(row.tolist())
        made.linear_constraint_matrix.column_ids.extend(column.tolist())
        made.linear_constraint_matrix.coefficients.extend(value.tolist())
        _set_objective(made, *self.objective())
        return made


def _merged(row: Ints, column: Ints, value: Floats) -> tuple[Ints, Ints, Floats]:
    """Triplets by row and column, equal places added up, zeros left out."""
    width = int(column.max(initial=0)) + 1
    place, inverse = np.unique(row * width + column, return_inverse=True)
    total = np.bincount(inverse.reshape(-1), weights=value, minlength=len(place))
    kept = total != 0
    return place[kept] // width, place[kept] % width, total[kept]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    values: Floats | None
    bound: float
    infeasible: bool


def _run(model: Any, whole: int | None, effort: Effort) -> _Run:
    """Solves the model, the first columns whole, or none."""
    import datetime

    from ortools.math_opt.python import mathopt  # type: ignore[import-untyped]

    parameters = mathopt.SolveParameters(time_limit=datetime.timedelta(seconds=effort.limit_s))
    if whole is not None:
        model.variables.integers[:whole] = [True] * whole
        parameters.relative_gap_tolerance, parameters.absolute_gap_tolerance = effort.gap, 0.0
        parameters.node_limit = effort.nodes
    with _standard_output_kept():
        result = mathopt.solve(mathopt.Model.from_model_proto(model), mathopt.SolverType.HIGHS, params=parameters)
    reason = result.termination.reason
    infeasible = reason in {mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED}
    if not result.solutions or result.solutions[0].primal_solution is None:
        return _Run(values=None, bound=float("-inf"), infeasible=infeasible)
    values = np.array(list(result.solutions[0].primal_solution.variable_values.values()))
    return _Run(values=values, bound=float(result.termination.objective_bounds.dual_bound), infeasible=False)


@contextmanager
def _standard_output_kept() -> Iterator[None]:
    """HiGHS writes to the C standard output: meanwhile that leads to standard error."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # closed by the caller
        yield
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
