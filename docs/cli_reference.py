"""Writes docs/cli.md from the commands themselves.

    python docs/cli_reference.py

docs/regenerate.py writes it too; tests/docs compares the page with what is written now.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from shardwright.cli import app
from shardwright.planner.report.options import OTHER, PANELS, help_record

PAGE = Path(__file__).with_name("cli.md")

HEAD = """\
# Command line reference

Written from the program itself by `docs/cli_reference.py`; `shardwright COMMAND --help` prints the same.

- The result alone goes to standard output; progress, remarks and errors go to standard error.
- `--format table|json|yaml|csv`: tables are for eyes (80 columns at least, ASCII where the terminal has nothing else), the
  others for programs. [json.md](json.md) explains every key.
- Exit codes: 0 yes; 1 ran well, the answer is no (nothing fits, infeasible, over the tolerance); 2 misuse or bad input;
  3 stopped at the limit with nothing found; 130 interrupted (the best so far is still written).
- No colours where standard output is no terminal, or with `NO_COLOR`. A search shows one live line on a terminal, and a line
  every ten seconds in a log; `SHARDWRIGHT_NO_PROGRESS=1` switches both off.
- `shardwright --install-completion` sets up completion of commands, options, models and nodes.

"""


def page() -> str:
    """The page as it is now."""
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    index = "".join(f"- [`{name}`](#{name}): {_first(command.help)}\n" for name, command in commands.items())
    return HEAD + index + "".join(_section(name, command) for name, command in commands.items())


def _first(text: str | None) -> str:
    return (text or "").strip().split("\n\n")[0].replace("\n", " ")


def _section(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    said = f"\n## {name}\n\n{_first(command.help)}\n\n```text\nshardwright {name} {usage}\n```\n\nExample: `{command.epilog}`\n"
    groups: dict[str, list[Any]] = {}
    for parameter in command.get_params(context):
        if help_record(parameter, context) is not None:
            groups.setdefault(getattr(parameter, "rich_help_panel", None) or OTHER, []).append(parameter)
    return said + "".join(_table(panel, groups[panel], context) for panel in (*PANELS, OTHER) if panel in groups)


def _table(panel: str, parameters: list[Any], context: Any) -> str:
    rows = (help_record(parameter, context) for parameter in parameters)
    lines = "".join(f"| `{_cell(name)}` | {_cell(text)} |\n" for name, text in rows if "--help" not in name)
    return f"\n| {panel} | |\n|---|---|\n{lines}" if lines else ""


def _cell(text: str) -> str:
    """Words of a help page for a table; what releases of Typer add in their own ways, types and ranges, is left out."""
    plain = re.sub(r"\s*(<[a-z_\[\]]+>|\[[^\]]*<=[^\]]*\])", "", re.sub(r"\s+", " ", text))
    return plain.strip().replace("|", "\\|")


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
