"""Dims as atoms, runs, clusters, fusing: against brute force and by their own rules."""

import itertools
import math

import numpy as np
import pytest
from graph_files import FILES, onnx_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.models.catalog import load_model
from shardwright.models.export_reader.expressions import UnboundSymbolError, evaluate
from shardwright.models.graph import OperatorKind
from shardwright.models.traced.atoms import Atoms
from shardwright.models.traced.clustering import clusters, divide
from shardwright.models.traced.repeats import Run, runs

SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=4)


def size_of(atoms, dim):
    return math.prod(atoms.size(a) for a in atoms.expanded(dim))


# --- atoms ----------------------------------------------------------------------------------------------


@given(SIZES, SIZES)
def test_equal_dims_share_all_atoms_and_nothing_is_done_where_they_cannot(first, second):
    atoms = Atoms()
    a = tuple(x for s in first for x in atoms.new(s))
    b = tuple(x for s in second for x in atoms.new(s))
    before = size_of(atoms, a), size_of(atoms, b), atoms.expanded(a), atoms.expanded(b)
    if atoms.equate(a, b):
        assert before[0] == before[1]
        assert atoms.expanded(a) == atoms.expanded(b)
    else:
        assert (atoms.expanded(a), atoms.expanded(b)) == before[2:]
    assert (size_of(atoms, a), size_of(atoms, b)) == before[:2]


@given(SIZES, st.data())
def test_a_reshaped_tensor_keeps_its_sizes_and_reshaping_back_its_atoms(sizes, data):
    atoms = Atoms()
    dims = tuple(atoms.new(s) for s in sizes)
    order = data.draw(st.permutations([f for s in sizes for f in factors(s)]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(order)), max_size=3)))
    shape = [math.prod(order[i:j]) for i, j in itertools.pairwise([0, *cuts, len(order)])]
    made = atoms.regroup(dims, shape)
    assert [size_of(atoms, d) for d in made] == shape
    back = atoms.regroup(made, sizes)
    assert [size_of(atoms, d) for d in back] == sizes


def factors(size):
    return {4: [2, 2], 6: [2, 3], 8: [2, 2, 2], 1: []}.get(size, [size])


def test_heads_split_a_projection_everywhere():
    atoms = Atoms()
    batch, seq, width = atoms.new(2), atoms.new(5), atoms.new(12)
    weight = (width, atoms.new(7))
    seen = atoms.regroup((batch, seq, width), (2, 5, 3, 4))
    assert atoms.expanded(weight[0]) == (*atoms.expanded(seen[2]), *atoms.expanded(seen[3]))
    joined = atoms.regroup((seen[0], seen[2], seen[1], seen[3]), (2, 15, 4))
    assert atoms.expanded(joined[1]) == (*atoms.expanded(seen[2]), *atoms.expanded(seq))
    assert atoms.regroup(joined, (30, 4))[0] == (*atoms.expanded(batch), *atoms.expanded(joined[1]))


# --- runs -----------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(st.integers(1, 5), st.integers(2, 6), st.integers(0, 3), st.integers(0, 3))
def test_a_run_is_found_wherever_it_stands(period, count, before, behind):
    words = [f"a{i}" for i in range(before)] + [f"b{i}" for i in range(period)] * count + [f"c{i}" for i in range(behind)]
    flops = [0] * before + [5] * (period * count) + [0] * behind
    cuts = np.full(len(words) + 1, 9.0)
    cuts[before : before + period * count + 1 : period] = 1.0
    assert runs(words, flops, cuts) == [Run(start=before, period=period, count=count)]


def test_blocks_begin_where_least_passes():
    words = list("xyzxyzxyzxy")
    cuts = np.array([5.0, 1.0, 5.0] * 4)
    (run,) = runs(words, [1] * 11, cuts)
    assert (run.start % 3, run.period, run.count) == (1, 3, 3)


def test_several_runs_and_none():
    words = [*list("aaaa"), "p", *list("bcbcbc")]
    flops, cuts = [4] * 4 + [1] + [3] * 6, np.ones(12)
    assert [(r.period, r.count) for r in runs(words, flops, cuts)] == [(1, 4), (2, 3)]
    assert runs(list("abcdef"), [1] * 6, np.ones(7)) == []


# --- clusters -------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=9), st.integers(2, 4), st.data())
def test_clusters_have_the_least_cut_and_then_the_least_imbalance(flops, count, data):
    cuts = np.array([0, *data.draw(st.lists(st.integers(1, 5), min_size=len(flops) - 1, max_size=len(flops) - 1)), 0.0])
    work = np.concatenate(([0.0], np.cumsum(flops)))
    made = clusters(work, cuts, 0, len(flops), count)
    borders = [low for low, _ in made] + [len(flops)]
    assert [high for _, high in made] == borders[1:]
    if len(flops) <= count:
        return
    limit = max(1.5 * sum(flops) / count, *flops)
    every = [(0, *inner, len(flops)) for k in range(count) for inner in itertools.combinations(range(1, len(flops)), k)]
    able = [b for b in every if all(work[j] - work[i] <= limit for i, j in itertools.pairwise(b))]
    if not able:
        return
    least = min(max((cuts[i] for i in b[1:-1]), default=0) for b in able)
    assert max((cuts[i] for i in borders[1:-1]), default=0) <= least
    best = min(squares(work, b) for b in able if all(cuts[i] <= least for i in b[1:-1]))
    assert squares(work, borders) == pytest.approx(best)


def squares(work, borders):
    return sum((work[j] - work[i]) ** 2 for i, j in itertools.pairwise(borders))


def test_what_stands_before_and_behind_the_blocks_is_embedding_and_head():
    flops = [0, 1, *[10] * 8, 0, 7]
    division = divide(flops, np.ones(13), [Run(start=2, period=2, count=4)])
    assert division.embedding == (0, 2)
    assert division.layers == ((2, 4), (4, 6), (6, 8), (8, 10))
    assert division.head == (10, 12)
    alone = divide(flops, np.ones(13), [])
    assert alone.embedding == (0, 0)
    assert alone.layers[-1][1] == 12


# --- fusing, parameters, operators ----------------------------------------------------------------------


def test_elementwise_chains_are_one_operator_and_biases_belong_to_products(tmp_path):
    pytest.importorskip("onnx")
    nodes = [
        ("MatMul", ["x", "w"], ["h"], {}),
        ("Add", ["h", "b"], ["i"], {}),
        ("Sigmoid", ["i"], ["s"], {}),
        ("Mul", ["i", "s"], ["g"], {}),
        ("Mul", ["g", "c"], ["k"], {}),
        ("MatMul", ["k", "v"], ["y"], {}),
    ]
    weights = [("w", [8, 6]), ("b", [6]), ("v", [6, 2]), ("c", [])]
    graph = load_model(onnx_graph(tmp_path / "a.onnx", nodes, [("x", [4, 8])], weights))
    operators = [o for unit in (graph.embedding, *graph.layer_kinds, graph.head) for o in unit.operators]
    assert [o.kind for o in operators] == [OperatorKind.GEMM, OperatorKind.ELEMENTWISE, OperatorKind.GEMM]
    assert operators[0].parameters[1].dims == (operators[0].gemm.n[0][0],)
    assert len(operators[1].saved) == 1
    assert graph.parameters == 8 * 6 + 6 + 6 * 2


def test_a_shared_parameter_counts_once(tmp_path):
    pytest.importorskip("onnx")
    nodes = [("MatMul", [a, "w"], [b], {}) for a, b in itertools.pairwise(["x", "a", "b", "c", "y"])]
    graph = load_model(onnx_graph(tmp_path / "a.onnx", nodes, [("x", [4, 8])], [("w", [8, 8])]))
    assert graph.parameters == 64
    assert graph.flops_forward(4, 1) == 4 * 2 * 4 * 64


@pytest.mark.parametrize(
    ("kind", "x", "w", "how", "flops"),
    [
        ("Conv", [2, 4, 8, 8], [6, 4, 3, 3], {"pads": [1, 1, 1, 1]}, 2 * 2 * 64 * 6 * 4 * 9),
        ("Conv", [2, 4, 8, 8], [4, 1, 3, 3], {"group": 4, "strides": [2, 2], "pads": [1, 1, 1, 1]}, 2 * 2 * 16 * 4 * 9),
        ("Conv", [2, 6, 8], [4, 3, 3], {"group": 2}, 2 * 2 * 6 * 4 * 3 * 3),
        ("Conv", [2, 3, 4, 4, 4], [5, 3, 2, 2, 2], {}, 2 * 2 * 27 * 5 * 3 * 8),
        ("ConvTranspose", [2, 4, 8, 8], [4, 6, 2, 2], {"strides": [2, 2]}, 2 * 2 * 64 * 4 * 6 * 4),
        ("MatMul", [2, 5, 8], [8, 3], {}, 2 * 2 * 5 * 8 * 3),
        ("Gemm", [2, 8], [3, 8], {"transB": 1}, 2 * 2 * 8 * 3),
    ],
)
def test_products_count_two_flops_a_multiplication(tmp_path, kind, x, w, how, flops):
    pytest.importorskip("onnx")
    graph = load_model(onnx_graph(tmp_path / "a.onnx", [(kind, ["x", "w"], ["y"], how)], [("x", x)], [("w", w)]))
    assert graph.flops_forward(2, 1) == flops
    assert graph.parameters == math.prod(w)


def test_views_take_no_time_and_elementwise_bytes_do():
    graph = load_model(str(FILES / "gpt.pt2"))
    (layer,) = graph.layer_kinds
    kinds = [o.kind for o in layer.operators]
    assert kinds.count(OperatorKind.VIEW) == 1
    assert kinds.count(OperatorKind.GEMM) == 4
    assert kinds.count(OperatorKind.ATTENTION) == 1


# --- sizes as expressions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Symbol('s0', integer=True)", 6),
        ("Mul(Integer(32), Symbol('s0'))", 192),
        ("Add(Mul(Integer(-1), Symbol('s0')), Integer(10))", 4),
        ("FloorDiv(Symbol('s0'), Integer(4))", 1),
        ("Mod(Symbol('s0'), Integer(4))", 2),
        ("Max(Integer(1), Symbol('s0'))", 6),
        ("Pow(Symbol('s0'), Integer(2))", 36),
        ("-3", -3),
    ],
)
def test_expressions_of_sizes(text, value):
    assert evaluate(text, {"s0": 6}) == value


@pytest.mark.parametrize(
    "text", ["", "x", "open('a')", "Mul(1.5, 2)", "Symbol('s0').free", "1 +", "Mod(Integer(1), Integer(0))"]
)
def test_what_is_no_size_is_none(text):
    assert evaluate(text, {"s0": 6}) is None


def test_an_unbound_symbol_is_named():
    with pytest.raises(UnboundSymbolError, match="s7"):
        evaluate("Mul(Integer(2), Symbol('s7'))", {"s0": 6})
