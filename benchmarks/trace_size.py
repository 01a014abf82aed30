"""How large a trace gets and how long it takes to write: 64 stages of 256 micro-batches, dense and with experts.

python benchmarks/trace_size.py

Prints one line a plan: events, megabytes, seconds. Targets: under 20 MB and 5 s.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import shardwright
from shardwright.planner.report.trace import write_trace

PLANS = {
    "llama3.1-405b, tp 8": ("llama3.1-405b", "dgx-h100:64", shardwright.Degrees(tp=8, pp=64), 256),
    "qwen3-235b-a22b, tp 4, ep 2": ("qwen3-235b-a22b", "dgx-h100:64", shardwright.Degrees(tp=4, pp=64, ep=2, etp=1), 512),
    "llama3.1-405b, tp 4, cp 4": ("llama3.1-405b", "dgx-h100:128", shardwright.Degrees(tp=4, cp=4, pp=64), 256),
}


def main() -> None:
    for name, (model, cluster, degrees, batch) in PLANS.items():
        estimate = shardwright.estimate(model, cluster, seq_len=4096, global_batch=batch, degrees=degrees).to_dict()
        parallel = estimate["parallel"]
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            path = write_trace(estimate, Path(folder) / "trace.json")
            seconds, size = time.perf_counter() - started, path.stat().st_size
            events = path.read_text(encoding="ascii").count('"ph":')
        shape = f"{parallel['pp']} stages x {parallel['micro_batches']} micro-batches"
        print(f"{name}: {shape}: {events:,} events, {size / 1e6:.1f} MB, {seconds:.1f} s")


if __name__ == "__main__":
    main()
