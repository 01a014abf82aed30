"""What users of the frameworks ran into, as plans: the emitted files start and train what was planned.

Each case names the public thread it comes from.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from emit_plans import arguments, emitted, plan

from shardwright.errors import UnsupportedError
from shardwright.models.catalog import load_model, model_from_dict
from shardwright.planner.emit.base import literal
from shardwright.planner.emit.bridge.fields import bridge_fields
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions

SMALL: dict[str, Any] = {"hidden": 1024, "heads": 16, "kv_heads": 16, "head_dim": 64, "vocab": 32000, "ffn": 4096}


def of_layers(layers: int, degrees: Degrees, *, mtp: int = 0, framework: str = "megatron") -> dict[str, Any]:
    """A plan of a small model of so many layers."""
    graph = model_from_dict(SMALL | {"name": f"small-{layers}", "layers": layers, "mtp_layers": mtp})
    options = PricingOptions(framework=framework)
    return estimate(graph, "dgx-h100:4", seq_len=2048, global_batch=256, degrees=degrees, options=options).to_dict()


def stages(layout: str) -> list[str]:
    """The chunks of a Megatron layout, with repetitions written out."""
    text = re.sub(r"([a-zA-Z])\*(\d+)", lambda m: m[1] * int(m[2]), layout)
    while (found := re.search(r"\(([^()]*)\)\*(\d+)", text)) is not None:
        text = text.replace(found[0], found[1] * int(found[2]))
    return text.split("|")


def test_deepspeed_starts_the_world_its_batch_is_for(tmp_path: Path) -> None:
    """8 GPUs, micro-batch 4, 8 accumulations, batch 256: the identity held, the launcher had started one rank.

    bigcode-project/starcoder 41 and 77, deepspeedai/DeepSpeed 6914, hiyouga/LLaMA-Factory 2574.
    """
    source = plan(
        model="llama3.2-1b",
        cluster="dgx-h200:1",
        seq_len=2048,
        global_batch=256,
        framework="deepspeed",
        degrees=Degrees(zero=2, micro_batch=4),
    )
    files = emitted(tmp_path / "bundle", source, target="deepspeed")
    made = json.loads(files["ds_config.json"])
    identity = (made["train_micro_batch_size_per_gpu"], made["gradient_accumulation_steps"], made["train_batch_size"])
    assert identity == (4, 8, 256)
    assert "planned_nodes=1\ngpus_per_node=8\n" in files["launch.sh"]
    assert '--nproc-per-node "$gpus_per_node"' in files["launch.sh"]
    assert json.loads(files["config.yaml"])["plan"]["world_size"] == 8


@pytest.mark.parametrize("version", ["0.12", "0.16", "0.20"])
def test_two_stages_interleave_with_overlap_of_sends_alone(tmp_path: Path, version: str) -> None:
    """Interleaving over two stages is legal only while sends overlap (NVIDIA/Megatron-LM 750)."""
    said = arguments(emitted(tmp_path / "bundle", plan(degrees=Degrees(pp=2, vpp=2)), version=version))
    assert (said["pipeline-model-parallel-size"], said["num-virtual-stages-per-pipeline-rank"]) == ("2", "2")
    assert "no-overlap-p2p-communication" not in said


@pytest.mark.parametrize("version", ["0.12", "0.13", "0.20"])
def test_thirty_layers_on_four_stages_stay_thirty(tmp_path: Path, version: str) -> None:
    """A release built 28 layers of 30 in silence, seven a stage (NVIDIA/Megatron-LM 1304)."""
    if version == "0.12":
        with pytest.raises(UnsupportedError, match="30 layers"):
            emitted(tmp_path / "bundle", of_layers(30, Degrees(pp=4, layers_per_stage=(8, 8, 7, 7))), version=version)
        source = of_layers(30, Degrees(pp=4, layers_per_stage=(7, 8, 8, 7)))
        said = arguments(emitted(tmp_path / "bundle", source, version=version))
        ends = (said["decoder-first-pipeline-num-layers"], said["decoder-last-pipeline-num-layers"])
        assert (said["num-layers"], *ends) == ("30", "7", "7")
    else:
        said = arguments(emitted(tmp_path / "bundle", of_layers(30, Degrees(pp=4)), version=version))
        assert said["num-layers"] == "30"
        assert sum(stage.count("t") for stage in stages(said["pipeline-model-parallel-layout"])) == 30


def test_layers_that_fill_the_slots_with_embedding_and_loss(tmp_path: Path) -> None:
    """94 layers on 32 stages of 3 chunks: 96 slots, two of them embedding and loss (alibaba/Pai-Megatron-Patch 658)."""
    degrees = Degrees(pp=32, vpp=3, ep=8, recompute="full", layers_per_stage=(0, *[1] * 94, 0))
    source = estimate(
        load_model("qwen3-235b-a22b"),
        "dgx-h200:32",
        seq_len=4096,
        global_batch=1024,
        degrees=degrees,
        options=PricingOptions(framework="megatron"),
    ).to_dict()
    said = arguments(emitted(tmp_path / "bundle", source))
    chunks = stages(said["pipeline-model-parallel-layout"])
    assert len(chunks) == 96
    assert sum(chunk.count("t") for chunk in chunks) == 94
    assert (chunks[0][0], chunks[-1][-1]) == ("E", "L")


@pytest.mark.parametrize("layers", [43, 61, 78])
@pytest.mark.parametrize("pp", [2, 4, 8])
def test_odd_numbers_of_layers_and_a_head_for_further_tokens(tmp_path: Path, layers: int, pp: int) -> None:
    """Multi-token prediction lies with the head on the last stage (ISEEKYAN/Megatron-LM 44 and 53)."""
    said = arguments(emitted(tmp_path / "bundle", of_layers(layers, Degrees(pp=pp), mtp=1)))
    assert (said["num-layers"], said["mtp-num-layers"]) == (str(layers), "1")
    if layers % pp == 0:  # even: Megatron itself puts it on the last stage
        assert "pipeline-model-parallel-layout" not in said
        return
    chunks = stages(said["pipeline-model-parallel-layout"])
    assert [chunk.count("m") for chunk in chunks] == [0] * (pp - 1) + [1]
    assert sum(chunk.count("t") for chunk in chunks) == layers
    assert chunks[-1].endswith("mL")


@pytest.mark.parametrize("version", ["0.12", "0.13", "0.20"])
def test_seven_layers_on_two_stages(tmp_path: Path, version: str) -> None:
    """Three and four, asked for over years (NVIDIA/Megatron-LM 381 and 823)."""
    source = of_layers(7, Degrees(pp=2, layers_per_stage=(3, 4)))
    said = arguments(emitted(tmp_path / "bundle", source, version=version))
    if version == "0.12":
        assert said["decoder-first-pipeline-num-layers"] == "3"  # the other stage has what is left
        assert "decoder-last-pipeline-num-layers" not in said
    else:
        assert stages(said["pipeline-model-parallel-layout"]) == ["Ettt", "ttttL"]


def test_uneven_stages_have_a_name_in_each_target(tmp_path: Path) -> None:
    """Megatron and the bridge name the same options otherwise (THUDM/slime 1486)."""
    source = of_layers(30, Degrees(pp=4, layers_per_stage=(7, 8, 8, 7)))
    old = arguments(emitted(tmp_path / "a", source, version="0.12"))
    assert {name for name in old if "decoder" in name} == {f"decoder-{end}-pipeline-num-layers" for end in ("first", "last")}
    words = json.loads((tmp_path / "a" / "arguments.json").read_text(encoding="utf-8"))
    at = words.index("--decoder-first-pipeline-num-layers")
    assert bridge_fields(literal(*words[at : at + 4]))["model"] == {
        "num_layers_in_first_pipeline_stage": 7,
        "num_layers_in_last_pipeline_stage": 7,
    }
    bridge = json.loads(emitted(tmp_path / "c", source, target="megatron-bridge")["recipe.json"])["model"]
    assert [chunk.count("t") for chunk in stages(bridge["pipeline_model_parallel_layout"])] == [7, 8, 8, 7]
    sharded = of_layers(30, Degrees(pp=4, zero=2, layers_per_stage=(7, 8, 8, 7)), framework="pytorch")
    torch = json.loads(emitted(tmp_path / "d", sharded, target="torchrun")["config.yaml"])["job"]["chunks"]
    assert [len(chunk) for chunk in torch] == [7, 8, 8, 7]
