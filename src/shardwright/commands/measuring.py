"""`validate` and `calibrate`: what measured runs and logs say."""

from __future__ import annotations

from typing import Annotated

from shardwright.commands import console
from shardwright.planner.report import options as o

FITS = ("all", "none", "loso")
ANCHORS = ("none", "first")
BY = ("source", "hardware", "kind", "scale", "precision")


def validate(
    runs: Annotated[str, o.argument("RUNS.csv", "measured runs")],
    fit: Annotated[str, o.option(o.JOB, "shipped fits: all (default) none loso", metavar="F")] = "all",
    anchor: Annotated[str, o.option(o.JOB, "calibrate each group: none (default) first", metavar="A")] = "none",
    by: Annotated[str, o.option(o.OUTPUT, "table by: source (default) hardware kind scale precision", metavar="B")] = "source",
    calibration: o.Calibration = None,
    form: o.Format = "table",
) -> int:
    """Predict measured runs and show the errors."""
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    console.one_of("fit", fit, FITS)
    console.one_of("anchor", anchor, ANCHORS)
    console.one_of("by", by, BY)
    from shardwright.planner.problem import PricingOptions
    from shardwright.planner.validation.run import validate as compare

    chosen = PricingOptions(calibration=calibration)
    return console.finished(compare(runs, fit=fit, anchor=anchor, by=by, options=chosen), form)


def calibrate(
    more_logs: o.MoreLogs = None,
    nccl_tests: o.NcclTests = None,
    from_runs: o.FromRuns = None,
    cluster: o.Cluster = None,
    output: o.CalibrationOut = None,
    form: o.Format = "table",
) -> int:
    """Fit a cluster to its nccl-tests logs and its measured runs."""
    from shardwright.planner.report.calibration_output import calibrated
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    result = calibrated([*(nccl_tests or []), *(more_logs or [])], cluster, output, from_runs)
    for line in result.remarks:
        console.say(line)
    return console.finished(result, form)
