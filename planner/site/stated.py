"""`--measured tp=8,pp=4,step_time_s=12.3`: measured runs of this site, stated beside the job that is to be priced.

A statement names a plan, how long its step took, and where it differs from the job at hand: model, sequence length, batch,
GPUs, precision. Everything else (stack, cluster, what-ifs) is the job's own.

    statement -> `_read` -> problem and degrees -> `fitting.Observation` -> `fit_site` -> a calibration (`with_measured`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError, unknown_name
from shardwright.hardware.calibration import Calibration, Corrections
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.site_factors import SiteFactors
from shardwright.models.graph import ModelGraph
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, Problem, build_problem
from shardwright.planner.site.fitting import Observation, fit_site

WHERE = "--measured"
SITE = "this site"
MEASURES = ("step_time_s", "tokens_per_s_per_gpu", "mfu")
DIFFERS = ("model", "seq_len", "global_batch", "gpus", "precision")
_WHOLE = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp_replicate", "micro_batch", "zero", "recompute_layers", "loss_chunks",
          "seq_len", "global_batch", "gpus")  # fmt: skip
_WORDS = ("schedule", "recompute", "cp_comm", "moe_dispatcher", "offload", "model", "precision")
_DEGREES = tuple(name for name in (*_WHOLE, *_WORDS, "sequence_parallel") if name not in DIFFERS)
KEYS = (*MEASURES, *_DEGREES, *DIFFERS)
Job = tuple[str | ModelGraph, str | Cluster, int | None, int]
"""Model, cluster, tokens a sequence, sequences a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """A statement, read.

    Attributes:
        text: as it was given.
        degrees: the plan that ran.
        differs: in what its job differs from the one at hand.
        measure: one of `MEASURES`.
        value: measured.
    """

    text: str
    degrees: Degrees
    differs: Mapping[str, Any]
    measure: str
    value: float


def with_measured(job: Job, options: PricingOptions | None) -> PricingOptions:
    """The options with what measured runs say made a calibration.

    Args:
        job: that is to be priced.
        options: whose `measured` statements are read; unchanged where there are none.

    Raises:
        ShardwrightError: a statement cannot be used, or a calibration of steps is given as well.
    """
    chosen = options or PricingOptions()
    if not chosen.measured:
        return chosen
    plain = replace(chosen, measured=())
    problem = _problem(job, plain, {})
    if problem.collectives is not None and problem.collectives.calibration.site is not None:
        message = f"the calibration {problem.collectives.calibration.name} holds measured steps already"
        raise ConflictError(message, where=WHERE, hint="drop --measured or --calibration")
    factors = fit_site([_observation(_read(text), job, plain) for text in chosen.measured])
    series = () if problem.collectives is None else problem.collectives.calibration.series
    node = problem.cluster.groups[0].node
    return replace(plain, calibration=Calibration(name=SITE, node=node, series=series, site=factors))


def at_site(problem: Problem, factors: SiteFactors) -> Problem:
    """The problem with a site's factors, beside what collectives were measured there."""
    known = problem.collectives.calibration if problem.collectives is not None else None
    node = problem.cluster.groups[0].node
    calibration = Calibration(
        name=known.name if known else SITE,
        node=known.node if known else node,
        series=known.series if known else (),
        site=factors,
    )
    return replace(problem, collectives=Corrections.of(calibration))


def priced(problem: Problem, degrees: Degrees, id_: str) -> Callable[[SiteFactors], float]:
    """The step time of a plan as a function of the site's factors.

    Raises:
        InvalidValueError: the plan breaks a rule other than that of memory.
    """
    from shardwright.planner.estimation import estimate_degrees

    record = estimate_degrees(problem, degrees)
    broken = [v for v in record["violations"] if v["rule"] not in {"memory", "host-memory"}]
    if broken or record["predicted"] is None:
        said = broken[0]["message"] if broken else "it cannot be priced"
        raise InvalidValueError(f"the measured run {id_!r} is no legal plan: {said}", where=WHERE, hint="state it as it ran")

    def price(factors: SiteFactors) -> float:
        return float(estimate_degrees(at_site(problem, factors), degrees)["predicted"]["step_time_s"])

    return price


def _problem(job: Job, options: PricingOptions, differs: Mapping[str, Any]) -> Problem:
    model, cluster, seq_len, global_batch = job
    changed = {name: differs[name] for name in ("gpus", "precision") if name in differs}
    return build_problem(
        _relative(differs["model"]) if "model" in differs else model,
        cluster,
        seq_len=differs.get("seq_len", seq_len),
        global_batch=differs.get("global_batch", global_batch),
        options=replace(options, **changed),
    )


def _relative(name: str) -> str:
    return str(Path(name)) if "/" in name else name


def _observation(stated: Stated, job: Job, options: PricingOptions) -> Observation:
    try:
        problem = _problem(job, options, stated.differs)
        price = priced(problem, stated.degrees, stated.text)
    except ShardwrightError as error:
        error.where = error.where if error.where.startswith(WHERE) else f"{WHERE} {stated.text}"
        raise
    return Observation(id=stated.text, measured_s=_seconds(stated, problem), price=price)


def _seconds(stated: Stated, problem: Problem) -> float:
    """The step time that a measure means."""
    job, gpus = problem.job, problem.cluster.gpus
    tokens = job.global_batch * job.seq_len
    if stated.measure == "step_time_s":
        return stated.value
    if stated.measure == "tokens_per_s_per_gpu":
        return tokens / (stated.value * gpus)
    flops = job.flops_per_token("causal" if problem.stack.flops_convention == "causal" else "full") * tokens
    return float(flops / (stated.value * problem.device.peak_flops[job.precision.compute] * gpus))


def _read(text: str) -> Stated:
    found: dict[str, Any] = {}
    for part in text.split(","):
        key, separator, value = (word.strip() for word in part.partition("="))
        if not separator or not key or not value:
            raise InvalidValueError(f"{part!r} is no KEY=VALUE", where=WHERE, hint="write --measured tp=8,step_time_s=12.3")
        if key not in KEYS:
            raise unknown_name("key of a measured run", key, KEYS, where=WHERE)
        if key in found:
            raise ConflictError(f"{key} is stated twice in {text!r}", where=WHERE, hint="keep one of the two")
        found[key] = _value(key, value)
    measures = [name for name in MEASURES if name in found]
    if len(measures) != 1:
        stated = "no speed" if not measures else " and ".join(measures)
        raise InvalidValueError(f"{text!r} states {stated}", where=WHERE, hint="state one of " + ", ".join(MEASURES))
    return Stated(
        text=text,
        degrees=Degrees(**{name: found[name] for name in _DEGREES if name in found}),
        differs={name: found[name] for name in DIFFERS if name in found},
        measure=measures[0],
        value=found[measures[0]],
    )


def _value(key: str, text: str) -> Any:
    if key in _WORDS:
        return text
    if key == "sequence_parallel":
        if text not in {"true", "false"}:
            raise InvalidValueError(f"{key}={text}", where=WHERE, hint="write true or false")
        return text == "true"
    try:
        value = int(text) if key in _WHOLE else float(text)
    except ValueError as error:
        kind = "a whole number" if key in _WHOLE else "a number"
        raise InvalidValueError(f"{key}={text[:40]} is no number", where=WHERE, hint=f"give {kind}") from error
    least, most = (0 if key == "zero" else 1, 2**31) if key in _WHOLE else (1e-9, 1.0 if key == "mfu" else 1e12)
    if not least <= value <= most:
        raise InvalidValueError(f"{key}={text} is out of range", where=WHERE, hint=f"give {least:g} to {most:g}")
    return value
