"""Error of collectives once a log of the same machine is given, on published logs.

    python benchmarks/calibration_accuracy.py FOLDER      FOLDER holds hardware/collectives.csv

Each series (one run, one collective, one group of ranks) with at least eight sizes is split by size, never by row of a table of
one size. Three hold-outs, each predicted by a calibration made of the other sizes:

    between      every other size, both halves in turn
    sparse       three sizes of four
    beyond       the sizes above 64 MiB, from those below
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
from collective_rows import Row, log_rows

from shardwright.hardware.calibration import Series, expected_s
from shardwright.hardware.calibration_fit import held_out_errors
from shardwright.hardware.catalog import load_node

LEAST = 8
EDGE_BYTES = 2.0**26


def between(series: Series) -> list[range]:
    return [range(first, len(series.message_bytes), 2) for first in (0, 1)]


def sparse(series: Series) -> list[range]:
    return [range(first, len(series.message_bytes), 4) for first in range(4)]


def beyond(series: Series) -> list[range]:
    below = sum(size <= EDGE_BYTES for size in series.message_bytes)
    return [range(below)] if 4 <= below <= len(series.message_bytes) - 2 else []


HOLD_OUTS: dict[str, Callable[[Series], list[range]]] = {"between": between, "sparse": sparse, "beyond": beyond}


def series_of(rows: list[Row]) -> list[tuple[str, Series]]:
    """(node, series) of every run with enough sizes."""
    grouped: dict[tuple[str, str, int, int, str], dict[float, float]] = defaultdict(dict)
    for row in rows:
        grouped[row.series, row.node, row.nodes, row.gpus_per_node, row.kind][row.message_bytes] = row.time_s
    found = []
    for (name, node, nodes, each, kind), times in sorted(grouped.items()):
        if len(times) >= LEAST and nodes * each > 1:
            sizes = tuple(sorted(times))
            made = Series(
                kind=kind,
                ranks=nodes * each,
                ranks_per_node=each,
                device="",
                message_bytes=sizes,
                time_s=tuple(times[size] for size in sizes),
                source=name,
            )
            found.append((node, made))
    return found


def main() -> None:
    runs = series_of(log_rows(Path(sys.argv[1])))
    print(f"{'':22}{'series':>8}{'sizes':>8}{'median':>10}{'p90':>10}{'of series':>12}")
    for where, several in (("one node", False), ("several nodes", True)):
        chosen = [(load_node(node), one) for node, one in runs if (one.nodes > 1) == several]
        plain = [np.abs(expected_s(s, n, np.array(s.message_bytes)) / np.array(s.time_s) - 1.0) for n, s in chosen]
        line(f"{where}, presets", plain)
        for name, split in HOLD_OUTS.items():
            errors = [np.concatenate([held_out_errors(s, n, knots) for knots in split(s)]) for n, s in chosen if split(s)]
            line(f"  {name}", errors)


def line(name: str, errors: list[np.ndarray]) -> None:
    together = np.concatenate(errors)
    each = statistics.median(float(np.median(e)) for e in errors)
    shown = [f"{100 * v:.1f} %" for v in (np.median(together), np.percentile(together, 90), each)]
    print(f"{name:22}{len(errors):>8}{len(together):>8}{shown[0]:>10}{shown[1]:>10}{shown[2]:>12}")


if __name__ == "__main__":
    main()
