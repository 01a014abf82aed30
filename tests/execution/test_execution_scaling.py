"""A miniature keeps the axes, schedule and kind of model of its plan, and is itself a plan that can be launched."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shardwright.models.catalog import model_from_dict
from shardwright.planner.estimation import estimate
from shardwright.planner.execution.scaling import SHRUNK, Miniature, miniature, smaller_degrees
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions

PLANS: dict[str, dict[str, Any]] = {
    "fsdp": {"degrees": Degrees(zero=3)},
    "hsdp": {"degrees": Degrees(zero=3, dp_replicate=4)},
    "ddp": {"model": "llama3.2-1b", "degrees": Degrees(zero=0)},
    "tensor": {"degrees": Degrees(tp=8, zero=3)},
    "pipeline": {"degrees": Degrees(tp=2, pp=4, zero=3)},
    "uneven": {"degrees": Degrees(pp=4, zero=3, layers_per_stage=(6, 10, 10, 6))},
    "interleaved": {"degrees": Degrees(pp=4, vpp=2, zero=3)},
    "folded": {"degrees": Degrees(pp=4, schedule="zb-v", zero=2)},
    "context": {"degrees": Degrees(tp=2, cp=4, zero=3)},
    "experts": {"model": "qwen3-30b-a3b", "degrees": Degrees(ep=8, zero=3)},
    "latent": {"model": "deepseek-v2-lite", "degrees": Degrees(ep=8, pp=2, zero=3, layers_per_stage=(13, 14))},
    "recomputed": {"degrees": Degrees(zero=3, recompute="full", recompute_layers=5)},
    "fp16": {"degrees": Degrees(zero=3), "precision": "fp16"},
}


def planned(name: str) -> dict[str, Any]:
    case = PLANS[name]
    options = PricingOptions(
        framework="pytorch", precision=case.get("precision", "bf16"), overrides=("cluster.memory_bytes=1e13",)
    )
    model = case.get("model", "llama3.1-8b")
    priced = estimate(model, "dgx-h100:8", seq_len=1024, global_batch=256, degrees=case["degrees"], options=options).to_dict()
    assert "torchrun" in priced["expressible_by"]
    return priced


def priced(small: Miniature, precision: str) -> dict[str, Any]:
    options = PricingOptions(framework="pytorch", precision=precision, gpus=small.ranks)
    graph = model_from_dict(small.model)
    return estimate(
        graph, "dgx-h100:8", seq_len=small.seq_len, global_batch=small.global_batch, degrees=small.degrees, options=options
    ).to_dict()


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("name", PLANS)
def test_it_can_be_launched(name: str, ranks: int) -> None:
    source = planned(name)
    small = miniature(source, ranks)
    made = priced(small, source["inputs"]["training"]["precision"])
    assert made["violations"] == []
    assert "torchrun" in made["expressible_by"]
    assert made["parallel"]["world_size"] == small.ranks <= ranks
    assert made["model"]["parameters"] < 5_000_000
    assert small.changes["world_size"] == [64, small.ranks]


@pytest.mark.parametrize("name", PLANS)
def test_what_the_plan_uses_stays_in_use(name: str) -> None:
    source = planned(name)
    small = miniature(source, 8)
    made, before = priced(small, source["inputs"]["training"]["precision"])["parallel"], source["parallel"]
    for axis in ("tp", "cp", "pp", "ep", "vpp"):
        assert (made[axis] > 1) == (before[axis] > 1), axis
    assert made["zero_stage"] == before["zero_stage"]
    assert made["schedule"] == before["schedule"]
    assert made["recompute"]["mode"] == before["recompute"]["mode"]
    moe = source["inputs"]["model"]["moe"]
    assert (small.model.get("moe") is None) == (moe is None)


def test_a_small_plan_keeps_its_degrees() -> None:
    parallel = {"dp_shard": 2, "dp_replicate": 1, "tp": 2, "cp": 1, "pp": 2, "ep": 4}
    assert smaller_degrees(parallel, 8) == {**parallel, "ep": 4}


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 16])
def test_the_largest_degree_is_divided_first(ranks: int) -> None:
    found = smaller_degrees({"dp_shard": 6, "dp_replicate": 4, "tp": 8, "cp": 2, "pp": 9, "ep": 12}, ranks)
    assert math.prod(found[name] for name in SHRUNK) <= ranks
    assert (found["dp_shard"] * found["cp"] * found["tp"]) % found["ep"] == 0
