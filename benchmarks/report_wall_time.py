"""How long `report` takes from the command line, and how large its file is.

python benchmarks/report_wall_time.py [--runs 3]

Prices a plan of 16 stages, and one of 64 stages with 256 micro-batches, and makes a report of each, as a user would: a
process a command. Wall seconds of the fastest and the slowest run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLANS = {
    "16 stages": "gpt3-175b --cluster dgx-h100:32 --seq-len 2048 --global-batch 512 --tp 4 --pp 16 --vpp 2",
    "64 stages": "megatron-1t --cluster dgx-h100:64 --seq-len 2048 --global-batch 256 --tp 8 --pp 64",
}


def shardwright(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "shardwright", *arguments], capture_output=True, text=True, check=False)
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        for name, words in PLANS.items():
            plan, page = Path(folder) / "plan.json", Path(folder) / "report.html"
            plan.write_text(shardwright("estimate", *words.split(), "--format", "json"), encoding="utf-8")
            taken = []
            for _ in range(runs):
                start = time.perf_counter()
                shardwright("report", str(plan), "-o", str(page), "--force")
                taken.append(time.perf_counter() - start)
            print(f"{name}: {min(taken):.2f} to {max(taken):.2f} s, {page.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
