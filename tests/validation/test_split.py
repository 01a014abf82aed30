"""Layers of stages of measured runs: as stated, as the stack cuts, else even."""

import pytest
from rows import row

from shardwright.models.catalog import load_model
from shardwright.planner.runs.split import split_by_cost, stages_of, stated_split
from shardwright.planner.stacks import load_stack


@pytest.mark.parametrize(
    ("notes", "layers", "chunks", "split"),
    [
        ("layers/stage [12, 14] (with ends); x", 24, 2, (11, 13)),
        ("a; layers/stage [5,7,6,6]", 24, 4, (5, 7, 6, 6)),
        ("layers/stage [12, 14]", 24, 4, None),
        ("layers/stage [12, 13]", 24, 2, None),
        ("layers/stage [1, 25]", 24, 2, None),
        ("layers/stage [24]", 24, 1, None),
        ("layers/stage [a]", 24, 2, None),
        ("", 24, 2, None),
    ],
)
def test_stated_splits(notes, layers, chunks, split):
    assert stated_split(notes, layers, chunks) == split


def test_a_stage_is_closed_by_the_block_that_takes_it_past_its_share():
    graph = load_model("llama2-70b")  # the head counts a third of a layer
    assert split_by_cost(graph, 1) is None
    assert split_by_cost(graph, 4) == (21, 20, 20, 19)
    assert sum(split_by_cost(graph, 16)) == graph.layers
    assert split_by_cost(graph, 16)[0] == 6
    assert split_by_cost(load_model("llama3.2-1b"), 16) is None  # the last stage would hold the head alone


def test_what_is_stated_comes_first():
    graph = load_model("llama2-7b")
    stated = row(notes="layers/stage [10, 22]")
    assert stages_of(stated, graph, load_stack("nanotron"), 2) == (10, 22)
    assert stages_of(row(), graph, load_stack("nanotron"), 2) == (17, 15)
    assert stages_of(row(), graph, load_stack("megatron-core"), 2) is None
