"""Exchange in every pass slows computing by the channels it takes, and a slow network feeds few of them."""

import pytest

from shardwright.planner.cost.grounds import grounds_of
from shardwright.planner.cost.states import channel_share
from shardwright.planner.estimation import estimate, network_of
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem

MODEL = {"model": "llama3.1-8b", "seq_len": 8192}


@pytest.mark.parametrize(("cluster", "share"), [("hgx-a100-80g-eth-400:4", 0.25), ("dgx-a100-80g:4", 1.0), ("dgx-h100:4", 1.0)])
def test_channels_follow_the_network_of_a_gpu(cluster, share):
    problem = build_problem(cluster=cluster, global_batch=64, **MODEL)
    assert channel_share(grounds_of(problem, network_of(problem))) == pytest.approx([share])


def slowed_s(cluster, **degrees):
    """What interference adds to a step whose exchange all hides."""

    def exposed_s(*overrides):
        options = PricingOptions(framework="torchrun", overrides=overrides)
        chosen = Degrees(micro_batch=4, zero=3, **degrees)
        return estimate(cluster=cluster, global_batch=128, degrees=chosen, options=options, **MODEL).to_dict()["time"][
            "exposed_dp_s"
        ]

    return exposed_s() - exposed_s("stack.fsdp_interference=0")


def test_the_same_bytes_cost_computing_the_same_over_a_slow_network():
    slow, fast = slowed_s("hgx-a100-80g-eth-400:4"), slowed_s("hgx-a100-80g-roce-1600:4")
    assert slow == pytest.approx(fast, rel=0.15), "four times as long on a quarter of the channels"


def test_exchange_inside_a_node_takes_channels_of_its_own():
    slow, fast = slowed_s("hgx-a100-80g-eth-400:1"), slowed_s("hgx-a100-80g-roce-1600:1")
    assert slow == fast > 0
