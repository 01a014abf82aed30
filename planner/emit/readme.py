"""`README.md` of a bundle: what it runs, how to check it, how to start it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.emit.base import Launcher, Program, Request, Target
from shardwright.planner.emit.mixing import said
from shardwright.planner.emit.quoting import comment
from shardwright.planner.offloading import offload_of

_DEGREES = ("tp", "cp", "pp", "vpp", "dp_replicate", "dp_shard", "ep", "etp", "micro_batch", "micro_batches")


def readme(request: Request, program: Program, target: Target, launcher: Launcher) -> str:
    """The text."""
    machines, parallel = request.machines, request.parallel
    degrees = ", ".join(f"{name} {parallel[name]}" for name in _DEGREES if parallel[name] != 1)
    lines = [
        f"# {_plain(request.spec.name)} on {machines.nodes} x {machines.gpus_per_node} GPUs",
        "",
        f"Plan {request.plan_id}, written for {target.id} {request.version}: {degrees or 'one GPU, no parallelism'}; "
        f"ZeRO {parallel['zero_stage']}, schedule {parallel['schedule']}, recompute {parallel['recompute']['mode']}, "
        f"{_more(parallel)}"
        f"global batch {request.training['global_batch']} sequences of {request.training['seq_len']} tokens, "
        f"{request.training['precision']}.",
        "",
        "## Check",
        "",
        f"`./check.sh` asks the framework itself, without a GPU. It needs {program.check.needs}.",
        "",
        "## Start",
        "",
        *(
            [f"- kinds of node are mixed, and stages were planned for theirs: {_plain(said(machines))}"]
            if machines.kinds
            else []
        ),
        *(f"- set `{name}` to {what}" for name, what in sorted(program.needs.items())),
        f"- `{launcher.command(request)}`",
        "",
        *(["## Notes", "", *(f"- {note}" for note in program.notes), ""] if program.notes else []),
        "`plan.json` holds the plan with its inputs: `shardwright estimate --plan plan.json` prices it again.",
    ]
    return "\n".join(lines) + "\n"


def _more(parallel: Mapping[str, Any]) -> str:
    """What few plans have: a dispatcher of tokens, a loss in pieces, states on the host."""
    offloaded = offload_of(parallel["offload"]).text
    said = [f"dispatcher {parallel['moe_dispatcher']}"] if parallel["ep"] > 1 else []
    said += [f"loss in {parallel['loss_chunks']} pieces"] if parallel["loss_chunks"] > 1 else []
    said += [f"offload {offloaded}"] if offloaded != "none" else []
    return "".join(f"{text}, " for text in said)


def _plain(text: str) -> str:
    """Text that Markdown shows as it stands."""
    return "".join("\\" + c if c in "\\`*_{}[]<>()#+!|" else c for c in comment(text))
