"""Writes the tables of docs/rules.md from the registry of rules.

    python docs/rules_table.py

A table stands after a comment `<!-- rules: SUBJECT -->`, SUBJECT being `any`, `search` or a key of `registry.SUBJECTS`; all
lines that follow and start with `|` are rewritten. tests/rules compares the page with what is written now.
"""

from __future__ import annotations

import re
from pathlib import Path

from shardwright.planner.rules.base import Rule
from shardwright.planner.rules.canonical import CANONICAL
from shardwright.planner.rules.elementary import ELEMENTARY
from shardwright.planner.rules.exchanges import EXCHANGES
from shardwright.planner.rules.losses import LOSSES
from shardwright.planner.rules.offloading import OFFLOADING
from shardwright.planner.rules.registry import SUBJECTS

PAGE = Path(__file__).with_name("rules.md")
TABLE = re.compile(r"^<!-- rules: (.+) -->\n(?:\|[^\n]*\n)*", re.MULTILINE)
HEAD = ("| rule | what it says | reads | holds for | otherwise |\n", "|---|---|---|---|---|\n")


def page(text: str) -> str:
    """The page with its tables as they are now."""
    return TABLE.sub(lambda found: f"<!-- rules: {found[1]} -->\n{table(rules_of(found[1]))}", text)


def rules_of(subject: str) -> tuple[Rule, ...]:
    """The rules of a subject."""
    return {"any": (*ELEMENTARY, *EXCHANGES, *LOSSES, *OFFLOADING), "search": CANONICAL}.get(subject) or SUBJECTS[subject]


def table(rules: tuple[Rule, ...]) -> str:
    """One row a rule."""
    return "".join((*HEAD, *(_row(rule) for rule in rules)))


def _row(rule: Rule) -> str:
    settings = [f"`{name}`" for name in rule.settings]
    reads = ", ".join((*rule.reads, *settings)) or "the job"
    severity = "search only" if rule.canonical else rule.severity
    cells = (f"`{rule.id}`", rule.says, reads, _where(rule), severity)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _where(rule: Rule) -> str:
    """Targets, and the versions in which it holds."""
    words = ", ".join(rule.targets) or "any"
    words += f" from {rule.since}" if rule.since else ""
    return words + (f" before {rule.until}" if rule.until else "")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
