"""Every command and program of README.md and docs/*.md prints what the page says; links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from shardwright.models.dtypes import OPTIMIZERS, PRECISIONS
from shardwright.planner.cost.memory import PARTS
from shardwright.planner.problem import METERS, build_problem
from shardwright.planner.rules.registry import AXIS_ORDER, RULES
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.schema import json_schema
from shardwright.planner.stacks import StackProfile

ROOT = Path(__file__).parents[2]
RENEW = "the page shows something else than is printed now: python docs/regenerate.py"


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_regenerate", ROOT / "docs" / "regenerate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


tool = _tool()
PAGES = tool.pages()
EVERY_PAGE = (*PAGES, *sorted((ROOT / "docs" / "decisions").glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md")


def _named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


RUNNING = [page for page in PAGES if any(block.runs and "recorded" not in block.marks for block in tool.blocks(_text(page)))]


@pytest.mark.parametrize("page", RUNNING, ids=_named)
def test_page_shows_what_is_printed(page: Path) -> None:
    text = _text(page)
    with tool.workplace(text) as run:
        program = ""
        for block in tool.blocks(text):
            if block.kind == "python" and block.runs:
                program = run("python", "-W", "error", "-c", block.body)
                assert "Traceback" not in program, program
            elif "prints" in block.marks:
                assert program == block.body, RENEW
            elif block.kind == "console" and block.runs and "recorded" not in block.marks:
                now = tool.printed(block, run)
                assert tool.same(now, block.body), f"{RENEW}\n{now}"
        for name, content in tool.drawn(text, run).items():
            assert (page.parent / name).read_text(encoding="utf-8") == content, f"{RENEW}: {name}"


def test_examples_are_there() -> None:
    readme = tool.blocks(_text(ROOT / "README.md"))
    assert any(block.kind == "python" and block.runs for block in readme)
    assert sum(len(block.commands) for block in readme if block.runs) >= 4
    assert {"config.json", "cluster.yaml"} <= {block.marks.get("file") for block in readme}


def test_quick_start_is_two_commands() -> None:
    section = _text(ROOT / "README.md").split("\n## Quick start\n", 1)[1].split("\n## ", 1)[0]
    first, *others = tool.blocks(section)
    lines = first.body.splitlines()
    assert not others
    assert len(lines) == 2
    assert all(line.startswith("python3 -m venv .venv && .venv/bin/pip install") for line in lines)
    assert ".venv/bin/shardwright plan" in lines[0]
    assert lines[1].endswith(".venv/bin/python -m pytest")


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", _text(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", EVERY_PAGE, ids=_named)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", _text(page)):
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


@pytest.mark.parametrize("page", EVERY_PAGE, ids=_named)
def test_named_files_exist(page: Path) -> None:
    named = re.findall(r"`((?:models|hardware|planner|benchmarks|docs|tests|src)/[\w./-]+\.(?:py|yaml|md))`", _text(page))
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_trimming_keeps_whole_paragraphs() -> None:
    assert tool.trimmed("A 1\n\nB 2\n\nC 3\nmore\n\nD 4\n", "A, C") == "A 1\n\n...\n\nC 3\nmore\n\n...\n"
    assert tool.trimmed("A\n", None) == "A\n"


def test_the_volatile_part_is_ignored() -> None:
    assert tool.same('"wall_s": 1.5,\n"x": 1', '"wall_s": 2.5,\n"x": 1')
    assert not tool.same('"wall_s": 1.5,\n"x": 1', '"wall_s": 1.5,\n"x": 2')


def _words(page: str) -> str:
    return _text(ROOT / "docs" / page)


def _missing(page: str, names: Iterable[str]) -> list[str]:
    text = _words(page)
    return [name for name in names if f"`{name}`" not in text]


def test_every_field_of_a_stack_is_explained() -> None:
    identity = {"id", "framework", "description", "aliases", "sources"}
    assert _missing("model.md", (f.name for f in fields(StackProfile) if f.name not in identity)) == []


def test_every_assumption_is_explained() -> None:
    problem = build_problem("gpt2", "dgx-h100:1", seq_len=1024, global_batch=8)
    assert _missing("model.md", (a.key for a in problem.assumptions)) == []


def test_every_rule_for_all_is_named() -> None:
    assert _missing("search.md", (rule.id for rule in RULES if not rule.targets)) == []


def test_every_axis_is_named() -> None:
    assert _missing("search.md", AXIS_ORDER) == []


def test_every_part_of_memory_and_meter_is_explained() -> None:
    assert _missing("memory.md", (*PARTS, *METERS)) == []


def test_every_schedule_and_optimizer_is_named() -> None:
    assert _missing("plans.md", SCHEDULE_IDS) == []
    assert _missing("inputs.md", (*OPTIMIZERS, *PRECISIONS)) == []


@pytest.mark.parametrize(
    "definition", ["LayoutFile", "NicFile", "NetworkFile", "SwitchFile", "PortsFile", "UplinkFile", "BlockFile", "ExcludedFile"]
)
def test_every_field_of_a_topology_is_explained(definition: str) -> None:
    assert _missing("topology.md", json_schema("cluster")["$defs"][definition]["properties"]) == []


@pytest.mark.parametrize("definition", ["NodeFile", "DeviceFile"])
def test_every_field_of_a_cluster_file_is_explained(definition: str) -> None:
    assert _missing("inputs.md", json_schema("cluster")["$defs"][definition]["properties"]) == []


def test_every_key_of_results_is_explained() -> None:
    schema = json_schema("plan-result")["$defs"]
    keys = [
        k
        for name in ("RankedPlan", "Predicted", "Time", "Memory", "Communication", "Search")
        for k in schema[name]["properties"]
    ]
    assert _missing("json.md", keys) == []
    assert _missing("json.md", json_schema("validation")["$defs"]["ValidationSummary"]["properties"]) == []
