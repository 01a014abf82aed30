"""Slurm: `job.sbatch`, submitted in the folder of the bundle.

One task a node runs `launch.sh`. Where the plan's placement names hosts, `hosts.txt` lists them in rank order and srun keeps
that order (`--distribution=arbitrary` with SLURM_HOSTFILE); without, Slurm's own order holds. Words of `#SBATCH` lines are
not quoted as a shell would: only plain names are written there, anything else is refused.

Source: sbatch(1) and srun(1), https://slurm.schedmd.com.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from shardwright.errors import InvalidValueError
from shardwright.planner.emit.base import File, Launcher, Program, Request
from shardwright.planner.emit.launchers.node import LAUNCH

JOB, HOSTS = "job.sbatch", "hosts.txt"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,&|@%+=:/\[\]-]*\Z")
_TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}\Z")
_TEXTS = ("partition", "account", "qos", "constraint")

_BODY = """\
set -euo pipefail
bundle=${{SHARDWRIGHT_BUNDLE:-${{SLURM_SUBMIT_DIR:?submit this file with sbatch}}}}
if [ ! -f "$bundle/{launch}" ]; then
  echo "no {launch} in $bundle: submit in the folder of the bundle, or set SHARDWRIGHT_BUNDLE" >&2
  exit 2
fi
export NNODES=$SLURM_JOB_NUM_NODES
{master}
export MASTER_PORT=${{MASTER_PORT:-{port}}}
{order}# shellcheck disable=SC2016 # the inner bash expands it, on the node
srun --kill-on-bad-exit=1{distribution} bash -c 'NODE_RANK=$SLURM_PROCID exec bash "$0"' "$bundle/{launch}"
"""


def _files(request: Request, program: Program) -> Mapping[str, File]:
    hosts = request.machines.hosts
    made = {JOB: File(text=_job(request), executable=True)}
    return made | ({HOSTS: File(text="".join(f"{host}\n" for host in hosts))} if hosts else {})


def _job(request: Request) -> str:
    machines, hosts = request.machines, request.machines.hosts
    lines = [
        "#!/usr/bin/env bash",
        f"#SBATCH --job-name={_job_name(request)}",
        f"#SBATCH --nodes={machines.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={machines.gpus_per_node}",
        "#SBATCH --exclusive",
        *(f"#SBATCH --{key}={_plain(key, text)}" for key in _TEXTS if (text := getattr(request.launch, key)) is not None),
        *([f"#SBATCH --time={_time(request.launch.time)}"] if request.launch.time is not None else []),
        *([f"#SBATCH --nodelist={','.join(hosts)}"] if hosts else []),
    ]
    return "\n".join(lines) + "\n" + _body(request)


def _body(request: Request) -> str:
    hosts = request.machines.hosts
    known = f"export MASTER_ADDR={hosts[0]}" if hosts else ""
    found = 'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")\nexport MASTER_ADDR=${hosts[0]}'
    return _BODY.format(
        launch=LAUNCH,
        port=request.launch.port,
        master=known or found,
        order=f'export SLURM_HOSTFILE="$bundle/{HOSTS}"\n' if hosts else "",
        distribution=" --distribution=arbitrary" if hosts else "",
    )


def _job_name(request: Request) -> str:
    """The name asked for, or the model's made plain."""
    if request.launch.job_name is not None:
        return _plain("job_name", request.launch.job_name)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", request.spec.name).strip("-.") or "training"


def _plain(key: str, text: str) -> str:
    if not _PLAIN.match(text):
        hint = "letters, digits and . _ - , / : = + @ % & | [ ], as Slurm's names are"
        raise InvalidValueError(f"{key} {text!r} cannot stand in a #SBATCH line", where=f"--launch {key}", hint=hint)
    return text


def _time(text: str) -> str:
    if not _TIME.match(text):
        hint = "minutes, hours:minutes:seconds, or days-hours:minutes:seconds"
        raise InvalidValueError(f"time {text!r}", where="--launch time", hint=hint)
    return text


SLURM = Launcher(
    id="slurm",
    says="an sbatch script; one task a node runs torchrun",
    files=_files,
    command=lambda request: f"sbatch {JOB}",
)
