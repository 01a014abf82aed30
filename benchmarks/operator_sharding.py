"""How large the integer programs of operator sharding are, and how long they take.

    python benchmarks/operator_sharding.py [--layers N]        32 unfolded layers by default

The block is one as frameworks without fusion run it, 25 forward operators, each priced forward and backward: norms in three
steps, one product a weight, scores, softmax and weighted
sum apart, activation and gate apart. Printed for every case: forward
operators, strategies of a product on the mesh, choices and edge variables of the program, whether repeated layers are folded,
processor seconds for tables, for building and for solving (HiGHS, one thread), the value of the linear program, the answer, and
what is proven of it.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from shardwright.models.graph import GemmShape, LayerGraph, Normalised, Operator, OperatorKind, TensorSpec
from shardwright.planner.problem import PricingOptions, Problem, build_problem
from shardwright.planner.search.operators.assembly import Assembly, assemble, folded, unfolded
from shardwright.planner.search.operators.context import context_of, links_of
from shardwright.planner.search.operators.mesh import parse_mesh
from shardwright.planner.search.operators.options import ShardOptions
from shardwright.planner.search.operators.sharding import pricing_of
from shardwright.planner.search.operators.solver import Effort, solve
from shardwright.planner.search.operators.targets import variants_of

DIMS = {"hidden": 4096, "heads": 32, "head_dim": 128, "ffn": 14336, "key_seq": 8192}
FP32 = 4.0


def tensor(name: str, *dims: str, width: float | None = None) -> TensorSpec:
    return TensorSpec(name=name, dims=("batch", "seq", *dims), bytes_per_element=width)


HIDDEN, HEADS = ("hidden",), ("heads", "head_dim")


def pointwise(name: str, inputs: tuple[TensorSpec, ...], output: TensorSpec, **more: object) -> Operator:
    given = {"kind": OperatorKind.ELEMENTWISE, "module": "block", "saved": inputs, **more}
    return Operator(name=name, inputs=inputs, outputs=(output,), **given)  # type: ignore[arg-type]


def weighted(name: str, source: TensorSpec, output: TensorSpec, inner: tuple[str, ...], outer: tuple[str, ...]) -> Operator:
    return Operator(
        name=name,
        kind=OperatorKind.GEMM,
        module="block",
        inputs=(source,),
        outputs=(output,),
        parameters=(TensorSpec(name=f"{name}_weight", dims=(*inner, *outer)),),
        saved=(source,),
        gemm=GemmShape(m=("batch", "seq"), n=(outer,), k=inner),
    )


def norm(name: str, source: TensorSpec) -> tuple[tuple[Operator, ...], TensorSpec]:
    """Mean square, scaling, weight."""
    mean, scaled, out = tensor(f"{name}_mean", width=FP32), tensor(f"{name}_scaled", *HIDDEN), tensor(f"{name}_out", *HIDDEN)
    weight = TensorSpec(name=f"{name}_weight", dims=HIDDEN)
    steps = (
        pointwise(f"{name}_mean", (source,), mean, normalised=Normalised(dims=HIDDEN)),
        pointwise(f"{name}_scale", (source, mean), scaled),
        pointwise(f"{name}_weight", (scaled,), out, parameters=(weight,)),
    )
    return steps, out


def paired(name: str, left: TensorSpec, right: TensorSpec, output: TensorSpec, shape: GemmShape) -> Operator:
    """A product of two activations, one a sequence and head."""
    return Operator(
        name=name,
        kind=OperatorKind.GEMM,
        module="block",
        inputs=(left, right),
        outputs=(output,),
        saved=(left, right),
        gemm=shape,
    )


def attention(normed: TensorSpec) -> tuple[Operator, ...]:
    names = ("query", "key", "value")
    raw = {name: tensor(f"{name}_raw", *HEADS) for name in names}
    query, scores, weights = (
        tensor("query", *HEADS),
        tensor("scores", "heads", "key_seq"),
        tensor("probabilities", "heads", "key_seq"),
    )
    key = TensorSpec(name="key", dims=("batch", "key_seq", *HEADS))
    value = TensorSpec(name="value_raw", dims=("batch", "key_seq", *HEADS))
    scaled, mixed = tensor("scores_scaled", "heads", "key_seq"), tensor("mixed", *HEADS)
    rows = ("batch", "seq", "heads")
    return (
        *(weighted(name, normed, raw[name], HIDDEN, HEADS) for name in names),
        pointwise("rotate_query", (raw["query"],), query, whole=("head_dim",)),
        pointwise("rotate_key", (raw["key"],), tensor("key", *HEADS), whole=("head_dim",)),
        paired("scores", query, key, scores, GemmShape(m=rows, n=(("key_seq",),), k=("head_dim",), groups=("batch", "heads"))),
        pointwise("scale_and_mask", (scores,), scaled),
        pointwise("softmax", (scaled,), weights, normalised=Normalised(dims=("key_seq",), forward=2, backward=1)),
        paired("mix", weights, value, mixed, GemmShape(m=rows, n=(("head_dim",),), k=("key_seq",), groups=("batch", "heads"))),
        weighted("project", mixed, tensor("projected", *HIDDEN), HEADS, HIDDEN),
    )


def feed_forward(normed: TensorSpec) -> tuple[Operator, ...]:
    gate, up, acted, product = (tensor(name, "ffn") for name in ("gate", "up", "acted", "gated"))
    return (
        weighted("gate", normed, gate, HIDDEN, ("ffn",)),
        weighted("up", normed, up, HIDDEN, ("ffn",)),
        pointwise("activate", (gate,), acted),
        pointwise("multiply", (acted, up), product),
        weighted("down", product, tensor("fed", *HIDDEN), ("ffn",), HIDDEN),
    )


def block() -> LayerGraph:
    """The layer: two normed branches, each with dropout, added to the stream, which is cast between them."""
    stream, middle, out = tensor("in", *HIDDEN), tensor("middle", *HIDDEN), tensor("out", *HIDDEN)
    first, normed = norm("norm1", stream)
    second, again = norm("norm2", middle)
    dropped, fed = tensor("dropped", *HIDDEN), tensor("fed_dropped", *HIDDEN)
    operators = (
        *first,
        *attention(normed),
        pointwise("dropout1", (tensor("projected", *HIDDEN),), dropped),
        pointwise("add1", (stream, dropped), middle, saved=()),
        *second,
        *feed_forward(again),
        pointwise("dropout2", (tensor("fed", *HIDDEN),), fed),
        pointwise("add2", (middle, fed), out, saved=()),
    )
    return LayerGraph(kind="block", dims=DIMS, operators=operators)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is solved: sequences a pass, and by what share of the fastest choice's memory the budget is cut."""

    batch: int
    share: float | None = None


def tables_of(problem: Problem, layer: LayerGraph, copies: int | None, options: ShardOptions) -> Assembly:
    sections = unfolded(layer, copies) if copies else folded(layer)
    (variant,) = variants_of(problem.framework, options)
    return assemble(*sections, context_of(problem, links_of(problem, options), options, variant))


def measure(layer: LayerGraph, mesh: str, cluster: str, case: Case, copies: int | None, limit_s: float) -> None:
    options = ShardOptions(mesh=parse_mesh(mesh))
    pricing = PricingOptions(framework="pytorch")
    problem = build_problem("llama3.1-8b", cluster, seq_len=8192, global_batch=case.batch, options=pricing)
    started = time.process_time()
    assembly = tables_of(problem, layer, copies, options)
    tabled = time.process_time() - started
    program = assembly.program(pricing_of(problem, options, None))
    if case.share is not None:
        free = solve(program, Effort(limit_s=limit_s))
        least = solve(program, Effort(limit_s=limit_s, aim="memory"))
        most, fewest = program.memory_bytes(free.choice or ()), program.memory_bytes(least.choice or ())
        program = assembly.program(pricing_of(problem, options, fewest + case.share * (most - fewest)))
    found = solve(program, Effort(limit_s=limit_s, gap=1e-9 if copies is None else 1e-2))
    choices, pairs = program.variables
    products = [len(t.strategies) for t in assembly.tables if t.operator.gemm is not None]
    count = copies or 1
    gap = 1 - (found.bound_s or 0) / (found.time_s or 1)
    proof = "optimal" if gap < 1e-6 else f"within {gap:.2%} of optimal"
    budget = "no budget" if case.share is None else f"budget {case.share:.0%} of the span"
    print(
        f"{layer.kind:>6} {mesh} batch {case.batch:3d} {budget:<22} {'folded' if copies is None else f'{copies} layers':<9}"
        f" {len(assembly.tables) // count:3d} operators, {min(products)}-{max(products)} strategies a product,"
        f" {choices:6d} choices, {pairs:7d} edge variables: tables {tabled:.2f} s, build {found.build_s:.2f} s,"
        f" solve {found.solve_s:.2f} s CPU; linear {1e6 * (found.lp_bound_s or 0) / count:.1f} µs,"
        f" answer {1e6 * (found.time_s or 0) / count:.1f} µs a layer, {proof}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=32, help="layers of the unfolded program")
    parser.add_argument("--limit", type=float, default=60.0, help="wall seconds of a solve")
    given = parser.parse_args()
    layer = block()
    for mesh, cluster in (("dp=8,tp=8", "dgx-h100:8"), ("dp=2,tp=8", "dgx-h100:2")):
        for case in (Case(batch=64), Case(batch=8), Case(batch=1), Case(batch=1, share=0.5)):
            measure(layer, mesh, cluster, case, None, given.limit)
    measure(layer, "dp=8,tp=8", "dgx-h100:8", Case(batch=64), 4, given.limit)
    for batch in (64, 8, 1):
        measure(layer, "dp=8,tp=8", "dgx-h100:8", Case(batch=batch), given.layers, given.limit)


if __name__ == "__main__":
    main()
