"""Adapters and frozen modules: what is trained, kept for the backward pass and computed, by hand arithmetic."""

import pytest

from shardwright.errors import ConflictError, InvalidValueError, UnknownNameError
from shardwright.models.adapters import TARGETS, AdapterSpec, FrozenSpec, adapted, parse_freeze, parse_lora
from shardwright.models.catalog import load_model
from shardwright.models.job import TrainingJob

H, KV, FFN, LAYERS, VOCAB = 4096, 1024, 14336, 32, 128256  # llama3.1-8b


def trained(model, lora=None, *freeze):
    return adapted(load_model(model), FrozenSpec(lora=parse_lora(lora) if lora else None, freeze=freeze))


# --- counts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "inputs_and_outputs"),
    [
        ("q_proj", H + H),
        ("k_proj+v_proj", 2 * (H + KV)),
        ("o_proj", H + H),
        ("attention", 2 * (H + H) + 2 * (H + KV)),
        ("qkv", H + (H + 2 * KV)),
        ("qkv+out_proj+gate_up+down", H + (H + 2 * KV) + 2 * H + (H + 2 * FFN) + (FFN + H)),
        ("gate_proj+up_proj+down_proj", 3 * (H + FFN)),
        ("mlp", 3 * (H + FFN)),
        ("all-linear", 81920),
    ],
)
def test_an_adapter_has_rank_times_inputs_and_outputs(targets, inputs_and_outputs):
    graph = trained("llama3.1-8b", f"rank=16,targets={targets}")
    assert graph.trainable_parameters == 16 * inputs_and_outputs * LAYERS
    assert graph.layer_kinds[0].trainable_parameters == 16 * inputs_and_outputs


def test_all_products_are_the_default_and_the_published_count():
    assert trained("llama3.1-8b", "rank=16").trainable_parameters == 41_943_040  # PEFT, r = 16 on all seven projections


def test_every_expert_has_its_own_adapter():
    spec = load_model("qwen3-30b-a3b").spec
    each = spec.moe.experts * 8 * (3 * (spec.hidden + spec.moe.expert_ffn))
    assert trained("qwen3-30b-a3b", "rank=8,targets=experts").trainable_parameters == spec.layers * each
    fused = spec.moe.experts * 8 * ((spec.hidden + 2 * spec.moe.expert_ffn) + (spec.moe.expert_ffn + spec.hidden))
    assert trained("qwen3-30b-a3b", "rank=8,targets=gate_up+down").trainable_parameters == spec.layers * fused


def test_latent_attention_adapts_all_its_projections():
    spec = load_model("deepseek-v2-lite").spec
    mla, heads = spec.mla, spec.heads
    queries = spec.hidden + heads * (mla.nope_dim + mla.rope_dim)
    down = spec.hidden + mla.kv_rank + mla.rope_dim
    up = mla.kv_rank + heads * (mla.nope_dim + mla.v_dim)
    assert trained("deepseek-v2-lite", "rank=4,targets=qkv").trainable_parameters == 4 * (queries + down + up) * spec.layers


def test_the_model_itself_stays():
    base = load_model("llama3.1-8b")
    job = TrainingJob(graph=base, seq_len=4096, global_batch=8, frozen=FrozenSpec(lora=parse_lora("rank=16")))
    assert job.graph is base
    assert job.trained.parameters == base.parameters + 41_943_040
    assert TrainingJob(graph=base, seq_len=4096, global_batch=8).trained is base


@pytest.mark.parametrize(
    ("freeze", "frozen"),
    [
        (("embeddings",), VOCAB * H),
        (("head",), VOCAB * H),
        (("embeddings", "head"), 2 * VOCAB * H),
        (("norms",), (2 * LAYERS + 1) * H),
        (("mlp",), LAYERS * 3 * H * FFN),
        (("attention",), LAYERS * (2 * H * H + 2 * H * KV)),
    ],
)
def test_frozen_modules_are_not_trained(freeze, frozen):
    graph = trained("llama3.1-8b", None, *freeze)
    assert graph.parameters - graph.trainable_parameters == frozen
    assert graph.parameters == load_model("llama3.1-8b").parameters


def test_frozen_experts_leave_the_router():
    base = load_model("qwen3-30b-a3b")
    graph, spec = trained("qwen3-30b-a3b", None, "experts"), base.spec
    assert graph.parameters - graph.trainable_parameters == base.expert_parameters
    both = trained("qwen3-30b-a3b", None, "experts", "router")
    assert graph.trainable_parameters - both.trainable_parameters == spec.layers * spec.hidden * spec.moe.experts


def test_a_tied_head_is_frozen_with_its_embedding():
    graph = trained("qwen3-0.6b", None, "embeddings")
    spec = graph.spec
    assert spec.tied_embeddings
    assert not graph.head.operator("head").trains
    assert graph.parameters - graph.trainable_parameters == spec.vocab * spec.hidden


# --- activations and FLOPs ---------------------------------------------------------------------------


def saved_names(graph):
    return {spec.name for spec in graph.layer_kinds[0].saved}


def test_a_frozen_product_keeps_nothing_and_an_adapter_its_input():
    plain, some = saved_names(load_model("llama3.1-8b")), saved_names(trained("llama3.1-8b", "rank=16,targets=qkv"))
    assert plain - some == {"mlp_normed", "act_out"}  # out_proj's input is kept by attention too
    assert some - plain == {"qkv_low"}
    assert saved_names(trained("llama3.1-8b", None, "mlp")) == plain - {"mlp_normed", "act_out"}


def test_saved_bytes_by_hand():
    """A token of llama3.1-8b: less 2 h (norm output) and 2 f (activation output), plus 2 r a fused product."""
    base = load_model("llama3.1-8b").layer_kinds[0].saved_bytes(1, 1)
    assert trained("llama3.1-8b", "rank=16,targets=qkv").layer_kinds[0].saved_bytes(1, 1) == base - 2 * H - 2 * FFN + 32


def test_frozen_products_count_two_of_three():
    weights = LAYERS * (2 * H * H + 2 * H * KV + 3 * H * FFN) + VOCAB * H
    attention = LAYERS * 4 * H * 4096
    adapters = 16 * 81920 * LAYERS
    graph = trained("llama3.1-8b", "rank=16")
    assert graph.flops_per_token(4096) == 4 * weights + 6 * adapters + 3 * attention
    assert load_model("llama3.1-8b").flops_per_token(4096) == 6 * weights + 3 * attention


def test_operators_run_one_product_backward_where_frozen():
    layer = trained("llama3.1-8b", "rank=16,targets=qkv").layer_kinds[0]
    sizes = layer.sizes(1, 8)
    for name, ratio in (("qkv", 1), ("qkv_lora_a", 2), ("qkv_lora_b", 2), ("down", 1)):
        operator = layer.operator(name)
        assert operator.flops_backward(sizes, causal=False) == ratio * operator.flops_forward(sizes, causal=False)


def test_adapters_stand_between_a_product_and_its_readers():
    graph = trained("llama3.1-8b", "rank=16,targets=qkv").layer_kinds[0].graph()
    assert list(graph.predecessors("qkv_lora_b")) == ["qkv_lora_a"]
    assert set(graph.predecessors("qkv_lora_add")) == {"qkv", "qkv_lora_b"}
    assert "qkv_lora_add" in graph.predecessors("rope")


# --- words -------------------------------------------------------------------------------------------


def test_parsing():
    assert parse_lora(" rank = 8 , targets = qkv+mlp+qkv ") == AdapterSpec(rank=8, targets=("qkv", "mlp"))
    assert parse_freeze("embeddings+attention,mlp") == ("embeddings", "attention", "mlp")


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("", InvalidValueError, "KEY=VALUE"),
        ("16", InvalidValueError, "KEY=VALUE"),
        ("targets=qkv", InvalidValueError, "rank is missing"),
        ("rank=0", InvalidValueError, "rank is 0"),
        ("rank=-4", InvalidValueError, "whole number"),
        ("rank=1e3", InvalidValueError, "whole number"),
        ("rank=²", InvalidValueError, "whole number"),
        ("rank=99999999999999", InvalidValueError, "whole number"),
        ("rank=70000", InvalidValueError, "70000"),
        ("rank=8,alpha=16", UnknownNameError, "alpha"),
        ("rank=8,rank=16", ConflictError, "twice"),
        ("rank=8,targets=+", InvalidValueError, "no target"),
        ("rank=8,targets=qproj", UnknownNameError, "qproj"),
    ],
)
def test_bad_adapters(text, error, said):
    with pytest.raises(error) as caught:
        parse_lora(text)
    assert said in str(caught.value)
    assert caught.value.where.startswith("--lora")


def test_the_nearest_target_is_offered():
    with pytest.raises(UnknownNameError) as caught:
        parse_lora("rank=8,targets=atention")
    assert "attention" in caught.value.hint


@pytest.mark.parametrize("text", ["", "+", "embedings", "q_proj"])
def test_bad_modules(text):
    with pytest.raises((InvalidValueError, UnknownNameError)) as caught:
        parse_freeze(text)
    assert caught.value.where == "--freeze"


@pytest.mark.parametrize(
    ("model", "lora", "freeze", "said"),
    [
        ("llama3.1-8b", "rank=8,targets=experts", (), "it has attention, mlp"),
        ("deepseek-v2-lite", "rank=8,targets=k_proj", (), "no product k_proj"),
        ("llama3.1-8b", None, ("experts",), "no experts"),
        ("llama3.1-8b", None, ("all",), "nothing is trained"),
        ("llama3.1-8b", None, ("embeddings", "attention", "mlp", "norms", "head"), "nothing is trained"),
    ],
)
def test_what_a_model_does_not_have(model, lora, freeze, said):
    with pytest.raises(InvalidValueError) as caught:
        trained(model, lora, *freeze)
    assert said in f"{caught.value} {caught.value.hint}"


def test_two_targets_of_one_product():
    with pytest.raises(ConflictError, match="qkv and q_proj both adapt qkv"):
        trained("llama3.1-8b", "rank=8,targets=qkv+q_proj")


def test_every_target_is_found_somewhere():
    models = ("llama3.1-8b", "qwen3-30b-a3b", "jamba-v0.1")
    found = set()
    for word in TARGETS:
        for model in models:
            try:
                graph = trained(model, f"rank=2,targets={word}")
            except InvalidValueError:
                continue
            assert graph.trainable_parameters % 2 == 0
            found.add(word)
    assert found == set(TARGETS)


@pytest.mark.parametrize(
    "spec",
    [
        FrozenSpec(),
        FrozenSpec(freeze=("embeddings", "mlp")),
        FrozenSpec(lora=AdapterSpec(rank=16, targets=("qkv",)), freeze=("all",)),
    ],
)
def test_round_trip(spec):
    assert FrozenSpec.from_dict(spec.to_dict()) == spec


@pytest.mark.parametrize("data", [{"lora": 3}, {"lora": {"rank": 8}}, {"freeze": "all"}, {"lora": {"targets": ["qkv"]}}])
def test_damaged_records(data):
    with pytest.raises(InvalidValueError):
        FrozenSpec.from_dict(data)
