"""Scripts that go into bundles as they stand; they read what they need from the files beside them."""

from __future__ import annotations

from importlib import resources


def template(name: str) -> str:
    """The text of a script in `templates/`."""
    return resources.files("shardwright.planner.emit").joinpath("templates", name).read_text(encoding="utf-8")
