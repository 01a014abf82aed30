"""The figures that plans are priced with and that may be wrong: how `--set` names them, in words, and their values.

inputs_of(problem) -> those that a problem knows, in the order they are told
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwright.planner.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A figure that plans are priced with.

    Attributes:
        key: as `--set` names it.
        label: in words.
        unit: of its value, empty for a number.
        value: its value in a problem; None where it is unknown there.
        capacity: whether it decides only what fits, not what a step takes; in whole bytes.
        least: smallest value there is.
        most: greatest value there is; None for no limit.
        routed: whether it matters to models with experts alone.
    """

    key: str
    label: str
    unit: str
    value: Callable[[Problem], float | None]
    capacity: bool = False
    least: float = 0.0
    most: float | None = None
    routed: bool = False


def _matrix_key(problem: Problem) -> str:
    """The peak that the rates of products and attention are fractions of (`cost.compute.machine_of`)."""
    peaks = problem.device.peak_flops
    return next(name for name in ("bf16", "fp16", problem.job.precision.compute) if name in peaks)


def inputs_of(problem: Problem) -> tuple[Input, ...]:
    """The figures whose errors matter, in the order they are told; of a cluster that mixes nodes those of the stack alone."""
    routed = problem.graph.spec.moe is not None
    machine, capacity = ((), ()) if problem.cluster.mixed else (_of_machine(problem), (_CAPACITY,))
    known: tuple[Input, ...] = (*machine, *_of_stack(), *capacity)
    return tuple(one for one in known if one.value(problem) and (routed or not one.routed))


def _of_machine(problem: Problem) -> tuple[Input, ...]:
    peak = _matrix_key(problem)
    return (
        Input(
            key=f"cluster.peak_flops.{peak}",
            label="rate of matrix products and attention",
            unit="FLOP/s",
            value=lambda p: p.device.peak_flops[peak],
        ),
        Input(
            key="cluster.memory_bytes_per_s",
            label="bandwidth of device memory",
            unit="B/s",
            value=lambda p: p.device.memory_bytes_per_s,
        ),
        Input(
            key="cluster.scaleup_bytes_per_s",
            label="bandwidth of the scale-up fabric, efficiency included",
            unit="B/s",
            value=lambda p: p.cluster.node.scaleup_bytes_per_s,
        ),
        Input(
            key="cluster.internode_bytes_per_s",
            label="bandwidth of a node's network, efficiency of its cards included",
            unit="B/s",
            value=lambda p: p.cluster.node.internode_bytes_per_s if p.cluster.nodes > 1 else None,
        ),
    )


def _of_stack() -> tuple[Input, ...]:
    return (
        Input(
            key="stack.host_s_per_kernel",
            label="host time to launch a kernel",
            unit="s",
            value=lambda p: p.stack.host_s_per_kernel,
        ),
        Input(
            key="stack.tp_exposed",
            label="share of tensor-parallel exchange that nothing hides",
            unit="",
            value=lambda p: p.stack.tp_exposed,
            most=1.0,
        ),
        Input(
            key="stack.ep_exposed",
            label="share of expert exchange that nothing hides",
            unit="",
            value=lambda p: p.stack.ep_exposed,
            most=1.0,
            routed=True,
        ),
        Input(
            key="stack.moe_load_imbalance",
            label="skew of routing, busiest expert over the mean",
            unit="",
            value=lambda p: p.stack.moe_load_imbalance,
            least=1.0,
            routed=True,
        ),
    )


_CAPACITY = Input(
    key="cluster.memory_bytes",
    label="memory of a device",
    unit="B",
    value=lambda p: float(p.device.memory_bytes),
    capacity=True,
)
