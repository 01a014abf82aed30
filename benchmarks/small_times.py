"""Times of the small things that every command waits for: reading presets, pricing arrays of kernels and collectives.

python benchmarks/small_times.py [--repeat N]

Prints the least CPU time of N runs each, in milliseconds, nothing remembered from earlier runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from shardwright.hardware.catalog import load_cluster
from shardwright.hardware.collectives import GroupTable, collective_s, fabric_of
from shardwright.hardware.kernels import DeviceRates, gemm_s, load_fit
from shardwright.hardware.mesh import group_shape
from shardwright.models import catalog

ROWS = 10_000
GROUPS = ((8, 1), (4, 1), (64, 8), (512, 1), (1, 1), (32, 4), (2, 256))
PRESETS = ("deepseek-v3", "gpt-oss-120b", "llama3.1-405b", "nemotron-h-56b")


def least_ms(repeat: int, call: Callable[[], object]) -> float:
    spent = []
    for _ in range(repeat):
        catalog.load_preset.cache_clear()
        began = time.process_time()
        call()
        spent.append(time.process_time() - began)
    return 1e3 * min(spent)


def calls() -> dict[str, Callable[[], object]]:
    fit, rates = load_fit("h100"), DeviceRates(peak_flops=989e12, memory_bytes_per_s=3.35e12)
    m, n, k = (np.linspace(low, 16384, ROWS) for low in (1, 512, 1024))
    cluster = load_cluster("dgx-h100:64")
    table = GroupTable.of([group_shape(cluster, *group) for group in GROUPS]).take(np.arange(ROWS) % len(GROUPS))
    fabric, messages = fabric_of(cluster), np.geomspace(1e3, 1e10, ROWS)
    made: dict[str, Callable[[], object]] = {f"preset {name}": lambda name=name: catalog.load_model(name) for name in PRESETS}
    made[f"{ROWS:,} matrix products"] = lambda: gemm_s(fit, rates, m, n, k)
    made[f"{ROWS:,} all-reduces"] = lambda: collective_s("all_reduce", table, messages, fabric)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7, metavar="N")
    repeat = parser.parse_args().repeat
    for name, call in calls().items():
        print(f"{name:<28}{least_ms(repeat, call):>8.2f} ms")


if __name__ == "__main__":
    main()
