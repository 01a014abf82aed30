"""How much slower than the median pair or node the slow ones are: quantiles for ``hardware/tails.py``.

    python benchmarks/fit_tails.py --data FOLDER

Reads ``hardware/collectives_variability.csv``: bus bandwidth over node pairs, and over nodes, of two H100 clusters (least,
5 %, median, 95 %, most). Slowdown is median / value; its quantiles are averaged over the rows of each cluster, then over
clusters. Messages beyond 2 GiB are left out where one cluster throttles to a tenth.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

LARGEST_BYTES = 2.0**31
GIVEN = (0.0, 0.05, 0.5, 0.95, 1.0)
FIELDS = ("max", "p95", "median", "p05", "min")  # of bandwidth, so of slowdown the other way round
WANTED = (0.5, 0.95, 1.0)


def main() -> None:
    """Prints the quantiles, between nodes and inside them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the reference measurements")
    path = parser.parse_args().data / "hardware" / "collectives_variability.csv"
    with path.open(encoding="utf-8") as stream:
        rows = [r for r in csv.DictReader(stream) if float(r["message_bytes"]) <= LARGEST_BYTES or "cluster01" in r["cluster"]]
    for unit in ("node pair", "node"):
        clusters: dict[str, list[np.ndarray]] = defaultdict(list)
        for row in rows:
            if row["unit_sampled"] == unit:
                clusters[row["cluster"]].append(_quantiles(row))
        mean = np.mean([np.mean(found, axis=0) for found in clusters.values()], axis=0)
        spread = {name: np.round(np.mean(found, axis=0), 3).tolist() for name, found in clusters.items()}
        print(unit, dict(zip(WANTED, np.round(mean, 3).tolist(), strict=True)), spread)


def _quantiles(row: dict[str, str]) -> np.ndarray:
    slowdown = [float(row["busbw_median_GBps"]) / float(row[f"busbw_{field}_GBps"]) for field in FIELDS]
    return np.interp(WANTED, GIVEN, slowdown)


if __name__ == "__main__":
    main()
