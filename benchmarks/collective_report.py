"""The table of errors that `fit_collectives.py` prints: by reach, by fabric and by device.

An error is |predicted / measured - 1| of one row of a published log; medians are printed.

    held out    constants fitted without the row's series (a run of one machine, or one table), so presets alone
    from 1 MiB  the same, messages of 1 MiB and more
    by series   the same, each series counting once with its own median
    shipped     presets as they are in the tree, fitted to all series
    with log    presets corrected with every other size of the same series, of the sizes left out (`calibration.correction_at`)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from collective_rows import Row

from shardwright.hardware.calibration import Series, correction_at
from shardwright.hardware.catalog import load_node

LARGE_BYTES = 2**20
LOGS = "collectives"
LEAST_SIZES = 6
COLUMNS = ("series", "rows", "held out", "from 1 MiB", "by series", "shipped", "with log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """One row's errors; `with_log` is None where the row is a knot of the correction, or its series is short."""

    reach: str
    fabric: str
    device: str
    series: str
    large: bool
    held_out: float
    shipped: float
    with_log: float | None


class Report:
    """Collects errors of the published logs (operator tables of one vendor are left to the presets' own figures)."""

    def __init__(self) -> None:
        self._errors: list[Error] = []

    def add(self, kind: str, fabric: str, rows: Sequence[Row], held_out: np.ndarray, shipped: np.ndarray) -> None:
        """Takes log(predicted / measured) of the rows of one fabric."""
        corrected = _corrected(rows, shipped)
        for i, row in enumerate(rows):
            if row.origin == LOGS:
                self._errors.append(_error(kind, fabric, row, float(held_out[i]), float(shipped[i]), corrected.get(i)))

    def text(self) -> str:
        """Aligned columns: both reaches, then fabrics, then devices."""
        lines: list[tuple[str, ...]] = [("median error", *COLUMNS)]
        for group in ("reach", "fabric", "device"):
            lines += [_line(name, some) for name, some in _grouped(self._errors, group)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        return "\n".join(
            line[0].ljust(widths[0]) + "".join(cell.rjust(width + 1) for cell, width in zip(line[1:], widths[1:], strict=True))
            for line in lines
        )


def _corrected(rows: Sequence[Row], shipped: np.ndarray) -> dict[int, float]:
    """log(predicted / measured) of the sizes left out when every other size of a series is known, by index."""
    groups: dict[tuple[str, str, int, int, bool], list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        groups[row.series, row.kind, row.nodes, row.gpus_per_node, row.in_switch].append(i)
    found: dict[int, float] = {}
    for index in groups.values():
        ordered = sorted(index, key=lambda i: rows[i].message_bytes)
        sizes = {rows[i].message_bytes for i in ordered}
        if len(ordered) >= LEAST_SIZES and len(sizes) == len(ordered) and rows[index[0]].in_switch:
            found |= _left_out([rows[i] for i in ordered], ordered, shipped)
    return found


def _left_out(rows: Sequence[Row], index: Sequence[int], shipped: np.ndarray) -> dict[int, float]:
    series = Series(
        kind=rows[0].kind,
        ranks=rows[0].nodes * rows[0].gpus_per_node,
        ranks_per_node=rows[0].gpus_per_node,
        device="",
        message_bytes=tuple(r.message_bytes for r in rows),
        time_s=tuple(r.time_s for r in rows),
        source=rows[0].series,
    )
    correction = correction_at(series, load_node(rows[0].node), range(0, len(rows), 2))
    left = range(1, len(rows), 2)
    log_ratio = correction.at(np.log([rows[k].message_bytes for k in left]))
    return {index[k]: float(shipped[index[k]] + value) for k, value in zip(left, log_ratio, strict=True)}


def _error(kind: str, fabric: str, row: Row, held_out: float, shipped: float, with_log: float | None) -> Error:
    inside = kind == "scale-up"
    return Error(
        reach="inside a node or domain" if inside else "between nodes or domains",
        fabric=fabric,
        device=f"{load_node(row.node).device.id}, {'inside' if inside else 'between'}",
        series=f"{row.series} {row.kind}",
        large=row.message_bytes >= LARGE_BYTES,
        held_out=abs(float(np.expm1(held_out))),
        shipped=abs(float(np.expm1(shipped))),
        with_log=None if with_log is None else abs(float(np.expm1(with_log))),
    )


def _grouped(errors: Iterable[Error], field: str) -> list[tuple[str, list[Error]]]:
    found: dict[str, list[Error]] = defaultdict(list)
    for error in errors:
        found[getattr(error, field)].append(error)
    return sorted(found.items())


def _line(name: str, errors: Sequence[Error]) -> tuple[str, ...]:
    series = [some for _, some in _grouped(errors, "series")]
    return (
        name,
        str(len(series)),
        str(len(errors)),
        _median(e.held_out for e in errors),
        _median(e.held_out for e in errors if e.large),
        _median(float(np.median([e.held_out for e in some])) for some in series),
        _median(e.shipped for e in errors),
        _median(e.with_log for e in errors if e.with_log is not None),
    )


def _median(values: Iterable[float]) -> str:
    found = list(values)
    return f"{100 * float(np.median(found)):.1f} %" if found else "-"
