"""The cells of docs/notebook.ipynb run one after another, as a program, and draw what they end with."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def _cells() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def _as_program(cells: list[str]) -> str:
    """The cells in order; where one ends with an expression its value is shown as a notebook would show it."""
    lines = ["def shown(number, value):", "    html = getattr(value, '_repr_html_', None)"]
    lines += ["    print(number, type(value).__name__, len(html() if html else repr(value)))", ""]
    for number, cell in enumerate(cells):
        body = ast.parse(cell).body
        if isinstance(body[-1], ast.Expr):
            rest = [ast.unparse(statement) for statement in body[:-1]]
            lines += [*rest, f"shown({number}, {ast.unparse(body[-1])})"]
        else:
            lines.append(cell)
    return "\n".join(lines) + "\n"


def test_the_notebook_is_one_and_is_kept_without_outputs():
    document = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert document["nbformat"] == 4
    assert NOTEBOOK.stat().st_size < 20_000
    assert len({cell["id"] for cell in document["cells"]}) == len(document["cells"])
    assert all(cell["outputs"] == [] for cell in document["cells"] if cell["cell_type"] == "code")
    assert any(cell["cell_type"] == "markdown" for cell in document["cells"])


def test_every_cell_runs_and_draws(tmp_path):
    pytest.importorskip("pandas")
    program = tmp_path / "notebook.py"
    program.write_text(_as_program(_cells()), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(program)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = [line.split() for line in done.stdout.splitlines()]
    assert [int(line[0]) for line in shown] == list(range(len(_cells())))
    assert {"PlanResult", "Estimate", "DataFrame", "Explanation"} <= {line[1] for line in shown}
    assert all(int(line[2]) > 500 for line in shown if line[1] in {"PlanResult", "Estimate", "Explanation"})
