"""What `shardwright shard` and `operator_menu` are asked: mesh, memory, micro-batches, recomputing, target."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwright.errors import InvalidValueError, unknown_name
from shardwright.hardware.mesh import DeviceMesh
from shardwright.planner.search.operators.states import LEVELS

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOptions:
    """How operators may be sharded.

    Attributes:
        mesh: axes, outermost first.
        memory_bytes: budget of a device for what the program decides; None: what the device has, less the reserve.
        micro_batches: passes a step; the batch of a pass is global batch / micro_batches.
        in_flight: micro-batches whose activations are kept at once.
        recompute: none, selective or full.
        levels: how parameters may be held on axes that do not divide them, words of `states.LEVELS`.
        time_limit_s: of one solve.
    """

    mesh: DeviceMesh
    memory_bytes: float | None = None
    micro_batches: int = 1
    in_flight: int = 1
    recompute: str = "none"
    levels: tuple[str, ...] = field(default_factory=lambda: tuple(LEVELS))
    time_limit_s: float = 60.0

    def __post_init__(self) -> None:
        if self.recompute not in RECOMPUTE:
            raise unknown_name("recompute mode", self.recompute, RECOMPUTE, where="--recompute")
        for level in self.levels:
            if level not in LEVELS:
                raise unknown_name("level of states", level, LEVELS, where="levels")
        if self.memory_bytes is not None and not 0 < self.memory_bytes < 2**60:
            raise InvalidValueError(f"a budget of {self.memory_bytes} bytes", where="--memory", hint="give GiB a device")
        for name, value in (("micro_batches", self.micro_batches), ("in_flight", self.in_flight)):
            if value < 1:
                where = "--" + name.replace("_", "-")
                raise InvalidValueError(f"{name} is {value}", where=where, hint="give 1 or more")
