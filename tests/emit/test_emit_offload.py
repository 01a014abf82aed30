"""What plans keep on hosts, as targets say it, refused where they cannot, and read back by the readers of users' files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emit_plans import arguments, emitted, plan

from shardwright.errors import UnsupportedError
from shardwright.planner.emit.megatron.versions import VERSIONS
from shardwright.planner.plans import Degrees
from shardwright.planner.readers.estimating import estimate_file

STATES = "optimizer,parameters"


def planned(framework: str, offload: str, **degrees: Any) -> dict[str, Any]:
    return plan(framework=framework, degrees=Degrees(offload=offload, **degrees))


def test_megatron_moves_a_fraction_of_the_optimizer(tmp_path: Path) -> None:
    source = planned("megatron", "optimizer=0.25", zero=1, tp=2)
    assert source["expressible_by"] == ["megatron", "megatron-bridge"]
    said = arguments(emitted(tmp_path / "bundle", source))
    assert said["optimizer-cpu-offload"] is True
    assert float(said["optimizer-offload-fraction"]) == 0.25
    assert said["overlap-cpu-optimizer-d2h-h2d"] is True
    assert said["use-precision-aware-optimizer"] is True
    assert "cpu-offloading-num-layers" not in said


def test_megatron_moves_the_activations_of_layers(tmp_path: Path) -> None:
    said = arguments(emitted(tmp_path / "bundle", planned("megatron", "activations=0.25", zero=1, tp=2)))
    assert said["cpu-offloading-num-layers"] == "8"
    assert "optimizer-cpu-offload" not in said


def test_nothing_is_said_of_what_is_not_offloaded(tmp_path: Path) -> None:
    said = arguments(emitted(tmp_path / "bundle", planned("megatron", "none", zero=1)))
    assert not [name for name in said if "offload" in name]


def test_sixteen_bit_moments_switch_the_precision_aware_optimizer_on_once(tmp_path: Path) -> None:
    source = planned("megatron", "optimizer", zero=1)
    source["inputs"]["training"]["optimizer"] = "adam-bf16"
    said = arguments(emitted(tmp_path / "bundle", source))  # refuses an argument that is said twice
    assert said["exp-avg-dtype"] == "bf16"


def test_sixteen_bit_moments_that_nobody_shares_are_those_of_a_distributed_optimizer(tmp_path: Path) -> None:
    options = {"framework": "megatron", "optimizer": "adam-bf16"}
    alone, several = (plan(degrees=Degrees(tp=8, pp=pp, zero=0, dp_replicate=4 // pp), **options) for pp in (4, 2))
    assert "megatron" in alone["expressible_by"]
    assert arguments(emitted(tmp_path / "bundle", alone))["use-distributed-optimizer"] is True
    assert "megatron" not in several["expressible_by"]


def test_the_read_me_says_what_is_kept_on_hosts(tmp_path: Path) -> None:
    files = emitted(tmp_path / "bundle", planned("megatron", "optimizer=0.25", zero=1, tp=2))
    assert "offload optimizer=0.25" in files["README.md"]
    assert "offload" not in emitted(tmp_path / "plain", planned("megatron", "none", zero=1))["README.md"]


@pytest.mark.parametrize(
    "degrees",
    [
        Degrees(offload="optimizer", zero=1),
        Degrees(offload="optimizer=0.5", zero=1, tp=2, pp=2),
        Degrees(offload="activations=0.5,optimizer=0.125", zero=1, tp=4),
        Degrees(offload="optimizer", zero=0, tp=8, pp=4),
    ],
    ids=lambda degrees: f"{degrees.offload} zero {degrees.zero}",
)
def test_megatron_scripts_are_read_back(tmp_path: Path, degrees: Degrees) -> None:
    source = plan(degrees=degrees)
    emitted(tmp_path / "bundle", source)
    found = estimate_file("megatron", tmp_path / "bundle" / "launch.sh", "dgx-h100:4").to_dict()
    assert found["parallel"]["offload"] == source["parallel"]["offload"]
    assert found["violations"] == []
    assert not [text for text in found["warnings"] if "offload" in text]
    if degrees.zero:
        assert found["predicted"] == source["predicted"]


def test_bridge_sets_the_same_in_its_fields(tmp_path: Path) -> None:
    source = planned("megatron", "activations=0.5,optimizer=0.5", zero=1, tp=2)
    text = "\n".join(emitted(tmp_path / "bundle", source, target="megatron-bridge").values())
    for field in ("optimizer_cpu_offload", "optimizer_offload_fraction", "cpu_offloading_num_layers", "cpu_offloading"):
        assert field in text


@pytest.mark.parametrize(
    ("offload", "degrees", "says"),
    [
        ("parameters", {"zero": 3}, "no parameters"),
        ("activations=0.5", {"zero": 1, "pp": 2}, "without a pipeline"),
        ("activations=0.5", {"zero": 1, "recompute": "full"}, "without recomputing"),
        ("activations=0.47", {"zero": 1}, "whole layers"),
        ("activations", {"zero": 1}, "whole layers"),
        ("optimizer", {"zero": 3}, "Megatron-FSDP"),
    ],
)
@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_megatron_refuses_the_rest(tmp_path: Path, offload: str, degrees: dict[str, Any], says: str, version: str) -> None:
    source = planned("any", offload, **degrees) | {"feasible": True}
    assert "megatron" not in source["expressible_by"]
    with pytest.raises(UnsupportedError) as caught:
        emitted(tmp_path / "bundle", source, version=version)
    assert says in str(caught.value) or "offload" in str(caught.value)


@pytest.mark.parametrize(
    ("offload", "zero", "expected"),
    [
        ("optimizer", 2, {"offload_optimizer": {"device": "cpu", "pin_memory": True}}),
        ("optimizer=0.3", 3, {"offload_optimizer": {"device": "cpu", "pin_memory": True, "ratio": 0.3}}),
        (
            STATES,
            3,
            {
                "offload_optimizer": {"device": "cpu", "pin_memory": True},
                "offload_param": {"device": "cpu", "pin_memory": True},
            },
        ),
    ],
)
def test_deepspeed_is_told_and_read_back(tmp_path: Path, offload: str, zero: int, expected: dict[str, Any]) -> None:
    source = planned("deepspeed", offload, zero=zero)
    assert source["expressible_by"][-1] == "deepspeed"
    files = emitted(tmp_path / "bundle", source, target="deepspeed")
    said = json.loads(files["ds_config.json"])["zero_optimization"]
    assert {name: value for name, value in said.items() if name.startswith("offload")} == expected
    named = {"model": "llama3.1-8b", "seq_len": 4096}
    found = estimate_file("deepspeed", tmp_path / "bundle" / "ds_config.json", "dgx-h100:4", **named).to_dict()
    assert found["parallel"]["offload"] == source["parallel"]["offload"]
    assert found["violations"] == []
    assert found["memory"] == source["memory"]


@pytest.mark.parametrize(("offload", "zero"), [("optimizer", 0), ("activations=0.5", 3)])
def test_deepspeed_refuses_the_rest(tmp_path: Path, offload: str, zero: int) -> None:
    source = planned("any", offload, zero=zero) | {"feasible": True}
    assert "deepspeed" not in source["expressible_by"]
    with pytest.raises(UnsupportedError):
        emitted(tmp_path / "bundle", source, target="deepspeed")


def test_torchtitan_moves_all_states(tmp_path: Path) -> None:
    source = planned("torchtitan", STATES, zero=3)
    assert "torchtitan" in source["expressible_by"]
    files = emitted(tmp_path / "bundle", source, target="torchtitan", version="0.2")
    assert "enable_cpu_offload = true" in files["config.toml"]
    found = estimate_file("torchtitan", tmp_path / "bundle" / "config.toml", "dgx-h100:4").to_dict()
    assert found["parallel"]["offload"] == source["parallel"]["offload"]
    assert not [text for text in found["warnings"] if "offload" in text]
    newer = emitted(tmp_path / "newer", source, target="torchtitan")
    assert any("enable_cpu_offload" in text for text in newer.values())


def test_the_package_moves_all_states(tmp_path: Path) -> None:
    source = planned("pytorch", STATES, zero=3)
    assert "torchrun" in source["expressible_by"]
    files = emitted(tmp_path / "bundle", source, target="torchrun")
    assert json.loads(files["config.yaml"])["plan"]["states_on_host"] is True
    assert "CPUOffloadPolicy" in files["parallel.py"]
    plain = emitted(tmp_path / "plain", planned("pytorch", "none", zero=3), target="torchrun")
    assert json.loads(plain["config.yaml"])["plan"]["states_on_host"] is False


@pytest.mark.parametrize("target", ["torchrun", "torchtitan"])
@pytest.mark.parametrize("offload", ["optimizer", "parameters", "optimizer=0.5,parameters=0.5", "activations=0.5"])
def test_torch_moves_all_states_or_none(tmp_path: Path, target: str, offload: str) -> None:
    source = planned("any", offload, zero=3) | {"feasible": True}
    assert target not in source["expressible_by"]
    with pytest.raises(UnsupportedError):
        emitted(tmp_path / "bundle", source, target=target)
