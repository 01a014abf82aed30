"""What is trained and on which batches: options of `plan` and `estimate`."""

import jsonschema
import pytest

from shardwright.planner.schema import json_schema

BASE = ("--cluster", "dgx-h100:1", "--seq-len", 8192)
JOB = ("estimate", "llama3.1-8b", *BASE, "--global-batch", 64, "--zero", 1, "--recompute", "full")
LORA = "rank=16,targets=qkv+out_proj+gate_up+down"


@pytest.fixture
def histogram(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("length,count\n512,1000\n2048,200\n8192,20\n", encoding="utf-8")
    return path


def test_adapters(shardwright):
    done = shardwright(*JOB, "--lora", LORA, "--format", "json")
    assert (done.code, done.err) == (0, "")
    jsonschema.Draft202012Validator(json_schema("estimate")).validate(done.json)
    assert done.json["model"]["trainable_parameters"] == 35_651_584
    assert done.json["model"]["parameters"] == 8_030_261_248
    assert "8.03 B parameters, 35.65 M trained" in shardwright(*JOB, "--lora", LORA).out


def test_frozen_modules_may_be_repeated_or_joined(shardwright):
    one = shardwright(*JOB, "--freeze", "embeddings+mlp", "--format", "json")
    two = shardwright(*JOB, "--freeze", "embeddings", "--freeze", "mlp", "--format", "json")
    assert one.code == 0
    assert one.out == two.out
    assert one.json["inputs"]["training"]["freeze"] == ["embeddings", "mlp"]


def test_packed_documents(shardwright, histogram):
    plain, packed = (shardwright(*JOB, *more, "--format", "json").json for more in ((), ("--length-histogram", histogram)))
    jsonschema.Draft202012Validator(json_schema("estimate")).validate(packed)
    assert packed["predicted"]["step_time_s"] < plain["predicted"]["step_time_s"]
    assert packed["inputs"]["training"]["length_histogram"] == [[512, 1000], [2048, 200], [8192, 20]]


def test_a_plan_of_adapters_prices_again(shardwright, tmp_path, histogram):
    options = ("--lora", LORA, "--length-histogram", histogram, "--top", 1)
    folder = tmp_path / "out"
    made = shardwright("plan", "llama3.1-8b", *BASE, "--global-batch", 64, *options, "-o", folder, "--format", "json")
    assert made.code == 0
    jsonschema.Draft202012Validator(json_schema("plan-result")).validate(made.json)
    again = shardwright("estimate", "--plan", folder, "--format", "json")
    assert again.json["predicted"] == made.json["plans"][0]["predicted"]
    assert again.json["model"] == made.json["model"]


def test_tokens_a_batch_mean_sequences(shardwright):
    tokens = ("estimate", "llama3.1-8b", *BASE, "--tokens-per-batch", 64 * 8192, "--zero", 1, "--recompute", "full")
    assert shardwright(*tokens, "--format", "json").out == shardwright(*JOB, "--format", "json").out


def test_a_range_of_batches(shardwright):
    done = shardwright("plan", "gpt2", "--cluster", "dgx-h100:1", "--seq-len", 1024, "--global-batch", "16..32", "--top", 1)
    assert done.code == 0
    assert "global_batch.range=16..32" in done.out
    assert "global_batch.tried=16 24 32" in done.out


@pytest.mark.parametrize(
    ("options", "where", "said"),
    [
        (("--lora", "rank=none"), "--lora", "whole number"),
        (("--lora", "targets=qkv"), "--lora", "rank is missing"),
        (("--lora", "rank=8,targets=qproj"), "--lora", "q_proj"),
        (("--lora", "rank=8,targets=experts"), "--lora", "no product experts"),
        (("--freeze", "embedings"), "--freeze", "embeddings"),
        (("--freeze", "all"), "--freeze", "nothing is trained"),
        (("--length-histogram", "none.csv"), "none.csv", "none.csv"),
        (("--tokens-per-batch", 524288), "--tokens-per-batch", "--global-batch"),
    ],
)
def test_misuse(shardwright, options, where, said):
    done = shardwright(*JOB, *options, "--format", "json")
    assert (done.code, done.out) == (2, "")
    assert where in done.error["where"]
    assert said in f"{done.error['message']} {done.error['hint']}"


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (("--tokens-per-batch", 500_000), "--tokens-per-batch"),
        (("--global-batch", "16..32"), "--global-batch"),
        (("--global-batch", "32..16"), "--global-batch"),
        (("--global-batch", "many"), "--global-batch"),
    ],
)
def test_misuse_of_batches(shardwright, options, where):
    done = shardwright("estimate", "gpt2", *BASE, *options, "--format", "json")
    assert (done.code, done.out, done.error["where"]) == (2, "", where)


def test_long_documents_are_refused(shardwright, histogram):
    short = ("estimate", "llama3.1-8b", "--cluster", "dgx-h100:1", "--seq-len", 4096, "--global-batch", 64)
    done = shardwright(*short, "--length-histogram", histogram, "--format", "json")
    assert done.code == 2
    assert "8,192 tokens" in done.error["message"]


def test_a_saved_plan_has_its_own(shardwright, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(shardwright(*JOB, "--format", "json").out, encoding="utf-8")
    for option, value in (("--lora", LORA), ("--freeze", "mlp"), ("--tokens-per-batch", 8192)):
        done = shardwright("estimate", "--plan", path, option, value, "--format", "json")
        assert done.code == 2
        assert option in done.error["message"]
