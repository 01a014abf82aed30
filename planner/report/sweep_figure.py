"""The picture of a sweep: how each job scales over the number of GPUs.

Throughput against ideal, efficiency, exposed exchange, MFU, dollars and energy, memory that is left; the knees as vertical
lines; and, for the first jobs, the degrees at every size, marked where they change.

    write_figure(path, records)    FILE.svg is written by `chart_svg`; FILE.png is drawn from it by resvg (extra `figures`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from shardwright.errors import InvalidValueError, UnsupportedError
from shardwright.planner.report import words
from shardwright.planner.report.chart import MAX_CURVES, Chart, Curve, Grid, Panel
from shardwright.planner.report.chart_svg import svg_text
from shardwright.planner.report.html.figures import can_draw_png, png_bytes
from shardwright.planner.report.plan_table import SCHEDULES
from shardwright.planner.report.sweep_words import cell, job_text, knee_text
from shardwright.planner.sweep.scaling import DEGREES, Measures, Series, series_of

WHERE = "--figure"
SUFFIXES = (".svg", ".png")
GRIDS = 4
GIB = 2**30
NEUTRAL = {"1", "none", "1f1b"}
"""Values of degrees that say nothing; a row of nothing else is left out."""

FIGURES: tuple[tuple[str, Callable[[Series, int, Measures], float | None]], ...] = (
    ("efficiency against the smallest size, %", lambda series, at, _: 100 * series.efficiency(at)),
    ("throughput that a doubling adds, %", lambda series, at, _: _percent(series.gain(at))),
    ("exchange that no computing hides, % of the step", lambda _, __, one: 100 * one.exposed_share),
    ("MFU, %", lambda _, __, one: 100 * one.mfu),
    ("dollars a million tokens", lambda _, __, one: one.usd),
    ("energy, joules a token", lambda _, __, one: one.joules),
    ("memory left on the fullest device, GiB", lambda _, __, one: one.headroom_bytes / GIB),
)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def check_figure(path: Path) -> None:
    """Sees to it, before any work is done, that a picture may be written there.

    Raises:
        InvalidValueError: another suffix, or no folder to write to.
        UnsupportedError: a PNG, without the extra `figures`.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidValueError(f"{path} is neither SVG nor PNG", where=WHERE, hint="name FILE.svg or FILE.png")
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidValueError(f"cannot write {path}", where=WHERE, hint="name a file in an existing folder")
    try:
        with path.open("ab"):
            pass
        if path.stat().st_size == 0:
            path.unlink()
    except OSError as error:
        raise _unwritable(path, error) from error
    if path.suffix.lower() == ".png" and not can_draw_png():
        hint = "pip install resvg-py, or name FILE.svg, which needs no library"
        raise UnsupportedError("PNG needs resvg, which is not installed", where=WHERE, hint=hint)


def write_figure(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Draws a sweep.

    Raises:
        InvalidValueError: no point has a plan, or the file cannot be written.
    """
    check_figure(path)
    chart = chart_of([series for series in series_of(records) if series.sizes])
    text = svg_text(chart)
    made = png_bytes(text) if path.suffix.lower() == ".png" else text.encode()
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_bytes(made)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> InvalidValueError:
    return InvalidValueError(f"cannot write {path}: {error.strerror}", where=WHERE, hint="name a file you may write")


def chart_of(found: Sequence[Series]) -> Chart:
    """The picture as data.

    Raises:
        InvalidValueError: no point has a plan.
    """
    if not found:
        raise InvalidValueError(
            "no point has a plan: there is nothing to draw", where=WHERE, hint="larger clusters may have one"
        )
    shown = found[:MAX_CURVES]
    common = {name: value for name, value in shown[0].key.items() if all(one.key[name] == value for one in shown)}
    names = [job_text({k: v for k, v in one.key.items() if k not in common}) for one in shown]
    remarks = [job_text(common)] if common else []
    remarks += [
        f"{name + ': ' if name else ''}{knee_text(one.knee)}" for name, one in zip(names, shown, strict=True) if one.knee
    ]
    remarks += [f"the first {len(shown)} of {len(found)} jobs"] if len(found) > len(shown) else []
    knees = tuple((index, float(one.knee.gpus)) for index, one in enumerate(shown) if one.knee)
    return Chart(
        title="How throughput scales" if len(shown) == 1 else f"How {len(shown)} jobs scale",
        remarks=tuple(remarks),
        legend=tuple(names) if len(shown) > 1 else (),
        panels=(_throughput(shown, knees), *(_panel(shown, title, figure) for title, figure in FIGURES)),
        grids=tuple(_grid(one, name) for one, name in zip(shown[:GRIDS], names, strict=False)),
    )


def _throughput(shown: Sequence[Series], knees: tuple[tuple[int, float], ...]) -> Panel:
    curves = []
    for index, series in enumerate(shown):
        first, last = series.sizes[0], series.sizes[-1]
        ideal = ((first.gpus, first.tokens_per_s), (last.gpus, first.tokens_per_s * last.gpus / first.gpus))
        curves.append(Curve(index=index, points=ideal, ideal=True))
        curves.append(Curve(index=index, points=tuple((one.gpus, one.tokens_per_s) for one in series.sizes)))
    return Panel(title="tokens a second (dotted: ideal)", curves=tuple(curves), log=True, marks=knees)


def _panel(shown: Sequence[Series], title: str, figure: Callable[[Series, int, Measures], float | None]) -> Panel:
    curves = []
    for index, series in enumerate(shown):
        found = [(one.gpus, figure(series, at, one)) for at, one in enumerate(series.sizes)]
        points = tuple((float(gpus), value) for gpus, value in found if value is not None)
        if points:
            curves.append(Curve(index=index, points=points))
    return Panel(title=title, curves=tuple(curves))


def _grid(series: Series, name: str) -> Grid:
    rows = []
    for degree in DEGREES:
        cells = tuple(cell(SCHEDULES.get(one.degrees[degree], one.degrees[degree])) for one in series.sizes)
        if degree in {"tp", "pp", "dp"} or set(cells) - NEUTRAL:
            rows.append((degree.replace("zero_stage", "ZeRO").replace("_", "-"), cells))
    heads = tuple(words.count(one.gpus) for one in series.sizes)
    return Grid(title=f"degrees by GPUs{': ' + name if name else ''}", heads=heads, rows=tuple(rows))
