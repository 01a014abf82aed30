"""What FSDP2's `CPUOffloadPolicy` can be said to do: parameters, gradients and optimizer states of all shards on the host."""

from __future__ import annotations

from shardwright.planner.emit.base import Request


def all_states_on_host(request: Request) -> bool:
    """Whether a plan keeps all sharded states in host memory and nothing else."""
    held = request.parallel["offload"]
    whole = held["optimizer"] == held["parameters"] == 1 and held["activations"] == 0
    return bool(whole and request.parallel["zero_stage"] == 3)
