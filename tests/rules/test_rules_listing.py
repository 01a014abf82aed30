"""`show rules`, narrowed to a framework and version."""

import pytest

from shardwright.errors import ConflictError, InvalidValueError, UnknownNameError
from shardwright.planner.report.listings import listing


def ids(**narrowed):
    return {item["id"] for item in listing("rules", **narrowed)["items"]}


def test_a_framework_adds_its_rules():
    free, megatron, titan = ids(framework="any"), ids(framework="megatron"), ids(framework="torchtitan")
    assert free < megatron
    assert "megatron-layers-even" in megatron - titan
    assert "torchtitan-ep" in titan - megatron
    assert "torch-kv-heads" in ids(framework="pytorch") & titan


def test_versions_differ():
    old, new = ids(framework="megatron", target_version="0.12"), ids(framework="megatron")
    assert "megatron-kv-heads" in old - new
    assert "megatron-layout" in new - old
    assert listing("rules", framework="megatron", target_version="0.16.1")["target_version"] == "0.16"


def test_one_rule_of_a_framework_in_full():
    item = listing("rules", "megatron-kv-heads", framework="megatron", target_version="0.12")["item"]
    assert item["until"] == "0.16"
    with pytest.raises(UnknownNameError):
        listing("rules", "megatron-kv-heads", framework="torchtitan")


def test_misuse_is_named():
    with pytest.raises(ConflictError):
        listing("models", framework="megatron")
    with pytest.raises(InvalidValueError):
        listing("rules", target_version="0.12")
    with pytest.raises(UnknownNameError):
        listing("rules", framework="megatorn")


def test_the_command_prints_them(capsys):
    from shardwright.cli import run

    assert run(["show", "rules", "--framework", "deepspeed"]) == 0
    shown = capsys.readouterr().out
    assert "deepspeed-batch" in shown
    assert "megatron-group" not in shown
