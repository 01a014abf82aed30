"""Tensor-parallel gathers in low precision: what is cast before it travels, what is not, and what that saves."""

import pytest

from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions

SEQ, LAYERS, HIDDEN, TP = 8192, 32, 4096, 4


def priced(precision, *, lora=None, overrides=(), framework="megatron", **degrees):
    options = PricingOptions(framework=framework, precision=precision, lora=lora, overrides=overrides)
    return estimate(
        "llama3.1-8b", "dgx-h100:1", seq_len=SEQ, global_batch=8, degrees=Degrees(tp=TP, **degrees), options=options
    ).to_dict()


def messages(record, kind):
    """Bytes of the tensor-parallel collectives of one kind, distinct."""
    rows = [r for r in record["communication"] if r["axis"] == "tp" and r["collective"] == kind]
    return sorted({row["message_bytes"] for row in rows})


@pytest.mark.parametrize(("precision", "bytes_an_element"), [("fp8-tensorwise", 1.0), ("bf16", 2.0)])
def test_operands_travel_in_their_own_bytes_and_sums_in_16_bits(precision, bytes_an_element):
    record = priced(precision)
    whole = SEQ * HIDDEN
    gathers = messages(record, "all_gather")
    assert min(gathers) == pytest.approx(whole * bytes_an_element)
    assert max(gathers) == pytest.approx(whole * 2.0), "the head reads 16 bits"
    assert messages(record, "reduce_scatter") == [pytest.approx(whole * 2.0)]


def test_casting_first_saves_exchange_and_casts_of_gathered_operands():
    first, later = priced("fp8-tensorwise"), priced("fp8-tensorwise", overrides=("stack.gathers_quantised=false",))
    assert first["time"]["exposed_tp_s"] < 0.9 * later["time"]["exposed_tp_s"]
    assert first["time"]["compute_s"] < later["time"]["compute_s"]
    assert min(messages(later, "all_gather")) == pytest.approx(SEQ * HIDDEN * 2.0)


def test_what_adapters_read_travels_in_16_bits():
    rank = 16
    gathers = messages(priced("fp8-tensorwise", lora=f"rank={rank},targets=qkv"), "all_gather")
    assert min(gathers) == pytest.approx(SEQ * rank * 2.0)
    assert pytest.approx(SEQ * HIDDEN * 1.0) in gathers, "the frozen product is quantised all the same"


@pytest.mark.parametrize(
    ("framework", "precision", "bytes_an_element"),
    [
        ("pytorch", "fp8-tensorwise", 2.0), ("torchtitan", "fp8-tensorwise", 1.0), ("torchtitan", "fp8-rowwise", 2.0),
        ("torchtitan", "fp8-rowwise-gw-hp", 2.0), ("megatron", "fp8-delayed", 1.0),
    ],
)  # fmt: skip
def test_gathers_are_as_narrow_as_library_and_recipe_allow(framework, precision, bytes_an_element):
    record = priced(precision, framework=framework)
    assert min(messages(record, "all_gather")) == pytest.approx(SEQ * HIDDEN * bytes_an_element)
