"""What a stack runs operator by operator around experts and rotations: bytes by hand for one layer of gpt-oss."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.models.catalog import load_model
from shardwright.models.dtypes import PRECISIONS
from shardwright.planner.axes.sharding import LocalSizes, OperatorKeys
from shardwright.planner.cost.experts import added_bytes, further_starts
from shardwright.planner.plans import MOE_DISPATCHERS
from shardwright.planner.stacks import load_stack

SEQ, HIDDEN, WIDE, TOPK, EP, HEADS = 4096, 2880, 2 * 2880, 4, 8, (64 + 8) * 64
"""Of gpt-oss-120b: rows of a rank are `SEQ * TOPK` where tokens are spread evenly."""

ROWS = SEQ * TOPK


def keys_for(dispatcher):
    one = {name: np.ones(1, dtype=np.int64) for name in ("tp", "cp", "etp", "micro_batch", "loss_chunks")}
    none = {name: np.zeros(1, dtype=np.int64) for name in ("sp", "cp_comm")}
    way = np.array([MOE_DISPATCHERS.index(dispatcher)])
    return OperatorKeys(**one, **none, ep=np.array([EP]), moe_dispatcher=way, seq_len=SEQ)


def added(name, dispatcher="alltoall", model="gpt-oss-120b", **stack):
    unit = load_model(model).layer_kinds[0]
    operator = next(o for o in unit.operators if o.name == name)
    profile = replace(load_stack("megatron-core"), **stack)
    made = added_bytes(operator, LocalSizes(unit.dims, keys_for(dispatcher)), profile, PRECISIONS["bf16"])
    return None if made is None else tuple(float(np.ravel(each)[0]) for each in made)


def test_gate_and_up_are_clamped_by_passes():
    assert added("moe_act") == pytest.approx((ROWS * WIDE * 8, ROWS * WIDE * 15))
    assert added("moe_act", fused_experts=True) is None
    assert added("moe_act", model="qwen3-30b-a3b") is None


def test_rotations_that_scale_are_not_fused():
    assert added("rope") == pytest.approx((SEQ * HEADS * 20, SEQ * HEADS * 24))
    assert added("rope", fused_experts=True) == added("rope")
    assert added("rope", fused_rotary_scale=True) is None
    assert added("rope", model="qwen3-30b-a3b") is None


def test_biases_are_added_in_fp32_where_probabilities_are():
    assert added("expert_down") == pytest.approx((ROWS * HIDDEN * 12, ROWS * HIDDEN * 16))
    for dispatcher in ("deepep", "hybridep"):
        assert added("expert_down", dispatcher) == pytest.approx((ROWS * HIDDEN * 28, ROWS * HIDDEN * 40))
    assert added("expert_up") is None


@pytest.mark.parametrize(("precision", "quantising"), [("bf16", 0), ("mxfp8", 1), ("fp8-delayed", 1), ("fp8-tensorwise", 4)])
def test_experts_one_by_one_start_kernels_one_by_one(precision, quantising):
    unit = load_model("gpt-oss-120b").layer_kinds[0]
    sizes, further = LocalSizes(unit.dims, keys_for("alltoall")), 128 // EP - 1

    def starts(name, **stack):
        operator = next(o for o in unit.operators if o.name == name)
        made = further_starts(operator, sizes, replace(load_stack("megatron-core"), **stack), PRECISIONS[precision])
        return [float(each[0]) for each in made]

    for name in ("expert_up", "expert_down"):
        assert starts(name) == [further * (quantising + 0.25), further * (quantising + 0.5)]
        assert starts(name, fused_experts=True) == [0, 0]
    assert starts("qkv") == [0, 0]
