"""torchtitan files say what the plan says, in the keys of their release."""

from __future__ import annotations

import ast
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from emit_plans import emitted, plan

from shardwright.errors import InvalidValueError, UnsupportedError
from shardwright.models.catalog import load_model
from shardwright.planner.emit.torchtitan.flavors import flavor_of
from shardwright.planner.emit.torchtitan.settings import stage_modules
from shardwright.planner.plans import Degrees


def files(folder: Path, version: str, **named: Any) -> dict[str, str]:
    source = plan(framework="torchtitan", **named)
    return emitted(folder, source, target="torchtitan", version=version)


def toml(folder: Path, **named: Any) -> dict[str, Any]:
    return tomllib.loads(files(folder, "0.2", **named)["config.toml"])


def constants(folder: Path, version: str, **named: Any) -> dict[str, Any]:
    """The upper-case names of the emitted module and their values."""
    tree = ast.parse(files(folder, version, **named)["shardwright_plan.py"])
    found = [n for n in tree.body if isinstance(n, ast.Assign)]
    return {n.targets[0].id: ast.literal_eval(n.value) for n in found if isinstance(n.targets[0], ast.Name)}


PIPED = {"degrees": Degrees(tp=2, pp=4, layers_per_stage=(7, 9, 9, 7), micro_batch=2)}


def test_toml_holds_degrees_batch_and_the_very_types(tmp_path: Path) -> None:
    made = toml(tmp_path / "bundle", **PIPED)
    degrees = made["parallelism"]
    assert degrees["tensor_parallel_degree"] == 2
    assert degrees["data_parallel_shard_degree"] == 4
    assert degrees["pipeline_parallel_schedule"] == "1F1B"
    assert degrees["pipeline_parallel_microbatch_size"] == 2
    assert made["training"]["local_batch_size"] * 4 == made["training"]["global_batch_size"] == 64
    assert (made["model"]["name"], made["model"]["flavor"]) == ("llama3", "8B")


def test_stages_hold_every_layer_once_in_order() -> None:
    stages = stage_modules((2, 0, 3), "output")
    assert stages == [["tok_embeddings", "layers.0", "layers.1"], [], ["layers.2", "layers.3", "layers.4", "norm", "output"]]


@pytest.mark.parametrize(("version", "head"), [("0.2", "output"), ("0.3", "lm_head"), ("main", "lm_head")])
def test_uneven_stages_are_module_names(tmp_path: Path, version: str, head: str) -> None:
    if version == "0.2":
        stages = toml(tmp_path / "bundle", **PIPED)["parallelism"]["module_fqns_per_model_part"]
    else:
        stages = constants(tmp_path / "bundle", version, **PIPED)["PARALLELISM"]["module_fqns_per_model_part"]
    assert [sum(name.startswith("layers.") for name in stage) for stage in stages] == [7, 9, 9, 7]
    assert stages[-1][-1] == head


def test_batches_are_in_tokens_on_main_only(tmp_path: Path) -> None:
    old = constants(tmp_path / "a", "0.3", **PIPED)["TRAINING"]
    new = constants(tmp_path / "b", "main", **PIPED)
    assert old["global_batch_size"] * old["seq_len"] == new["TRAINING"]["num_tokens_per_train_step"]
    assert new["TRAINING"]["num_tokens_per_microbatch_per_dp_rank"] == 2 * 4096
    assert new["PARALLELISM"]["num_pp_microbatches"] == 8
    assert "seq_len" not in new["TRAINING"]


def test_cuda_graphs_are_off_where_they_are_refused(tmp_path: Path) -> None:
    assert constants(tmp_path / "a", "main", **PIPED)["TRAINING"]["disable_cuda_graphs"] is True
    assert "disable_cuda_graphs" not in constants(tmp_path / "b", "main", degrees=Degrees(tp=2))["TRAINING"]


def test_replicas_and_shards(tmp_path: Path) -> None:
    degrees = toml(tmp_path / "bundle", degrees=Degrees(dp_replicate=4, zero=3))["parallelism"]
    assert (degrees["data_parallel_replicate_degree"], degrees["data_parallel_shard_degree"]) == (4, 8)
    assert degrees["fsdp_reshard_after_forward"] == "always"


@pytest.mark.parametrize(("zero", "said"), [(2, "never"), (3, "always")])
@pytest.mark.parametrize("version", ["0.2", "main"])
def test_zero_2_keeps_parameters_gathered(tmp_path: Path, version: str, zero: int, said: str) -> None:
    named = {"degrees": Degrees(zero=zero)}
    read = toml(tmp_path / "a", **named)["parallelism"] if version == "0.2" else None
    degrees = read or constants(tmp_path / "a", version, **named)["PARALLELISM"]
    assert degrees["fsdp_reshard_after_forward"] == said


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
def test_schedules_with_gradients_apart_keep_parameters_gathered(tmp_path: Path, schedule: str) -> None:
    named = {"pp": 2, "schedule": schedule}
    for framework, target in (("torchtitan", "torchtitan"), ("pytorch", "torchrun")):
        source = plan(framework=framework, degrees=Degrees(**named))
        assert (source["parallel"]["zero_stage"], source["parallel"]["reshard_after_forward"]) == (2, False)
        emitted(tmp_path / framework, source, target=target)
        refused = plan(framework=framework, degrees=Degrees(**named, zero=3))
        assert [v["rule"] for v in refused["violations"]] == ["torch-split-backward"]
        assert refused["violations"][0]["remedy"] == "use zero 2"
        with pytest.raises(InvalidValueError, match="without an error"):
            emitted(tmp_path / "refused", refused, target=target)


@pytest.mark.parametrize(
    ("model", "flavor"), [("llama3-8b", "8B"), ("deepseek-v3", "671B"), ("gpt-oss-20b", "20b"), ("qwen3-30b-a3b", "30B-A3B")]
)
def test_a_flavor_is_known_by_its_shape(model: str, flavor: str) -> None:
    found = flavor_of(load_model(model).spec)
    assert found is not None
    assert found.name == flavor


def test_other_models_are_refused_with_the_flavors_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no flavor with the shape of mistral-7b") as caught:
        files(tmp_path / "bundle", "main", model="mistral-7b")
    assert "qwen3-30b-a3b" in caught.value.hint


def test_old_releases_and_odd_precisions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"0\.1"):
        files(tmp_path / "a", "0.1")
    with pytest.raises(UnsupportedError, match="fp8-tensorwise"):
        files(tmp_path / "b", "main", precision="fp8-tensorwise")
    with pytest.raises(UnsupportedError, match="experts in 16 bits"):
        files(tmp_path / "c", "main", precision="fp8-rowwise", model="qwen3-30b-a3b")


@pytest.mark.parametrize(
    ("precision", "recipe"),
    [("fp8-tensorwise", "tensorwise"), ("fp8-rowwise", "rowwise"), ("fp8-rowwise-gw-hp", "rowwise_with_gw_hp")],
)
def test_recipes_of_8_bits_have_the_names_of_torchao(tmp_path: Path, precision: str, recipe: str) -> None:
    made = toml(tmp_path / "toml", precision=precision)
    assert made["model"]["converters"] == ["quantize.linear.float8"]
    assert made["quantize"]["linear"]["float8"] == {"recipe_name": recipe, "filter_fqns": ["output", "router.gate"]}


@pytest.mark.parametrize("version", ["0.3", "main"])
@pytest.mark.parametrize(("precision", "recipe"), [("fp8-rowwise", "rowwise"), ("fp8-rowwise-gw-hp", "rowwise_with_gw_hp")])
def test_modules_convert_linear_layers_but_the_head(tmp_path: Path, version: str, precision: str, recipe: str) -> None:
    tree = ast.parse(files(tmp_path / "made", version, precision=precision)["shardwright_plan.py"])
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "Float8LinearConverter.Config"]
    assert [{k.arg: ast.literal_eval(k.value) for k in call.keywords} for call in calls] == [
        {"recipe_name": recipe, "filter_fqns": ["lm_head"], "model_compile_enabled": True}
    ]
    assert "Float8" not in files(tmp_path / "plain", version)["shardwright_plan.py"]


LOOPED = {"tp": 2, "pp": 2, "vpp": 2, "layers_per_stage": (7, 9, 9, 7), "micro_batch": 2, "recompute": "full"}


def test_all_layers_are_recomputed_where_chunks_differ(tmp_path: Path) -> None:
    made = toml(tmp_path / "bundle", degrees=Degrees(**LOOPED))
    assert made["activation_checkpoint"]["mode"] == "full"
    some = plan(framework="pytorch", degrees=Degrees(**LOOPED, recompute_layers=8))
    with pytest.raises(UnsupportedError, match="activation checkpointing of some layers only"):
        emitted(tmp_path / "some", some, target="torchtitan", version="0.2")


def test_the_package_recomputes_every_layer_of_the_largest_chunk(tmp_path: Path) -> None:
    def layers(name: str, **more: Any) -> int:
        source = plan(framework="pytorch", degrees=Degrees(**LOOPED, **more))
        made = emitted(tmp_path / name, source, target="torchrun")
        return json.loads(made["config.yaml"])["plan"]["recompute"]["layers_per_chunk"]

    assert layers("all") == 9
    assert layers("some", recompute_layers=8) == 4
