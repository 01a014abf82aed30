"""Seconds of `explain` and `compare` from the command line, start-up included. Target: explain under 2 s of wall time.

python benchmarks/explain_time.py

Prints one line a result; on a machine that is busy with other things the CPU seconds tell more.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULTS = {
    "8B, one node": ("llama3.1-8b", "dgx-h100:1", "8192", "64"),
    "70B, 16 nodes": ("llama3.1-70b", "dgx-h100:16", "8192", "512"),
    "experts, 128 nodes": ("deepseek-v3", "dgx-h100:128", "4096", "4096"),
}


def timed(*arguments: str) -> tuple[float, float]:
    """Wall and CPU seconds of one command line."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "shardwright", *arguments], check=True, capture_output=True, env=os.environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, cpu


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, (model, cluster, seq_len, batch) in RESULTS.items():
            out = str(Path(folder) / model)
            timed("plan", model, "--cluster", cluster, "--seq-len", seq_len, "--global-batch", batch, "-o", out)
            for command in (("explain", out), ("compare", out, out, "--rank-b", "2")):
                wall, cpu = timed(*command)
                print(f"{name}, {command[0]}: {wall:.2f} s wall, {cpu:.2f} s CPU")


if __name__ == "__main__":
    main()
