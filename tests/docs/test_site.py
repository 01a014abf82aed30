"""The pages as a site: every page is in its navigation, and it builds without a warning where mkdocs is installed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shardwright.documents import read_document

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs").resolve()


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _pages(entries: list[Any]) -> list[str]:
    found = []
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            found += _pages(value) if isinstance(value, list) else [value]
    return found


def _links(page: Path) -> set[Path]:
    found = re.findall(r"\]\(([^)#\s:]+\.md)", page.read_text(encoding="utf-8"))
    return {(page.parent / link).resolve() for link in found}


def test_every_page_is_found_by_navigation_or_by_links() -> None:
    named = _pages(read_document(ROOT / "mkdocs.yml").data["nav"])
    assert len(named) == len(set(named))
    reached: set[Path] = set()
    wanted = {(DOCS / name).resolve() for name in named}
    while new := {page for page in wanted if page.is_relative_to(DOCS)} - reached:
        reached |= new
        wanted = {link for page in new for link in _links(page)}
    assert sorted(path.name for path in set(DOCS.resolve().rglob("*.md")) - reached) == []


def test_what_is_not_modelled_is_found_at_once() -> None:
    assert "limits.md" in (DOCS / "index.md").read_text(encoding="utf-8")
    assert {"What is not modelled": "limits.md"} in read_document(ROOT / "mkdocs.yml").data["nav"]


def test_the_command_line_is_described_as_it_is() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert _tool("cli_reference").page() == text, "run: python docs/cli_reference.py"


def test_every_question_has_a_page() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert all(f"howto/{page.name}" in index for page in (DOCS / "howto").glob("*.md"))


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    if importlib.util.find_spec("material") is None:
        pytest.skip("extra `docs` is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "tutorial" / "index.html").is_file()
