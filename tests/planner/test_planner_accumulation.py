"""Gradients that nanotron adds to wider ones in a pass of its own: once a micro-batch, over memory bandwidth."""

import pytest

from shardwright.hardware.catalog import load_device
from shardwright.hardware.kernels import load_fit
from shardwright.models.catalog import load_model
from shardwright.planner.estimation import estimate
from shardwright.planner.fits.factors import NOTHING_FITTED
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions


def compute_s(micro_batches, *overrides):
    options = PricingOptions(stack="nanotron", overrides=overrides, fits=NOTHING_FITTED)
    made = estimate(
        "llama3.1-8b", "dgx-h100:1", seq_len=4096, global_batch=8 * micro_batches, degrees=Degrees(zero=1), options=options
    )
    return made.to_dict()["time"]["compute_s"]


@pytest.mark.parametrize("micro_batches", [4, 8])
def test_each_micro_batch_reads_a_gradient_and_reads_and_writes_its_accumulator(micro_batches):
    more = compute_s(micro_batches) - compute_s(micro_batches, "stack.accumulation_bytes=0")
    device, fit = load_device("h100-sxm5-80g"), load_fit("h100")
    graph = load_model("llama3.1-8b")
    products = graph.parameters - graph.spec.vocab * graph.spec.hidden
    expected = 10 * products * micro_batches / (device.memory_bytes_per_s * fit.memory_fraction)
    assert more == pytest.approx(expected, rel=2e-3), "norms are no products"
