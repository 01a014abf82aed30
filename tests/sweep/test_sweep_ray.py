"""Sweeps on a Ray cluster: one that is started on this machine for the time of the sweep."""

import ipaddress
import json
import os
import signal
import time
from pathlib import Path

import pytest
from sweep_cases import request_of, started, stored, without_run

from shardwright.errors import ConflictError, UnsupportedError
from shardwright.planner.sweep.engines import ray_cluster
from shardwright.planner.sweep.evaluate import evaluated
from shardwright.planner.sweep.points import points_of, prepared, program_digest

SWEEP = ("gpt2", "--node", "dgx-h100,dgx-a100-80g", "--nodes", "1..16x2", "--seq-len", "1024", "--global-batch", "1024")
SWEEP += ("--effort", "scan", "--format", "json")
RAY = ("--engine", "ray", "--workers", "2")
PATIENCE_S = 240


def test_without_ray_it_is_said_so(monkeypatch):
    monkeypatch.setattr(ray_cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="not installed") as fault:
        ray_cluster.ray_engine(None, None)
    assert "pip install ray" in fault.value.hint


def test_a_worker_with_other_source_evaluates_nothing():
    request = request_of(nodes=1)
    payload = prepared(points_of(request)[0], request).payload
    assert ray_cluster.evaluated_here(payload, program_digest()) == evaluated(payload)
    assert ray_cluster.evaluated_here(payload, "other") == ""


def test_its_cluster_is_refused():
    class Cluster:
        def get(self, reference):
            return ""

    with pytest.raises(ConflictError, match="another version"):
        ray_cluster._received(Cluster(), None)


# --- a real cluster -------------------------------------------------------------------------------------


def descendants(pid):
    """All processes that a process has started, and they in turn."""
    parents = {int(entry.name): parent_of(entry) for entry in Path("/proc").iterdir() if entry.name.isdecimal()}
    found, new = set(), {pid}
    while new:
        found |= new
        new = {child for child, parent in parents.items() if parent in found} - found
    return found - {pid}


def parent_of(folder):
    try:
        return int((folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[1])
    except OSError:
        return None


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def workers_of(pid):
    """Ray's processes that evaluate a point."""
    return [child for child in descendants(pid) if read(Path(f"/proc/{child}/cmdline")).startswith(b"ray::evaluated_here")]


def addresses_listened_at(pids):
    """Addresses of all sockets that processes listen at."""
    inodes = {inode for pid in pids for inode in sockets_of(pid)}
    made = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                made.add(address_of(fields[1].partition(":")[0]))
    return made


def sockets_of(pid):
    try:
        links = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return set()
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def address_of(digits):
    """An address as the kernel writes it: words of 32 bits, each with the lowest byte first."""
    words = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return getattr(address, "ipv4_mapped", None) or address


def wait_for(process, path, count):
    until = time.monotonic() + PATIENCE_S
    while stored(path) < count and time.monotonic() < until and process.poll() is None:
        time.sleep(0.05)


@pytest.mark.ray
@pytest.mark.slow
def test_a_worker_killed_in_the_middle_changes_no_byte(tmp_path):
    path = tmp_path / "s.db"
    process = started(*SWEEP, *RAY, "--store", path)
    wait_for(process, path, 2)
    children = descendants(process.pid)
    listened = addresses_listened_at(children | {process.pid})
    told = [b"RAY_USAGE_STATS_ENABLED=0" in read(Path(f"/proc/{pid}/environ")).split(b"\0") for pid in children]
    victims = workers_of(process.pid)
    assert victims, "no worker was found"
    os.kill(victims[0], signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    run, data = without_run(out)
    assert (run["engine"], run["computed"], run["workers"]) == ("ray", 10, 2)
    local, _ = started(*SWEEP, "--workers", "1").communicate(timeout=PATIENCE_S)
    assert json.dumps(data) == json.dumps(without_run(local)[1])
    assert listened
    assert all(address.is_loopback for address in listened), listened
    assert any(told)


@pytest.mark.ray
@pytest.mark.slow
def test_interrupted_it_ends_and_leaves_nothing_running(tmp_path):
    path = tmp_path / "s.db"
    process = started(*SWEEP, *RAY, "--store", path)
    wait_for(process, path, 2)
    children = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    data = json.loads(out)
    assert data["stopped"] == "interrupted"
    assert 2 <= len(data["points"]) < 10
    assert stored(path) == len(data["points"])
    until = time.monotonic() + 30
    while any(read(Path(f"/proc/{pid}/cmdline")) for pid in children) and time.monotonic() < until:
        time.sleep(0.1)
    assert [pid for pid in children if read(Path(f"/proc/{pid}/cmdline"))] == []


@pytest.mark.ray
@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_said_so():
    process = started("gpt2", "--node", "dgx-h100", "--nodes", "1", "--engine", "ray", "--address", "127.0.0.1:1")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (2, "")
    assert "no Ray cluster answers at 127.0.0.1:1" in err
