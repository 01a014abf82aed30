"""`plan`: the search from a problem to a ranked, self-contained result.

    declare the space -> enumerate legal candidates -> price them all -> divide layers freely -> rank -> describe the best

Every legal candidate of the declared space is priced, and those that may be the fastest by the recurrence of their schedule
(`finalists`); `stages.dividing` then looks for better divisions of layers and bounds what any could take. Within the
space printed under `search.space` no plan is faster than `lower_bound_step_time_s`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwright.documents import digest
from shardwright.errors import ConflictError, InvalidValueError, unknown_name
from shardwright.hardware.cluster import Cluster
from shardwright.models.graph import ModelGraph
from shardwright.planner.description import Record, problem_summary
from shardwright.planner.estimation import estimate_batch
from shardwright.planner.hosting import assumptions_of
from shardwright.planner.launchability import with_targets
from shardwright.planner.plans import IntArray
from shardwright.planner.problem import PricingOptions, Problem, build_problem
from shardwright.planner.rules.versions import target_of
from shardwright.planner.search.conflict import conflict, explained
from shardwright.planner.search.finalists import settled
from shardwright.planner.search.near_misses import near_misses
from shardwright.planner.search.options import EFFORTS, MAX_TIE_PERCENT, Progress, SearchOptions
from shardwright.planner.search.pareto import front, points
from shardwright.planner.search.placement import LIMIT, placement_record
from shardwright.planner.search.ranking import best_step_s, degrees_in_words, nearest_to_fitting, ranked
from shardwright.planner.search.scan import Scan, scan
from shardwright.planner.search.space import Legal, Space, declare, enumerate_legal, no_plan
from shardwright.planner.search.stages.dividing import Division, divide
from shardwright.planner.search.trials import MAX_TRIALS, choose_trials
from shardwright.planner.shown import Shown
from shardwright.planner.site.stated import with_measured
from shardwright.planner.spending import check_objective

NEAR_MISSES = 3
MAX_TOP = 1000
MAX_EFFORT_S = 100_000.0
PROVEN = 1e-4
"""Gap within which the best plan counts as proven optimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult(Shown):
    """What a search found.

    Attributes:
        data: the record `plan --format json` prints.
    """

    data: Mapping[str, Any]

    @property
    def plans(self) -> list[Record]:
        """The ranked plans."""
        return list(self.data["plans"])

    @property
    def exit_code(self) -> int:
        """0 if a plan fits, else 1."""
        return 0 if self.data["plans"] else 1

    def to_dict(self) -> dict[str, Any]:
        """The record itself."""
        return dict(self.data)

    def __repr__(self) -> str:
        return f"PlanResult(plans={len(self.data['plans'])}, best_step_time_s={self.data['search']['best_step_time_s']})"


def plan(
    model: str | ModelGraph,
    cluster: str | Cluster,
    *,
    seq_len: int | None,
    global_batch: int,
    options: PricingOptions | None = None,
    search: SearchOptions | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> PlanResult:
    """Searches for the best plans of a model on a cluster.

    Args:
        model: preset id, path of a config.json, folder or model YAML, or a graph.
        cluster: `NODE:COUNT[xG]`, path of a cluster YAML, or a cluster.
        seq_len: tokens a sequence; None: as a graph file has it.
        global_batch: sequences a step.
        options: precision, framework, stack and the like.
        search: how many plans, what is fixed, how ties are made.
        on_progress: called with an immutable event while candidates are priced.

    Returns:
        The ranked plans with the account of the search; near misses with remedies where nothing fits.

    Raises:
        ShardwrightError: an input that cannot be used. "Nothing fits" is an answer, not an error.

    Example:
        >>> import shardwright
        >>> result = shardwright.plan("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64)
        >>> result.plans[0]["feasible"]
        True
    """
    options = with_measured((model, cluster, seq_len, global_batch), options)
    problem = build_problem(model, cluster, seq_len=seq_len, global_batch=global_batch, options=options)
    return plan_problem(problem, search=search, on_progress=on_progress)


def plan_problem(
    problem: Problem, *, search: SearchOptions | None = None, on_progress: Callable[[Progress], None] | None = None
) -> PlanResult:
    """Searches for the best plans of a problem; as `plan`, for what `build_problem` or `problem_from_inputs` made.

    Raises:
        ShardwrightError: an option that cannot be used, or no candidate keeps the rules.
    """
    chosen = search or SearchOptions()
    _check(chosen)
    check_objective(problem)
    found = _searched(problem, chosen, on_progress)
    if not (problem.cluster.mixed and chosen.remedies):
        return found
    from shardwright.planner.search.kinds_alone import with_kinds_alone

    return with_kinds_alone(problem, chosen, found)


def _searched(problem: Problem, chosen: SearchOptions, on_progress: Callable[[Progress], None] | None) -> PlanResult:
    if (chosen.allow_subset or problem.objective != "throughput") and problem.cluster.nodes > 1:
        from shardwright.planner.search.subsets import plan_subsets

        if chosen.trials:
            hint = "drop --trials, or --allow-subset and the objective; --gpus N plans on fewer"
            raise ConflictError("--trials compares plans that use the same GPUs", where="--trials", hint=hint)

        return plan_subsets(problem, chosen, on_progress)
    return plan_cluster(problem, chosen, on_progress)


def plan_cluster(
    problem: Problem,
    chosen: SearchOptions,
    on_progress: Callable[[Progress], None] | None = None,
    space: Space | None = None,
) -> PlanResult:
    """The best plans that use the whole cluster of a problem, in a space that is declared for it or given.

    Raises:
        ConflictError: no candidate keeps the rules.
    """
    started = time.perf_counter(), time.process_time()
    space = declare(problem, chosen.fix) if space is None else space
    legal = enumerate_legal(problem, space)
    if len(legal) == 0:
        raise explained(problem, chosen.fix, legal) if chosen.remedies else no_plan(legal, chosen.fix)
    made = scan(problem, legal, workers=chosen.workers, on_progress=_reporter(space, legal, on_progress))
    made = settled(made, problem, chosen.top, chosen.tie_percent / 100, near=False)[0]
    division = divide(
        problem,
        space,
        made,
        chosen.effort,
        workers=chosen.workers,
        seconds=chosen.effort_s,
        deadline=None if chosen.time_limit_s is None else time.monotonic() + chosen.time_limit_s - elapsed(started[0]),
        on_wave=_wave_reporter(problem, space, made, chosen, on_progress),
    )
    data = _result(problem, chosen, space, legal, division)
    if on_progress is not None:
        on_progress(_finished(data["search"]))
    wall, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
    return PlanResult(data=data | {"run": {"wall_s": wall, "cpu_s": cpu, "version": _version(), "solver": _solver(division)}})


def _check(search: SearchOptions) -> None:
    if search.effort not in EFFORTS:
        raise unknown_name("effort", search.effort, EFFORTS, where="--effort")
    if not 1 <= search.top <= MAX_TOP:
        raise InvalidValueError(f"{search.top} plans", where="--top", hint=f"give 1 to {MAX_TOP}")
    if not 0 <= search.tie_percent <= MAX_TIE_PERCENT:
        raise InvalidValueError(
            f"a tie of {search.tie_percent} %", where="--tie", hint=f"give 0 to {MAX_TIE_PERCENT:g} %; 0 is off"
        )
    if search.effort_s is not None and not 0 < search.effort_s <= MAX_EFFORT_S:
        hint = f"give more than 0 and at most {MAX_EFFORT_S:,.0f} deterministic seconds"
        raise InvalidValueError(f"{search.effort_s} seconds", where="--effort-seconds", hint=hint)
    if not 0 <= search.trials <= MAX_TRIALS:
        raise InvalidValueError(f"{search.trials} trials", where="--trials", hint=f"give 1 to {MAX_TRIALS}")
    if search.time_limit_s is not None and not search.time_limit_s > 0:
        raise InvalidValueError(f"a limit of {search.time_limit_s} s", where="--time-limit", hint="give seconds above 0")
    if not 1 <= search.workers <= 256:
        raise InvalidValueError(f"{search.workers} workers", where="--workers", hint="give 1 to 256")


def _reporter(
    space: Space, legal: Legal, on_progress: Callable[[Progress], None] | None
) -> Callable[[int, float | None], None] | None:
    if on_progress is None:
        return None
    rejected = space.candidates - len(legal)

    def report(priced: int, best: float | None) -> None:
        on_progress(Progress(explored=rejected + priced, candidates=space.candidates, best_step_time_s=best))

    return report


def _finished(account: Record) -> Progress:
    best, bound = account["best_step_time_s"], account["lower_bound_step_time_s"]
    total = account["candidates"]
    explored = sum(account["rejected"].values()) + account["pruned_by_bound"] + account["priced"]
    return Progress(explored=explored, candidates=total, best_step_time_s=best, lower_bound_step_time_s=bound)


def elapsed(started: float) -> float:
    """Seconds since a `time.perf_counter()`."""
    return time.perf_counter() - started


def _wave_reporter(
    problem: Problem, space: Space, made: Scan, search: SearchOptions, on_progress: Callable[[Progress], None] | None
) -> Callable[[float, float], None] | None:
    """Tells the first ranked plans of the scan, and returns what tells of each wave of divisions."""
    if on_progress is None:
        return None
    rows = ranked(problem, made, search.top, search.tie_percent / 100)[0]
    leaders = tuple((degrees_in_words(made, int(row)), float(made.step_s[row])) for row in rows)
    event = Progress(explored=space.candidates, candidates=space.candidates, best_step_time_s=best_step_s(made))
    on_progress(replace(event, leaders=leaders))

    def report(best: float, bound: float) -> None:
        on_progress(replace(event, best_step_time_s=best, lower_bound_step_time_s=min(bound, best), leaders=leaders))

    return report


def _solver(division: Division) -> str | None:
    """The solver of the programs, where any was solved."""
    if division.proof is None or division.proof.programs == 0:
        return None
    from importlib.metadata import version

    return f"OR-Tools {version('ortools')} CP-SAT"


def _result(problem: Problem, search: SearchOptions, space: Space, legal: Legal, division: Division) -> Record:
    made, rows, groups = settled(division.made, problem, search.top, search.tie_percent / 100, near=search.effort != "scan")
    inputs = problem.to_inputs()
    inputs["search"] |= search.to_dict()
    plans = launchable_first(problem, _described(problem, made, rows), groups)
    for rank, record in enumerate(plans, start=1):
        record |= {"rank": rank, "id": plan_id(record)}
        record["placement"] = placement_record(record, problem.cluster, limit=_placing(search, rank))
    misses = [] if plans else _near_misses(problem, search, made)
    return {
        "schema_version": 1,
        "kind": "plan-result",
        "inputs": inputs,
        **problem_summary(problem),
        "assumptions": [a.to_dict() for a in (*problem.assumptions, *assumptions_of(problem, plans or misses))],
        "search": account(space, legal, replace(division, made=made)) | {"objective": problem.objective},
        "plans": plans,
        **({"pareto": points(_described(problem, made, front(problem, made)), plan_id)} if search.pareto else {}),
        **({"trials": _trials(problem, made, rows, plans, search.trials)} if search.trials else {}),
        **({"conflict": conflict(problem, search.fix, misses[0])} if misses and search.remedies else {}),
        "near_misses": misses,
    }


def _trials(problem: Problem, made: Scan, rows: IntArray, plans: Sequence[Record], count: int) -> Record:
    trials = choose_trials(problem, made, rows, count)
    records = [record | {"id": plan_id(record)} for record in _described(problem, trials.made, trials.chosen)]
    return trials.to_dict(records, plans)


def launchable_first(problem: Problem, plans: Sequence[Record], groups: IntArray) -> list[Record]:
    """The plans with their tie groups; inside one, those that no target writes (or not the one that is named) come last."""
    named = target_of(problem.framework)
    marked = [record | {"tie_group": int(group)} for record, group in zip(plans, groups, strict=True)]
    return sorted(marked, key=lambda r: (r["tie_group"], not (named in r["expressible_by"] if named else r["expressible_by"])))


def _near_misses(problem: Problem, search: SearchOptions, made: Scan) -> list[Record]:
    records = _described(problem, made, nearest_to_fitting(made, NEAR_MISSES))
    return near_misses(problem, records, search.fix, with_remedies=search.remedies)


def _placing(search: SearchOptions, rank: int) -> float:
    """Deterministic seconds for the placement of a plan: the program runs for the first, known shapes are tried for all."""
    return LIMIT if rank == 1 and search.effort != "scan" else 0.0


def account(space: Space, legal: Legal, division: Division) -> Record:
    """What the search looked at: candidates = Σ rejected + pruned + priced; divisions found by programs are no candidates."""
    made = division.made
    best = best_step_s(made)
    bound = None if made.interrupted or best is None else division.bound_s
    gap = None if bound is None or best is None else max(1.0 - bound / best, 0.0)
    return {
        "space": space.to_dict() | division.freedom.to_dict(),
        "candidates": space.candidates,
        "rejected": legal.rejected,
        "pruned_by_bound": 0,
        "priced": int(made.priced[: len(legal)].sum()),
        "fits": int(made.fits[: len(legal)].sum()),
        "best_step_time_s": best,
        "lower_bound_step_time_s": bound,
        "gap": gap,
        "proven_optimal": gap is not None and gap <= PROVEN,
        "stopped": "interrupted" if made.interrupted else division.stopped,
        "division": division.to_dict(),
    }


def plan_id(record: Mapping[str, Any]) -> str:
    """A short name of a plan: the first 12 digits of the digest of its degrees and layers."""
    return digest({"parallel": record["parallel"], "layers": [s["layers"] for s in record["stages"]]})[:12]


def _described(problem: Problem, made: Scan, rows: IntArray) -> list[Record]:
    if len(rows) == 0:
        return []
    batch = made.batch.take(np.asarray(rows))
    used, split = np.unique(batch.split, return_inverse=True)
    records = estimate_batch(problem, replace(batch, split=split), [made.splits[index] for index in used])
    return with_targets(problem, records)


def _version() -> str:
    import shardwright

    return shardwright.__version__
