"""`run` and `tune`: plans on real processes of this machine, and what their times teach."""

from __future__ import annotations

from typing import Annotated

from shardwright.commands import console
from shardwright.planner.report import options as o


def run(
    result: o.Result,
    rank: o.Rank = None,
    steps: Annotated[int, o.option(o.RUN, "training steps, of which two warm up (6)", metavar="N")] = 6,
    trials: Annotated[int, o.option(o.RUN, "run so many plans, by rank (1)", metavar="K")] = 1,
    scale_down: Annotated[bool, o.option(o.RUN, "a miniature of each plan, for CPUs or few GPUs", "--scale-down")] = False,
    time_limit: Annotated[float, o.option(o.RUN, "stop a plan after so many seconds (600)", metavar="S")] = 600.0,
    form: o.Format = "table",
) -> int:
    """Run a plan on this machine, and measure it."""
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    from shardwright.planner.execution.run import run as execute

    done = execute(
        result,
        rank=rank or 1,
        trials=trials,
        steps=steps,
        scale_down=scale_down,
        limit_s=time_limit,
        on_trial=console.say,
    )
    return console.finished(done, form)


def tune(
    result: o.PlanResult,
    measured: o.MeasuredPlans = None,
    trials: Annotated[int, o.option(o.RUN, "run so many plans here, where none is stated (3)", metavar="K")] = 3,
    steps: Annotated[int, o.option(o.RUN, "training steps, of which two warm up (6)", metavar="N")] = 6,
    time_limit: Annotated[float, o.option(o.RUN, "stop a plan after so many seconds (600)", metavar="S")] = 600.0,
    output: o.CalibrationOut = None,
    form: o.Format = "table",
) -> int:
    """Measure plans, learn from them and plan again."""
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    from shardwright.planner.report.calibration_output import free_file, write_calibration
    from shardwright.planner.tuning.tuning import tune as learn

    place = free_file(output) if output is not None else None
    done = learn(result, measured=measured or (), trials=trials, steps=steps, limit_s=time_limit, on_trial=console.say)
    if place is not None and done.calibration is not None:
        write_calibration(place, done.calibration.to_dict())
        console.say(f"wrote {place}")
    return console.finished(done, form)
