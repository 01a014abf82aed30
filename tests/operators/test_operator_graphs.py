"""Operators of graphs read from files are divided by the same rule: pictures, tables, towers, a Llama as torch exports it."""

from pathlib import Path

import pytest

import shardwright
from shardwright.models.catalog import load_model
from shardwright.planner.search.operators.loops import loops_of
from shardwright.planner.search.operators.mesh import parse_mesh
from shardwright.planner.search.operators.options import ShardOptions

FILES = Path(__file__).parents[1] / "graphs" / "files"
NAMES = ("gpt", "llama", "wide_resnet", "unet", "dlrm", "two_tower")


def found(name, mesh, batch, layer=None):
    return shardwright.shard(
        str(FILES / f"{name}.pt2"),
        "dgx-h100:1",
        seq_len=None,
        global_batch=batch,
        sharding=ShardOptions(mesh=parse_mesh(mesh)),
        layer=layer,
        options=shardwright.PricingOptions(framework="pytorch"),
    ).data


@pytest.mark.parametrize("name", NAMES)
def test_every_graph_is_divided(name):
    data = found(name, "dp=2,tp=4", 64)
    graph = load_model(str(FILES / f"{name}.pt2"))
    assert sum(layer["count"] for layer in data["layers"]) >= graph.layers
    assert data["program"]["proven_optimal"]
    held = {p for layer in data["layers"] for o in layer["operators"] for p in o["parameters"]}
    units = (graph.embedding, *graph.layer_kinds, graph.head)
    assert held == {p.name for unit in units for p in unit.parameter_specs}


def test_a_batch_of_pictures_is_divided_by_picture():
    data = found("wide_resnet", "dp=8", 512)
    words = {o["divides"]["dp"] for layer in data["layers"] for o in layer["operators"]}
    assert words == {"batch"}


def test_one_sequence_gives_an_exported_llama_columns_and_rows():
    (layer,) = found("llama", "tp=4", 1, layer="1")["layers"]
    last = [o for o in layer["operators"] if o["kind"] == "gemm"][-3:]
    assert [next(iter(o["writes"].values()))["tp"] for o in last[:2]] == [f"S({last[0]['divides']['tp']})"] * 2
    assert next(iter(last[2]["writes"].values()))["tp"] == "P"


def test_windows_and_statistics_of_pictures_are_not_divided():
    graph = load_model(str(FILES / "wide_resnet.pt2"))
    for layer in graph.layer_kinds:
        sizes = layer.sizes(64, 1)
        for operator in layer.operators:
            if len(operator.outputs[0].dims) > 3:  # batch, channels and places
                loops = {loop.dim for loop in loops_of(operator, sizes)}
                written = operator.outputs[0].dims
                assert operator.normalised is None
                assert operator.kind == "elementwise" or not loops.intersection(written[2:])


def test_softmax_and_norms_of_graphs_reduce_statistics():
    graph = load_model(str(FILES / "llama.pt2"))
    norms = [o for o in graph.layer_kinds[0].operators if o.normalised is not None]
    assert len(norms) == 2
    assert all(o.normalised.dims == o.inputs[0].dims[-1:] for o in norms)
    attention = next(o for o in graph.layer_kinds[0].operators if o.attention is not None)
    assert [dim for _, dim in attention.read_whole] == [attention.attention.keys] * 2
