"""The one rule by which operators are divided, and what follows from it for layouts and moves."""

import numpy as np
import pytest
from operator_problems import llama, problem_of

from shardwright.errors import ConflictError, InvalidValueError, UnknownNameError, UnsupportedError
from shardwright.hardware.mesh import DeviceMesh
from shardwright.models.catalog import load_model
from shardwright.models.graph import GemmShape, Normalised, Operator, OperatorKind, TensorSpec
from shardwright.planner.search.operators.context import links_of
from shardwright.planner.search.operators.layouts import BROADCAST, PARTIAL, VIA, WHOLE
from shardwright.planner.search.operators.loops import divides, loops_of
from shardwright.planner.search.operators.mesh import parse_mesh
from shardwright.planner.search.operators.options import ShardOptions
from shardwright.planner.search.operators.parts import apart
from shardwright.planner.search.operators.resharding import (
    EXCHANGE,
    GATHER,
    REDUCE,
    SCATTER,
    SLICE,
    STAY,
    moves,
    reshard,
)
from shardwright.planner.search.operators.strategies import strategies_of
from shardwright.planner.search.operators.targets import variants_of

SIZES = {"b": 64, "s": 1024, "k": 512, "n": 2048}


def product(name="any name", **changes):
    given = {
        "name": name,
        "kind": OperatorKind.GEMM,
        "module": "mlp",
        "inputs": (TensorSpec(name="x", dims=("b", "s", "k")),),
        "outputs": (TensorSpec(name="y", dims=("b", "s", "n")),),
        "parameters": (TensorSpec(name="w", dims=("k", "n")),),
        "gemm": GemmShape(m=("b", "s"), n=(("n",),), k=("k",)),
    }
    return Operator(**{**given, **changes})


def free(*_):
    return True


def test_loops_of_a_product():
    loops = {loop.dim: (loop.inputs, loop.outputs, loop.parameters) for loop in loops_of(product(), SIZES)}
    assert loops == {
        "b": ((0,), (0,), (BROADCAST,)),
        "s": ((1,), (1,), (BROADCAST,)),
        "k": ((2,), (PARTIAL,), (0,)),
        "n": ((BROADCAST,), (2,), (1,)),
    }


def test_a_product_has_25_strategies_on_a_mesh_of_two_whatever_its_name():
    found = strategies_of(product(), SIZES, (8, 8), free)
    again = strategies_of(product(name="attention", module="head"), SIZES, (8, 8), free)
    assert len(found) == len(again) == 25
    assert (found.inputs == again.inputs).all()


def test_every_product_of_a_model_has_25_strategies_or_more():
    layer = apart(load_model("llama3.1-8b").layer_kinds[0])
    sizes = layer.sizes(64, 8192)
    counts = [len(strategies_of(o, sizes, (8, 8), free)) for o in layer.operators if o.gemm is not None]
    assert len(counts) == 7
    assert min(counts) >= 25


def test_a_product_that_sums_over_the_dim_it_writes_has_both_loops():
    square = product(
        outputs=(TensorSpec(name="y", dims=("b", "s", "k")),),
        parameters=(TensorSpec(name="w", dims=("k", "k")),),
        gemm=GemmShape(m=("b", "s"), n=(("k",),), k=("k",)),
    )
    both = [(loop.inputs, loop.outputs, loop.parameters) for loop in loops_of(square, SIZES) if loop.dim == "k"]
    assert both == [((2,), (PARTIAL,), (0,)), ((BROADCAST,), (2,), (1,))]


def test_whole_dims_are_never_divided_and_normalised_ones_reduce_statistics():
    x, y = (TensorSpec(name=name, dims=("b", "s", "k")) for name in "xy")
    norm = Operator(
        name="x", kind=OperatorKind.ELEMENTWISE, module="m", inputs=(x,), outputs=(y,), normalised=Normalised(dims=("k",))
    )
    whole = Operator(name="x", kind=OperatorKind.ELEMENTWISE, module="m", inputs=(x,), outputs=(y,), whole=("k",))
    assert [(loop.dim, loop.reductions) for loop in loops_of(norm, SIZES)] == [("b", (0, 0)), ("s", (0, 0)), ("k", (1, 1))]
    assert [loop.dim for loop in loops_of(whole, SIZES)] == ["b", "s"]


def test_rows_of_experts_are_divided_by_token_or_by_expert():
    layer = apart(load_model("mixtral-8x7b").layer_kinds[0])
    sizes = layer.sizes(8, 4096)
    up = {loop.dim: loop for loop in loops_of(layer.operator("expert_up.expert_up"), sizes)}
    assert up["batch"].inputs == (VIA,)
    assert up["experts"].inputs == (3 * VIA,)
    assert up["batch"].parameters == (BROADCAST,)
    assert up["experts"].parameters == (0,)
    assert "experts" not in {loop.dim for loop in loops_of(layer.operator("dispatch"), sizes)}


def test_grouped_heads_follow_the_heads_they_serve():
    layer = apart(llama(kv_heads=4).layer_kinds[0])
    attention = layer.operator("attention")
    sizes = layer.sizes(1, 1024)
    found = strategies_of(attention, sizes, (4, 2), free)
    rows = {found.words(row): row for row in range(len(found))}
    both = found.inputs[rows["heads", "heads"]]
    assert both.tolist() == [[2, 2], [2, BROADCAST], [2, BROADCAST]]  # 4 key-value heads over 4 of 8 ranks
    assert found.degrees["kv_heads"][rows["heads", "heads"]] == 4
    assert found.degrees["heads"][rows["heads", "heads"]] == 8


def test_queries_can_be_divided_by_sequence_and_keys_are_then_read_whole():
    layer = apart(load_model("llama3.1-8b").layer_kinds[0])
    found = {loop.dim: loop for loop in loops_of(layer.operator("attention"), layer.sizes(1, 1024))}
    assert found["seq"].inputs == (1, BROADCAST, BROADCAST)
    assert found["seq"].outputs == (1,)


@pytest.mark.parametrize(("size", "parts", "able"), [(8, 8, True), (8, 16, False), (9, 8, False), (128256, 1000, True)])
def test_dims_are_divided_evenly_or_with_little_padding(size, parts, able):
    assert divides(size, parts) is able


def test_independent_parts_become_operators_and_nothing_is_lost():
    for name in ("llama3.1-8b", "mixtral-8x7b", "deepseek-v3", "qwen3-8b", "gpt2"):
        for layer in load_model(name).layer_kinds:
            parted = apart(layer)
            assert parted.parameters == layer.parameters
            assert parted.flops_forward(2, 128) == layer.flops_forward(2, 128)
            assert {t.name for t in parted.saved} == {t.name for t in layer.saved}
            assert len({o.name for o in parted.operators}) == len(parted.operators)
    assert len(apart(load_model("llama3.1-8b").layer_kinds[0]).operators) == 15


def test_moves_of_one_axis():
    pairs = [(0, 0, STAY), (WHOLE, 1, SLICE), (0, WHOLE, GATHER), (PARTIAL, 1, SCATTER), (PARTIAL, WHOLE, REDUCE)]
    pairs += [(0, 1, EXCHANGE), (WHOLE, WHOLE, STAY)]
    source, target, kinds = (np.array(column, dtype=np.int8)[:, None] for column in zip(*pairs, strict=True))
    assert (moves(source, target) == kinds).all()


@pytest.fixture(scope="module")
def links():
    problem = problem_of("llama3.1-8b", "dgx-h100:2", seq_len=1024, batch=2)
    return links_of(problem, ShardOptions(mesh=parse_mesh("dp=2,tp=8")))


def test_resharding_costs_what_its_collectives_cost(links):
    codes = np.array([[WHOLE, 0], [WHOLE, PARTIAL]], dtype=np.int8)
    read = np.array([[WHOLE, WHOLE], [WHOLE, BROADCAST], [WHOLE, 0], [WHOLE, 1]], dtype=np.int8)
    times = reshard(links, 64e6, codes, read)
    one = {
        kind: float(links.seconds(kind, np.array([1]), np.array([size]))[0])
        for kind, size in (("all_gather", 64e6), ("all_reduce", 64e6), ("reduce_scatter", 64e6), ("all_to_all", 8e6))
    }
    gather, reduce, scatter, exchange = one["all_gather"], one["all_reduce"], one["reduce_scatter"], one["all_to_all"]
    assert times.forward_s == pytest.approx(np.array([[gather, gather, 0, exchange], [reduce, reduce, scatter, scatter]]))
    assert times.backward_s == pytest.approx(np.array([[0, scatter, 0, exchange], [0, reduce, gather, gather]]))


def test_the_order_of_axes_is_the_fastest(links):
    """Gathering the fast axis last would send eight times as much over the slow one."""
    codes, read = np.array([[0, 1]], dtype=np.int8), np.array([[WHOLE, WHOLE]], dtype=np.int8)
    both = reshard(links, 64e6, codes, read).forward_s[0, 0]
    slow_first = links.seconds("all_gather", np.array([0]), np.array([8e6])) + links.seconds(
        "all_gather", np.array([1]), np.array([64e6])
    )
    assert both <= slow_first[0]


@pytest.mark.parametrize("text", ["dp", "dp=0", "dp=8;tp=8", "dp=8,dp=8", "a=2,b=2,c=2,d=2", "dp=8,", "dp=-1", "dp=\u0664"])
def test_meshes_are_checked(text):
    with pytest.raises(InvalidValueError):
        parse_mesh(text)


def test_targets_restrict_what_operators_do():
    mesh = DeviceMesh(axes=(("dp", 8), ("tp", 8)))
    layer = apart(load_model("llama3.1-8b").layer_kinds[0])
    sizes = layer.sizes(64, 8192)
    for variant in variants_of("megatron", ShardOptions(mesh=mesh)):
        words = {o.name: strategies_of(o, sizes, (8, 8), variant.allowed).words(0) for o in layer.operators}
        assert words["down"] == ("batch", "ffn")
        assert words["attention"] == ("batch", "heads")
        assert words["input_norm"] == ("batch", "seq" if "with sequence" in variant.name else "-")
    assert len(variants_of("pytorch", ShardOptions(mesh=mesh))) == 1
    assert [v.levels for v in variants_of("torchtitan", ShardOptions(mesh=mesh))] == [((2,), (0,))] * 2
    with pytest.raises(UnknownNameError, match="axis of megatron"):
        variants_of("megatron", ShardOptions(mesh=DeviceMesh(axes=(("x", 8),))))
    with pytest.raises(UnsupportedError):
        variants_of("deepspeed", ShardOptions(mesh=mesh))


def test_a_mesh_that_the_target_cannot_use_names_the_operator():
    layer = apart(load_model("llama3.1-8b").layer_kinds[0])
    (variant, *_) = variants_of("megatron", ShardOptions(mesh=DeviceMesh(axes=(("tp", 64),))))
    with pytest.raises(ConflictError, match="attention cannot be divided"):
        strategies_of(layer.operator("attention"), layer.sizes(1, 8192), (64,), variant.allowed)
