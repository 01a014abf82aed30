"""`run`: plans on real processes of this machine."""

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
