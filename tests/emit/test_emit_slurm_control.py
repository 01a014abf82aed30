"""A Slurm controller of 128 simulated nodes judges emitted scripts: `sbatch --test-only`.

Needs slurmctld, sbatch and munged on this machine and the right to start them as root; skipped where any is absent. What is
started here is stopped here, by its process id.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from emit_plans import emitted, plan

NEEDED = ("slurmctld", "munged", "sbatch", "sinfo")
ABSENT = [name for name in NEEDED if shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(ABSENT), reason=f"no {', '.join(ABSENT)} on this machine"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a controller is started as root only"),
]

PORT = 36817
TRIES = 60
CONFIG = """\
ClusterName=simulated
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
StateSaveLocation={home}/state
SlurmctldPidFile={home}/slurmctld.pid
SlurmctldLogFile={home}/slurmctld.log
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
GresTypes=gpu
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendTime=60
PrivateData=cloud
MailProg=/bin/true
NodeName=gpu[001-128] CPUs=96 RealMemory=2000000 Gres=gpu:h100:8 State=CLOUD
PartitionName=gpu Nodes=gpu[001-128] Default=YES MaxTime=7-00:00:00 State=UP
"""


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    home = tmp_path_factory.mktemp("slurm")
    home.chmod(0o755)
    (home / "state").mkdir()
    key = home / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    (home / "slurm.conf").write_text(CONFIG.format(host=os.uname().nodename, port=PORT, home=home), encoding="utf-8")
    munged = ["munged", "--force", "--foreground", f"--key-file={key}", f"--socket={home}/munge.socket"]
    munged += [f"--{what}-file={home}/munged.{what}" for what in ("pid", "log", "seed")]
    env = os.environ | {"SLURM_CONF": str(home / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    started = []
    try:
        for command in (munged, ["slurmctld", "-D", "-c"]):
            started.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            time.sleep(1)
        for _ in range(TRIES):
            seen = subprocess.run(["sinfo", "-h", "-o", "%D %t"], env=env, capture_output=True, text=True, check=False)
            if "idle" in seen.stdout:
                break
            time.sleep(0.5)
        else:
            log = home / "slurmctld.log"
            pytest.fail(f"no controller: {seen.stderr} {log.read_text() if log.exists() else ''}"[-2000:])
        yield env
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


def verdict(script: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["sbatch", "--test-only", str(script)]
    return subprocess.run(command, env=env, cwd=script.parent, capture_output=True, text=True, check=False)


LAUNCHES: tuple[dict[str, object], ...] = (
    {},
    {"partition": "gpu", "time": "1-00:00:00", "job_name": "run_1"},
    {"hosts": ("gpu004", "gpu002", "gpu009", "gpu001")},
)


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: ",".join(launch) or "plain")
@pytest.mark.parametrize("target", ["megatron", "torchrun", "megatron-bridge"])
def test_the_controller_takes_the_job(
    tmp_path: Path, controller: dict[str, str], target: str, launch: dict[str, object]
) -> None:
    source = plan(framework="pytorch" if target == "torchrun" else "megatron")
    emitted(tmp_path / "bundle", source, target=target, launcher="slurm", launch=launch)
    done = verdict(tmp_path / "bundle" / "job.sbatch", controller)
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stderr


def test_sixteen_nodes(tmp_path: Path, controller: dict[str, str]) -> None:
    emitted(tmp_path / "bundle", plan(cluster="dgx-h100:16", global_batch=256), launcher="slurm")
    done = verdict(tmp_path / "bundle" / "job.sbatch", controller)
    assert "on nodes gpu[001-016]" in done.stderr


@pytest.mark.parametrize("launch", [{"partition": "nowhere"}, {"hosts": ("other1", "other2", "other3", "other4")}])
def test_the_controller_refuses_what_it_has_not(tmp_path: Path, controller: dict[str, str], launch: dict[str, object]) -> None:
    emitted(tmp_path / "bundle", plan(), launcher="slurm", launch=launch)
    assert verdict(tmp_path / "bundle" / "job.sbatch", controller).returncode != 0
