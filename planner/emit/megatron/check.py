"""`check.py` of a bundle for Megatron-LM: its own parser, validators and layer split on the emitted argument list."""

from __future__ import annotations

from importlib import resources

from shardwright.planner.emit.base import Check, Request
from shardwright.planner.emit.megatron.parallel import environment
from shardwright.planner.emit.quoting import python_text

_DEGREES = ("world_size", "tp", "pp", "vpp", "cp", "ep", "dp", "micro_batches", "sequence_parallel")


def megatron_check(request: Request) -> Check:
    """The script, with the planned world in it."""
    text = resources.files("shardwright.planner.emit").joinpath("templates/megatron_check.py").read_text(encoding="utf-8")
    planned = {name: request.parallel[name] for name in _DEGREES}
    planned |= {"layers": request.spec.layers, "arch": request.machines.arch, "environment": environment(request)}
    needs = "PyTorch, the requirements of Megatron-LM, and MEGATRON_LM set to its checkout"
    return Check(script=f"{text.replace('HERE =', f'PLANNED = {python_text(planned)}{chr(10)}HERE =', 1)}", needs=needs)
