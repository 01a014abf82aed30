"""A result tuned by what was measured of its plans.

    measured times of some plans -> `site.fitting.fit_site` -> factors of the site -> the job planned again with them

A plan that was measured counts with its measured time, any other with its new prediction. `calibration` of the answer is what
`--calibration` of every pricing command takes, so that what was learned stays. Nothing is fitted beside those factors: a plan
that ran slower than its like moves all that are like it, by the parts they are made of.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.errors import ConflictError, DamagedFileError, InvalidValueError
from shardwright.hardware.calibration import Calibration
from shardwright.hardware.calibration_fit import CalibrationResult
from shardwright.hardware.site_factors import AS_MODELLED, PARTS, SiteFactors
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.execution.machine import Machine
from shardwright.planner.execution.run import INTERRUPTED, LIMIT_S, STEPS, check_asked
from shardwright.planner.plan_records import degrees_of
from shardwright.planner.problem import Problem, problem_from_inputs
from shardwright.planner.schema import read_result
from shardwright.planner.search.options import DEFAULT_TIE_PERCENT, EFFORTS, MAX_TIE_PERCENT, SearchOptions
from shardwright.planner.search.run import plan_problem
from shardwright.planner.site.fitting import Observation, fit_site
from shardwright.planner.site.stated import SITE, at_site
from shardwright.planner.tuning.measuring import on_this_machine, seconds_of, stated, to_measure

TRIALS, MAX_TRIALS = 3, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """What was learned.

    Attributes:
        data: the record `tune --format json` prints.
        calibration: to price with from now on; None where nothing that was measured can be compared.
    """

    data: Mapping[str, Any]
    calibration: CalibrationResult | None

    @property
    def exit_code(self) -> int:
        """0 if something was learned, 1 if not, 130 if the user stopped it."""
        if self.data["stopped"]:
            return INTERRUPTED
        return 0 if self.calibration is not None else 1

    def to_dict(self) -> dict[str, Any]:
        """The record itself."""
        return dict(self.data)


def tune(
    source: str | Path | Mapping[str, Any],
    *,
    measured: Sequence[str] = (),
    trials: int = TRIALS,
    steps: int = STEPS,
    limit_s: float = LIMIT_S,
    machine: Machine | None = None,
    on_trial: Callable[[str], None] | None = None,
) -> TuneResult:
    """Measures plans of a result, learns from them and plans again.

    Args:
        source: a RESULT of `plan` (file or folder).
        measured: `RANK=SECONDS` of plans that were run elsewhere; nothing is run then.
        trials: how many plans to run here: those that `plan --trials` named, else the first.
        steps: training steps of each, of which two warm up.
        limit_s: seconds after which a plan is stopped.
        machine: what there is to run on; None to look.
        on_trial: called with a line of progress before each plan.

    Raises:
        InvalidValueError: a statement or a number that cannot be used; the file holds no plans.
        ConflictError: the result was made with measured steps already.
        DamagedFileError: the file is damaged.
        UnsupportedError: nothing is stated, and PyTorch is missing.
    """
    check_asked(steps, trials, limit_s)
    started, result = time.monotonic(), _result(source, trials)
    problem = _problem(result)
    ran: list[dict[str, Any]] = []
    stopped, seconds = False, stated(measured, result)
    if not seconds:
        ranks = to_measure(result, trials)
        ran, stopped = on_this_machine(result, ranks, steps=steps, limit_s=limit_s, machine=machine, on_trial=on_trial)
        seconds = seconds_of(ran)
    learned = _learned(problem, result, seconds) if seconds else None
    data = {
        "schema_version": 1,
        "kind": "tune-result",
        "model": result["model"],
        "cluster": result["cluster"],
        "source": "stated" if measured else "run",
        "trials": ran,
        "measured": [] if learned is None else learned.measured,
        "site": None if learned is None else _site(learned.factors),
        "plans": [] if learned is None else learned.plans,
        "warnings": [] if learned is None else learned.factors.warnings(),
        "stopped": "interrupted" if stopped else None,
        "run": {"wall_s": time.monotonic() - started, "version": _version()},
    }
    return TuneResult(data=data, calibration=None if learned is None else learned.calibration)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    """What measured steps say: factors of the site, runs before and after, and the list of plans."""

    factors: SiteFactors
    measured: list[dict[str, Any]]
    plans: list[dict[str, Any]]
    calibration: CalibrationResult


def _result(source: str | Path | Mapping[str, Any], trials: int) -> dict[str, Any]:
    if not 1 <= trials <= MAX_TRIALS:
        raise InvalidValueError(f"{trials} trials", where="--trials", hint=f"give 1 to {MAX_TRIALS}")
    document = read_result(source)
    if document["kind"] != "plan-result" or not document["plans"]:
        said = "it holds one plan" if document["kind"] != "plan-result" else "nothing fits in it"
        hint = "give what `plan --format json` or `plan -o DIR` wrote"
        raise InvalidValueError(f"there are no plans to tune: {said}", where="RESULT", hint=hint)
    return dict(document)


def _problem(result: Mapping[str, Any]) -> Problem:
    """The problem of a result, as its plans use it."""
    problem = problem_from_inputs(result["inputs"], (), result["plans"][0]["parallel"]["world_size"])
    if problem.collectives is not None and problem.collectives.calibration.site is not None:
        hint = "plan without --measured and without a calibration by runs, and state all runs here"
        raise ConflictError("the result was made with measured steps of the site", where="RESULT", hint=hint)
    return problem


def _learned(problem: Problem, result: Mapping[str, Any], seconds: Mapping[int, float]) -> _Learned:
    known = {rank: result["plans"][rank - 1] for rank in seconds}
    factors = fit_site([_observation(problem, known[rank], seconds[rank]) for rank in seconds])
    runs = zip(seconds, factors.runs, strict=True)
    return _Learned(
        factors=factors,
        measured=[
            {
                "rank": rank,
                "id": run.id,
                "measured_step_time_s": run.measured_step_time_s,
                "before_step_time_s": run.before_step_time_s,
                "after_step_time_s": run.after_step_time_s,
            }
            for rank, run in runs
        ],
        plans=_ranked(problem, result, factors, {known[rank]["id"]: seconds[rank] for rank in seconds}),
        calibration=_calibration(problem, factors),
    )


def _observation(problem: Problem, record: Mapping[str, Any], measured_s: float) -> Observation:
    degrees = degrees_of(record)

    def price(factors: SiteFactors) -> float:
        return float(estimate_degrees(at_site(problem, factors), degrees)["predicted"]["step_time_s"])

    return Observation(id=record["id"], measured_s=measured_s, price=price)


def _ranked(
    problem: Problem, result: Mapping[str, Any], factors: SiteFactors, measured: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Plans of the new search and those that were measured, fastest first."""
    again = plan_problem(at_site(problem, factors), search=_search(result["inputs"]["search"]))
    ranks = {record["id"]: record["rank"] for record in result["plans"]}
    found = {record["id"]: record for record in [*result["plans"], *again.plans]}
    kept = [record for record in found.values() if record["id"] in measured or record in again.plans]
    made = [_line(problem, record, factors, measured.get(record["id"]), ranks.get(record["id"])) for record in kept]
    made.sort(key=lambda line: line["measured_step_time_s"] or line["step_time_s"])
    return [{"rank": rank, **line} for rank, line in enumerate(made, start=1)]


def _line(
    problem: Problem, record: Mapping[str, Any], factors: SiteFactors, measured_s: float | None, before: int | None
) -> dict[str, Any]:
    price = _observation(problem, record, 0.0).price
    return {
        "id": record["id"],
        "rank_before": before,
        "parallel": record["parallel"],
        "before_step_time_s": price(AS_MODELLED),
        "step_time_s": price(factors),
        "measured_step_time_s": measured_s,
    }


def _search(asked: Mapping[str, Any]) -> SearchOptions:
    """The options that the result was searched with.

    Raises:
        DamagedFileError: they are not what a search takes.
    """
    fix, effort = asked.get("fixed", {}), asked.get("effort", "search")
    tie = asked.get("tie_percent", DEFAULT_TIE_PERCENT)
    sound = {
        "fixed": isinstance(fix, Mapping) and all(isinstance(text, str) for text in fix.values()),
        "effort": isinstance(effort, str) and effort in EFFORTS,
        "tie_percent": isinstance(tie, (int, float)) and not isinstance(tie, bool) and 0 <= tie <= MAX_TIE_PERCENT,
    }
    for name in (name for name, fine in sound.items() if not fine):
        said = f"{str(asked[name])[:40]} is nothing a search takes"
        raise DamagedFileError(said, where=f"inputs.search.{name}", hint="give a result as `plan` wrote it")
    return SearchOptions(fix=fix, effort=effort, tie_percent=tie)


def _calibration(problem: Problem, factors: SiteFactors) -> CalibrationResult:
    here = at_site(problem, factors).collectives
    made = here.calibration if here is not None else Calibration(name=SITE, node=None, series=(), site=factors)
    return CalibrationResult(calibration=made, fits=(), warnings=tuple(factors.warnings()))


def _site(factors: SiteFactors) -> dict[str, float]:
    return {part: getattr(factors, part) for part in PARTS}


def _version() -> str:
    import shardwright

    return shardwright.__version__
