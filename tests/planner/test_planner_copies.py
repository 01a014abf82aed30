"""Copies out of and into the buffers of sharded exchange: how long they take, and where there are none."""

import pytest

from shardwright.hardware.catalog import load_device
from shardwright.hardware.kernels import load_fit
from shardwright.models.catalog import load_model
from shardwright.planner.estimation import estimate
from shardwright.planner.fits.factors import NOTHING_FITTED
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions

NONE = ("stack.gather_copy_bytes=0", "stack.reduce_copy_bytes=0")
MICRO_BATCHES = 4


def exposed_s(*overrides, cluster="dgx-h100:1", framework="torchrun", batch=8 * MICRO_BATCHES, **degrees):
    chosen = Degrees(micro_batch=1, recompute="full", **degrees)
    options = PricingOptions(framework=framework, overrides=overrides, fits=NOTHING_FITTED)
    made = estimate("llama3.1-8b", cluster, seq_len=4096, global_batch=batch, degrees=chosen, options=options)
    return made.to_dict()


def test_copies_take_their_bytes_over_memory_bandwidth():
    with_copies, without = exposed_s(zero=3), exposed_s(*NONE, zero=3)
    device, fit = load_device("h100-sxm5-80g"), load_fit("h100")
    moved = load_model("llama3.1-8b").parameters * (2 * 4 + 4) * MICRO_BATCHES
    expected = moved / (device.memory_bytes_per_s * fit.memory_fraction)
    assert with_copies["time"]["exposed_dp_s"] - without["time"]["exposed_dp_s"] == pytest.approx(expected, rel=1e-3)
    assert with_copies["time"]["compute_s"] == without["time"]["compute_s"]


def test_reductions_alone_copy_gradients():
    zero2, without = exposed_s(zero=2), exposed_s(*NONE, zero=2)
    zero3, bare = exposed_s(zero=3), exposed_s(*NONE, zero=3)
    first = zero2["time"]["exposed_dp_s"] - without["time"]["exposed_dp_s"]
    second = zero3["time"]["exposed_dp_s"] - bare["time"]["exposed_dp_s"]
    assert second == pytest.approx(3 * first, rel=1e-3), "4 bytes of gradients; two gathers of 4 bytes besides"


@pytest.mark.parametrize(
    "case",
    [
        {"zero": 1},
        {"zero": 3, "cluster": "dgx-h100:1x1", "batch": MICRO_BATCHES},
        {"zero": 1, "framework": "megatron"},
    ],
)
def test_nothing_is_copied_where_nothing_sharded_is_exchanged_in_every_pass(case):
    assert exposed_s(**case)["predicted"] == exposed_s(*NONE, **case)["predicted"]


def test_nothing_is_exposed_longer_than_it_takes():
    """With 16 tokens a rank there is nothing to hide behind, and copies come on top of the exchange."""
    options = PricingOptions(framework="torchtitan")
    made = estimate(
        "llama3.1-8b", "dgx-h100:1", seq_len=16, global_batch=32, degrees=Degrees(zero=3), options=options
    ).to_dict()
    rows = [row for row in made["communication"] if row["axis"] == "dp"]
    assert rows
    assert all(row["exposed_s"] == row["time_s"] for row in rows)
    assert sum(row["exposed_s"] for row in rows) == pytest.approx(made["time"]["exposed_dp_s"], rel=1e-9)
    assert made["account"]["overlap_covered_fraction"] == 0
