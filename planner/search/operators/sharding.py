"""`shard`: the sharding of every operator of a model, or of one layer, on a mesh.

    problem, mesh → variants of the target → assembly → program → solution; the fastest variant that fits → record

Memory: the budget is what the device has less the stack's context, communicators, allocator slack and margin, as `estimate`
keeps them; of one layer alone there is no budget unless it is given.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.errors import InvalidValueError, unknown_name
from shardwright.hardware.cluster import Cluster
from shardwright.models.graph import LayerGraph, ModelGraph
from shardwright.planner.description import problem_summary
from shardwright.planner.problem import PricingOptions, Problem, build_problem
from shardwright.planner.search.operators.amounts import Pricing
from shardwright.planner.search.operators.assembly import Assembly, Junction, Section, assemble, folded, folded_model
from shardwright.planner.search.operators.context import context_of, links_of
from shardwright.planner.search.operators.description import dtensor_plan, layer_records, program_record
from shardwright.planner.search.operators.mesh import MeshLinks, check_fits
from shardwright.planner.search.operators.options import ShardOptions
from shardwright.planner.search.operators.program import Program
from shardwright.planner.search.operators.solver import Effort, Solution, solve
from shardwright.planner.search.operators.targets import Variant, variants_of

ENDS = ("embedding", "head")
SOLVER = "HiGHS (OR-Tools MathOpt)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The sharding of a model's operators.

    Attributes:
        data: the record `shard --format json` prints.
    """

    data: Mapping[str, Any]

    @property
    def exit_code(self) -> int:
        """0 if something fits, else 1."""
        return 0 if self.data["layers"] else 1

    def to_dict(self) -> dict[str, Any]:
        """The record itself."""
        return dict(self.data)

    def __repr__(self) -> str:
        predicted = self.data["predicted"] or {}
        return f"Sharding(operators={self.data['program']['operators']}, pass_s={predicted.get('pass_s')})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A solved variant.

    Attributes:
        variant: what operators had to agree on.
        assembly: tables.
        program: the integer program.
        solution: its answer.
    """

    variant: Variant
    assembly: Assembly
    program: Program
    solution: Solution


def shard(
    model: str | ModelGraph,
    cluster: str | Cluster,
    *,
    seq_len: int,
    global_batch: int,
    sharding: ShardOptions,
    layer: str | None = None,
    options: PricingOptions | None = None,
) -> Sharding:
    """The fastest sharding of all operators that fits.

    Args:
        model: preset id, path, or graph.
        cluster: `NODE:COUNT[xG]`, path, or cluster.
        seq_len: tokens a sequence.
        global_batch: sequences a step.
        sharding: mesh, memory, micro-batches, recomputing.
        layer: number of a layer (from 0), "embedding" or "head" to look at it alone; None for the whole model.
        options: precision, framework, stack and the like.

    Raises:
        ShardwrightError: an input that cannot be used. That nothing fits is an answer, not an error.

    Example:
        >>> import shardwright
        >>> mesh = shardwright.DeviceMesh(axes=(("tp", 8),))
        >>> found = shardwright.shard(
        ...     "llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=8, sharding=shardwright.ShardOptions(mesh=mesh)
        ... )
        >>> found.exit_code
        0
    """
    started = time.perf_counter(), time.process_time()
    problem = build_problem(model, cluster, seq_len=seq_len, global_batch=global_batch, options=options)
    check(problem, sharding)
    links = links_of(problem, sharding)
    sections, junctions = _asked(problem.graph, layer)
    budget = budget_bytes(problem, sharding, whole=layer is None)
    results = solved_variants(problem, sharding, links, sections, junctions, budget)
    best = min(results, key=_rank)
    data = _record(problem, sharding, best, budget, layer)
    if best.solution.choice is None:
        data["least_memory_bytes"] = _least(problem, sharding, links, sections, junctions)
    spent = {"wall_s": time.perf_counter() - started[0], "cpu_s": time.process_time() - started[1]}
    data["run"] = spent | {"version": _version(), "solver": SOLVER}
    return Sharding(data=data)


def check(problem: Problem, sharding: ShardOptions) -> None:
    """Refuses a mesh or a batch that cannot be.

    Raises:
        ConflictError: the mesh is no part of the cluster.
        InvalidValueError: micro-batches that do not divide the batch.
    """
    check_fits(sharding.mesh, problem.cluster.gpus)
    batch = problem.job.global_batch
    if batch % sharding.micro_batches:
        message = f"{sharding.micro_batches} micro-batches do not divide a global batch of {batch}"
        raise InvalidValueError(message, where="--micro-batches", hint="give a divisor of the global batch")


def solved_variants(
    problem: Problem,
    sharding: ShardOptions,
    links: MeshLinks,
    sections: list[Section],
    junctions: list[Junction],
    budget: float | None,
    aim: str = "time",
) -> list[Solved]:
    """All variants of the problem's framework, solved for time or memory."""
    made = []
    for variant in variants_of(problem.framework, sharding):
        assembly = assemble(sections, junctions, context_of(problem, links, sharding, variant))
        program = assembly.program(pricing_of(problem, sharding, budget))
        solution = solve(program, Effort(limit_s=sharding.time_limit_s, aim=aim))
        made.append(Solved(variant=variant, assembly=assembly, program=program, solution=solution))
    return made


def pricing_of(problem: Problem, sharding: ShardOptions, budget: float | None) -> Pricing:
    """How columns add up for a problem's stack."""
    return Pricing(
        micro_batches=sharding.micro_batches,
        interference=problem.stack.fsdp_interference,
        floor=problem.stack.dp_exposed_floor,
        in_flight=sharding.in_flight,
        budget_bytes=float("inf") if budget is None else budget,
    )


def budget_bytes(problem: Problem, sharding: ShardOptions, *, whole: bool) -> float | None:
    """Bytes of a device for what the program decides; None for no limit."""
    if sharding.memory_bytes is not None:
        return sharding.memory_bytes
    if not whole:
        return None
    stack, groups = problem.stack, len(sharding.mesh.axes)
    communicators = groups + stack.communicators_beside * (groups > 0)
    reserve = stack.context_bytes + stack.nccl_bytes_per_group * communicators + problem.memory_margin_bytes
    return (problem.device.memory_bytes - reserve) / (1.0 + stack.allocator_slack)


def section_of(graph: ModelGraph, layer: str) -> LayerGraph:
    """The layer of a number, the embedding or the head.

    Raises:
        UnknownNameError: neither a word nor a number.
        InvalidValueError: the model has no such layer.
    """
    if layer in ENDS:
        return graph.embedding if layer == "embedding" else graph.head
    if not layer.isascii() or not layer.isdigit():
        raise unknown_name("layer", layer, (*ENDS, "0"), where="--layer")
    if int(layer) >= graph.layers:
        raise InvalidValueError(f"layer {layer} of {graph.layers}", where="--layer", hint=f"layers are 0 to {graph.layers - 1}")
    return graph.layer_kinds[graph.pattern[int(layer)]]


def _asked(graph: ModelGraph, layer: str | None) -> tuple[list[Section], list[Junction]]:
    if layer is None:
        return folded_model(graph)
    section = section_of(graph, layer)
    return folded(section) if layer not in ENDS else ([Section(layer=section)], [])


def _version() -> str:
    import shardwright

    return shardwright.__version__


def _rank(solved: Solved) -> float:
    return float("inf") if solved.solution.time_s is None else solved.solution.time_s


def _least(
    problem: Problem, sharding: ShardOptions, links: MeshLinks, sections: list[Section], junctions: list[Junction]
) -> int | None:
    """The least memory of a device that any choice needs."""
    results = solved_variants(problem, sharding, links, sections, junctions, None, "memory")
    found = [s.program.memory_bytes(s.solution.choice) for s in results if s.solution.choice is not None]
    return round(min(found)) if found else None


def _record(problem: Problem, sharding: ShardOptions, best: Solved, budget: float | None, layer: str | None) -> dict[str, Any]:
    mesh, choice = sharding.mesh, best.solution.choice
    axes = [name for name, _ in mesh.axes]
    shown: dict[str, Any] = {"schema_version": 1, "kind": "sharding", "inputs": problem.to_inputs(), **problem_summary(problem)}
    shown["assumptions"] = [row.to_dict() for row in problem.assumptions]
    shown["mesh"] = [{"axis": name, "size": size, "stride": mesh.stride(name)} for name, size in mesh.axes]
    shown |= {
        "framework": problem.framework,
        "variant": best.variant.name or None,
        "layer": layer,
        "batch": problem.job.global_batch // sharding.micro_batches,
        "micro_batches": sharding.micro_batches,
        "in_flight": sharding.in_flight,
        "recompute": sharding.recompute,
        "budget_bytes": None if budget is None else round(budget),
        "layers": [] if choice is None else layer_records(best.assembly, best.program, choice, axes),
        "predicted": None if choice is None else _predicted(best.program, choice),
        "dtensor": dtensor_plan(best.assembly, choice)
        if choice is not None and problem.framework in {"pytorch", "any"}
        else None,
        "least_memory_bytes": None,
        "program": program_record(best.assembly, best.program, _proof(best.solution)),
    }
    return shown


def _predicted(program: Program, choice: tuple[int, ...]) -> dict[str, Any]:
    totals = program.columns(choice)
    forward, backward = (sum(program.pricing.pass_s(row, way) for row in totals) for way in (0, 1))
    return {
        "forward_s": forward,
        "backward_s": backward,
        "pass_s": forward + backward,
        "memory_bytes": round(program.memory_bytes(choice)),
    }


def _proof(solution: Solution) -> dict[str, Any]:
    return {
        "solver": SOLVER,
        "lp_bound_s": solution.lp_bound_s,
        "lower_bound_s": solution.bound_s,
        "proven_optimal": solution.proven,
    }
