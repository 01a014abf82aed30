"""The ranks of one plan as processes of this machine: started, watched, stopped.

    run_ranks(folder, ranks, …)   runs `train.py` of an emitted PyTorch package -> Outcome

Every rank is a child in a session of its own, so that a key pressed in the terminal reaches this program alone; whatever ends
the run (a rank that fails, the time limit, Ctrl-C) stops these children and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

POLL_S, PATIENCE_S = 0.05, 5.0
"""How often ranks are looked at, and how long one that was asked to stop may take."""

TAIL = 12
"""Last lines of a failed rank that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: `ok`; `failed`: a rank ended with an error; `timeout`: stopped at the limit.
        reason: what the failed rank said last, or which limit; empty where all is well.
        report: what the package prints.
        wall_s: seconds from the first start to the last end.
    """

    status: Literal["ok", "failed", "timeout"]
    reason: str
    report: Mapping[str, Any] | None
    wall_s: float


def run_ranks(folder: Path, ranks: int, environment: Mapping[str, str], limit_s: float) -> Outcome:
    """Runs all ranks of a package and waits for them.

    Args:
        folder: the package; what ranks print is written beside it.
        ranks: how many.
        environment: variables the package needs.
        limit_s: seconds after which they are stopped.
    """
    started = time.monotonic()
    children: list[subprocess.Popen[bytes]] = []
    try:
        common = {**os.environ, **environment, **_rendezvous(ranks)}
        for rank in range(ranks):
            children.append(_start(folder, rank, common))
        failed = _wait(children, started + limit_s)
    finally:
        stop(children)
    wall = time.monotonic() - started
    if failed is None:
        return Outcome(status="timeout", reason=f"stopped after {limit_s:g} s", report=None, wall_s=wall)
    report = _report(folder)
    if failed >= 0 or report is None:
        return Outcome(status="failed", reason=_last_words(folder, max(failed, 0)), report=None, wall_s=wall)
    return Outcome(status="ok", reason="", report=report, wall_s=wall)


def _rendezvous(ranks: int) -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    threads = str(max(1, (os.cpu_count() or 1) // ranks))
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": threads}


def _start(folder: Path, rank: int, common: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with (folder / f"out.{rank}").open("wb") as out, (folder / f"err.{rank}").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "train.py"],
            cwd=folder,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )


def _wait(children: list[subprocess.Popen[bytes]], until: float) -> int | None:
    """The first rank that failed, -1 where all ended well, None where time ran out."""
    while time.monotonic() < until:
        codes = [child.poll() for child in children]
        for rank, code in enumerate(codes):
            if code not in (None, 0):
                return rank
        if all(code == 0 for code in codes):
            return -1
        time.sleep(POLL_S)
    return None


def stop(children: list[subprocess.Popen[bytes]]) -> None:
    """Ends those that still run: asked first, then made to."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=PATIENCE_S)
    for child in children:
        if child.poll() is None:
            child.kill()
            child.wait()


def _report(folder: Path) -> Mapping[str, Any] | None:
    for line in (folder / "out.0").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith('{"losses"'):
            made: Mapping[str, Any] = json.loads(line)
            return made
    return None


def _last_words(folder: Path, rank: int) -> str:
    lines = (folder / f"err.{rank}").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"rank {rank}: " + "\n".join(lines[-TAIL:] or ["ended without a word"])
