"""Megatron argument lists say what the plan says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from emit_plans import arguments, emitted, plan

from shardwright.errors import UnsupportedError
from shardwright.planner.emit.megatron.versions import SINCE, VERSIONS
from shardwright.planner.plans import Degrees

MOE = {"model": "qwen3-30b-a3b", "degrees": Degrees(tp=2, pp=4, ep=4)}


def words(tmp_path: Path, version: str | None = None, **named: Any) -> dict[str, Any]:
    return arguments(emitted(tmp_path / "bundle", plan(**named), version=version))


def test_degrees_and_batch_are_the_plans(tmp_path: Path) -> None:
    said = words(tmp_path, **MOE)
    assert said["tensor-model-parallel-size"] == "2"
    assert said["pipeline-model-parallel-size"] == "4"
    assert said["expert-model-parallel-size"] == "4"
    assert said["expert-tensor-parallel-size"] == "2"
    assert said["global-batch-size"] == "64"
    assert said["sequence-parallel"] is True
    assert said["moe-token-dispatcher-type"] == "alltoall"


def test_the_vocabulary_is_the_models_in_every_release(tmp_path: Path) -> None:
    assert words(tmp_path / "a", version="0.16", **MOE)["vocab-size"] == "151935"  # the tokenizer adds one
    assert words(tmp_path / "b", version="0.17", **MOE)["vocab-size"] == "151936"


def test_an_uneven_split_is_a_layout_or_the_two_ends(tmp_path: Path) -> None:
    uneven = {"degrees": Degrees(pp=4, layers_per_stage=(7, 9, 9, 7))}
    assert words(tmp_path / "a", **uneven)["pipeline-model-parallel-layout"].count("t") > 0
    old = words(tmp_path / "b", version="0.12", **uneven)
    assert (old["decoder-first-pipeline-num-layers"], old["decoder-last-pipeline-num-layers"]) == ("7", "7")
    with pytest.raises(UnsupportedError, match=r"0\.12 takes stages that differ only"):
        words(tmp_path / "c", version="0.12", degrees=Degrees(pp=4, layers_per_stage=(7, 10, 8, 7)))


def test_virtual_stages(tmp_path: Path) -> None:
    assert words(tmp_path, degrees=Degrees(pp=4, vpp=2))["num-virtual-stages-per-pipeline-rank"] == "2"


def test_zero_3_is_megatron_fsdp_and_its_environment(tmp_path: Path) -> None:
    files = emitted(tmp_path / "a", plan(degrees=Degrees(zero=3)))
    said = arguments(files)
    assert said["use-megatron-fsdp"] is True
    assert said["data-parallel-sharding-strategy"] == "optim_grads_params"
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=8" in files["launch.sh"]
    assert words(tmp_path / "b", version="0.13", degrees=Degrees(zero=3))["use-custom-fsdp"] is True


def test_recompute_layers_are_counted_a_chunk(tmp_path: Path) -> None:
    full = words(tmp_path / "a", degrees=Degrees(pp=2, vpp=2, recompute="full", recompute_layers=8))
    assert full["recompute-num-layers"] == "4"
    with pytest.raises(UnsupportedError, match="no whole number a virtual stage"):
        words(tmp_path / "b", degrees=Degrees(pp=2, vpp=2, recompute="full", recompute_layers=7))


def test_latent_attention_and_group_limited_routing(tmp_path: Path) -> None:
    said = words(tmp_path, model="deepseek-v3", cluster="dgx-h200:128", global_batch=1024, degrees=Degrees(pp=16, ep=64))
    assert said["multi-latent-attention"] is True
    assert (said["kv-lora-rank"], said["moe-router-num-groups"], said["moe-router-group-topk"]) == ("512", "8", "4")
    assert said["moe-layer-freq"] == "([0]*3+[1]*58)"
    assert "num-query-groups" not in said


@pytest.mark.parametrize(
    ("precision", "recipe"), [("fp8-delayed", "delayed"), ("fp8-tensorwise", "tensorwise"), ("fp8-blockwise", "blockwise")]
)
def test_recipes_of_8_bits_are_named(tmp_path: Path, precision: str, recipe: str) -> None:
    assert words(tmp_path / "a", precision=precision)["fp8-recipe"] == recipe


@pytest.mark.parametrize("precision", ["fp8-blockwise", "nvfp4"])
def test_precisions_need_a_release_that_has_them(tmp_path: Path, precision: str) -> None:
    cluster = "dgx-b200:4" if precision == "nvfp4" else "dgx-h100:4"
    assert words(tmp_path / "a", precision=precision, cluster=cluster)["bf16"] is True
    with pytest.raises(UnsupportedError, match=precision):
        words(tmp_path / "b", version="0.12", precision=precision, cluster=cluster)


@pytest.mark.parametrize(("model", "field"), [("gemma2-2b", "softcap"), ("phi-2", "block")])
def test_models_that_cannot_be_said_are_refused_by_field(tmp_path: Path, model: str, field: str) -> None:
    with pytest.raises(UnsupportedError, match=field):
        words(tmp_path, model=model)


def test_every_feature_names_a_release_that_exists() -> None:
    assert set(SINCE.values()) <= set(VERSIONS)
