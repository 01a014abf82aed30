"""Further families: counts, the shape of their layers, and what their readers refuse."""

import json

import pytest
from family_configs import FAMILIES
from model_configs import CONFIGS

from shardwright.documents import parse_json
from shardwright.errors import ConflictError, InvalidValueError, UnsupportedError
from shardwright.models.hf_families import BY_ARCHITECTURE, BY_TYPE
from shardwright.models.huggingface import read_config, spec_from_config
from shardwright.models.transformer import build_graph

# transformers 5.24, trainable parameters
PARAMETERS = {
    "llama4_text": 4_878_592,
    "llama4_text-listed": 2_139_776,
    "gemma": 2_580_224,
    "gemma2": 2_581_760,
    "gemma3_text": 5_683_104,
    "phi": 2_364_152,
    "phi3": 2_590_464,
    "phimoe": 7_353_704,
    "olmo": 2_883_584,
    "olmo2": 2_591_424,
    "olmo3": 6_056_704,
    "olmoe": 10_521_792,
    "glm": 2_591_616,
    "glm4": 2_593_152,
    "nemotron": 2_063_872,
    "cohere": 2_628_608,
    "granite": 2_590_464,
    "smollm3": 3_027_200,
    "seed_oss": 3_084_288,
    "qwen3_next": 4_047_936,
    "minimax": 8_496_896,
    "minimax_m2": 7_842_432,
    "jamba": 14_042_656,
    "jamba-dense": 7_705_632,
    "mamba": 130_176,
    "falcon_mamba": 162_176,
    "mamba2": 155_144,
    "nemotron_h": 221_832,
    "nemotron_h-experts": 270_000,
    "deepseek_v32": 3_662_976,
    "gpt_neox": 2_364_688,
    "gpt_neox-sequential": 2_364_688,
    "bloom": 182_208,
    "opt": 198_592,
    "mpt": 179_904,
    "falcon": 2_273_280,
    "falcon-groups": 2_323_968,
    "falcon-one-norm": 2_322_432,
    "falcon-alibi": 2_034_816,
    "starcoder2": 1_812_624,
}


def read(data, source="tiny/config.json"):
    return spec_from_config(parse_json(json.dumps(data), source))


def kinds(data):
    model = build_graph(read(data))
    return [model.layer_kinds[index].kind for index in model.pattern]


def layer(name, index=0):
    model = build_graph(read(FAMILIES[name]))
    return model.layer_kinds[model.pattern[index]]


def names(graph):
    return [operator.name for operator in graph.operators]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_small_models_count_as_in_transformers(name):
    assert build_graph(read(FAMILIES[name])).parameters == PARAMETERS[name]


def test_the_shape_that_transformers_takes_for_olmo2_by_default():
    sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
    assert build_graph(read({"model_type": "olmo2", "vocab_size": 50304, **sizes})).parameters == 6_888_624_128


def test_every_family_is_tested():
    tested = {data["model_type"] for data in (*CONFIGS.values(), *FAMILIES.values())}
    others = {
        "kimi_k2",
        "qwen2_vl_text",
        "qwen2_5_vl_text",
        "qwen3_vl_text",
        "qwen3_vl_moe_text",
        "RefinedWeb",
        "RefinedWebModel",
        "minimax_text_01",
        "minimax_m1",
    }
    assert set(BY_TYPE) - tested <= {*others, "mimo", "deci", "nemotron-nas"}
    assert len(BY_ARCHITECTURE) >= 45


def test_kinds_of_layers():
    assert kinds(FAMILIES["llama4_text"]) == ["dense-chunk-512", "moe-chunk-512", "dense-chunk-512", "moe-nope"] * 2
    assert kinds(FAMILIES["llama4_text-listed"]) == ["moe-chunk-512", "dense-nope", "moe-chunk-512"]
    assert kinds(FAMILIES["gemma2"]) == ["dense-window-128", "dense", "dense-window-128"]
    assert kinds(FAMILIES["gemma3_text"]) == [*["dense-window-128"] * 5, "dense", "dense-window-128"]
    assert kinds(FAMILIES["olmo3"]) == [*["dense-window-128"] * 3, "dense"] * 2
    assert kinds(FAMILIES["smollm3"]) == ["dense", "dense", "dense", "dense-nope"]
    assert kinds(FAMILIES["qwen3_next"]) == [*["gated-delta-moe"] * 3, "moe"]
    assert kinds(FAMILIES["minimax"]) == ["lightning-moe", "lightning-moe", "moe"]
    assert kinds(FAMILIES["mamba2"]) == ["mamba2"] * 3
    assert kinds(FAMILIES["nemotron_h"]) == ["mamba2", "only-dense", "mamba2", "attention", "only-dense", "mamba2"]
    assert kinds(FAMILIES["nemotron_h-experts"]) == ["mamba2", "only-moe", "attention", "only-moe", "mamba2"]
    assert kinds(FAMILIES["jamba"])[:4] == ["mamba1-dense", "mamba1-moe", "dense", "mamba1-moe"]


def test_parallel_blocks_read_the_stream_once_or_twice():
    one, two = layer("phi"), layer("gpt_neox")
    assert names(one) == ["input_norm", "qkv", "rope", "attention", "out_proj", "up", "act", "down", "layer_residual"]
    assert "post_norm" in names(two)
    assert [spec.name for spec in one.operator("up").inputs] == ["attn_normed"]
    assert [spec.name for spec in two.operator("layer_residual").inputs] == ["attn_projected", "mlp_out", "hidden_in"]
    assert one.saved_bytes(1, 8) < two.saved_bytes(1, 8)


def test_norms_stand_where_the_family_puts_them():
    assert names(layer("olmo2"))[0] == "qkv"
    assert names(layer("olmo2"))[-2:] == ["mlp_out_norm", "mlp_residual"]
    assert [name for name in names(layer("gemma2")) if name.endswith("norm")] == [
        *("input_norm", "attn_out_norm", "post_norm", "mlp_out_norm"),
    ]
    assert [spec.dims for spec in layer("olmo2").operator("qk_norm").parameters] == [
        ("heads", "head_dim"),
        ("kv_heads", "head_dim"),
    ]
    assert not layer("llama4_text").operator("qk_norm").parameters
    assert "qk_norm" not in names(layer("llama4_text", 3))  # this layer does not rotate


def test_positions_biases_and_ends():
    bloom, opt, phi = (build_graph(read(FAMILIES[name])) for name in ("bloom", "opt", "phi"))
    assert "rope" not in names(bloom.layer_kinds[0])
    assert names(bloom.embedding) == ["embedding", "embedding_norm"]
    assert opt.embedding.dims["positions"] == 258
    assert phi.head.operator("head").parameters[1].name == "head_bias"
    gemma = build_graph(read(FAMILIES["gemma2"]))
    assert names(gemma.head) == ["final_norm", "head", "logits_cap", "loss"]
    assert gemma.spec.attention_softcap
    assert not read({**FAMILIES["gemma2"], "final_logit_softcapping": None}).logits_softcap


def test_falcon_in_its_four_forms():
    forms = {name: read(FAMILIES[name]) for name in FAMILIES if name.startswith("falcon") and "mamba" not in name}
    assert {name: (spec.kv_heads, spec.block, spec.positions) for name, spec in forms.items()} == {
        "falcon": (1, "parallel-one-norm", "rope"),
        "falcon-groups": (2, "parallel", "rope"),
        "falcon-one-norm": (2, "parallel-one-norm", "rope"),
        "falcon-alibi": (8, "sequential", "alibi"),
    }


def test_a_pattern_string_and_a_list_say_the_same():
    data = FAMILIES["nemotron_h"]
    plain = {key: value for key, value in data.items() if key != "hybrid_override_pattern"}
    words = ["mamba", "mlp", "mamba", "attention", "mlp", "mamba"]
    assert read({**plain, "layers_block_type": words}) == read(data)
    newer = ["linear_attention", "mlp", "linear_attention", "full_attention", "mlp", "linear_attention"]
    assert read({**plain, "layer_types": newer, "num_hidden_layers": None}) == read(data)


def test_unbounded_step_sizes_of_published_files_are_read(tmp_path):
    path = tmp_path / "config.json"
    text = json.dumps({**FAMILIES["mamba2"], "time_step_limit": [0.0, 1.0]})
    path.write_text(text.replace("1.0]", "Infinity]"))
    assert build_graph(read_config(path)).parameters == PARAMETERS["mamba2"]


def test_sizes_that_published_gemma3_files_leave_out_are_taken_from_the_family_and_said():
    absent = {"num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"}
    spec = read({key: value for key, value in FAMILIES["gemma3_text"].items() if key not in absent})
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.vocab) == (8, 4, 256, 262208)
    assert "vocab_size 262208" in spec.notes[0]
    with pytest.raises(InvalidValueError, match="head_dim"):
        read({key: value for key, value in FAMILIES["gemma2"].items() if key != "head_dim"})


def test_first_files_of_falcon():
    large = {"model_type": "RefinedWeb", "architectures": ["RWForCausalLM"], "hidden_size": 256, "n_head": 8, "n_layer": 3}
    spec = read({**large, "n_head_kv": 2, "vocab_size": 1000, "bias": False, "parallel_attn": True, "alibi": False})
    groups = read(FAMILIES["falcon-groups"])
    assert (spec.kv_heads, spec.block, spec.ffn) == (groups.kv_heads, groups.block, groups.ffn) == (2, "parallel", 1024)


def test_the_context_may_be_given_twice():
    assert read({**FAMILIES["olmo2"], "max_sequence_length": 2048}).max_positions == 4096
    assert read({**FAMILIES["gemma2"], "sliding_window_size": 128}) == read(FAMILIES["gemma2"])


def test_published_spellings_of_minimax():
    plain = {key: value for key, value in FAMILIES["minimax"].items() if key not in {"layer_types", "architectures"}}
    older = {**plain, "model_type": "minimax_text_01", "attn_type_list": [0, 0, 1], "postnorm": True, "rotary_dim": 32}
    assert read({**older, "layernorm_mlp_beta": 1.0, "shared_intermediate_size": 0}) == read(FAMILIES["minimax"])
    assert kinds(plain) == ["moe", "lightning-moe", "moe"]
    m2 = {
        **FAMILIES["minimax_m2"],
        "layernorm_mlp_beta": 1.0,
        "attn_type_list": [1, 1, 1],
        "use_mtp": True,
        "num_mtp_modules": 3,
    }
    assert "multi-token" in read({**m2, "mtp_transformer_layers": 1}).notes[0]


def test_mimo_is_a_qwen_with_further_predictions():
    data = {**CONFIGS["qwen2"], "model_type": "mimo", "architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    model = build_graph(read({**data, "attention_bias": True}))
    assert (model.spec.qkv_bias, model.mtp_layers) == (True, 1)


NAS = {
    **{key: value for key, value in CONFIGS["llama"].items() if key not in {"architectures", "intermediate_size"}},
    "model_type": "nemotron-nas",
    "architectures": ["DeciLMForCausalLM"],
    "num_key_value_heads": None,
    "intermediate_size": None,
    "block_configs": [
        {"attention": {"n_heads_in_group": 4, "no_op": False}, "ffn": {"ffn_mult": 2.625, "no_op": False}},
        {"attention": {"no_op": True, "n_heads_in_group": None}, "ffn": {"ffn_mult": 1.0}},
        {"attention": {"replace_with_linear": True}, "ffn": {"replace_with_linear": True}},
    ],
}


def test_searched_models_differ_from_layer_to_layer():
    spec = read(NAS)
    assert kinds(NAS) == ["dense-kv-2-ffn-512", "only-dense-ffn-256", "linear-mixer-linear-mlp"]
    assert (spec.mixers, spec.kv_heads) == (("attention", "none", "linear"), 2)
    first, second, third = build_graph(spec).layer_kinds
    h, d = 256, 32
    assert first.parameters == 2 * h + h * (8 + 2 + 2) * d + 8 * d * h + 3 * h * 512
    assert second.parameters == h + 3 * h * 256
    assert third.parameters == 2 * h + 2 * h * h
    empty = {"attention": {"no_op": True}, "ffn": {"no_op": True}}
    skipped = build_graph(read({**NAS, "block_configs": [*NAS["block_configs"][:2], empty]}))
    assert skipped.layer_kinds[2].parameters == 0
    assert skipped.layer_kinds[2].kind == "skip"


def test_key_value_heads_by_layer():
    data = {**CONFIGS["llama"], "model_type": "deci", "architectures": ["DeciLMForCausalLM"], "num_key_value_heads": None}
    data["num_key_value_heads_per_layer"] = [4, 1, 4]
    assert kinds(data) == ["dense-kv-4", "dense-kv-1", "dense-kv-4"]
    assert read(data).kv_heads == 1


BAD = [
    ("llama4_text", {"no_rope_layers": [1, 0]}, ConflictError, "no_rope_layers"),
    ("llama4_text", {"no_rope_layers": [2] * 8}, InvalidValueError, "no_rope_layers"),
    ("llama4_text", {"moe_layers": [8]}, InvalidValueError, "moe_layers"),
    ("llama4_text", {"layer_types": ["sliding_attention"] * 8}, UnsupportedError, "layer_types"),
    ("gemma2", {"sliding_window": -1}, InvalidValueError, "sliding_window"),
    ("gemma2", {"final_logit_softcapping": "30"}, InvalidValueError, "final_logit_softcapping"),
    ("gemma", {"use_bidirectional_attention": True}, UnsupportedError, "use_bidirectional_attention"),
    ("gemma3_text", {"sliding_window_pattern": 0}, InvalidValueError, "sliding_window_pattern"),
    ("phi", {"qk_layernorm": True}, UnsupportedError, "qk_layernorm"),
    ("opt", {"do_layer_norm_before": False}, UnsupportedError, "do_layer_norm_before"),
    ("opt", {"word_embed_proj_dim": 32}, UnsupportedError, "word_embed_proj_dim"),
    ("opt", {"ffn_dim": None}, InvalidValueError, "ffn_dim"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, UnsupportedError, "apply_residual_connection_post_layernorm"),
    ("bloom", {"n_head": 7}, ConflictError, "n_head"),
    ("mpt", {"attn_config": {"attn_type": "grouped_query_attention"}}, UnsupportedError, "attn_config.attn_type"),
    ("mpt", {"attn_config": [1]}, InvalidValueError, "attn_config"),
    ("mpt", {"no_bias": False}, UnsupportedError, "no_bias"),
    ("falcon-groups", {"num_kv_heads": 3}, ConflictError, "num_kv_heads"),
    ("falcon", {"num_ln_in_parallel_attn": 3}, InvalidValueError, "num_ln_in_parallel_attn"),
    ("mamba2", {"num_heads": 9}, ConflictError, "num_heads"),
    ("mamba2", {"n_groups": 3}, ConflictError, "n_groups"),
    ("mamba2", {"state_size": None}, InvalidValueError, "state_size"),
    ("mamba2", {"chunk_size": 0}, InvalidValueError, "chunk_size"),
    ("mamba", {"time_step_rank": "big"}, InvalidValueError, "time_step_rank"),
    ("jamba", {"attn_layer_period": 0}, InvalidValueError, "attn_layer_period"),
    ("jamba", {"mamba_inner_layernorms": False}, UnsupportedError, "mamba_inner_layernorms"),
    ("jamba", {"num_experts_per_tok": 5}, ConflictError, "num_experts_per_tok"),
    ("nemotron_h", {"hybrid_override_pattern": "M-M*-"}, ConflictError, "hybrid_override_pattern"),
    ("nemotron_h", {"hybrid_override_pattern": "M-M*-X"}, UnsupportedError, "hybrid_override_pattern"),
    ("nemotron_h", {"hybrid_override_pattern": None}, InvalidValueError, "hybrid_override_pattern"),
    ("nemotron_h", {"hybrid_override_pattern": 6}, InvalidValueError, "hybrid_override_pattern"),
    ("nemotron_h-experts", {"moe_latent_size": 32}, UnsupportedError, "moe_latent_size"),
    ("nemotron_h-experts", {"num_nextn_predict_layers": 1}, UnsupportedError, "num_nextn_predict_layers"),
    ("nemotron_h-experts", {"n_group": 3}, ConflictError, "n_group"),
    ("qwen3_next", {"linear_num_key_heads": 3}, ConflictError, "linear_num_key_heads"),
    ("qwen3_next", {"layer_types": ["full_attention"]}, ConflictError, "layer_types"),
    ("minimax", {"shared_intermediate_size": 64}, UnsupportedError, "shared_intermediate_size"),
    ("minimax", {"layer_types": None, "attn_type_list": [0, 1]}, ConflictError, "attn_type_list"),
    ("minimax_m2", {"attn_type_list": [1, 0, 1]}, UnsupportedError, "attn_type_list"),
    ("deepseek_v32", {"index_topk": None}, InvalidValueError, "index_topk"),
    ("deepseek_v32", {"q_lora_rank": None}, ConflictError, "index_n_heads"),
    ("deepseek_v32", {"mlp_layer_types": ["dense"] * 3}, ConflictError, "mlp_layer_types"),
    ("seed_oss", {"residual_dropout": True}, InvalidValueError, "residual_dropout"),
]


@pytest.mark.parametrize(("name", "change", "error", "key"), BAD, ids=[f"{name}-{key}" for name, _, _, key in BAD])
def test_bad_values_are_refused_with_key_and_reason(name, change, error, key):
    with pytest.raises(error) as caught:
        read({**FAMILIES[name], **change})
    assert caught.value.where.startswith("tiny/config.json")
    assert caught.value.where.endswith(key)
    assert caught.value.message
    assert caught.value.exit_code == 2


def block(**changes):
    return [{"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 1.0}, **changes}, *NAS["block_configs"][1:]]


@pytest.mark.parametrize(
    ("change", "error", "key"),
    [
        ({"block_configs": None}, InvalidValueError, "block_configs"),
        ({"block_configs": NAS["block_configs"][:2]}, ConflictError, "block_configs"),
        ({"block_configs": [1, 2, 3]}, InvalidValueError, "block_configs.0"),
        (
            {"block_configs": block(attention={"n_heads_in_group": 3})},
            ConflictError,
            "block_configs.0.attention.n_heads_in_group",
        ),
        ({"block_configs": block(attention={"mamba": {"d": 1}})}, UnsupportedError, "block_configs.0.attention.mamba"),
        ({"block_configs": block(ffn={"ffn_mult": 1, "gated": False})}, UnsupportedError, "block_configs.0.ffn.gated"),
        ({"block_configs": block(ffn={"ffn_mult": -1})}, InvalidValueError, "block_configs.0.ffn.ffn_mult"),
        ({"block_configs": block(ffn={"ffn_mult": 1e300})}, InvalidValueError, "block_configs.0.ffn.ffn_mult"),
        ({"block_configs": block(ffn=None)}, InvalidValueError, "block_configs.0.ffn"),
    ],
)
def test_bad_blocks_of_searched_models(change, error, key):
    with pytest.raises(error) as caught:
        read({**NAS, **change})
    assert caught.value.where.endswith(key)


def test_bad_key_value_heads_by_layer():
    data = {key: value for key, value in CONFIGS["llama"].items() if key != "architectures"}
    for heads in ([], [4, 0, 4], [3, 3, 3], [4, 4, 4, 4]):
        with pytest.raises((InvalidValueError, ConflictError)) as caught:
            read({**data, "model_type": "deci", "num_key_value_heads_per_layer": heads, "num_key_value_heads": None})
        assert caught.value.where


def test_lists_and_defaults_of_layers_say_the_same():
    sparse = {**FAMILIES["deepseek_v32"], "mlp_layer_types": ["dense", "sparse", "dense", "sparse"]}
    assert [read(sparse).is_moe(i) for i in range(4)] == [False, True, False, True]
    routing = {"n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size", "first_k_dense_replace"}
    routing |= {"moe_layer_freq", "n_group", "topk_group", "topk_method"}
    plain = {key: value for key, value in FAMILIES["deepseek_v32"].items() if key not in routing}
    assert read(plain).moe is None
    olmo = {**FAMILIES["olmo3"], "layer_types": ["sliding_attention", "full_attention"] * 4}
    assert read(olmo).windows == (128, None)
    qwen = {**CONFIGS["qwen2"], "use_sliding_window": True, "layer_types": ["full_attention"] * 2 + ["sliding_attention"]}
    assert read(qwen).windows == (None, None, 4096)
    jamba = {**FAMILIES["jamba"], "layers_block_type": ["attention", *["mamba"] * 7]}
    assert [shape.mixer for shape in read(jamba).shapes()][:2] == ["attention", "scan"]
    assert read({**FAMILIES["jamba"], "mamba_dt_rank": 20}).scan.dt_rank == 20
    wide = [{"attention": {"n_heads_in_group": 4}, "ffn": {"intermediate_size": 640}}, *NAS["block_configs"][1:]]
    assert read({**NAS, "block_configs": wide}).layer_ffn == (640, 256, None)
