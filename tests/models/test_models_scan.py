"""Scans, chunked windows and indexed attention: FLOPs, states and saved bytes against formulas and counting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_configs import outcome

from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError
from shardwright.models.catalog import load_model
from shardwright.models.dims import has_role
from shardwright.models.operators import AttentionShape, ScanShape
from shardwright.models.spec import ModelSpec, ScanSpec
from shardwright.models.transformer import build_graph

SIZES = {"name": "m", "layers": 4, "hidden": 64, "heads": 8, "vocab": 512, "ffn": 128}
SCAN = {"kind": "mamba2", "heads": 8, "head_dim": 16, "state": 32, "groups": 2, "conv": 4, "chunk": 16}
DIMS = {"scan_heads": 8, "scan_groups": 2, "scan_head_dim": 16, "scan_state": 32, "batch": 3, "seq": 64}


def kind_of(model, name):
    return next(kind for kind in model.layer_kinds if kind.kind == name)


def test_flops_of_a_state_space_dual():
    """Within a chunk the scores of each group and the products of each head; between chunks two with the state."""
    scan, tokens = ScanShape(method="state-space", chunk=16), 3 * 64
    within = 2 * 16 * (2 * 32 + 8 * 16)
    between = 4 * 8 * 16 * 32
    assert scan.flops(DIMS, causal=False) == tokens * (within + between)
    assert scan.flops(DIMS, causal=True) == tokens * (within // 2 + between)
    assert scan.state_bytes(DIMS) == 4 * 3 * 8 * 16 * 32


def test_flops_of_the_other_recurrences():
    tokens, a, d, n, c = 3 * 64, 8, 16, 32, 16
    assert ScanShape(method="linear", chunk=c).flops(DIMS, causal=False) == tokens * (2 * c * a * (n + d) + 4 * a * d * n)
    delta = 2 * c * a * (3 * n + 2 * d) + a * c * c // 3 + 6 * a * d * n
    assert ScanShape(method="delta", chunk=c).flops(DIMS, causal=False) == tokens * delta
    assert ScanShape(method="selective", chunk=c).flops(DIMS, causal=True) == tokens * a * d * (9 * n + 1)


@given(
    method=st.sampled_from(["selective", "state-space", "linear", "delta"]),
    chunk=st.integers(1, 512),
    seq=st.integers(1, 2048),
    batch=st.integers(1, 4),
)
def test_a_scan_grows_with_the_tokens_and_never_faster_than_they_do_beyond_a_chunk(method, chunk, seq, batch):
    scan = ScanShape(method=method, chunk=chunk)
    sizes = {**DIMS, "batch": batch, "seq": seq}
    once, twice = scan.flops(sizes, causal=False), scan.flops({**sizes, "seq": 2 * seq}, causal=False)
    assert twice >= 2 * once > 0
    assert twice == 2 * once or chunk > seq
    assert scan.flops(sizes, causal=True) <= once
    assert scan.flops({**sizes, "batch": 2 * batch}, causal=False) == 2 * once


@given(chunk=st.integers(1, 40), seq=st.integers(1, 90))
def test_pairs_of_chunked_windows_are_those_counted_one_by_one(chunk, seq):
    shape = AttentionShape(qk_dim="d", v_dim="d", window=chunk, chunked=True)
    spans = [min(chunk, seq - start) for start in range(0, seq, chunk)]
    assert shape.twice_pairs(seq, causal=False) == 2 * sum(span**2 for span in spans)
    assert shape.twice_pairs(seq, causal=True) == sum(span**2 for span in spans)
    sliding = AttentionShape(qk_dim="d", v_dim="d", window=chunk)
    assert shape.twice_pairs(seq, causal=True) <= sliding.twice_pairs(seq, causal=True)


def test_long_sequences_cost_a_scan_no_more_a_token():
    scans, attends = load_model("mamba-codestral-7b"), load_model("mistral-7b-v0.3")
    assert scans.flops_per_token(1 << 18) == scans.flops_per_token(1 << 12)
    assert attends.flops_per_token(1 << 18) > 2 * attends.flops_per_token(1 << 12)
    hybrid = load_model("nemotron-h-8b")
    growth = hybrid.flops_per_token(1 << 16) - hybrid.flops_per_token(1 << 12)
    assert growth == 4 * 12 * 32 * 128 * ((1 << 16) - (1 << 12))  # of its four attention layers alone


def test_mamba2_layers_count_and_keep_what_the_formula_says():
    layer = load_model("mamba-codestral-7b").layer_kinds[0]
    h, inner, narrow, heads = 4096, 128 * 64, 8 * 128, 128
    projections = h * (2 * inner + 2 * narrow + heads) + inner * h
    assert layer.parameters == projections + 5 * (inner + 2 * narrow) + 3 * heads + inner + h
    operands = 2 * (inner + 2 * narrow)  # before and after the convolution
    token = 2 * (2 * h + operands + heads + 3 * inner) + 4 + 4  # gate, output and gated output; two statistics
    assert layer.saved_bytes(1, 8) == 8 * token
    gemms = 2 * 8 * projections
    assert layer.flops_forward(1, 8) == gemms + layer.operator("scan").flops_forward(layer.sizes(1, 8), causal=False)
    assert layer.flops_backward(1, 8) == 2 * gemms + 3 * (layer.flops_forward(1, 8) - gemms)
    states = next(spec for spec in layer.operator("scan").outputs if spec.name == "scan_states")
    assert states.bytes(layer.sizes(2, 512), 2) == layer.operator("scan").scan.state_bytes(layer.sizes(2, 512)) * 512 / 256


def test_scans_divide_by_heads_and_groups():
    layer = load_model("mamba-codestral-7b").layer_kinds[0]
    assert all(has_role(spec.dims, "tensor") for spec in layer.operator("scan").inputs)
    assert all(has_role(spec.dims, "tensor") for spec in layer.operator("in_proj").parameters)
    assert has_role(layer.operator("out_proj").gemm.k, "tensor")


def test_the_gated_delta_rule_and_gated_attention_of_qwen3_next():
    model = load_model("qwen3-next-80b-a3b")
    scan, attends = kind_of(model, "gated-delta-moe"), kind_of(model, "moe")
    assert scan.operator("scan").scan.method == "delta"
    assert [spec.dims for spec in scan.operator("scan_gate").parameters] == [("scan_head_dim",)]
    assert model.pattern[:4] == (0, 0, 0, 1)
    columns = attends.operator("qkv").gemm.columns(attends.dims)
    assert columns == 256 * (2 * 16 + 2 * 2)
    assert "attn_output_gate" in [operator.name for operator in attends.operators]


def test_an_indexer_chooses_what_attention_counts():
    sparse, whole = load_model("deepseek-v3.2"), load_model("deepseek-v3")
    layer = sparse.layer_kinds[0]
    scores, core = layer.operator("index_scores"), layer.operator("attention")
    sizes, seq = layer.sizes(1, 8192), 8192
    assert scores.flops_forward(sizes, causal=False) == 2 * 64 * (128 + 1) * seq * seq
    assert core.flops_forward(sizes, causal=False) == 2 * 128 * (192 + 128) * seq * 2048
    assert sparse.flops_per_token(1 << 17) < whole.flops_per_token(1 << 17)
    assert sparse.flops_per_token(1024) > whole.flops_per_token(1024)
    chosen = next(spec for spec in layer.saved if spec.name == "index_chosen")
    assert chosen.bytes(sizes, 2) == 4 * seq * 2048


REFUSED = [
    ({"mixers": ["scan"]}, ConflictError, "scan"),
    ({"scan": SCAN}, ConflictError, "mixers"),
    ({"mixers": ["rwkv"]}, InvalidValueError, "mixers"),
    ({"mixers": []}, InvalidValueError, "mixers"),
    ({"mixers": ["attention"] * 5}, ConflictError, "mixers"),
    ({"mlps": ["moe"]}, InvalidValueError, "mlps"),
    ({"rotary_layers": [1]}, InvalidValueError, "rotary_layers"),
    ({"layer_kv_heads": [3]}, ConflictError, "layer_kv_heads"),
    ({"layer_ffn": [0]}, InvalidValueError, "layer_ffn"),
    ({"norm_at": "inside"}, InvalidValueError, "norm_at"),
    ({"block": "parallel", "norm_at": "after"}, ConflictError, "norm_at"),
    ({"block": "parallel", "mlps": ["none"]}, ConflictError, "block"),
    ({"block": "parallel", "moe": {"experts": 4, "topk": 2, "expert_ffn": 8}}, ConflictError, "block"),
    ({"mixers": ["scan"], "scan": {**SCAN, "groups": 3}}, ConflictError, "scan.groups"),
    ({"mixers": ["scan"], "scan": {**SCAN, "kind": "rwkv"}}, InvalidValueError, "scan.kind"),
    ({"mixers": ["scan"], "scan": {**SCAN, "dt_rank": 4}}, ConflictError, "scan.dt_rank"),
    ({"mixers": ["scan"], "scan": {**SCAN, "kind": "mamba1"}}, ConflictError, "scan.dt_rank"),
    ({"mixers": ["scan"], "scan": {**SCAN, "kind": "mamba1", "dt_rank": 4}}, ConflictError, "scan.head_dim"),
    ({"mixers": ["scan"], "scan": {**SCAN, "chunk": 0}}, InvalidValueError, "scan.chunk"),
    ({"mixers": ["scan"], "scan": {"kind": "mamba2"}}, InvalidValueError, "scan.heads"),
    ({"layers": 200, "layer_ffn": list(range(1, 201))}, InvalidValueError, "layers"),
    ({"ffn": None, "layer_ffn": [8, None]}, InvalidValueError, "ffn"),
]


@pytest.mark.parametrize(("change", "error", "where"), REFUSED, ids=[str(list(c.items()))[:60] for c, _, _ in REFUSED])
def test_refuses(change, error, where):
    with pytest.raises(error) as caught:
        ModelSpec.from_dict({**SIZES, **change})
    assert caught.value.where == where
    assert caught.value.message


def test_an_indexer_excludes_windows_and_needs_all_its_sizes():
    mla = {"kv_rank": 16, "nope_dim": 8, "rope_dim": 4, "v_dim": 8, "q_rank": 8}
    index = {"index_heads": 2, "index_dim": 8, "index_topk": 4}
    assert ModelSpec.from_dict({**SIZES, "mla": {**mla, **index}}).mla.index_topk == 4
    for change in ({"mla": {**mla, "index_topk": 4}}, {"mla": {**mla, **index, "q_rank": None}}):
        with pytest.raises(ConflictError, match="indexer"):
            ModelSpec.from_dict({**SIZES, **change})
    with pytest.raises(ConflictError, match="indexer"):
        ModelSpec.from_dict({**SIZES, "mla": {**mla, **index}, "windows": [8]})
    with pytest.raises(ConflictError, match="attention_gate"):
        ModelSpec.from_dict({**SIZES, "mla": mla, "attention_gate": True})


WORDS = {
    "mixers": ["attention", "scan", "linear", "none"],
    "mlps": ["ffn", "linear", "none"],
    "norm_at": ["before", "after", "both"],
    "block": ["sequential", "parallel", "parallel-one-norm"],
    "norm": ["rmsnorm", "layernorm", "layernorm-no-bias", "layernorm-plain"],
    "qk_norm": ["none", "head", "full", "unit"],
    "positions": ["rope", "learned", "alibi", "none"],
}
PARTS = {
    "scan": [None, SCAN, {**SCAN, "kind": "gated-delta"}, {**SCAN, "kind": "lightning", "conv": 0}],
    "moe": [None, {"experts": 4, "topk": 2, "expert_ffn": 8, "shared_ffn": 8, "dense_layers": [1]}],
}


@st.composite
def combinations(draw):
    """A spec of any combination of its words."""
    made = {key: draw(st.sampled_from(words)) for key, words in WORDS.items() if key not in {"mixers", "mlps"}}
    made |= {key: draw(st.lists(st.sampled_from(WORDS[key]), min_size=1, max_size=4)) for key in ("mixers", "mlps")}
    made |= {key: draw(st.sampled_from(values)) for key, values in PARTS.items()}
    flags = ("attention_gate", "embedding_norm", "head_bias", "logits_softcap", "tied_embeddings", "dropout", "chunked")
    made |= {key: draw(st.booleans()) for key in flags}
    made |= {
        "windows": draw(st.sampled_from([[None], [8, None]])),
        "rotary_layers": draw(st.sampled_from([[True], [True, False]])),
    }
    if "scan" not in made["mixers"]:
        del made["scan"]
    return {**SIZES, **made, "max_positions": 64, "layer_kv_heads": draw(st.sampled_from([[None], [2, None, 4]]))}


@given(combinations())
def test_every_combination_is_a_graph_or_our_error(data):
    model = outcome(lambda given_: build_graph(ModelSpec.from_dict(given_)), data)
    if isinstance(model, ShardwrightError):
        assert model.where
        return
    assert len({kind.kind for kind in model.layer_kinds}) == len(model.layer_kinds)
    assert model.parameters >= model.active_parameters > 0
    for layer in model.layer_kinds:
        written = {spec.name for operator in layer.operators for spec in operator.outputs}
        read = {spec.name for operator in layer.operators for spec in operator.inputs}
        assert read - written == {"hidden_in"}
        assert "hidden_out" in written
        dropped = {name for operator in layer.operators for name in operator.recompute_drops}
        assert dropped <= {spec.name for spec in layer.saved}
        owners = [spec.name for operator in layer.operators for spec in operator.parameters]
        assert len(owners) == len(set(owners))


def test_a_scan_spec_checks_itself():
    with pytest.raises(InvalidValueError):
        ScanSpec(kind="mamba2", heads=0, head_dim=1, state=1)
