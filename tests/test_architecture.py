"""The house rules that a machine can check: who imports whom, what start-up loads, sizes, banned calls."""

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 450
HEAVY = {"ortools", "networkx", "numpy", "scipy", "torch", "matplotlib", "plotly", "seaborn"}
READERS = {"pydantic", "ruamel.yaml"}
BANNED_CALLS = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
BANNED_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "logging"}
YAML_READERS = {"src/shardwright/yaml_reader.py"}


def library_files() -> list[Path]:
    folders = ("models", "hardware", "planner", "src/shardwright")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if not path.is_symlink()]
    found = [path for path in found if path.parent.name != "templates"]  # written into bundles, never imported
    return sorted({ROOT / "cli.py", *found}) if (ROOT / "cli.py").exists() else sorted(found)


ENTRIES = {"cli.py", "src/shardwright/__main__.py"}
"""What a process starts with: these alone may end it."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


FILES = [pytest.param(path, id=name_of(path)) for path in library_files()]


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def lines_without_docstring(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    return total - len((ast.get_docstring(function) or "").splitlines())


def imported_modules(tree: ast.AST) -> set[str]:
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def banned_uses(tree: ast.AST) -> list[str]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [f"{c.func.id}() in line {c.lineno}" for c in calls if isinstance(c.func, ast.Name) and c.func.id in BANNED_CALLS]
    modules = [f"import {name}" for name in imported_modules(tree) if name.split(".")[0] in BANNED_MODULES]
    exits = [
        f"sys.exit in line {node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in {"exit", "_exit"} and ast.unparse(node.value) in {"sys", "os"}
    ]
    return names + modules + exits


# --- the rules would notice --------------------------------------------------------------------------


def test_the_library_is_found_whole():
    names = {name_of(path) for path in library_files()}
    assert {"models/__init__.py", "hardware/__init__.py", "planner/__init__.py", "src/shardwright/documents.py"} <= names
    assert len(names) == len({path.resolve() for path in library_files()})


@pytest.mark.parametrize(
    "text", ["eval('1')", "import pickle", "from pickle import loads", "import yaml", "exec(x)", "sys.exit(1)"]
)
def test_banned_uses_are_noticed(text):
    assert banned_uses(ast.parse(text))


def test_docstrings_do_not_count_as_lines():
    function = ast.parse('def f():\n    """a\n\n    b\n    """\n    return 1').body[0]
    assert isinstance(function, ast.FunctionDef)
    assert lines_without_docstring(function) <= 4


# --- imports -----------------------------------------------------------------------------------------


def test_layers_are_kept():
    pytest.importorskip("importlinter")
    done = run_python("-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


HELP = """
import contextlib, io, runpy, sys
sys.argv = ["shardwright", *{arguments!r}]
shown = io.StringIO()
with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
    runpy.run_module("shardwright", run_name="__main__")
assert "plan" in shown.getvalue(), shown.getvalue()
print("\\n".join(sys.modules))
"""


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["show", "--help"]], ids=" ".join)
def test_help_loads_nothing_heavy(arguments):
    done = run_python("-c", HELP.format(arguments=arguments))
    assert done.returncode == 0, done.stderr
    unwanted = HEAVY | READERS if arguments == ["--help"] else HEAVY
    assert unwanted & set(done.stdout.split()) == set()


def test_importing_the_package_loads_nothing_heavy():
    done = run_python("-c", "import sys, shardwright; print('\\n'.join(sys.modules))")
    assert done.returncode == 0, done.stderr
    assert (HEAVY | READERS | {"typer", "rich"}) & set(done.stdout.split()) == set()


def test_documents_load_their_parsers_only_when_used():
    done = run_python("-c", "import sys, shardwright.documents; print('\\n'.join(sys.modules))")
    assert done.returncode == 0, done.stderr
    assert (HEAVY | READERS) & set(done.stdout.split()) == set()


# --- how the tests run -------------------------------------------------------------------------------


def test_tests_cannot_reach_the_network():
    with socket.socket() as far, pytest.raises(PermissionError, match="network"):
        far.connect(("192.0.2.1", 80))
    with pytest.raises(PermissionError, match="network"):
        socket.create_connection(("example.org", 443), timeout=1)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=5) as near:
        assert near.getpeername() == server.getsockname()


def test_tests_run_without_colours():
    assert os.environ["NO_COLOR"] == "1"


# --- each file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES)
def test_files_and_functions_are_short(path):
    functions = [node for node in ast.walk(parsed(path)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    too_long = {f"{node.name}, line {node.lineno}": lines_without_docstring(node) for node in functions}
    assert {name: lines for name, lines in too_long.items() if lines > MAX_FUNCTION_LINES} == {}
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE_LINES


@pytest.mark.parametrize("path", FILES)
def test_nothing_is_printed_or_executed(path):
    tree = parsed(path)
    found = banned_uses(tree)
    if name_of(path) in ENTRIES:
        found = [use for use in found if not use.startswith("sys.exit")]
    else:
        found += [f"print in line {n.lineno}" for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == "print"]
    assert found == []


@pytest.mark.parametrize("path", FILES)
def test_yaml_goes_through_one_reader_and_pydantic_stays_at_the_edge(path):
    modules = {name.split(".")[0] for name in imported_modules(parsed(path))}
    if name_of(path) not in YAML_READERS:
        assert "ruamel" not in modules
    if path.name not in {"schema.py", "documents.py"}:
        assert "pydantic" not in modules


@pytest.mark.parametrize("path", FILES)
def test_nothing_is_asserted_and_every_module_says_what_it_does(path):
    tree = parsed(path)
    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)] == []
    assert ast.get_docstring(tree) or not tree.body
