"""The command line: its commands, what becomes of a failure, the exit code.

Exit codes: 0 a positive answer; 1 ran well, the answer is no; 2 misuse or bad input; 3 stopped at the limit with
nothing found; 130 interrupted. The result alone goes to standard output, in one piece; everything else to standard
error. Whatever loads slowly is imported inside the functions that need it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from shardwright.commands import (
    console,
    describing,
    executing,
    explaining,
    launching,
    measuring,
    picturing,
    pricing,
    sharding,
    sizing,
    sweeping,
)
from shardwright.errors import ShardwrightError
from shardwright.planner.report.options import GroupedCommand, example

NAME = "shardwright"
COMMANDS = (
    pricing.plan,
    pricing.estimate,
    explaining.explain,
    explaining.compare,
    sharding.shard,
    sweeping.sweep,
    sizing.size,
    measuring.validate,
    measuring.calibrate,
    picturing.report,
    launching.emit,
    executing.run,
    executing.tune,
    describing.show,
    describing.topo,
    describing.schema,
)
"""In the order of the help page."""

app = typer.Typer(
    name=NAME,
    help="Plan how to train a large model on a cluster: ranked, explained parallelism plans, without a GPU.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 yes; 1 ran well, the answer is no; 2 misuse or bad input; 3 stopped at the limit with nothing "
    "found; 130 interrupted.",
)


@app.callback()
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        import shardwright

        console.write(f"{NAME} {shardwright.__version__}\n")
        raise typer.Exit
    if context.invoked_subcommand is None:
        console.write(context.get_help() + "\n")
        raise typer.Exit


for _command in COMMANDS:
    app.command(cls=GroupedCommand, epilog=example(_command.__name__))(_command)


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and gives its exit code; nothing is raised."""
    from shardwright.planner.report import failures

    try:
        return _invoked(list(arguments))
    except typer.Exit as done:
        return done.exit_code
    except (KeyboardInterrupt, typer.Abort):
        fault: ShardwrightError = failures.InterruptedByUserError("interrupted", hint="nothing was written")
    except Exception as error:  # the last net: misuse is explained, a bug is told in one line
        if os.environ.get("SHARDWRIGHT_DEBUG"):
            import traceback

            console.say(traceback.format_exc())
        fault = failures.fault_of(error)
    console.say(failures.error_text(fault, failures.wanted_format(arguments)))
    return fault.exit_code


def _invoked(arguments: list[str]) -> int:
    from shardwright.planner.report import failures

    command = typer.main.get_command(app)
    if f"_{NAME.upper()}_COMPLETE" in os.environ:
        command.main(args=arguments, prog_name=NAME)
    chosen = getattr(command, "commands", {}).get(arguments[0] if arguments else "")
    if chosen is not None:
        failures.refuse_repeats(arguments[1:], chosen.params)
    with command.make_context(NAME, arguments) as context:
        code = command.invoke(context)
    return code if isinstance(code, int) else 0


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console entry."""
    if sys.stdout is None or sys.stderr is None:  # closed by the caller
        nowhere = open(os.devnull, "w")  # noqa: SIM115, PTH123 - open until the end
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))
