"""The report of `report`: what was written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.style import paragraph


def report_parts(data: Mapping[str, Any]) -> list[Any]:
    """Everything `report` shows."""
    size = f"{data['bytes'] / 1e6:.2g} MB" if data["bytes"] >= 995_000 else f"{round(data['bytes'], -4) // 1000} kB"
    parts = [
        paragraph(
            f"{data['file']}: {size}, {words.many(len(data['pictures']), 'picture')}: {', '.join(data['pictures'])}", indent=0
        )
    ]
    if data["figures"]:
        parts.append(
            paragraph(f"{words.many(len(data['figures']), 'file')} of pictures: {', '.join(data['figures'])}", indent=0)
        )
    return parts + [paragraph(f"note: {note}", indent=0) for note in data["notes"]]
