"""`report`: a result to look at."""

from __future__ import annotations

from typing import Annotated

from shardwright.commands import console
from shardwright.planner.report import options as o


def report(
    result: Annotated[str, o.argument("RESULT", "what plan, estimate or sweep wrote: file, folder, store, or -")],
    output: Annotated[str, o.option(o.OUTPUT, "HTML file to write", "-o", "--output", metavar="FILE")],
    rank: o.Rank = None,
    figures: Annotated[str | None, o.option(o.OUTPUT, "write the pictures there too: SVG, PNG", metavar="DIR")] = None,
    force: Annotated[bool, o.option(o.OUTPUT, "replace files that are there", "--force")] = False,
    form: o.Format = "table",
) -> int:
    """Write a result as one HTML page that opens offline."""
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    from shardwright.planner.report.html.document import report as write

    return console.finished(write(result, output, rank=rank or 1, figures=figures, force=force), form)
