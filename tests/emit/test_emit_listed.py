"""`expressible_by` lists a target exactly where `emit` writes the plan for it."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from emit_corpus import AMPLE

from shardwright.errors import ShardwrightError, UnsupportedError
from shardwright.planner.emit import emission
from shardwright.planner.emit.registry import TARGETS
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions

MODELS = (
    *("llama3.1-8b", "llama3.2-1b", "gpt2", "qwen3-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b"),
    "gemma2-2b",
)
GRID: tuple[dict[str, Any], ...] = (
    *({"zero": zero, "tp": tp} for zero, tp in itertools.product(range(4), (1, 2))),
    *({"zero": zero, "pp": 2} for zero in range(4)),
    *({"zero": 2, "pp": 2, "schedule": name} for name in ("gpipe", "1f1b", "zb-h1")),
    *({"zero": 2, "pp": 2, "vpp": 2, "schedule": name} for name in ("interleaved-1f1b", "zb-v", "dualpipe-v")),
    *({"zero": zero, "ep": 4, "tp": tp, "etp": etp} for zero, tp, etp in ((1, 1, 1), (1, 2, 2), (3, 2, 1), (3, 1, 1))),
    *({"zero": zero, "recompute": mode} for zero, mode in ((1, "selective"), (3, "selective"), (2, "full"))),
    {"zero": 3, "recompute": "full", "recompute_layers": 3},
    {"zero": 1, "pp": 2, "vpp": 2, "recompute": "full", "recompute_layers": 3},
    {"zero": 3, "dp_replicate": 2},
    {"zero": 1, "dp_replicate": 2},
    {"zero": 3, "cp": 2},
    {"zero": 1, "tp": 2, "sequence_parallel": False},
    {"zero": 3, "tp": 2, "sequence_parallel": False},
)
EACH = 14
"""Plans of a model, drawn from the grid; together they hold all of it."""

JOBS = (("bf16", "adam"), ("bf16", "adam"), ("bf16", "sgd"), ("fp16", "adam"), ("fp8-blockwise", "adam"), ("bf16", "muon"))
FRAMEWORKS = ("any", "any", "megatron", "pytorch", "torchtitan", "deepspeed")


def drawn(model: str) -> list[dict[str, Any]]:
    """Feasible plans of a model."""
    chance, made = random.Random(model), []
    for degrees in chance.sample(GRID, EACH):
        precision, optimizer = chance.choice(JOBS)
        options = PricingOptions(
            framework=chance.choice(FRAMEWORKS), precision=precision, optimizer=optimizer, overrides=(AMPLE,)
        )
        try:
            found = estimate(
                model, "dgx-h100:2", seq_len=1024, global_batch=64, degrees=Degrees(**degrees), options=options
            ).to_dict()
        except ShardwrightError:
            continue
        if found["feasible"]:
            made.append(found)
    return made


def written(plan: dict[str, Any], target: str, folder: Path) -> bool:
    try:
        emission.emit(plan, target=target, folder=folder)
    except UnsupportedError:
        return False
    return True


@pytest.mark.parametrize("model", MODELS)
def test_listed_is_what_is_written(tmp_path: Path, model: str) -> None:
    plans = drawn(model)
    assert len(plans) >= 4
    for number, plan in enumerate(plans):
        able = [target for target in TARGETS if written(plan, target, tmp_path / f"{number}-{target}")]
        assert plan["expressible_by"] == able, plan["parallel"]


def test_the_grid_holds_both_answers_for_every_target() -> None:
    lists = [plan["expressible_by"] for model in MODELS for plan in drawn(model)]
    for target in TARGETS:
        assert 0 < sum(target in able for able in lists) < len(lists), target


@pytest.mark.parametrize(
    ("degrees", "target"),
    [(Degrees(pp=2, zero=1), "deepspeed"), (Degrees(tp=2, zero=3, recompute="full", recompute_layers=3), "torchtitan")],
)
def test_what_a_target_refuses_is_not_listed(degrees: Degrees, target: str) -> None:
    found = estimate("llama3.2-3b", "dgx-h200:2", seq_len=1024, global_batch=64, degrees=degrees).to_dict()
    assert target not in found["expressible_by"]


def test_a_plan_is_priced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`emit` reads and prices what it is given one time."""
    from shardwright.planner import estimation, problem

    plan = estimate("llama3.1-8b", "dgx-h100:1", seq_len=1024, global_batch=8, degrees=Degrees(tp=2)).to_dict()
    calls: list[str] = []
    price, read = estimation.estimate_batch, problem._stored
    monkeypatch.setattr(estimation, "estimate_batch", lambda *a, **k: calls.append("priced") or price(*a, **k))
    monkeypatch.setattr(problem, "_stored", lambda *a, **k: calls.append("read") or read(*a, **k))
    emission.emit(plan, target="megatron", folder=tmp_path / "bundle")
    assert sorted(calls) == ["priced", "read"]
