"""Started by hand: `launch.sh` on every node."""

from __future__ import annotations

from shardwright.planner.emit.base import Launcher, Request
from shardwright.planner.emit.launchers.node import LAUNCH


def _command(request: Request) -> str:
    if request.machines.nodes == 1:
        return f"bash {LAUNCH}"
    last = request.machines.nodes - 1
    return f"NODE_RANK=<0 to {last}> MASTER_ADDR=<node 0> bash {LAUNCH}   (on every node)"


TORCHRUN = Launcher(
    id="torchrun",
    says="started by hand or by another tool, one command on every node",
    files=lambda request, program: {},
    command=_command,
)
