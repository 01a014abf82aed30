"""Layers of stages: every way to divide them is whole, even, and folded without loss."""

import numpy as np
import planner_problems as problems
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.planner.cost.stages import SPLIT_KINDS, Split, even_chunks, fold, intervals

PLAIN, EMBEDDING, HEAD, BOTH = range(len(SPLIT_KINDS))


def counted(chunks, kind):
    """Units of each chunk with the counted embedding and head put back."""
    units = list(chunks)
    units[0] += kind & 1
    units[-1] += kind >> 1
    return units


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 8), st.sampled_from(range(len(SPLIT_KINDS))))
def test_even_chunks_hold_all_layers_and_differ_by_one_unit_at_most(layers, pp, vpp, kind):
    chunks = even_chunks(layers, pp, vpp, kind)
    assert (chunks is None) == (kind >> 1 == 1 and layers + (kind & 1) + 1 < pp * vpp)
    if chunks is None:
        return
    assert len(chunks) == pp * vpp
    assert sum(chunks) == layers
    assert min(chunks) >= 0
    units = counted(chunks, kind)
    assert max(units) - min(units) <= 1
    assert units == sorted(units, reverse=True)


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "kind", "expected"),
    [
        (126, 8, 1, PLAIN, (16, 16, 16, 16, 16, 16, 15, 15)),
        (126, 16, 1, BOTH, (7, *[8] * 14, 7)),
        (126, 128, 1, BOTH, (0, *[1] * 126, 0)),
        (61, 16, 1, BOTH, (3, *[4] * 14, 2)),
        (61, 16, 1, HEAD, (*[4] * 14, 3, 2)),
        (94, 96, 1, BOTH, (0, *[1] * 94, 0)),
        (94, 48, 2, BOTH, (0, *[1] * 94, 0)),
        (94, 24, 1, EMBEDDING, (3, *[4] * 22, 3)),
        (10, 1, 1, BOTH, (10,)),
    ],
)
def test_known_splits(layers, pp, vpp, kind, expected):
    assert even_chunks(layers, pp, vpp, kind) == expected


def test_a_chunk_never_holds_less_than_nothing():
    assert even_chunks(94, 97, 1, BOTH) is None
    assert even_chunks(3, 8, 1, HEAD) is None


def test_layers_run_through_the_chunks_of_all_ranks_in_turn():
    spans = intervals(Split(chunks=(2, 1, 0, 3), pp=2, vpp=2))
    assert spans == [[[0, 1], None], [[2, 2], [3, 5]]]


def test_layers_run_down_and_up_again_where_chunks_are_folded():
    spans = intervals(Split(chunks=(2, 1, 0, 3), pp=2, vpp=2, folded=True))
    assert spans == [[[0, 1], [3, 5]], [[2, 2], None]]


CASES = [("dense-8", 4, 1), ("dense-8", 8, 2), ("moe-16", 16, 1), ("mtp-64", 16, 1), ("mtp-64", 8, 4), ("dense-7", 7, 1)]


@pytest.mark.parametrize("kind", range(len(SPLIT_KINDS)))
@pytest.mark.parametrize("shape", ["looped", "folded"])
@pytest.mark.parametrize(("name", "pp", "vpp"), CASES)
def test_folding_keeps_every_unit(name, pp, vpp, shape, kind):
    graph = problems.problem_of(name).graph
    chunks = even_chunks(graph.layers, pp, vpp, kind)
    assert chunks is not None
    splits = [Split(chunks=chunks, pp=pp, vpp=vpp, folded=shape == "folded")]
    folded, whole = fold(graph, splits), fold(graph, splits, every_rank=True)
    runs = int(folded.runs[0])
    assert folded.multiplicity[0, :runs].sum() == whole.multiplicity[0].sum() == pp
    assert whole.runs[0] == pp
    np.testing.assert_array_equal(np.repeat(folded.counts[0, :runs], folded.multiplicity[0, :runs], axis=0), whole.counts[0])
    total = whole.counts[0].sum(axis=0)
    kinds = len(graph.layer_kinds)
    np.testing.assert_array_equal(total[:kinds], np.bincount(graph.pattern, minlength=kinds))
    assert total[kinds : kinds + 2].tolist() == [1, 1]
    assert total[kinds + 2 :].sum() == graph.mtp_layers
    assert whole.layers[0].sum() == graph.layers
    np.testing.assert_array_equal(folded.first_rank[0, 1:runs], folded.last_rank[0, : runs - 1] + 1)


def test_equal_stages_fold_into_few_runs():
    graph = problems.problem_of("dense-8").graph
    table = fold(graph, [Split(chunks=(4,) * 8, pp=8, vpp=1), Split(chunks=(32,), pp=1, vpp=1)])
    assert table.runs.tolist() == [3, 1]
    assert table.multiplicity[0, :3].tolist() == [1, 6, 1]


def test_dense_and_routed_layers_are_counted_apart():
    graph = problems.problem_of("mtp-64").graph
    table = fold(graph, [Split(chunks=(2, 2, 57), pp=3, vpp=1)], every_rank=True)
    dense = graph.pattern[0]
    assert table.counts[0, :, dense].tolist() == [2, 1, 0]
    assert table.counts[0, :, 1 - dense].tolist() == [0, 1, 57]
