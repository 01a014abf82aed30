"""What the tables of operators are computed from: mesh, machine, batch, levels of states, what is recomputed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwright.models.graph import LayerGraph, Operator
from shardwright.planner.cost.compute import Machine, machine_of
from shardwright.planner.cost.network import network_of
from shardwright.planner.cost.recompute import dropped, repeated
from shardwright.planner.problem import Problem
from shardwright.planner.search.operators.mesh import MeshLinks
from shardwright.planner.search.operators.options import ShardOptions
from shardwright.planner.search.operators.states import StateFacts
from shardwright.planner.search.operators.strategies import Allowed
from shardwright.planner.search.operators.targets import Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One way to look at a problem.

    Attributes:
        links: the mesh.
        machine: device and stack.
        batch: sequences of a micro-batch on the whole mesh.
        seq_len: tokens a sequence.
        facts: bytes of states by level.
        recompute: none, selective or full.
        allowed: what the target can express.
        micro_batches: passes a step.
    """

    links: MeshLinks
    machine: Machine
    batch: int
    seq_len: int
    facts: StateFacts
    recompute: str
    allowed: Allowed
    micro_batches: int

    def again(self, layer: LayerGraph) -> Callable[[Operator], bool]:
        """Whether the backward pass runs an operator of a layer again."""
        if self.recompute == "full" and layer.kind not in {"embedding", "head"}:
            return lambda operator: True
        names = {o.name for o in repeated(layer, self.machine.stack)} if self.recompute == "selective" else set()
        return lambda operator: operator.name in names

    def gone(self, layer: LayerGraph) -> frozenset[str]:
        """Names of tensors of a layer that need not be kept because they are made again."""
        if layer.kind in {"embedding", "head"} or self.recompute == "none":
            return frozenset()
        if self.recompute == "selective":
            return dropped(layer, self.machine.stack)
        return frozenset(t.name for o in layer.operators for t in (*o.outputs, *o.saved) if t.name in _made(layer))


def _made(layer: LayerGraph) -> set[str]:
    """Tensors that a layer makes, and those that an operator keeps for itself."""
    read = {t.name for o in layer.operators for t in o.inputs}
    made = {t.name for o in layer.operators for t in o.outputs}
    return made | {t.name for o in layer.operators for t in o.saved if t.name not in read}


def context_of(problem: Problem, links: MeshLinks, options: ShardOptions, variant: Variant) -> Context:
    """The context of a problem.

    Args:
        problem: model, cluster, batch and stack.
        links: the mesh.
        options: micro-batches and recomputing.
        variant: what operators may do.
    """
    return Context(
        links=links,
        machine=machine_of(problem),
        batch=problem.job.global_batch // options.micro_batches,
        seq_len=problem.job.seq_len,
        facts=state_facts(problem, variant.levels),
        recompute=options.recompute,
        allowed=variant.allowed,
        micro_batches=options.micro_batches,
    )


def links_of(problem: Problem, options: ShardOptions) -> MeshLinks:
    """The mesh of the options over the network of a problem."""
    return MeshLinks(mesh=options.mesh, network=network_of(problem))


def state_facts(problem: Problem, levels: tuple[tuple[int, ...], ...]) -> StateFacts:
    """Bytes of states; a message of many parameters is as large as one of a layer."""
    job, stack = problem.job, problem.stack
    width, grad = float(job.precision.parameter_bytes), float(job.grad_bytes)
    layer = max((kind.parameters for kind in problem.graph.layer_kinds), default=1)
    both = width if stack.keeps_both_gradients and grad > width else 0.0
    return StateFacts(
        parameter_bytes=width,
        gradient_bytes=grad,
        optimizer_bytes=stack.optimizer_bytes(job.optimizer, job.precision),
        held_gradient_bytes=grad + both,
        doubled_bytes=stack.doubled_bytes(job.optimizer, job.precision),
        sharded_traffic=stack.optimizer_bytes_per_sharded_parameter,
        traffic=stack.optimizer_bytes_per_parameter,
        bucket_bytes=max(width * layer, 1.0),
        levels=levels,
    )
