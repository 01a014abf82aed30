"""What-if statements: every one changes exactly what it names, or is refused."""

import pytest

from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError, UnknownNameError
from shardwright.hardware.catalog import load_cluster
from shardwright.models.catalog import load_model
from shardwright.planner.overrides import apply_overrides
from shardwright.planner.stacks import load_stack


@pytest.fixture(scope="module")
def inputs():
    return load_model("llama3.1-8b"), load_cluster("dgx-h100:2"), load_stack("megatron-core")


def changed(inputs, *statements):
    return apply_overrides(*inputs, statements)


def test_nothing_said_nothing_changed(inputs):
    assert all(a is b for a, b in zip(changed(inputs), inputs, strict=True))


def test_the_network_of_every_node(inputs):
    graph, cluster, stack = changed(inputs, "cluster.internode_bytes_per_s=25e9")
    assert cluster.node.internode_bytes_per_s == 25e9
    assert cluster.gpus == 16
    assert graph is inputs[0]
    assert stack is inputs[2]
    assert inputs[1].node.internode_bytes_per_s != 25e9


def test_the_device_inside_the_node(inputs):
    _, cluster, _ = changed(inputs, "cluster.memory_bytes=96e9", "cluster.peak_flops.bf16=1.5e15")
    assert cluster.device.memory_bytes == 96_000_000_000
    assert cluster.device.peak_flops["bf16"] == 1.5e15


def test_a_name_at_two_depths_means_the_outer_one_unless_spelt_out(inputs):
    outer = changed(inputs, "cluster.scaleup_bytes_per_s=1e11")[1]
    assert outer.node.scaleup_bytes_per_s == 1e11
    assert outer.device.scaleup_bytes_per_s == inputs[1].device.scaleup_bytes_per_s
    inner = changed(inputs, "cluster.device.scaleup_bytes_per_s=1e11")[1]
    assert inner.device.scaleup_bytes_per_s == 1e11
    assert inner.node.scaleup_bytes_per_s == inputs[1].node.scaleup_bytes_per_s


def test_the_model(inputs):
    graph = changed(inputs, "model.layers=16")[0]
    assert graph.layers == 16
    assert graph.parameters < inputs[0].parameters


def test_the_stack(inputs):
    stack = changed(inputs, "stack.allocator_slack=0.1", "stack.fused_attention=false")[2]
    assert stack.allocator_slack == 0.1
    assert stack.fused_attention is False
    assert changed(inputs, "stack.kernels_per_layer=22.5")[2].kernels_per_layer == 22.5
    assert stack.sources == inputs[2].sources


def test_unknown_becomes_known_and_back(inputs):
    cluster = changed(inputs, "cluster.usd_per_gpu_hour=2.5")[1]
    assert cluster.node.usd_per_gpu_hour == 2.5
    assert changed(inputs, "cluster.usd_per_gpu_hour=null")[1].node.usd_per_gpu_hour is None


def test_text_may_look_like_a_number(inputs):
    assert changed(inputs, "model.name=123")[0].name == "123"


def test_repeating_oneself_is_harmless(inputs):
    assert changed(inputs, "model.layers=16", "model.layers=16")[0].layers == 16


@pytest.mark.parametrize(
    ("statement", "kind", "said"),
    [
        ("cluster.internode_bytes_per_s", InvalidValueError, "KEY=VALUE"),
        ("cluster.internode_bytes_per_s=", InvalidValueError, "KEY=VALUE"),
        ("=3", UnknownNameError, "unknown input"),
        ("", InvalidValueError, "KEY=VALUE"),
        ("model=3", InvalidValueError, "names no field"),
        ("clustr.memory_bytes=3", UnknownNameError, "unknown input"),
        ("cluster.memry_bytes=3", UnknownNameError, "unknown cluster field"),
        ("cluster.memory_bytes=big", InvalidValueError, "is a number"),
        ("cluster.memory_bytes=true", InvalidValueError, "is a number"),
        ("cluster.memory_bytes=-1", InvalidValueError, "-1"),
        ("cluster.memory_bytes=NaN", InvalidValueError, "no finite number"),
        ("cluster.memory_bytes=Infinity", InvalidValueError, "no finite number"),
        ("cluster.memory_bytes=1e999", InvalidValueError, "no finite number"),
        ("cluster.memory_bytes=1.5", InvalidValueError, "1.5"),
        ("cluster.device=4", InvalidValueError, "group of values"),
        ("cluster.device=h2000", UnknownNameError, "h2000"),
        ("cluster.groups=1", InvalidValueError, "group of values"),
        ("stack.fused_attention=1", InvalidValueError, "true or false"),
        ("stack.allocator_slack=-0.1", InvalidValueError, "-0.1"),
        ("stack.grad_bytes=2.5", InvalidValueError, "not whole"),
        ("stack.allocator_slack=yes", InvalidValueError, "is a number"),
        ("model.layers=[1]", InvalidValueError, "is a number"),
        ("model.layers=" + "9" * 5000, InvalidValueError, ""),
    ],
)
def test_what_cannot_be_is_refused(inputs, statement, kind, said):
    with pytest.raises(kind) as caught:
        changed(inputs, statement)
    assert said in caught.value.message
    assert caught.value.where.startswith("--set")
    assert caught.value.hint


def test_the_nearest_right_word(inputs):
    with pytest.raises(UnknownNameError) as caught:
        changed(inputs, "cluster.memry_bytes=3")
    assert "memory_bytes" in caught.value.hint


def test_contradictions(inputs):
    with pytest.raises(ConflictError, match="set to 16 and to 32"):
        changed(inputs, "model.layers=16", "model.layers=32")


def test_consequences_are_checked(inputs):
    with pytest.raises(ShardwrightError) as caught:
        changed(inputs, "model.heads=7")
    assert "--set model.heads" in caught.value.where


def test_a_device_may_be_replaced_by_name(inputs):
    _, cluster, _ = changed(inputs, "cluster.device=h200")
    assert cluster.device == load_cluster("dgx-h200:1").device
    assert cluster.node.internode_bytes_per_s == inputs[1].node.internode_bytes_per_s
