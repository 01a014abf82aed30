"""Megatron-Bridge recipes say what the Megatron argument list says."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from emit_plans import arguments, emitted, plan

from shardwright.errors import UnsupportedError
from shardwright.planner.emit.base import literal
from shardwright.planner.emit.bridge.fields import bridge_fields
from shardwright.planner.plans import Degrees

CASES: tuple[dict[str, Any], ...] = (
    {"degrees": Degrees(tp=2, pp=4, vpp=2)},
    {"degrees": Degrees(zero=3)},
    {"degrees": Degrees(pp=4, layers_per_stage=(7, 9, 9, 7), recompute="full")},
    {"model": "qwen3-30b-a3b", "degrees": Degrees(tp=2, pp=4, ep=4)},
    {"model": "deepseek-v3", "cluster": "dgx-h200:128", "global_batch": 1024, "degrees": Degrees(pp=16, ep=64)},
)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.get('model', 'llama')}-{c['degrees'].pp}-{c['degrees'].zero}")
def test_every_argument_has_a_field(tmp_path: Path, case: dict[str, Any]) -> None:
    said = arguments(emitted(tmp_path / "a", plan(**case), version="0.19"))
    made = json.loads(emitted(tmp_path / "b", plan(**case), target="megatron-bridge")["recipe.json"])
    assert made["model"]["tensor_model_parallel_size"] == int(said["tensor-model-parallel-size"])
    assert made["model"]["num_layers"] == int(said["num-layers"])
    assert made["model"].get("pipeline_model_parallel_layout") == said.get("pipeline-model-parallel-layout")
    assert made["train"]["global_batch_size"] == int(said["global-batch-size"])
    assert made["ddp"].get("use_megatron_fsdp", False) is said.get("use-megatron-fsdp", False)
    assert (made["provider"] == "mla") is said.get("multi-latent-attention", False)


def test_an_argument_without_a_field_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="--brand-new-flag"):
        bridge_fields(literal("--num-layers", 4, "--brand-new-flag", "x"))


def test_patterns_become_lists() -> None:
    assert bridge_fields(literal("--moe-layer-freq", "([0]*2+[1]*3)"))["model"]["moe_layer_freq"] == [0, 0, 1, 1, 1]
    assert bridge_fields(literal("--window-size", "(127,0)"))["model"]["window_size"] == (127, 0)


def test_the_old_release_names_uneven_ends_otherwise() -> None:
    made = bridge_fields(literal("--decoder-first-pipeline-num-layers", 7))
    assert made["model"] == {"num_layers_in_first_pipeline_stage": 7}


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge", "torchtitan"])
def test_emitted_scripts_are_python(tmp_path: Path, target: str) -> None:
    source = plan(framework="torchtitan" if target == "torchtitan" else "megatron")
    for name, text in emitted(tmp_path / "bundle", source, target=target).items():
        if name.endswith(".py"):
            ast.parse(text, name)
