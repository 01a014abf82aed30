"""docs/rules.md holds every rule as the registry has it now."""

import importlib.util
import sys
from pathlib import Path

from shardwright.planner.rules.registry import RULES, SUBJECTS

DOCS = Path(__file__).parents[2] / "docs"


def _tool():
    spec = importlib.util.spec_from_file_location("docs_rules_table", DOCS / "rules_table.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current():
    text = (DOCS / "rules.md").read_text(encoding="utf-8")
    assert _tool().page(text) == text, "run: python docs/rules_table.py"


def test_every_rule_is_on_the_page():
    text = (DOCS / "rules.md").read_text(encoding="utf-8")
    assert [rule.id for rule in RULES if f"`{rule.id}`" not in text] == []
    assert [subject for subject in SUBJECTS if f"<!-- rules: {subject} -->" not in text] == []
