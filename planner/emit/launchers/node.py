"""`launch.sh`: starts the processes of one node under torchrun; every launcher runs it on each node.

It knows the planned world and refuses another one: a job of half the nodes would train with half the batch, or not at all.
"""

from __future__ import annotations

from shardwright.planner.emit.base import BUNDLE, File, Program, Request
from shardwright.planner.emit.quoting import bash_array, bash_exports, comment

LAUNCH = "launch.sh"


def node_script(request: Request, program: Program) -> File:
    """The script of one node.

    It reads NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT, which a launcher or a user sets; on one node none is needed.
    """
    machines = request.machines
    head = (
        "#!/usr/bin/env bash\n"
        f"# {comment(request.spec.name)}: the processes of one node.\n"
        f"# Planned for {machines.nodes} nodes with {machines.gpus_per_node} GPUs each. On several nodes run it on\n"
        "# every one, with NODE_RANK (0 to nodes - 1) and MASTER_ADDR (a name of node 0 that the others reach) set.\n"
        "set -euo pipefail\n"
        f"{_folder(program)}\n"
    )
    return File(
        text=head + _world(request) + _variables(request, program) + _needed(program) + _command(program), executable=True
    )


def _folder(program: Program) -> str:
    used = program.python_path or any(word.root == BUNDLE for word in program.command)
    return 'bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\n' if used else ""


def _world(request: Request) -> str:
    nodes, port = request.machines.nodes, request.launch.port
    one = nodes == 1
    return (
        f"planned_nodes={nodes}\n"
        f"gpus_per_node={request.machines.gpus_per_node}\n"
        f"nodes=${{NNODES:-{nodes}}}\n"
        'if [ "$nodes" != "$planned_nodes" ]; then\n'
        '  echo "planned for $planned_nodes nodes, started on $nodes: plan again for the nodes there are" >&2\n'
        "  exit 2\n"
        "fi\n"
        + ("node_rank=${NODE_RANK:-0}\n" if one else "node_rank=${NODE_RANK:?set it to the number of this node, from 0}\n")
        + (
            "master=${MASTER_ADDR:-127.0.0.1}\n"
            if one
            else "master=${MASTER_ADDR:?set it to a name of node 0 that the others reach}\n"
        )
        + f"port=${{MASTER_PORT:-{port}}}\n\n"
    )


def _needed(program: Program) -> str:
    return "".join(f': "${{{name}:?set it to {comment(what)}}}"\n' for name, what in sorted(program.needs.items())) + "\n"


def _variables(request: Request, program: Program) -> str:
    found = 'export PYTHONPATH="$bundle${PYTHONPATH:+:$PYTHONPATH}"\n' if program.python_path else ""
    return bash_exports({**program.environment, **request.launch.environment}) + found


def _command(program: Program) -> str:
    return (
        bash_array("command", program.command)
        + "\n"
        + 'exec torchrun --nnodes "$nodes" --nproc-per-node "$gpus_per_node" --node-rank "$node_rank" \\\n'
        + '  --master-addr "$master" --master-port "$port" "${command[@]}"\n'
    )
