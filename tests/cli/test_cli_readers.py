"""`estimate` of a configuration a user has: exit codes, what may stand beside the file, and what is written where."""

import json
from pathlib import Path

import jsonschema
import pytest

from shardwright.planner.schema import json_schema

ARGUMENTS = (
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 1 --global-batch-size 64 --vocab-size 50304 --bf16 --pipeline-model-parallel-size $PP"
)
TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[activation_checkpoint]\nmode = "full"\n'
ZERO = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}
BESIDE = ("--cluster", "dgx-h100:1")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    made = {"megatron-args": tmp_path / "run.sh", "torchtitan-toml": tmp_path / "a.toml", "deepspeed-json": tmp_path / "a.json"}
    made["megatron-args"].write_text(ARGUMENTS, encoding="utf-8")
    made["torchtitan-toml"].write_text(TITAN, encoding="utf-8")
    made["deepspeed-json"].write_text(json.dumps(ZERO), encoding="utf-8")
    return made


def test_each_kind_is_priced_and_kept(shardwright, files, tmp_path: Path) -> None:
    more = {
        "megatron-args": ("--define", "PP=2"),
        "torchtitan-toml": (),
        "deepspeed-json": ("--seq-len", 1024, "--recompute", "full", "llama3-8b"),
    }
    for name, path in files.items():
        done = shardwright("estimate", f"--{name}", path, *BESIDE, *more[name], "--format", "json")
        assert done.code == 0, done.out
        jsonschema.Draft202012Validator(json_schema("estimate")).validate(done.json)
        plan = tmp_path / f"{name}.json"
        plan.write_text(done.out, encoding="utf-8")
        again = shardwright("estimate", "--plan", plan, "--format", "json")
        assert again.json["predicted"] == done.json["predicted"]


def test_a_configuration_that_cannot_run_is_an_answer(shardwright, files) -> None:
    done = shardwright("estimate", "--megatron-args", files["megatron-args"], *BESIDE, "--define", "PP=3")
    assert done.code == 1
    assert done.err == ""
    assert "Cannot run" in done.out
    assert "--pipeline-model-parallel-layout" in done.out
    done = shardwright("estimate", "--megatron-args", files["megatron-args"], *BESIDE, "--define", "PP=2", "--world-size", 4)
    assert done.code == 1
    assert "4 ranks are launched" in done.out


def test_a_variable_that_is_not_known_is_misuse(shardwright, files) -> None:
    done = shardwright("estimate", "--megatron-args", files["megatron-args"], *BESIDE, "--format", "json")
    assert done.code == 2
    assert done.out == ""
    assert done.error["where"].endswith("run.sh:1: --pipeline-model-parallel-size")
    assert "--define PP=VALUE" in done.error["hint"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--megatron-args", "{megatron-args}"),
        ("--megatron-args", "{megatron-args}", *BESIDE, "--tp", 2),
        ("--megatron-args", "{megatron-args}", *BESIDE, "--seq-len", 2048),
        ("--megatron-args", "{megatron-args}", *BESIDE, "--precision", "bf16"),
        ("--megatron-args", "{megatron-args}", *BESIDE, "--framework", "torchtitan"),
        ("--megatron-args", "{megatron-args}", "--torchtitan-toml", "{torchtitan-toml}", *BESIDE),
        ("--torchtitan-toml", "{torchtitan-toml}", *BESIDE, "--pp", 2),
        ("--deepspeed-json", "{deepspeed-json}", *BESIDE),
        ("--deepspeed-json", "{deepspeed-json}", *BESIDE, "llama3-8b"),
        ("--deepspeed-json", "{deepspeed-json}", *BESIDE, "llama3-8b", "--seq-len", 1024, "--zero", 3),
        ("--megatron-args", "{megatron-args}", *BESIDE, "--define", "PP"),
        ("--megatron-args", "{megatron-args}", *BESIDE, "--define", "P P=1"),
        ("--megatron-args", "missing.sh", *BESIDE),
        ("llama3-8b", *BESIDE, "--seq-len", 1024, "--global-batch", 8, "--define", "A=1"),
        ("llama3-8b", *BESIDE, "--seq-len", 1024, "--global-batch", 8, "--world-size", 8),
    ],
)
def test_misuse_is_named(shardwright, files, arguments: tuple[object, ...]) -> None:
    made = [str(files[one.strip("{}")]) if str(one).startswith("{") else one for one in arguments]
    done = shardwright("estimate", *made)
    assert done.code == 2
    assert done.out == ""
    assert "hint" in done.err or "where" in done.err


def test_what_if_and_options_hold_beside_a_file(shardwright, files) -> None:
    common = ("estimate", "--megatron-args", files["megatron-args"], *BESIDE, "--define", "PP=2", "--format", "json")
    plain, slower = shardwright(*common), shardwright(*common, "--set", "cluster.internode_bytes_per_s=1e9", "--gpus", 4)
    assert slower.json["cluster"]["gpus"] == 4
    assert plain.json["cluster"]["gpus"] == 8
    old = shardwright(*common, "--target-version", "0.12")
    assert old.json["inputs"]["search"]["target_version"] == "0.12"
