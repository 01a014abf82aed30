"""Predicts measured runs and reports the errors: `validate(runs)`.

Every row is priced as a plan of its own problem by `estimate_degrees`, the function behind every printed
number, and compared with what was measured; `summary` averages within each source group first,
then over groups. Rows with `FLAG` in their notes and groups in `UNSCORED_GROUPS` are reported and not scored.

`fit` says which factors fitted to whole steps are in force (`fits`): those shipped, none, or the same refitted
without the source of the row. The rows given are never fitted by `all`. That does not make errors on published runs a blind
test: operator and collective constants come from tables and datasheets, but priors of stack profiles (host times, exposed
shares, routing) were set by people who knew published runs, and the three constants of `site_shift` were chosen on their
residuals.

`anchor` = first calibrates each source group by one factor taken from its first timed row
(`site_shift`), like for like: the same stack, device, arithmetic, and dense or routed models.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwright.errors import DamagedFileError, ShardwrightError, UnknownNameError, unknown_name
from shardwright.planner.fits.applying import with_fits
from shardwright.planner.fits.factors import Fits
from shardwright.planner.problem import PricingOptions
from shardwright.planner.runs.table import RunRow, read_runs
from shardwright.planner.shown import Shown
from shardwright.planner.site.shrinkage import interval_share, site_shift
from shardwright.planner.validation.fits import WORDS, Measured, left_out, note
from shardwright.planner.validation.jobs import job_of, plan_of
from shardwright.planner.validation.labels import WAYS, labels_of
from shardwright.planner.validation.rows import DEFAULT_METER, Estimator, Price, Run, price_run, read_run
from shardwright.planner.validation.summary import Outcome, broken_down, group_summary, total_summary

FITS = tuple(WORDS)
ANCHORS = ("none", "first")
BY = ("source", *WAYS)

UNSCORED_GROUPS = ("bs-v100", "nanotron-log", "internevo-mem")
"""Source groups of the published collection whose authors warn of 40 % spread or state too little to be scored."""

FLAG = re.compile(r"\bFLAG\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult(Shown):
    """What `validate` found.

    Attributes:
        data: the JSON document `validation` (rows, by_source, summary).
    """

    data: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return self.data

    def __repr__(self) -> str:
        summary = self.data["summary"]
        return f"ValidationResult(rows={summary['rows']}, scored={summary['scored']}, median={summary['median']})"

    @property
    def exit_code(self) -> int:
        """Always 0: errors of predictions are an answer."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A row, what was read from it and its price (None: skipped), and its outcome."""

    row: RunRow
    run: Run | None
    price: Price | None
    outcome: Outcome


def validate(
    runs_path: str | Path,
    *,
    fit: str = "all",
    anchor: str = "none",
    by: str = "source",
    options: PricingOptions | None = None,
    unscored_groups: Iterable[str] = UNSCORED_GROUPS,
    estimator: Estimator | None = None,
) -> ValidationResult:
    """Predicts every run of a CSV file.

    Args:
        runs_path: CSV with the columns of `runs.COLUMNS`.
        fit: which fits may be used: all that are shipped, none, or refitted without the row's source (loso).
        anchor: "first" calibrates each source group by its first timed row, which is then not scored.
        by: what the table sums up by: source groups, or one of `labels.WAYS`; the document holds all of them.
        options: what-if settings; precision, framework and meter are the rows'. A stack given here is used for all rows, a
            calibration for those of the machine it was measured on.
        unscored_groups: source groups that are reported and not averaged.
        estimator: prices one plan of a problem; None for `estimate_degrees`.

    Raises:
        ShardwrightError: the file cannot be read, or a word that is not known; or no row can be priced and one names an
            unknown node.
    """
    if fit not in FITS:
        raise unknown_name("fit", fit, FITS, where="--fit")
    if anchor not in ANCHORS:
        raise unknown_name("anchor", anchor, ANCHORS, where="--anchor")
    if by not in BY:
        raise unknown_name("breakdown", by, BY, where="--by")
    rows, options = read_runs(runs_path), _with_calibration(options or PricingOptions())
    unscored = frozenset(unscored_groups)
    price = estimator or _estimator()
    fits = WORDS[fit]()
    checked = [_checked(row, replace(options, fits=fits), unscored, price) for row in rows]
    _refuse_nothing(checked, str(runs_path))
    if fit == "loso":
        checked = _refitted(checked, price)
    if anchor == "first":
        checked = _anchored(checked)
    return ValidationResult(data={**_document(checked, unscored), "fit": fit, "anchor": anchor, "by": by, "note": note(fit)})


def _with_calibration(options: PricingOptions) -> PricingOptions:
    """The options with the calibration read once; rows of other machines are priced without it."""
    if not isinstance(options.calibration, (str, Path)):
        return options
    from shardwright.hardware.calibration_file import load_calibration

    return replace(options, calibration=load_calibration(Path(options.calibration)))


def _estimator() -> Estimator:
    from shardwright.planner.estimation import estimate_degrees

    return estimate_degrees


def _checked(row: RunRow, options: PricingOptions, unscored: frozenset[str], estimate: Estimator) -> Checked:
    blank = Outcome(
        source_group=row.source_group,
        choice=None,
        scored=row.source_group not in unscored and not FLAG.search(row.notes),
        ran=row.outcome == "ok",
        measured_gib=row.peak_mem_gib,
    )
    try:
        run = read_run(row, options)
        price = price_run(run, row.memory_meter or DEFAULT_METER, estimate)
    except DamagedFileError:
        raise  # a preset of ours, not the row
    except ShardwrightError as error:
        return Checked(row=row, run=None, price=None, outcome=replace(blank, scored=False, skipped_because=_reason(error)))
    return Checked(row=row, run=run, price=price, outcome=_with_price(blank, run, price))


def _reason(error: ShardwrightError) -> str:
    """Why a row is skipped; of a name nobody knows, also the nearest that is known."""
    hint = error.hint if isinstance(error, UnknownNameError) else None
    return f"{error} ({hint})" if hint and hint.startswith("did you mean") else str(error)


def _refuse_nothing(checked: Sequence[Checked], source: str) -> None:
    """Refuses a file of which no row can be priced where the reason is a node nobody knows.

    Raises:
        UnknownNameError: with the place of the first such row.
    """
    from shardwright.hardware.catalog import load_node

    if any(item.run is not None for item in checked):
        return
    for item in checked:
        try:
            load_node(item.row.node)
        except UnknownNameError as error:
            error.where = f"{source}:{item.row.line}: node"
            raise


def _with_price(outcome: Outcome, run: Run, price: Price) -> Outcome:
    return replace(
        outcome,
        choice=(outcome.source_group, job_of(run.problem, round(run.problem.job.global_batch * run.scale))),
        plan=plan_of(run.problem, price.degrees),
        measured_s=run.measured_s,
        predicted_s=price.step_s,
        low_s=price.low_s,
        high_s=price.high_s,
        predicted_gib=price.peak_gib,
        fits=price.fits,
        labels=labels_of(run.problem),
    )


def _refitted(checked: Sequence[Checked], estimate: Estimator) -> list[Checked]:
    """Rows priced without fitted factors, priced again with factors fitted to the other groups."""
    counted = [measured for item in checked if (measured := _measured(item)) is not None]
    fits = left_out(counted, sorted({item.row.source_group for item in checked}))
    return [_with_fits(item, fits[item.row.source_group], estimate) for item in checked]


def measured_runs(runs_path: str | Path, options: PricingOptions, unscored: frozenset[str]) -> list[Measured]:
    """The runs of a file that count, priced: what factors are fitted to.

    Args:
        runs_path: CSV with the columns of `runs.COLUMNS`.
        options: those of `validate`; without fitted factors.
        unscored: groups that do not count.
    """
    price = _estimator()
    checked = (_checked(row, options, unscored, price) for row in read_runs(runs_path))
    return [measured for item in checked if (measured := _measured(item)) is not None]


def _measured(item: Checked) -> Measured | None:
    """A row as factors are fitted to it; None where it does not count."""
    outcome = item.outcome
    if not outcome.scored or outcome.error is None or item.run is None or item.price is None:
        return None
    return Measured(
        source=outcome.source_group,
        problem=item.run.problem,
        degrees=item.price.degrees,
        step_s=item.price.step_s / item.run.scale,
        log_ratio=math.log1p(outcome.error),
    )


def _with_fits(item: Checked, fits: Fits, estimate: Estimator) -> Checked:
    if item.run is None or not any(value != 1.0 for value in fits.values.values()):
        return item
    run = replace(item.run, problem=with_fits(item.run.problem, fits))
    price = price_run(run, item.row.memory_meter or DEFAULT_METER, estimate)
    return replace(item, run=run, price=price, outcome=_with_price(item.outcome, run, price))


def _anchored(checked: Sequence[Checked]) -> list[Checked]:
    """Predictions of rows like their group's first timed row, calibrated by it; that row no longer counts."""
    anchors: dict[str, Checked] = {}
    for item in checked:
        if item.outcome.error is not None and not FLAG.search(item.row.notes):
            anchors.setdefault(item.outcome.source_group, item)
    made = []
    for item in checked:
        anchor = anchors.get(item.outcome.source_group)
        alike = anchor is not None and _class(item) == _class(anchor)
        factor = math.exp(-site_shift(anchor.outcome.error)) if alike and anchor is not None else None
        made.append(replace(item, outcome=_scaled(item.outcome, factor, item.outcome.scored and item is not anchor)))
    return made


def _class(item: Checked) -> tuple[object, ...]:
    """What a measured run may calibrate: the same stack, device, arithmetic, and dense or routed."""
    if item.run is None:
        return ()
    problem = item.run.problem
    return problem.stack.id, problem.device.id, problem.job.precision.compute, problem.graph.spec.moe is not None


def _scaled(outcome: Outcome, factor: float | None, scored: bool) -> Outcome:
    predicted = outcome.predicted_s
    if predicted is None or outcome.low_s is None or outcome.high_s is None or factor is None:
        return replace(outcome, scored=scored)
    kept = interval_share(1)
    return replace(
        outcome,
        scored=scored,
        predicted_s=predicted * factor,
        low_s=(predicted + (outcome.low_s - predicted) * kept) * factor,
        high_s=(predicted + (outcome.high_s - predicted) * kept) * factor,
    )


def _document(checked: Sequence[Checked], unscored: frozenset[str]) -> dict[str, Any]:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for item in checked:
        groups[item.outcome.source_group].append(item.outcome)
    by_source = {name: group_summary(members, counts=name not in unscored) for name, members in sorted(groups.items())}
    return {
        "kind": "validation",
        "unscored_groups": sorted(unscored & set(groups)),
        "rows": [_row(item) for item in checked],
        "by_source": by_source,
        **{f"by_{way}": broken_down([item.outcome for item in checked], way, unscored) for way in WAYS},
        "summary": total_summary(by_source),
    }


def _row(item: Checked) -> dict[str, Any]:
    row, outcome, run, price = item.row, item.outcome, item.run, item.price
    return {
        "id": row.id,
        "source_group": outcome.source_group,
        "status": "ok" if run is not None else "skipped",
        "reason": outcome.skipped_because,
        "measured_step_time_s": outcome.measured_s if run is not None else row.step_time_s,
        "predicted_step_time_s": outcome.predicted_s,
        "error": outcome.error,
        "interval_low_s": outcome.low_s,
        "interval_high_s": outcome.high_s,
        "measured_peak_gib": outcome.measured_gib,
        "predicted_peak_gib": outcome.predicted_gib,
        "memory_error": outcome.memory_error,
        "outcome": row.outcome,
        "predicted_fits": outcome.fits,
        "scored": outcome.scored and outcome.error is not None,
        "interval_kind": price.kind if price is not None else None,
        "labels": dict(outcome.labels),
        "time_shares": _shares(price) if price is not None else {},
        "stack": run.problem.stack.id if run is not None else None,
        "measured_from": run.measured_from if run is not None else None,
        "defaults": list(run.defaults) if run is not None else [],
    }


def _shares(price: Price) -> dict[str, float]:
    """Each part of the predicted step over the whole, parts that take no time left out."""
    return {name.removesuffix("_s"): seconds / price.step_s for name, seconds in price.time.items() if seconds > 0}
