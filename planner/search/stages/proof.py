"""The proof: families of a scan in waves, best bound first, until what is left cannot hold a better plan.

Tasks (`tasks`) whose bound reaches (1 − gap) of the best step known are never solved. The others are solved a wave at a time;
only between waves do they learn of a better plan and of each other's rows, so that the result does not depend on how many
are solved at once. A task that its effort stopped keeps the bound it reached and is solved again with more, while there is any.

    lower bound = min over all tasks of their bounds, and over the candidates that nobody divides of their least step
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from shardwright.planner.cost.context import Context
from shardwright.planner.schedules.shape import Shape
from shardwright.planner.search.scan import Scan
from shardwright.planner.search.stages.clock import ENDLESS, Clock
from shardwright.planner.search.stages.freedom import Freedom, families_of
from shardwright.planner.search.stages.rows import Chains
from shardwright.planner.search.stages.tasks import (
    Divided,
    Families,
    Job,
    Solution,
    Task,
    apart,
    shape_of_task,
    solve_task,
    tasks_of,
)

WAVE = 8
"""Tasks solved between two exchanges of what was found."""

EFFORTS = (0.4, 2.0, 10.0, 50.0)
"""Deterministic seconds of a task, each time it is taken up."""

FINE = 1e-4
"""Relative gap to go on to where that takes little."""

MOST_ROWS = 300
"""Rows kept for a shape; those found last are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When to stop.

    Attributes:
        gap: relative gap at which the search is done.
        effort: deterministic seconds in all.
        fine: deterministic seconds up to which to go on to `FINE` when the gap is reached.
        clock: wall-clock time that is left.
    """

    gap: float
    effort: float
    fine: float = 0.0
    clock: Clock = ENDLESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What dividing found.

    Attributes:
        plans: plans better than all known when they were found, in that order.
        bound_s: no plan of a task takes less; infinite where there is no task.
        stopped: None where the gap was reached, else effort_limit, time_limit or interrupted.
        families, tasks, solved, programs: how many there were, and how many of them were looked at.
        variables: of the largest program.
        work: deterministic seconds.
    """

    plans: tuple[Divided, ...]
    bound_s: float
    stopped: str | None
    families: int
    tasks: int
    solved: int
    programs: int
    variables: int
    work: float


@dataclass(slots=True, kw_only=True)
class _State:
    """What is known so far."""

    best_s: float
    plans: list[Divided] = field(default_factory=list)
    chains: dict[Shape, Chains] = field(default_factory=dict)
    work: float = 0.0
    solved: int = 0
    programs: int = 0
    variables: int = 0

    def learn(self, task: Task, solution: Solution) -> None:
        """Takes in what solving a task gave."""
        task.bound_s, task.tries = max(task.bound_s, solution.bound_s), task.tries + 1
        self.solved += task.tries == 1
        self.work += solution.work
        self.programs += solution.programs
        self.variables = max(self.variables, solution.variables)
        if solution.plan is not None and solution.plan.step_s < self.best_s:
            self.plans.append(solution.plan)
            self.best_s = solution.plan.step_s
        if solution.shape is not None and solution.rows is not None and solution.rows.size:
            known = self.chains.get(solution.shape)
            made = known.with_rows(solution.rows).counts if known else solution.rows
            self.chains[solution.shape] = Chains(counts=made[:MOST_ROWS])


def prove(
    made: Scan,
    freedom: Freedom,
    best_s: float,
    limits: Limits,
    *,
    workers: int = 1,
    on_wave: Callable[[float, float], None] | None = None,
) -> Proof:
    """Divides layers of the families of a scan until nothing better can be left.

    Args:
        made: a scan with the plans at its top priced exactly.
        freedom: what divisions and recomputing the target can express.
        best_s: step of the best plan known; infinite without one.
        limits: when to stop.
        workers: tasks solved at once.
        on_wave: called with the best step and the bound after each wave.
    """
    rows, _ = families_of(made.batch)
    families = Families(batch=made.batch.take(rows), key=made.key[rows], rows=rows)
    tasks = tasks_of(made.context, families, freedom, best_s)
    state = _State(best_s=best_s)
    try:
        stopped = _waves(made.context, families, tasks, state, limits, workers, on_wave)
    except KeyboardInterrupt:
        stopped = "interrupted"
    return Proof(
        plans=tuple(state.plans),
        bound_s=min((task.bound_s for task in tasks), default=np.inf),
        stopped=stopped,
        families=len(rows),
        tasks=len(tasks),
        solved=state.solved,
        programs=state.programs,
        variables=state.variables,
        work=state.work,
    )


def _waves(
    context: Context,
    families: Families,
    tasks: list[Task],
    state: _State,
    limits: Limits,
    workers: int,
    on_wave: Callable[[float, float], None] | None,
) -> str | None:
    """Solves tasks until none is left below the gap; why it stopped before that."""
    with ThreadPoolExecutor(max(workers, 1)) as pool:

        def solved(jobs: list[Job]) -> Iterable[Solution]:
            return pool.map(partial(solve_task, context, families), jobs)

        _until(families, tasks, state, limits, solved, on_wave)
        reached = _reached(tasks, state, limits.gap)
        if reached and state.work < limits.fine and limits.gap > FINE:
            _until(families, tasks, state, replace(limits, gap=FINE, effort=limits.fine), solved, on_wave)
    if reached:
        return None
    return "time_limit" if limits.clock.expired else "effort_limit"


def _until(
    families: Families,
    tasks: list[Task],
    state: _State,
    limits: Limits,
    solved: Callable[[list[Job]], Iterable[Solution]],
    on_wave: Callable[[float, float], None] | None,
) -> None:
    """Solves waves until no task is left below the gap, or the limits are met."""
    queue = [(0, task.bound_s, at) for at, task in enumerate(tasks)]
    heapq.heapify(queue)
    while state.work < limits.effort and not limits.clock.expired:
        wave = _next_wave(queue, tasks, limits.gap, state)
        if not wave:
            return
        jobs = [_job(families, tasks[at], state, limits) for at in wave]
        for at, job, solution in zip(wave, jobs, solved(jobs), strict=True):
            state.learn(tasks[at], solution)
            _again(queue, tasks, at, (1 - limits.gap) * state.best_s, done=solution.work < job.effort)
        if on_wave is not None:
            on_wave(state.best_s, min(task.bound_s for task in tasks))


def _reached(tasks: list[Task], state: _State, gap: float) -> bool:
    """Whether no task is left below the gap."""
    return all(task.bound_s >= (1 - gap) * state.best_s for task in tasks)


def _again(queue: list[tuple[int, float, int]], tasks: list[Task], at: int, enough_s: float, *, done: bool) -> None:
    """Puts a task whose bound is too low back into the queue; families apart where more effort would not help."""
    task = tasks[at]
    if task.bound_s >= enough_s or task.tries >= len(EFFORTS):
        return
    places = [at]
    if len(task.members) > 1 and done:
        places = list(range(len(tasks), len(tasks) + len(task.members)))
        tasks.extend(apart(task))
        tasks[at] = replace(task, bound_s=np.inf)
    for place in places:
        heapq.heappush(queue, (task.tries, task.bound_s, place))


def _next_wave(queue: list[tuple[int, float, int]], tasks: list[Task], gap: float, state: _State) -> list[int]:
    """The next tasks that could hold a better plan, as many as make a wave."""
    wave: list[int] = []
    while queue and len(wave) < WAVE:
        at = heapq.heappop(queue)[2]
        if tasks[at].bound_s < (1 - gap) * state.best_s:
            wave.append(at)
    return wave


def _job(families: Families, task: Task, state: _State, limits: Limits) -> Job:
    """Ranks with one chunk are divided as well as they can be; others only as far as the gap asks for."""
    shape = shape_of_task(families, task)
    loose = shape is not None and shape.vpp > 1 and np.isfinite(state.best_s)
    limit = (1 - limits.gap) * state.best_s if loose else state.best_s
    chains = state.chains.get(shape) if shape is not None else None
    effort = min(EFFORTS[min(task.tries, len(EFFORTS) - 1)], limits.effort)
    return Job(task=task, limit_s=limit, chains=chains, effort=effort, clock=limits.clock)
