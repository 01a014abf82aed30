"""`emit`: what starts a plan."""

from __future__ import annotations

from typing import Annotated

from shardwright.commands import console
from shardwright.planner.report import options as o


def emit(
    result: o.Result,
    target: Annotated[str, o.option(o.OUTPUT, "megatron torchrun torchtitan megatron-bridge deepspeed", metavar="T")],
    output: Annotated[str, o.option(o.OUTPUT, "folder to write", "-o", "--output", metavar="DIR")],
    rank: o.Rank = None,
    target_version: Annotated[str | None, o.option(o.OUTPUT, "release to write for", metavar="V")] = None,
    launcher: Annotated[str, o.option(o.OUTPUT, "torchrun (default) slurm kubernetes", metavar="L")] = "torchrun",
    launch: Annotated[
        list[str] | None, o.option(o.OUTPUT, "for the launcher: partition=, image=, ...", metavar="KEY=VALUE")
    ] = None,
    force: Annotated[bool, o.option(o.OUTPUT, "replace an earlier bundle", "--force")] = False,
    form: o.Format = "table",
) -> int:
    """Write the launch files of a plan."""
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    from shardwright.planner.emit.emission import emit as write
    from shardwright.planner.emit.options import launch_options

    written = write(
        result,
        target=target,
        folder=output,
        rank=rank or 1,
        version=target_version,
        launcher=launcher,
        options=launch_options(launch or []),
        force=force,
    )
    return console.finished(written, form)
