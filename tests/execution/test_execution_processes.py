"""Ranks are started, watched and stopped: whatever ends a run, its children end and nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fake_package import BAD, ENDLESS, GOOD, package

from shardwright.planner.execution import processes
from shardwright.planner.execution.processes import run_ranks

RANKS = 3


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Every process that is started."""
    made: list[subprocess.Popen[bytes]] = []
    start = processes._start

    def noted(*given: object) -> subprocess.Popen[bytes]:
        made.append(start(*given))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(processes, "_start", noted)
    return made


def test_the_report_of_the_first_rank_comes_back(tmp_path: Path) -> None:
    done = run_ranks(package(tmp_path, GOOD), RANKS, {}, 60)
    assert (done.status, done.reason) == ("ok", "")
    assert done.report is not None
    assert done.report["world_size"] == RANKS


def test_ranks_have_what_they_need(tmp_path: Path) -> None:
    script = "import os\nprint(sorted((n, os.environ[n]) for n in ('RANK', 'LOCAL_RANK', 'MASTER_ADDR', 'FROM_THE_BUNDLE')))\n"
    run_ranks(package(tmp_path, script), 2, {"FROM_THE_BUNDLE": "yes"}, 60)
    for rank in "01":
        said = (tmp_path / f"out.{rank}").read_text(encoding="utf-8")
        assert f"('RANK', '{rank}')" in said
        assert f"('LOCAL_RANK', '{rank}')" in said
        assert "('FROM_THE_BUNDLE', 'yes')" in said
        assert "('MASTER_ADDR', '127.0.0.1')" in said


def test_one_that_fails_stops_the_others(tmp_path: Path, children: list[subprocess.Popen[bytes]]) -> None:
    started = time.monotonic()
    done = run_ranks(package(tmp_path, BAD), RANKS, {}, 60)
    assert done.status == "failed"
    assert "rank 1: no such device" in done.reason
    assert time.monotonic() - started < 30
    assert all(child.returncode is not None for child in children)
    assert len(children) == RANKS


def test_the_limit_stops_them(tmp_path: Path, children: list[subprocess.Popen[bytes]]) -> None:
    done = run_ranks(package(tmp_path, ENDLESS), RANKS, {}, 1)
    assert (done.status, done.reason) == ("timeout", "stopped after 1 s")
    assert all(child.returncode is not None for child in children)


def test_one_that_ignores_the_request_is_made_to_stop(
    tmp_path: Path, children: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PATIENCE_S", 0.2)
    deaf = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen('deaf', 'w').close()\ntime.sleep(600)\n"
    done = run_ranks(package(tmp_path, deaf), 1, {}, 2)
    assert done.status == "timeout"
    assert (tmp_path / "deaf").exists()
    assert children[0].returncode == -signal.SIGKILL


def test_ctrl_c_stops_its_children_alone(tmp_path: Path, children: list[subprocess.Popen[bytes]]) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            run_ranks(package(tmp_path, ENDLESS), RANKS, {}, 60)
        assert all(child.returncode is not None for child in children)
        assert other.poll() is None
    finally:
        timer.cancel()
        other.kill()
        other.wait()


def test_success_without_a_report_is_no_success(tmp_path: Path) -> None:
    done = run_ranks(package(tmp_path, "print('nothing to say')\n"), 1, {}, 60)
    assert done.status == "failed"
