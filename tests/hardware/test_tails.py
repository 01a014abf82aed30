import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwright.hardware.tails import BETWEEN_NODES, slowdown


@given(st.integers(1, 5000), st.integers(1, 5000), st.floats(0.5, 1.0), st.floats(0.5, 1.0))
def test_more_nodes_and_rarer_luck_are_never_faster(few, many, low, high):
    few, many = sorted((few, many))
    low, high = sorted((low, high))
    assert 1 <= slowdown(few, low) <= slowdown(many, low) <= slowdown(many, high) <= BETWEEN_NODES[-1]


def test_inside_a_node_there_is_hardly_a_tail():
    found = slowdown(np.array([1.0, 2.0, 64.0]))
    assert found[0] < 1.01
    assert found[1] == 1.315
    assert found[2] > found[1]
