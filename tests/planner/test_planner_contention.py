"""Axes that use the same links at the same time do not hide behind one another."""

import dataclasses

import numpy as np
import planner_problems as problems
import pytest

from shardwright.planner.cost.exchange import exposed_data
from shardwright.planner.cost.sharing import shared_rows


def tails(name, shared_network=True):
    """Exposed exchange of states of some plans, with and without other axes on their links."""
    problem = problems.problem_of(name)
    made = problems.scan_of(name)
    batch = made.batch.take(problems.some_rows(made, 400))
    context, key = problems.context_for(problem, batch, made.splits)
    runs = int(context.splits.runs[batch.split].max())
    shared = shared_rows(context, batch, key, runs)
    work, row = shared.work, shared.row
    forward = work.compute_forward_s + work.exposed_forward_s.sum(axis=2)
    backward = work.compute_backward_s + work.exposed_backward_s.sum(axis=2)
    if not shared_network:
        apart = dataclasses.replace(shared.state, network=np.zeros_like(shared.state.network))
        shared = dataclasses.replace(shared, state=apart)
    found = exposed_data(context, batch, shared, forward[row], backward[row])
    return found, shared, batch


@pytest.mark.parametrize("name", ["moe-96", "mtp-64"])
def test_exchange_of_experts_over_the_network_leaves_less_room_for_gradients(name):
    together, shared, _ = tails(name)
    apart, _, _ = tails(name, shared_network=False)
    for part in ("forward_s", "backward_s", "after_s"):
        assert (getattr(together, part) >= getattr(apart, part) - 1e-15).all()
    beside = shared.state.network[shared.state_row] & (shared.work.network_backward_s[shared.row] > 0)
    assert beside.any()
    assert (together.after_s + together.backward_s > apart.after_s + apart.backward_s)[beside].any()


def test_on_one_node_nothing_is_shared():
    together, shared, _ = tails("dense-8")
    assert not shared.state.network.any()
    assert not shared.work.network_forward_s.any()
    assert (together.after_s == tails("dense-8", shared_network=False)[0].after_s).all()


def test_only_exposed_exchange_counts():
    _, shared, _ = tails("moe-96")
    work = shared.work
    assert (work.network_backward_s <= work.exposed_backward_s.sum(axis=2) * (1 + 1e-12)).all()
