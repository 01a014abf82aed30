"""What this machine has to run on.

    this_machine()           GPUs, cores, free memory, the PyTorch there is
    device_for(machine, …)   GPUs where there are enough of them, else CPUs, where the plan may be hosted at all

PyTorch is asked in a process of its own, so that it takes no memory and no device of this one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

from shardwright.errors import InvalidValueError, UnsupportedError

Device = Literal["cuda", "cpu"]

LEAST_RANKS = 8
"""Ranks a machine without GPUs hosts, however few its cores: each is a process that mostly waits."""

PROBE = (
    "import json, torch; n = torch.cuda.device_count() if torch.cuda.is_available() else 0; "
    "print(json.dumps([torch.__version__, n, torch.cuda.get_device_name(0) if n else '']))"
)
PROBE_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """This machine.

    Attributes:
        torch: version of PyTorch.
        gpus: devices PyTorch sees.
        gpu: name of the first, empty without any.
        cores: processor cores this process may use.
        free_bytes: memory that can be had; None where the system does not say.
    """

    torch: str
    gpus: int
    gpu: str
    cores: int
    free_bytes: int | None

    @property
    def cpu_ranks(self) -> int:
        """Ranks that CPUs host."""
        return max(LEAST_RANKS, self.cores)


def this_machine() -> Machine:
    """What is there.

    Raises:
        UnsupportedError: PyTorch is not installed, or does not start.
    """
    hint = "install it beside shardwright: pip install torch; `tune` takes what runs took elsewhere: --measured 1=14.2"
    if importlib.util.find_spec("torch") is None:
        raise UnsupportedError("`run` needs PyTorch, which is not installed here", where="torch", hint=hint)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE], capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=False
    )
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise UnsupportedError(f"`run` needs PyTorch, which does not start here: {said[:200]}", where="torch", hint=hint)
    version, gpus, name = json.loads(done.stdout.splitlines()[-1])
    return Machine(torch=version, gpus=gpus, gpu=name, cores=_cores(), free_bytes=free_memory())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int | None:
    """Memory that can be had without swapping, bytes (`MemAvailable` of Linux); None elsewhere."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 - no file of the user's
            found = [line.split() for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        return None
    return int(found[0][1]) * 1024 if found else None


def device_for(machine: Machine, ranks: int, state_bytes: float, *, hint: str) -> Device:
    """Where ranks run: one a GPU, else all on the CPUs.

    Args:
        machine: this machine.
        ranks: processes of the plan.
        state_bytes: what they hold together, as the plan was priced.
        hint: what to do where they cannot be hosted.

    Raises:
        InvalidValueError: more ranks, or more memory, than the machine has.
    """
    if machine.gpus >= ranks:
        return "cuda"
    where = "plan: world_size"
    there = f"{machine.gpus} GPUs" if machine.gpus else f"no GPU, and {machine.cores} cores that host {machine.cpu_ranks}"
    if ranks > machine.cpu_ranks:
        raise InvalidValueError(f"the plan has {ranks} ranks; this machine has {there}", where=where, hint=hint)
    if machine.free_bytes is not None and state_bytes > machine.free_bytes:
        needs, has = state_bytes / 2**30, machine.free_bytes / 2**30
        message = f"the plan's ranks hold {needs:.1f} GiB together; this machine has {has:.1f} free"
        raise InvalidValueError(message, where="plan: memory", hint=hint)
    return "cpu"
