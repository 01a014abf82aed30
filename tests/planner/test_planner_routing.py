"""Uneven routing: the identity where it is balanced, never faster or leaner otherwise, nothing without expert parallelism."""

from __future__ import annotations

import numpy as np
import pytest

import shardwright
from shardwright.errors import ShardwrightError
from shardwright.planner.axes.sharding import OperatorKeys, busiest
from shardwright.planner.estimation import estimate_plan
from shardwright.planner.problem import PricingOptions
from shardwright.planner.stacks import load_stack, stack_from_dict


def _estimate(skew: float | None, *, ep: int, etp: int = 1, tp: int = 1):
    options = PricingOptions(framework="megatron", overrides=() if skew is None else (f"stack.moe_load_imbalance={skew}",))
    degrees = shardwright.Degrees(tp=tp, ep=ep, etp=etp, pp=2, micro_batch=1, recompute="full")
    return shardwright.estimate(
        "mixtral-8x7b", "dgx-h100:4", seq_len=4096, global_batch=64, degrees=degrees, options=options
    ).to_dict()


def _keys(ep: list[int], imbalance: float) -> OperatorKeys:
    one = np.ones(len(ep), dtype=np.int64)
    return OperatorKeys(
        **dict.fromkeys(("tp", "cp", "etp", "micro_batch", "loss_chunks", "moe_dispatcher"), one),
        **dict.fromkeys(("sp", "cp_comm"), 0 * one),
        ep=np.array(ep),
        seq_len=64,
        imbalance=imbalance,
    )


def test_the_busiest_rank_lies_between_all_experts_and_one():
    found = busiest(_keys([1, 2, 4, 8], 3.0), 8)
    assert found[0] == 1.0
    assert found[-1] == 3.0
    assert (np.diff(found) > 0).all()
    assert (busiest(_keys([1, 2, 4, 8], 1.0), 8) == 1.0).all()


def test_it_is_how_means_of_experts_spread():
    """The deviation of the mean of E/ep loads out of E, over that of one load: drawn, not derived."""
    draw, experts, ranks = np.random.default_rng(7), 16, 4
    loads = draw.gamma(2.0, size=(4000, experts))
    loads /= loads.mean(axis=1, keepdims=True)
    by_rank = loads.reshape(4000, ranks, experts // ranks).mean(axis=2)
    spread = by_rank.std() / loads.std()
    assert busiest(_keys([ranks], 2.0), experts)[0] - 1 == pytest.approx(spread, rel=0.02)


def test_balanced_routing_is_the_identity():
    assert _estimate(1.0, ep=4)["predicted"] == _estimate(None, ep=4)["predicted"]
    assert _estimate(1.0, ep=4)["stages"] == _estimate(None, ep=4)["stages"]


@pytest.mark.parametrize(("ep", "etp", "tp"), [(8, 1, 1), (4, 1, 2), (4, 2, 2)])
def test_skew_never_makes_a_plan_faster_or_leaner(ep, etp, tp):
    made = [_estimate(skew, ep=ep, etp=etp, tp=tp) for skew in (1.0, 1.2, 2.0, 4.0)]
    steps = [one["predicted"]["step_time_s"] for one in made]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]
    peaks = [one["memory"]["peak_bytes"] for one in made]
    assert peaks == sorted(peaks)
    exchange = [sum(row["message_bytes"] for row in one["communication"] if row["axis"] == "ep") for one in made]
    assert exchange[-1] > exchange[0]


def test_one_rank_with_all_experts_does_not_care():
    assert _estimate(3.0, ep=1)["predicted"] == _estimate(1.0, ep=1)["predicted"]


def test_skew_is_said_and_explained():
    found = {a["key"]: a["value"] for a in _estimate(1.5, ep=4)["assumptions"]}
    assert found["moe.routing"] == "busiest expert 1.5 times the mean"
    rows = {row["key"]: row for row in shardwright.explain(_estimate(1.0, ep=8)).to_dict()["inputs"]}
    assert rows["stack.moe_load_imbalance"]["elasticity"] > 0


@pytest.mark.parametrize("value", ["0.5", "0", "-1", "true"])
def test_less_than_the_mean_is_refused(value):
    with pytest.raises(ShardwrightError):
        _estimate(value, ep=4)  # type: ignore[arg-type]


def test_profiles_saved_before_are_read():
    from dataclasses import asdict

    saved = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(load_stack("megatron-core")).items()}
    del saved["moe_load_imbalance"]
    assert stack_from_dict(saved) == load_stack("megatron-core")


def test_the_option_is_the_field_of_the_stack():
    job = {"seq_len": 4096, "global_batch": 64, "degrees": shardwright.Degrees(ep=8, pp=2)}
    options = [PricingOptions(routing_skew=1.5), PricingOptions(overrides=("stack.moe_load_imbalance=1.5",)), PricingOptions()]
    asked, stated, plain = (shardwright.estimate("mixtral-8x7b", "dgx-h100:4", **job, options=o).to_dict() for o in options)
    assert asked["predicted"] == stated["predicted"] != plain["predicted"]
    found = {a["key"]: (a["value"], a["origin"]) for a in asked["assumptions"]}
    assert found["moe.routing_skew"] == (1.5, "given")
    assert ("moe.routing_skew", 1.0, "default") in [(a["key"], a["value"], a["origin"]) for a in plain["assumptions"]]
    again = estimate_plan(plain, options=PricingOptions(routing_skew=1.5)).to_dict()
    assert again["predicted"] == asked["predicted"]
    assert estimate_plan(asked).to_dict()["predicted"] == asked["predicted"]


@pytest.mark.parametrize(
    ("skew", "overrides", "said"),
    [(0.9, (), "0.9"), (float("nan"), (), "nan"), (1e9, (), "1e"), (2.0, ("stack.moe_load_imbalance=3",), "both say")],
)
def test_a_skew_that_cannot_be_is_refused(skew, overrides, said):
    options = PricingOptions(routing_skew=skew, overrides=overrides)
    with pytest.raises(ShardwrightError, match=said) as caught:
        shardwright.estimate("mixtral-8x7b", "dgx-h100:4", seq_len=4096, global_batch=64, options=options)
    assert caught.value.where == "--routing-skew"
