"""What selective recomputing drops and repeats, by module; what eager operators and stacks keep beside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.models.catalog import load_model
from shardwright.planner.cost.products import kept_outputs
from shardwright.planner.cost.recompute import dropped, left_out, modules_of, repeated, shares
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.stacks import load_stack, stack_ids

MEGATRON_MODULES = {"core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts"}
UNPUBLISHED = {"hai-llm"}  # priced as Megatron's kin, launched by nobody outside
LLAMA = {"hidden": 4096, "ffn": 14336, "layers": 32}


def stack_with(*modules, base="pytorch-fsdp2"):
    return replace(load_stack(base), selective_modules=modules)


def stage(model, degrees, **options):
    options["overrides"] = tuple(options.get("overrides", ()))
    given = {"seq_len": 4096, "global_batch": 8, "degrees": degrees, "options": PricingOptions(**options)}
    return estimate(model, "dgx-h100:1", **given).to_dict()["stages"][0]["memory"]


@pytest.mark.parametrize("stack", [load_stack(name) for name in stack_ids()], ids=stack_ids())
def test_megatron_stacks_name_modules_that_megatron_has(stack):
    if stack.framework == "megatron" and stack.id not in UNPUBLISHED:
        assert set(stack.selective_modules) <= MEGATRON_MODULES


@pytest.mark.parametrize(
    ("model", "modules"),
    [
        ("llama3.1-8b", ("mlp",)),
        ("qwen3-30b-a3b", ("layernorm", "moe_act")),
        ("deepseek-v3", ("layernorm", "mlp", "moe_act")),
    ],
)
def test_modules_that_a_model_lacks_are_left_out(model, modules):
    assert modules_of(load_model(model), load_stack("megatron-core")) == modules


def test_a_whole_module_keeps_what_comes_from_outside():
    layer = load_model("llama3.1-8b").layer_kinds[0]
    assert dropped(layer, stack_with("mlp")) == {"gate", "up", "act_out"}
    assert [o.name for o in repeated(layer, stack_with("mlp"))] == ["gate_up", "act", "down"]
    assert dropped(layer, stack_with("attn")) == {"query", "key", "value", "attn_out", "attn_stats"}
    assert dropped(layer, stack_with("mlp_act")) == {"act_out"}
    assert dropped(layer, stack_with("core_attn")) == {"attn_stats"}


def test_a_norm_within_a_product_belongs_to_its_module():
    layer = load_model("llama3.1-8b").layer_kinds[0]
    assert dropped(layer, stack_with("layernorm", base="megatron-core")) == frozenset()
    inside = {"mlp_normed", "post_norm_stats", "gate", "up", "act_out"}
    assert dropped(layer, stack_with("mlp", base="megatron-core")) == inside
    routed = load_model("qwen3-30b-a3b").layer_kinds[0]
    assert dropped(routed, stack_with("layernorm", base="megatron-core")) == {"mlp_normed", "post_norm_stats"}


def test_an_expert_block_run_again_keeps_its_input_alone():
    layer = load_model("qwen3-30b-a3b").layer_kinds[0]
    gone = dropped(layer, stack_with("moe"))
    assert {"expert_in", "expert_gate", "expert_up", "expert_act_out", "places", "router_scores"} <= gone
    assert "mlp_normed" not in gone


def test_every_second_product_is_made_again():
    layer = load_model("llama3.1-8b").layer_kinds[0]
    assert list(kept_outputs(layer)) == ["query_raw", "value", "attn_out", "gate", "mlp_out"]
    again = shares(layer, load_stack("torchtitan"))
    assert again["out_proj"] == again["act"] == 1
    assert again["gate_up"] == pytest.approx(1 / 2)  # up, not gate
    assert again["qkv"] == pytest.approx(8 / (32 + 2 * 8))  # keys alone
    assert {"attention", "down", "mlp_residual"}.isdisjoint(again)  # the last makes nothing that the backward pass reads
    assert dropped(layer, load_stack("torchtitan")) >= {"query", "key", "attn_normed", "hidden_mid", "up", "act_out"}


def test_routers_and_experts_are_run_again_and_not_counted():
    again = shares(load_model("qwen3-30b-a3b").layer_kinds[0], load_stack("torchtitan"))
    assert again["router"] == again["expert_up"] == again["moe_act"] == 1
    latent = load_model("deepseek-v3").layer_kinds[0]
    assert [name for name in kept_outputs(latent) if name.startswith("k")] == ["kv_compressed", "key_rope"]


@pytest.mark.parametrize(("fused", "more"), [("true", 0), ("false", 2 * LLAMA["hidden"])])
def test_bytes_kept_with_every_second_product(fused, more):
    changes = [f"stack.fused_gate={fused}", "stack.update_bytes=0"]  # whole states would make the update the fullest instant
    memory = stage("llama3.1-8b", Degrees(zero=0, recompute="selective"), stack="torchtitan", overrides=changes)
    hidden, ffn, kv = LLAMA["hidden"], LLAMA["ffn"], 8 * 128
    each = 2 * (hidden + hidden + kv + hidden + ffn) + 4 * 32 + more  # stream, query, value, core, gate; statistics
    head = 2 * 2 * hidden + 4  # input of the norm and of the product, statistics
    ids, live = 4, 0  # the fullest moment is the loss
    assert memory["logits_bytes"] > 0
    assert memory["activations_bytes"] == pytest.approx(4096 * (LLAMA["layers"] * each + head + ids) + live, rel=1e-3)


def test_eager_operators_keep_what_they_read():
    tokens, layers = 4096, LLAMA["layers"]
    kept = {}
    for name, changes in {"fused": {}, "gate": {"fused_gate": "false"}, "norms": {"fused_norms": "false"}}.items():
        sets = [f"stack.{field}={value}" for field, value in changes.items()]
        kept[name] = stage("llama3.1-8b", Degrees(zero=0), stack="pytorch-fsdp2", overrides=sets)["activations_bytes"]
    assert kept["gate"] - kept["fused"] == 2 * LLAMA["ffn"] * tokens * layers
    assert kept["norms"] - kept["fused"] == (4 + 2 - 2) * LLAMA["hidden"] * tokens * (2 * layers + 1)


def test_gathered_inputs_are_kept_whole():
    def kept(value):
        degrees = Degrees(tp=4, zero=0, sequence_parallel=True)
        options = {"stack": "pytorch-fsdp2", "overrides": [f"stack.keeps_gathered_inputs={value}"]}
        return stage("llama3.1-8b", degrees, **options)["activations_bytes"]

    each = 2 * LLAMA["hidden"] * 4096 * 3 // 4
    assert kept("true") - kept("false") == pytest.approx(each * (2 * LLAMA["layers"] + 1), rel=1e-9)


@pytest.mark.parametrize(("held", "per_parameter"), [("false", 4), ("true", 6)])
def test_gradients_beside_their_accumulators(held, per_parameter):
    options = {"grad_dtype": "fp32", "overrides": [f"stack.keeps_both_gradients={held}"]}
    memory = stage("llama3.1-8b", Degrees(zero=0), **options)
    assert memory["gradients_bytes"] == per_parameter * load_model("llama3.1-8b").parameters


@pytest.mark.parametrize(("precision", "less"), [("bf16", 2), ("fp8-tensorwise", 2), ("fp16", 0), ("fp32", 0)])
def test_remainders_of_masters(precision, less):
    def held(value):
        options = {"precision": precision, "overrides": [f"stack.master_remainders={value}"]}
        return stage("llama3.1-8b", Degrees(zero=0), **options)["optimizer_bytes"]

    assert held("false") - held("true") == less * load_model("llama3.1-8b").parameters


def test_products_below_16_bits_keep_what_their_stack_keeps():
    def kept(value, precision):
        options = {"precision": precision, "overrides": [f"stack.keeps_quantised_inputs={value}"]}
        return stage("llama3.1-8b", Degrees(zero=0), **options)["activations_bytes"]

    assert kept("false", "fp8-tensorwise") == kept("false", "bf16") == kept("true", "bf16")
    assert kept("true", "fp8-tensorwise") < kept("true", "bf16")


def test_frozen_weights_in_8_bits():
    def held(value, precision):
        options = {"lora": "rank=16", "precision": precision, "overrides": [f"stack.frozen_8bit={value}"]}
        return stage("llama3.1-8b", Degrees(zero=0), **options)["parameters_bytes"]

    graph = load_model("llama3.1-8b")
    products = graph.parameters - 2 * 128256 * 4096 - 4096 * (2 * 32 + 1)
    assert held("false", "fp8-tensorwise") - held("true", "fp8-tensorwise") == products
    assert held("false", "bf16") == held("true", "bf16")


@pytest.mark.parametrize(
    ("model", "spared"),
    [("llama3.1-8b", {"down", "mlp_residual"}), ("gpt3-175b", set()), ("qwen3-30b-a3b", {"unpermute", "mlp_residual"})],
)
def test_recomputing_that_stops_early_spares_what_nothing_kept_needs(model, spared):
    layer = load_model(model).layer_kinds[-1]
    assert left_out(layer, load_stack("torchtitan")) == spared, "a mask of dropout is made at the very end"
    assert left_out(layer, load_stack("megatron-core")) == set()


def test_a_layer_that_stops_early_takes_less_and_keeps_the_same():
    def priced(*overrides):
        options = PricingOptions(framework="torchtitan", overrides=overrides)
        degrees = Degrees(recompute="full", zero=3)
        return estimate("llama3.1-8b", "dgx-h100:1", seq_len=4096, global_batch=8, degrees=degrees, options=options).to_dict()

    early, whole = priced(), priced("stack.recompute_stops_early=false")
    down, products = 3.5, 2.5 + 3 * 3.5
    share = early["time"]["recompute_s"] / whole["time"]["recompute_s"]
    assert 1 - down / products < share < 0.85, "one product of five is spared, and products are most of a pass"
    assert early["time"]["compute_s"] == whole["time"]["compute_s"]
    assert early["memory"] == whole["memory"]
