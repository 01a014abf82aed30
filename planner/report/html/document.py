"""`report`: a result as one HTML file, and its pictures as files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.planner.report.html import figures as figure_module
from shardwright.planner.report.html.page import LIMIT_BYTES, rendered
from shardwright.planner.report.html.reading import SWEEP, read_report_source
from shardwright.planner.report.html.sections import Made, result_page, sweep_page
from shardwright.planner.report.html.writing import check_folder, check_target, write_files
from shardwright.planner.shown import Shown

WHERE, FIGURES = "-o", "--figures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Shown):
    """What was written.

    Attributes:
        data: the record `report --format json` prints.
    """

    data: Mapping[str, Any]
    exit_code: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The record itself."""
        return dict(self.data)

    def __repr__(self) -> str:
        return f"Report(file={self.data['file']!r}, pictures={len(self.data['pictures'])})"


def report(
    source: str | Path | Mapping[str, Any],
    file: str | Path,
    *,
    rank: int = 1,
    figures: str | Path | None = None,
    force: bool = False,
) -> Report:
    """Writes the report of a result.

    Args:
        source: a RESULT (file, folder, `-` for standard input), a PLAN, a sweep-result, or what such a file holds.
        file: HTML file to write.
        rank: 1-based rank of the plan shown in detail.
        figures: folder for the pictures as SVG, and PNG where the extra `figures` is installed.
        force: replace files that are there.

    Raises:
        ShardwrightError: the source cannot be used, has no such rank, or a file cannot be written.
    """
    place, folder = Path(file), None if figures is None else Path(figures)
    check_target(place, force=force, where=WHERE)
    if folder is not None:
        check_folder(folder, where=FIGURES)
    document = dict(source) if isinstance(source, Mapping) else read_report_source(str(source))
    name = "a result" if isinstance(source, Mapping) else _name(str(source))
    if document["kind"] == SWEEP and rank != 1:
        raise ConflictError("a sweep has no ranks", where="--rank", hint="drop --rank")
    made = sweep_page(document, name) if document["kind"] == SWEEP else result_page(document, rank, name)
    text, left_out = page_text(made, document, rank)
    files = {place: text.encode()}
    drawn = {} if folder is None else {folder / n: content for n, content in figure_module.figure_files(made.pictures).items()}
    for path in drawn:
        check_target(path, force=force, where=FIGURES)
    write_files(files | drawn, WHERE)
    notes = [f"left out of the embedded data to keep the file small: {', '.join(left_out)}"] if left_out else []
    if folder is not None and not figure_module.can_draw_png():
        notes.append(figure_module.NO_PNG)
    return Report(
        data={
            "schema_version": 1,
            "kind": "report",
            "file": str(place),
            "bytes": len(files[place]),
            "rank": None if document["kind"] == SWEEP else rank,
            "pictures": [picture.id for picture in made.pictures],
            "figures": [str(path) for path in drawn],
            "notes": notes,
        }
    )


def _name(source: str) -> str:
    return "standard input" if source == "-" else Path(source).name


def page_text(made: Made, document: Mapping[str, Any], rank: int) -> tuple[str, list[str]]:
    """The file, and what had to be left out of its embedded data to stay below `LIMIT_BYTES`.

    Raises:
        InvalidValueError: it is too large even so.
    """
    pictures = {picture.id: picture.data for picture in made.pictures}
    result = trimmed(document, rank)
    left_out: list[str] = []
    for step in ("", "inputs.calibration.inline", "inputs.cluster"):
        if step:
            result = _without(result, step.split("."))
            left_out.append(step)
        text = rendered(made.page, {"result": result, "shown_rank": rank, "pictures": pictures})
        if len(text.encode()) < LIMIT_BYTES:
            return text, left_out
    hint = "report a result with fewer plans (plan --top 20), or a sweep of fewer points"
    raise InvalidValueError(f"the report would be larger than {LIMIT_BYTES:,} bytes", where=WHERE, hint=hint)


_KEPT = frozenset(
    ("rank", "tie_group", "id", "parallel", "predicted", "time", "memory", "expressible_by", "shortage_bytes", "pareto")
)


def trimmed(document: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """The document with the stages and collectives of the plan shown in detail alone."""
    made = dict(document)
    first = True
    for name in ("plans", "near_misses"):
        if name in made:
            rows = enumerate(made[name], 1)
            made[name] = [p if first and at == rank else _short(p) for at, p in rows]
            first = first and not made[name]
    if "points" in made:
        made["points"] = [p | {"best": _short(p["best"]), "others": []} for p in made["points"]]
    return made


def _short(plan: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if plan is None else {key: value for key, value in plan.items() if key in _KEPT}


def _without(value: Mapping[str, Any], path: list[str]) -> dict[str, Any]:
    if path[0] not in value:
        return dict(value)
    rest = None if len(path) == 1 else _without(value[path[0]], path[1:])
    return {**value, path[0]: rest}
