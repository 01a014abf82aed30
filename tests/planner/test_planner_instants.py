"""Instants at which a stage is fullest, and what is held beside states and activations, against arithmetic by hand."""

import pytest

from shardwright.models.spec import ModelSpec
from shardwright.models.transformer import build_graph
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions

MIB = 2**20
WIDE = {"layers": 4, "hidden": 1024, "heads": 8, "kv_heads": 8, "ffn": 256, "vocab": 131_072}
TABLE = 131_072 * 1024


def memory(degrees, *, stage=0, seq_len=512, batch=64, cluster="dgx-h100:1", changes=(), **options):
    graph = build_graph(ModelSpec.from_dict({"name": "wide", **WIDE}))
    given = {"seq_len": seq_len, "global_batch": batch, "degrees": Degrees(**degrees)}
    chosen = PricingOptions(overrides=tuple(f"stack.{change}" for change in changes), **options)
    return estimate(graph, cluster, **given, options=chosen).to_dict()["stages"][stage]["memory"]


def beside(part, degrees, change, rest=(), **named):
    """What the first of two changes of the stack adds to a part beside the second."""
    with_it, without = (memory(degrees, changes=(*rest, one), **named) for one in change)
    return with_it[part] - without[part]


@pytest.mark.parametrize(
    ("cluster", "pytorch", "engine"),
    [("dgx-h100:1", 32, 32), ("dgx-a100-80g:1", 8.125, 4), ("dgx-b200:1", 8.125, 32), ("mi300x-8:1", 128, 32)],
)
def test_workspaces_of_products_are_those_of_the_device(cluster, pytorch, engine):
    asked = {"degrees": {"zero": 0}, "cluster": cluster, "framework": "megatron"}
    two = beside("buffers_bytes", change=("blas_workspaces=2", "blas_workspaces=0"), **asked)
    one = beside("buffers_bytes", change=("engine_workspaces=1", "engine_workspaces=0"), **asked)
    assert (two, one) == (2 * pytorch * MIB, engine * MIB)


def test_grouped_products_of_experts_have_workspaces_of_their_own():
    given = {"seq_len": 4096, "global_batch": 32, "degrees": Degrees(ep=8, etp=1, zero=1)}
    held = []
    for count in (0, 1):
        options = PricingOptions(framework="megatron", overrides=(f"stack.engine_workspaces={count}",))
        found = estimate("qwen3-30b-a3b", "dgx-h100:1", **given, options=options).to_dict()
        held.append(found["stages"][0]["memory"]["buffers_bytes"])
    assert held[1] - held[0] == (1 + 4) * 32 * MIB


PIPED = {"pp": 4, "zero": 2, "micro_batch": 1}
BORDER = 512 * 1024 * 2


@pytest.mark.parametrize(("stage", "buffers"), [(0, 32 - 1), (1, (32 - 3) + 32 - 1), (3, 32 - 1)])
def test_torch_has_buffers_for_every_micro_batch(stage, buffers):
    """32 micro-batches; those in flight are activations, and one gradient is that of the stream."""
    kinds = ("pipeline_receives=every", "pipeline_receives=one")
    asked = {"stage": stage, "framework": "pytorch", "batch": 64, "rest": ("pipeline_outputs=freed",)}
    assert beside("buffers_bytes", PIPED, kinds, **asked) == buffers * BORDER


@pytest.mark.parametrize(("kept", "parts"), [("kept", 1), ("divided", 2)])
def test_outputs_in_flight_are_kept_but_on_the_last_stage(kept, parts):
    degrees = {"pp": 2, "tp": 2, "zero": 0, "sequence_parallel": False}
    kinds = (f"pipeline_outputs={kept}", "pipeline_outputs=freed")
    added = [beside("buffers_bytes", degrees, kinds, stage=stage, framework="megatron") for stage in (0, 1)]
    assert added == [2 * BORDER / parts, 0]


def test_what_arrives_while_a_chunk_computes():
    graph_layers = {"pp": 2, "zero": 0}
    plain, looped = (memory(graph_layers | {"vpp": vpp}, framework="megatron", stage=1) for vpp in (1, 2))
    assert looped["buffers_bytes"] - plain["buffers_bytes"] == 2 * BORDER


SHORT = {"seq_len": 128, "batch": 8, "framework": "pytorch"}


def test_the_update_is_the_fullest_instant_where_little_is_computed():
    found = memory({"zero": 0}, changes=("update_bytes=16", "blas_workspaces=0"), **SHORT)
    assert (found["activations_bytes"], found["logits_bytes"]) == (0, 0)
    assert found["buffers_bytes"] == 16 * found["parameters_bytes"] // 2


def test_the_update_gathers_nothing_and_leaves_what_hosts_hold():
    heavy = ("update_bytes=400", "blas_workspaces=0")
    found = memory({"zero": 3}, changes=heavy, **SHORT)
    assert found["buffers_bytes"] == pytest.approx(400 * found["parameters_bytes"] / 4, rel=1e-6)
    hosted = memory({"zero": 3, "offload": "optimizer=0.5"}, changes=heavy, **SHORT)
    assert hosted["buffers_bytes"] == pytest.approx(found["buffers_bytes"] / 2, rel=1e-6)


def test_narrow_gradients_are_made_fp32_for_the_update():
    asked = {"changes": ("stand_in_gradients=false", "blas_workspaces=0", "engine_workspaces=0", "bucket_bytes=0")}
    narrow = memory({"zero": 0}, grad_dtype="bf16", framework="megatron", seq_len=128, batch=8, **asked)
    wide = memory({"zero": 0}, grad_dtype="fp32", framework="megatron", seq_len=128, batch=8, **asked)
    assert narrow["activations_bytes"] == 0
    assert narrow["buffers_bytes"] == 2 * narrow["parameters_bytes"]
    assert wide["buffers_bytes"] == pytest.approx(2 * TABLE, rel=0.01)  # the embedding's, before they are added


def test_gradients_of_the_ends_are_made_before_they_are_added():
    """Of a pipeline's first stage with a large table: w bytes of it, the activations of that micro-batch gone."""
    asked = {"framework": "megatron", "stack": "megatron-2021", "seq_len": 128, "batch": 64}
    found = memory({"pp": 2, "zero": 0}, **asked)
    border = 128 * 1024 * 2
    assert found["buffers_bytes"] >= 2 * TABLE + border
    layer = memory({"pp": 2, "zero": 0}, stage=1, **asked)
    assert layer["buffers_bytes"] >= 2 * TABLE


def test_sharded_gradients_of_the_ends_stand_whole_while_they_are_reduced():
    """Made in 16 bits and copied in fp32; where both ends are one unit the head's stays until the end."""
    asked = {"seq_len": 128, "batch": 8, "framework": "pytorch", "grad_dtype": "fp32"}
    rest = ("blas_workspaces=0", "logit_saved_bytes=2", "update_bytes=0")
    joined, apart = (memory({"zero": 3}, changes=(*rest, f"keeps_ends_gathered={word}"), **asked) for word in ("true", "false"))
    layer = 2 * (4 * 1024 * 1024 + 3 * 1024 * 256 + 2 * 1024)
    assert joined["buffers_bytes"] == pytest.approx(2 * 2 * TABLE + 2 * layer + (2 + 4) * 2 * TABLE, rel=0.01)
    assert apart["buffers_bytes"] == pytest.approx(2 * 2 * TABLE + (2 + 4) * TABLE, rel=0.01)
