"""Small sweeps that the tests share, and what runs them as a user does."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from shardwright.planner.search.options import SearchOptions
from shardwright.planner.sweep.request import requested

SOURCE = Path(__file__).parents[2] / "src"
FIXED = {"pp": "1", "cp": "1"}
SMALL = {"model": "gpt2", "node": "dgx-h100", "nodes": "1,2,4", "seq_len": 1024, "global_batch": 256}


def request_of(**changes):
    """The small sweep, with other knobs."""
    return requested({**SMALL, "effort": "scan", "fix": FIXED, **changes})


def quick(**changes):
    """Search options that make a point quick."""
    return SearchOptions(**{"top": 1, "effort": "scan", "fix": FIXED, **changes})


def started(*arguments, **more):
    """A `sweep` in a process of its own."""
    command = [sys.executable, "-m", "shardwright", "sweep", *map(str, arguments)]
    path = os.pathsep.join(p for p in (str(SOURCE), os.environ.get("PYTHONPATH", "")) if p)
    settings = {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1"}
    return subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)


def without_run(text):
    """A sweep-result without what differs from run to run."""
    data = json.loads(text)
    return data.pop("run"), data


def stored(path):
    """Points that a store holds."""
    if not path.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT count(*) FROM points").fetchone()[0]
    except sqlite3.OperationalError:  # no tables yet
        return 0
