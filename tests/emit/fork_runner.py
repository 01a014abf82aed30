"""Runs emitted packages on gloo: torch is imported once, then each rank of each bundle is a fork.

    python fork_runner.py JOBS.json [MODULE ...]

The file holds [[folder, ranks], ...]; modules are imported before the first fork as well. One line of JSON is printed, a
mapping of codes, report and error for each.

Nothing may start a thread before the forks, so this runs in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def train(folder: str) -> None:
    """The script of a bundle."""
    runpy.run_path(f"{folder}/train.py", run_name="__main__")


def be_rank(body: Callable[[str], None], folder: str, rank: int, ranks: int, port: int, out: int, errors: Path) -> None:
    """The life of one rank; never returns."""
    import torch

    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    os.dup2(out, 1)
    sys.path.insert(0, folder)
    try:
        body(folder)
    except BaseException:
        errors.write_text(traceback.format_exc(), encoding="utf-8")
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def run(folder: str, ranks: int, body: Callable[[str], None] = train) -> dict[str, object]:
    """One bundle on its ranks."""
    port, home = free_port(), Path(tempfile.mkdtemp())
    reading, writing = os.pipe()
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            be_rank(body, folder, rank, ranks, port, writing, home / f"{rank}.txt")
        pids.append(pid)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        printed = pipe.read().splitlines()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    errors = "\n".join(path.read_text(encoding="utf-8")[-2000:] for path in sorted(home.glob("*.txt")))
    report = next((json.loads(line) for line in printed if line.startswith("{")), None)
    return {"codes": codes, "report": report, "error": errors}


def main() -> None:
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401 - imported once, for all forks

    for name in sys.argv[2:]:
        importlib.import_module(name)
    jobs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    done = [run(folder, ranks) for folder, ranks in jobs]
    sys.stdout.write(json.dumps(done) + "\n")


if __name__ == "__main__":
    main()
