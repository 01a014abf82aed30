"""Layer graphs: structure, FLOPs, saved bytes, against formulas written out by hand."""

import json
import pickle
from multiprocessing.reduction import ForkingPickler

import networkx as nx
import pytest
from family_configs import FAMILIES
from hypothesis import given
from hypothesis import strategies as st
from model_configs import CONFIGS

from shardwright.documents import parse_json
from shardwright.models.catalog import load_model, model_ids
from shardwright.models.dims import ROLES, has_role, role
from shardwright.models.graph import OperatorKind
from shardwright.models.huggingface import spec_from_config
from shardwright.models.operators import product
from shardwright.models.spec import ModelSpec
from shardwright.models.transformer import build_graph


def of_config(name):
    data = {**CONFIGS, **FAMILIES}[name]
    return build_graph(spec_from_config(parse_json(json.dumps(data), f"{name}/config.json")))


MODELS = [load_model(name) for name in model_ids()] + [of_config(name) for name in (*CONFIGS, *FAMILIES)]


def parts(model):
    return [model.embedding, *model.layer_kinds, model.head, *([model.mtp] if model.mtp else [])]


def dense(**changes):
    sizes = {"name": "m", "layers": 2, "hidden": 64, "heads": 8, "kv_heads": 2, "ffn": 160, "vocab": 512}
    return build_graph(ModelSpec.from_dict({**sizes, **changes}))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_part_is_a_connected_graph_from_producers_to_consumers(model):
    for part in parts(model):
        graph = part.graph()
        assert nx.is_directed_acyclic_graph(graph)
        assert nx.is_weakly_connected(graph)
        assert list(graph.nodes) == [operator.name for operator in part.operators]
        for producer, consumer, passed in graph.edges(data=True):
            written = {spec.name for spec in graph.nodes[producer]["operator"].outputs}
            read = {spec.name for spec in graph.nodes[consumer]["operator"].inputs}
            assert {spec.name for spec in passed["tensors"]} <= written & read
            assert passed["tensor"] == passed["tensors"][0].name


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_only_the_layers_input_comes_from_outside(model):
    for layer in model.layer_kinds:
        written = {spec.name for operator in layer.operators for spec in operator.outputs}
        read = {spec.name for operator in layer.operators for spec in operator.inputs}
        assert read - written == {"hidden_in"}
        assert "hidden_out" in written
        assert [operator.name for operator in layer.operators if "hidden_out" in {s.name for s in operator.outputs}] == [
            layer.operators[-1].name
        ]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_name_means_one_tensor_with_known_dims(model):
    for part in parts(model):
        known = {*part.dims, "batch", "seq", "routed"}
        seen = {}
        for operator in part.operators:
            for spec in (*operator.inputs, *operator.outputs, *operator.saved, *operator.parameters):
                assert seen.setdefault(spec.name, spec) == spec
                assert set(spec.dims) <= known
        owners = [spec.name for operator in part.operators for spec in operator.parameters]
        assert len(owners) == len(set(owners))
        assert all(size >= 1 for size in part.dims.values())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_gemms_fit_their_weights_inputs_and_outputs(model):
    for part in parts(model):
        sizes = part.sizes(2, 64)
        for operator in part.operators:
            if operator.gemm is None:
                continue
            assert operator.kind in {OperatorKind.GEMM, OperatorKind.GROUPED_GEMM}
            weights = [spec for spec in operator.parameters if not spec.name.endswith("_bias")]
            groups = sizes["experts"] if operator.gemm.groups else 1
            assert sum(spec.elements(sizes) for spec in weights) == groups * operator.gemm.columns(sizes) * product(
                operator.gemm.k, sizes
            )
            rows = sizes["routed"] if operator.gemm.groups else 2 * 64
            assert sum(spec.elements(sizes) for spec in operator.outputs) == rows * operator.gemm.columns(sizes)
            assert sum(spec.elements(sizes) for spec in operator.inputs) == rows * product(operator.gemm.k, sizes)
            assert {spec.name for spec in operator.inputs} == {spec.name for spec in operator.saved}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_what_recomputing_drops_is_saved_somewhere_in_the_layer(model):
    for layer in model.layer_kinds:
        saved = {spec.name for spec in layer.saved}
        dropped = [name for operator in layer.operators for name in operator.recompute_drops]
        assert set(dropped) <= saved
        assert len(dropped) == len(set(dropped))


def test_roles():
    assert role("heads") == role("vocab") == role("shared_ffn") == "tensor"
    assert (role("experts"), role("expert_ffn"), role("seq"), role("batch")) == ("expert", "expert-tensor", "sequence", "data")
    assert role("hidden") == role("head_dim") == role("router_experts") == role("no such dim") == "none"
    assert has_role(("batch", "seq", "heads"), "tensor")
    assert not has_role(("batch", "seq", "hidden"), "tensor")
    assert set(ROLES.values()) == {"tensor", "expert-tensor", "expert", "sequence", "data"}


@pytest.mark.parametrize("name", ["llama3.1-8b", "llama2-70b", "gpt2", "megatron-22b", "qwen3-32b", "qwen2.5-72b"])
@given(batch=st.integers(1, 4), seq=st.integers(1, 8192))
def test_flops_of_a_dense_layer(name, batch, seq):
    model = load_model(name)
    layer, spec = model.layer_kinds[0], model.spec
    weights = sum(
        s.elements(layer.dims) for o in layer.operators if o.gemm for s in o.parameters if not s.name.endswith("_bias")
    )
    products = 2 * weights * batch * seq
    scores = 4 * batch * seq * seq * spec.heads * spec.head_dim
    assert layer.flops_forward(batch, seq) == products + scores
    assert layer.flops_forward(batch, seq, causal=True) == products + scores // 2
    assert layer.model_flops(batch, seq) == 3 * (products + scores)
    assert layer.flops_backward(batch, seq) == 2 * products + scores * 5 // 2


@pytest.mark.parametrize("name", ["llama3.1-8b", "llama3.1-405b", "qwen3-8b", "megatron-175b"])
def test_six_times_parameters(name):
    model = load_model(name)
    spec, seq = model.spec, 2048
    unused = spec.vocab * spec.hidden * (0 if spec.tied_embeddings else 1)  # the lookup
    attention = 12 * spec.layers * spec.heads * spec.head_dim * seq
    assert model.flops_per_token(seq) == pytest.approx(6 * (model.parameters - unused) + attention, rel=1e-3)


@pytest.mark.parametrize("name", ["megatron-22b", "megatron-175b", "megatron-530b", "megatron-1t"])
def test_flops_of_the_paper(name):
    """Appendix A of arXiv 2205.05198: 72 L h^2 (1 + s / 6h + v / 12 h L) a token."""
    spec, seq = load_model(name).spec, 2048
    exact = 72 * spec.layers * spec.hidden**2 + 12 * spec.layers * spec.hidden * seq + 6 * spec.vocab * spec.hidden
    assert load_model(name).flops_per_token(seq) == exact


def test_experts_cost_what_a_token_is_sent_to():
    model = load_model("mixtral-8x7b")
    attention = 12 * model.spec.layers * model.spec.heads * model.spec.head_dim * 1024
    lookup = model.spec.vocab * model.spec.hidden
    assert model.flops_per_token(1024) == pytest.approx(6 * (model.active_parameters - lookup) + attention, rel=1e-4)


def test_mtp_costs_a_layer_a_join_and_a_head():
    model = load_model("deepseek-v3")
    spec, seq = model.spec, 512
    extra = model.flops_per_token(seq) - model.flops_per_token(seq, mtp=False)
    last = model.layer_kinds[1].model_flops(1, seq) / seq
    assert extra == pytest.approx(last + 6 * (2 * spec.hidden**2 + spec.vocab * spec.hidden), rel=1e-12)


@given(window=st.integers(1, 4096), seq=st.integers(1, 4096))
def test_a_window_never_costs_more_and_is_exact_where_it_covers_all(window, seq):
    full = dense().layer_kinds[0].operator("attention").attention
    narrow = dense(windows=[window]).layer_kinds[0].operator("attention").attention
    for causal in (False, True):
        assert 0 < narrow.twice_pairs(seq, causal=causal) <= full.twice_pairs(seq, causal=causal)
        if window >= seq:
            assert narrow.twice_pairs(seq, causal=causal) == full.twice_pairs(seq, causal=causal)
    assert narrow.twice_pairs(seq, causal=True) <= narrow.twice_pairs(seq, causal=False)


@pytest.mark.parametrize("name", ["llama2-7b", "llama3.1-8b", "llama3.1-405b", "mistral-7b"])
@given(batch=st.integers(1, 4), seq=st.integers(1, 8192))
def test_saved_bytes_of_a_llama_layer(name, batch, seq):
    """2 (4 h + 2 a d + 2 g d + 3 f) + 4 a + 8 bytes a token (module docstring of models/transformer.py)."""
    model = load_model(name)
    spec = model.spec
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    token = 2 * (4 * spec.hidden + 2 * queries + 2 * keys + 3 * spec.ffn) + 4 * spec.heads + 8
    assert model.layer_kinds[0].saved_bytes(batch, seq) == token * batch * seq


@pytest.mark.parametrize("name", ["gpt3-175b", "megatron-22b", "megatron-175b", "megatron-530b", "megatron-1t"])
@pytest.mark.parametrize(("batch", "seq"), [(1, 2048), (4, 1000)])
def test_saved_bytes_of_a_classic_layer(name, batch, seq):
    """34 s b h of equation 1 of arXiv 2205.05198, and the statistics it neglects."""
    model = load_model(name)
    layer, sizes = model.layer_kinds[0], model.layer_kinds[0].sizes(batch, seq)
    stats = sum(spec.bytes(sizes, 2) for spec in layer.saved if spec.name.endswith("_stats"))
    assert stats == (4 * model.spec.heads + 16) * batch * seq
    assert layer.saved_bytes(batch, seq) - stats == 34 * seq * batch * model.spec.hidden


def test_saved_bytes_without_dropout_lose_the_masks():
    gpt = {"positions": "learned", "max_positions": 256, "norm": "layernorm", "activation": "gelu", "ffn": 256, "kv_heads": 8}
    kept = dense(**gpt, dropout=True).layer_kinds[0].saved_bytes(1, 16) - dense(**gpt).layer_kinds[0].saved_bytes(1, 16)
    assert kept == 2 * 16 * 64


def test_saved_bytes_of_an_expert_layer():
    """The formula of the module docstring of models/moe.py, and that of the attention block."""
    model = load_model("qwen3-30b-a3b")
    spec, moe = model.spec, model.spec.moe
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    attention = 2 * (2 * spec.hidden + 2 * queries + 2 * keys) + 4 * spec.heads + 4
    raw = 2 * (queries + keys) + 4 * (spec.heads + spec.kv_heads)  # before the norm of the heads, and its statistics
    token = 2 * 2 * spec.hidden + 4 + 4 * moe.experts + 4 * moe.topk
    row = 2 * spec.hidden + 6 * moe.expert_ffn + 4
    assert model.layer_kinds[0].saved_bytes(1, 64) == 64 * (attention + raw + token + moe.topk * row)


def test_saved_bytes_of_latent_attention():
    model = load_model("deepseek-v3")
    spec, mla = model.spec, model.spec.mla
    block = model.layer_kinds[0]
    head = 2 * (mla.nope_dim + mla.rope_dim) + 2 * mla.v_dim  # query, key, value, output
    token = 2 * (4 * spec.hidden + 2 * mla.q_rank + 2 * mla.kv_rank + spec.heads * head + 3 * spec.ffn) + 4 * spec.heads + 16
    assert block.saved_bytes(1, 32) == 32 * token


def test_fp32_activations_double_what_is_kept_in_the_activation_dtype():
    layer = load_model("llama3.1-8b").layer_kinds[0]
    stats = sum(spec.bytes(layer.sizes(1, 8), 2) for spec in layer.saved if spec.bytes_per_element is not None)
    assert layer.saved_bytes(1, 8, 4) - stats == 2 * (layer.saved_bytes(1, 8, 2) - stats)


def test_operator_names_of_a_layer():
    names = [operator.name for operator in load_model("qwen3-8b").layer_kinds[0].operators]
    assert names == [
        *("input_norm", "qkv", "qk_norm", "rope", "attention", "out_proj", "attn_residual"),
        *("post_norm", "gate_up", "act", "down", "mlp_residual"),
    ]
    moe = [operator.name for operator in load_model("deepseek-v3").layer_kinds[1].operators]
    assert moe == [
        *(
            "input_norm",
            "q_down",
            "q_norm",
            "q_up",
            "kv_down",
            "kv_norm",
            "kv_up",
            "rope",
            "attention",
            "out_proj",
            "attn_residual",
        ),
        *("post_norm", "router", "topk", "permute", "dispatch", "expert_up", "moe_act", "expert_down", "combine", "unpermute"),
        *("shared_up", "shared_act", "shared_down", "shared_add", "mlp_residual"),
    ]


def test_the_router_is_never_divided_by_tensor_parallelism():
    layer = load_model("deepseek-v3").layer_kinds[1]
    router = layer.operator("router")
    assert not any(
        has_role(spec.dims, "tensor") or has_role(spec.dims, "expert") for spec in (*router.parameters, *router.outputs)
    )
    assert all(has_role(spec.dims, "expert") for spec in layer.operator("expert_up").parameters)


def test_the_model_graph_is_a_folded_chain():
    graph = load_model("deepseek-v3").graph()
    assert nx.is_directed_acyclic_graph(graph)
    assert [(name, data["count"]) for name, data in graph.nodes(data=True)] == [
        ("embedding", 1),
        ("layers 0-2", 3),
        ("layers 3-60", 58),
        ("head", 1),
        ("mtp", 1),
    ]
    assert sum(data["count"] for _, data in load_model("gpt-oss-20b").graph().nodes(data=True)) == 24 + 2


def test_digest_is_of_the_architecture_alone():
    assert dense(name="a", source="x", notes=["y"]).digest == dense(name="b").digest
    assert dense().digest != dense(ffn=161).digest
    assert dense().digest == dense(windows=[None, None]).digest


@pytest.mark.parametrize("name", ["llama3.1-8b", "deepseek-v3"])
def test_models_travel_to_worker_processes(name):
    model = load_model(name)
    again = pickle.loads(ForkingPickler.dumps(model))
    assert again == model
    assert hash(again) == hash(model)
    assert again.parameters == model.parameters


def test_a_model_at_the_limits_is_built_in_no_time():
    spec = ModelSpec.from_dict(
        {
            **{
                "name": "m",
                "layers": 10_000,
                "hidden": 64,
                "heads": 8,
                "vocab": 512,
                "ffn": 64,
                "windows": [None] * 9_999 + [8],
            },
            "moe": {"experts": 2, "topk": 1, "expert_ffn": 8, "dense_layers": list(range(0, 10_000, 2))},
        }
    )
    model = build_graph(spec)
    assert model.layers == sum(model.kind_counts) == 10_000
    assert [kind.kind for kind in model.layer_kinds] == ["dense", "moe", "moe-window-8"]
