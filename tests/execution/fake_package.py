"""A stand-in for the emitted package: scripts of ranks that print a report, fail, or never end."""

from __future__ import annotations

import json
from pathlib import Path

GOOD = """\
import os, json
report = {"losses": [2.0, 1.0], "step_time_s": 0.5, "step_times_s": [0.9, 0.5], "peak_memory_bytes": 2**30,
          "world_size": int(os.environ["WORLD_SIZE"])}
if os.environ["RANK"] == "0":
    print("a word before")
    print(json.dumps(report))
"""
BAD = """\
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit("no such device")
time.sleep(600)
"""
ENDLESS = "import time\ntime.sleep(600)\n"


def package(folder: Path, script: str) -> Path:
    """A folder with `train.py` and what an emitted package has beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(script, encoding="utf-8")
    (folder / "environment.json").write_text(json.dumps({"FROM_THE_BUNDLE": "yes"}), encoding="utf-8")
    return folder
