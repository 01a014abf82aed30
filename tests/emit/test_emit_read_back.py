"""Emitted scripts for Megatron-LM, read back by the reader of users' files, are the plan they were written from.

The reader was written from Megatron-LM's documentation and knows nothing of emission: what it finds in `launch.sh` is what a
user, or Megatron itself, would find there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from emit_corpus import AMPLE, megatron_plans, write_bundles
from emit_plans import emitted, plan

from shardwright.errors import UnsupportedError
from shardwright.planner.emit.megatron.versions import VERSIONS
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.readers.estimating import estimate_file

MODELS = (
    *(
        "llama3.1-8b",
        "qwen2.5-32b",
        "gpt3-175b",
        "megatron-22b",
        "nemotron-4-15b",
        "seed-oss-36b",
        "phi3-mini",
        "starcoder2-15b",
    ),
    *("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "glm-4.5-air", "gpt-oss-20b", "qwen1.5-moe-a2.7b", "deepseek-v3"),
)  # fmt: skip
A_MODEL, LEAST = 4, 1
LAYOUTS: tuple[dict[str, Any], ...] = (
    {"degrees": Degrees(pp=4, layers_per_stage=(7, 9, 9, 7))},
    {"degrees": Degrees(pp=4, vpp=2, layers_per_stage=(3, 4, 4, 5, 4, 4, 4, 4))},
    {"degrees": Degrees(pp=2, vpp=2, recompute="full", recompute_layers=8)},
    {"degrees": Degrees(tp=2, recompute="full", recompute_layers=5)},
    {"model": "deepseek-v3", "cluster": "dgx-h200:128", "global_batch": 1024, "degrees": Degrees(pp=16, ep=64)},
)
#: What the arguments leave to Megatron, or the reader does not tell.
UNSAID = ("overlap", "cp_comm", "reshard_after_forward")


def read(folder: Path, cluster: str, version: str) -> dict[str, Any]:
    """What the reader makes of the script of a bundle."""
    options = PricingOptions(framework="megatron", target_version=version, overrides=(AMPLE,))
    return estimate_file("megatron", folder / "launch.sh", cluster, options=options).to_dict()


def differing(source: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Fields of the plan that were read otherwise."""
    planned, seen = source["parallel"], found["parallel"]
    made: dict[str, Any] = {k: (v, seen[k]) for k, v in planned.items() if k not in UNSAID and seen[k] != v}
    for name in ("seq_len", "global_batch", "precision", "optimizer", "grad_bytes"):
        if source["inputs"]["training"][name] != found["inputs"]["training"][name]:
            made[name] = (source["inputs"]["training"][name], found["inputs"]["training"][name])
    layers = [[stage["layers"] for stage in record["stages"]] for record in (source, found)]
    if layers[0] != layers[1]:
        made["stages"] = tuple(layers)
    counts = [record["model"]["parameters"] for record in (source, found)]
    return made | ({"parameters": tuple(counts)} if counts[0] != counts[1] else {})


@pytest.mark.parametrize("model", MODELS)
def test_drawn_plans_are_read_back(tmp_path: Path, model: str) -> None:
    """Each plan in another release, or in the newest where that one cannot say it."""
    read_back = 0
    for index, drawn in enumerate(megatron_plans([model], a_model=A_MODEL, seed=11)):
        for version in (VERSIONS[(index + MODELS.index(model)) % len(VERSIONS)], VERSIONS[-1]):
            if write_bundles([drawn], tmp_path / version, "megatron", version).written:
                found = read(tmp_path / version / drawn.name, drawn.cluster, version)
                assert differing(drawn.plan, found) == {}, drawn.name
                assert found["violations"] == []
                read_back += 1
                break
    assert read_back >= LEAST


@pytest.mark.parametrize("case", LAYOUTS, ids=lambda case: str(case["degrees"].layers_per_stage or case["degrees"].recompute))
def test_splits_and_recomputed_layers_are_read_back(tmp_path: Path, case: dict[str, Any]) -> None:
    source = plan(**case)
    emitted(tmp_path / "bundle", source)
    found = read(tmp_path / "bundle", case.get("cluster", "dgx-h100:4"), VERSIONS[-1])
    assert differing(source, found) == {}
    assert found["violations"] == []


def test_gradients_of_fp16_are_summed_in_the_planned_dtype(tmp_path: Path) -> None:
    half = plan(precision="fp16")
    assert half["inputs"]["training"]["grad_bytes"] == 4
    assert "--accumulate-allreduce-grads-in-fp32" in emitted(tmp_path / "bundle", half)["launch.sh"]


def test_what_rules_say_of_the_arguments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="biases in experts with etp 2"):
        emitted(tmp_path / "a", plan(model="gpt-oss-20b", degrees=Degrees(tp=2, ep=2, etp=2)), version="0.19")
    with pytest.raises(UnsupportedError, match="no --window-size"):
        emitted(tmp_path / "b", plan(model="phi3-mini"), version="0.14")
    with pytest.raises(UnsupportedError, match="1024 learned positions"):
        emitted(tmp_path / "c", plan(model="gpt2-xl", seq_len=2048))


def test_all_layers_are_recomputed_on_uneven_virtual_stages(tmp_path: Path) -> None:
    uneven = plan(degrees=Degrees(pp=2, vpp=2, layers_per_stage=(9, 8, 8, 7), recompute="full"))
    text = emitted(tmp_path / "bundle", uneven)["launch.sh"]
    assert "--recompute-method uniform" in text
    assert "--recompute-num-layers 1" in text


def test_what_older_releases_cannot_do_is_refused(tmp_path: Path) -> None:
    experts = plan(model="qwen3-30b-a3b", degrees=Degrees(tp=2, pp=4, ep=4), precision="fp16")
    with pytest.raises(UnsupportedError, match="no expert parallelism in fp16"):
        emitted(tmp_path / "a", experts, version="0.14")
    two = plan(degrees=Degrees(pp=2, layers_per_stage=(17, 15)))
    assert "decoder-last-pipeline-num-layers" not in emitted(tmp_path / "b", two, version="0.12")["launch.sh"]
