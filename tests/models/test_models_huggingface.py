"""Configurations of Hugging Face: what is read, what is refused, and that nothing else ever escapes."""

import json

import pytest
from family_configs import FAMILIES
from hypothesis import given, settings
from hypothesis import strategies as st
from model_configs import CONFIGS, outcome

from shardwright.documents import parse_json
from shardwright.errors import ConflictError, DamagedFileError, InvalidValueError, ShardwrightError, UnsupportedError
from shardwright.models.catalog import load_model
from shardwright.models.hf_keys import NEUTRAL, may_change_graph
from shardwright.models.huggingface import read_config, spec_from_config
from shardwright.models.transformer import build_graph

PARAMETERS = {
    "llama": 2_590_464,
    "llama-biases": 2_843_616,
    "llama-tied": 2_629_376,
    "mistral": 2_590_464,
    "mixtral": 7_348_992,
    "qwen2": 2_591_616,
    "qwen3": 2_826_368,
    "qwen2_moe": 3_012_992,
    "qwen3_moe": 2_997_888,
    "deepseek_v2": 3_600_896,
    "deepseek_v3": 3_576_704,
    "deepseek_v3-biases": 3_578_432,
    "gpt_oss": 11_044_842,
    "glm4_moe": 3_359_104,
    "gpt2": 396_000,
}


def read(data, source="tiny/config.json"):
    return spec_from_config(parse_json(json.dumps(data), source))


def count(data):
    return build_graph(read(data)).parameters


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_small_models_count_as_in_transformers(name):
    assert count(CONFIGS[name]) == PARAMETERS[name]


def test_both_spellings_are_read():
    llama, mixtral, v3, oss = (CONFIGS[name] for name in ("llama", "mixtral", "deepseek_v3", "gpt_oss"))
    renamed = {"torch_dtype": "dtype", "rope_theta": "rope_parameters"}
    newer = {renamed.get(key, key): value for key, value in llama.items()}
    assert read({**newer, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}) == read(llama)
    for data, old in ((mixtral, "num_local_experts"), (v3, "n_routed_experts"), (oss, "num_local_experts")):
        for new in ("num_experts", "num_local_experts", "n_routed_experts"):
            assert read({(new if key == old else key): value for key, value in data.items()}) == read(data)
    assert read({(key if key != "num_experts_per_tok" else "experts_per_token"): v for key, v in oss.items()}) == read(oss)


def test_spellings_that_disagree_are_a_conflict():
    with pytest.raises(ConflictError) as caught:
        read({**CONFIGS["mixtral"], "num_experts": 5})
    assert "num_local_experts" in caught.value.message
    assert caught.value.where.endswith("num_local_experts")


def test_families_are_not_mixed_up():
    qwen2 = {**CONFIGS["llama"], "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    assert read(qwen2).qkv_bias
    assert not read(CONFIGS["llama"]).qkv_bias
    with pytest.raises(ConflictError, match="LlamaForCausalLM"):
        read({**qwen2, "architectures": ["LlamaForCausalLM"]})
    assert read({**CONFIGS["deepseek_v3"], "model_type": "kimi_k2"}).mla is not None


def test_the_architecture_alone_is_enough():
    data = {key: value for key, value in CONFIGS["qwen3"].items() if key != "model_type"}
    assert read(data) == read(CONFIGS["qwen3"])
    with pytest.raises(InvalidValueError, match="model_type"):
        read({key: value for key, value in data.items() if key != "architectures"})


@pytest.mark.parametrize("word", ["t5", "rwkv", "deepseek_v4", "llama4", "lama", "LLAMA"])
def test_an_unknown_family_is_refused_by_name_with_those_known(word):
    with pytest.raises(UnsupportedError) as caught:
        read({**CONFIGS["llama"], "model_type": word})
    assert word in caught.value.message
    assert "deepseek_v3" in caught.value.hint
    assert caught.value.where.endswith("model_type")


@pytest.mark.parametrize("word", ["LlamaForSequenceClassification", "LlamaForCausalLMEagle3"])
def test_an_unknown_architecture_of_a_known_family_is_refused(word):
    with pytest.raises(UnsupportedError, match=word):
        read({**CONFIGS["llama"], "architectures": [word]})


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama", "index_topk", 2048),
        ("llama", "num_experts", 8),
        ("llama", "sliding_window", 4096),
        ("llama", "attention_chunk_size", 8192),
        ("llama", "residual_multiplier", 0.2),
        ("llama", "embedding_multiplier", 12),
        ("mistral", "mamba_d_state", 16),
        ("deepseek_v3", "index_n_heads", 64),
        ("deepseek_v3", "hc_mult", 4),
        ("qwen3", "layers_block_type", ["mamba"]),
        ("gpt2", "add_cross_attention", True),
        ("gpt_oss", "n_shared_experts", 1),
    ],
)
def test_a_key_of_the_architecture_that_is_not_understood_is_refused(name, key, value):
    with pytest.raises(UnsupportedError) as caught:
        read({**CONFIGS[name], key: value})
    assert key in caught.value.message
    assert caught.value.where.endswith(key)
    assert read({**CONFIGS[name], key: None}) == read(CONFIGS[name])


def test_other_unknown_keys_are_noted():
    spec = read({**CONFIGS["llama"], "my_remark": "x", "unsloth_version": "1", "rope_scaling": {"rope_type": "llama3"}})
    assert spec.notes == ("keys that were not read: my_remark",)
    assert "quantised" in read(CONFIGS["deepseek_v3"]).notes[0]
    assert not [key for key in NEUTRAL if key.startswith("n_") and may_change_graph(key)]


@pytest.mark.parametrize(
    ("name", "change", "error", "key"),
    [
        ("llama", {"hidden_size": -1}, InvalidValueError, "hidden_size"),
        ("llama", {"hidden_size": "256"}, InvalidValueError, "hidden_size"),
        ("llama", {"hidden_size": 256.0}, InvalidValueError, "hidden_size"),
        ("llama", {"hidden_size": True}, InvalidValueError, "hidden_size"),
        ("llama", {"hidden_size": 10**9}, InvalidValueError, "hidden_size"),
        ("llama", {"hidden_size": None}, InvalidValueError, "hidden_size"),
        ("llama", {"hidden_size": 250}, ConflictError, "num_attention_heads"),
        ("llama", {"num_hidden_layers": 10_001}, InvalidValueError, "num_hidden_layers"),
        ("llama", {"num_key_value_heads": 3}, ConflictError, "num_key_value_heads"),
        ("llama", {"hidden_act": "wavelet"}, UnsupportedError, "hidden_act"),
        ("llama", {"tie_word_embeddings": "no"}, InvalidValueError, "tie_word_embeddings"),
        ("llama", {"architectures": "LlamaForCausalLM"}, InvalidValueError, "architectures"),
        ("llama", {"model_type": 7}, InvalidValueError, "model_type"),
        ("mixtral", {"num_experts_per_tok": 9}, ConflictError, "num_experts_per_tok"),
        ("mixtral", {"num_local_experts": 0}, InvalidValueError, "num_local_experts"),
        ("gpt_oss", {"layer_types": ["full_attention"] * 2}, ConflictError, "layer_types"),
        ("gpt_oss", {"layer_types": ["linear_attention"] * 3}, UnsupportedError, "layer_types"),
        ("gpt_oss", {"layer_types": 3}, InvalidValueError, "layer_types"),
        ("gpt_oss", {"sliding_window": None}, ConflictError, "layer_types"),
        ("deepseek_v3", {"first_k_dense_replace": 9}, InvalidValueError, "first_k_dense_replace"),
        ("deepseek_v3", {"n_group": 3}, ConflictError, "n_group"),
        ("deepseek_v3", {"num_key_value_heads": 2}, ConflictError, "num_key_value_heads"),
        ("deepseek_v3", {"moe_layer_freq": [1, 1, 1, 1]}, InvalidValueError, "moe_layer_freq"),
        ("qwen3_moe", {"mlp_only_layers": [3]}, InvalidValueError, "mlp_only_layers"),
        ("gpt2", {"resid_pdrop": 2}, InvalidValueError, "resid_pdrop"),
        ("gpt2", {"n_positions": None}, InvalidValueError, "n_positions"),
    ],
)
def test_bad_values_are_refused_with_key_and_reason(name, change, error, key):
    with pytest.raises(error) as caught:
        read({**CONFIGS[name], **change})
    assert caught.value.where.startswith("tiny/config.json")
    assert caught.value.where.endswith(key)
    assert caught.value.message


def test_dense_and_expert_layers_stand_where_the_config_says():
    assert build_graph(read(CONFIGS["deepseek_v3"])).pattern == (0, 1, 1, 1)
    assert [read({**CONFIGS["deepseek_v3"], "moe_layer_freq": 2}).is_moe(i) for i in range(4)] == [False, False, True, False]
    assert [read(CONFIGS["qwen3_moe"]).is_moe(i) for i in range(3)] == [False, True, False]
    assert [read(CONFIGS["qwen2_moe"]).is_moe(i) for i in range(3)] == [True, False, True]


def test_windows():
    assert read(CONFIGS["mistral"]).windows == (128,)
    assert read(CONFIGS["gpt_oss"]).windows == (128, None)
    assert read({**CONFIGS["gpt_oss"], "layer_types": None}).windows == (128, None)
    assert read(CONFIGS["qwen2"]).windows == (None,)
    assert read({**CONFIGS["qwen2"], "use_sliding_window": True}).windows == (None, None, 4096)


def test_a_text_tower_is_planned_and_said_so():
    wrapped = {
        "model_type": "some_vl",
        "architectures": ["SomeVl"],
        "text_config": CONFIGS["qwen3_moe"],
        "vision_config": {"depth": 2},
    }
    spec = read(wrapped)
    assert build_graph(spec).digest == build_graph(read(CONFIGS["qwen3_moe"])).digest
    assert "some_vl" in spec.notes[0]
    inner = {key: value for key, value in CONFIGS["qwen3_moe"].items() if key != "tie_word_embeddings"}
    assert read({**wrapped, "tie_word_embeddings": True, "text_config": inner}).tied_embeddings
    with pytest.raises(UnsupportedError) as caught:
        read({**wrapped, "text_config": {**CONFIGS["llama"], "model_type": "llama9_text"}})
    assert caught.value.where.endswith("text_config.model_type")
    with pytest.raises(InvalidValueError) as wrong:
        read({**wrapped, "text_config": {**CONFIGS["llama"], "hidden_size": 0}})
    assert wrong.value.where.endswith("text_config.hidden_size")
    with pytest.raises(InvalidValueError):
        read({**wrapped, "text_config": [1]})


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_text_fields_beside_those_of_the_vision_tower_are_planned_alone(kind):
    """As Qwen publishes them; later transformers nest the text."""
    vision = {"vision_config": {"depth": 32, "hidden_size": 1280}, "vision_start_token_id": 151652, "vision_token_id": 151654}
    beside = {**CONFIGS["qwen2"], "model_type": kind, "architectures": ["SomeVlForConditionalGeneration"], **vision}
    spec = read(beside)
    assert build_graph(spec).digest == build_graph(read(CONFIGS["qwen2"])).digest
    assert f"text tower of {kind} only" in spec.notes[0]
    nested = {"model_type": kind, "text_config": {**CONFIGS["qwen2"], "model_type": f"{kind}_text", "architectures": None}}
    assert build_graph(read(nested)).digest == build_graph(spec).digest
    with pytest.raises(InvalidValueError) as wrong:
        read({**beside, "hidden_size": 0})
    assert wrong.value.where.endswith("hidden_size")


def test_an_unknown_family_is_answered_with_what_can_be_done():
    with pytest.raises(UnsupportedError) as spelled:
        read({**CONFIGS["llama"], "model_type": "LLaMA"})
    assert spelled.value.hint.startswith("did you mean llama? ")
    with pytest.raises(UnsupportedError) as unknown:
        read({**CONFIGS["llama"], "model_type": "t5"})
    assert "model YAML" in unknown.value.hint
    assert "mistral" in unknown.value.hint


def test_the_name_comes_from_the_file():
    assert read(CONFIGS["llama"], "models/My-Llama/config.json").name == "My-Llama"
    assert read(CONFIGS["llama"], "My-Llama.config.json").name == "My-Llama"
    assert read(CONFIGS["llama"], "config.json").name == "llama"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "{",
        "[]",
        "null",
        '{"model_type": "llama", "model_type": "llama"}',
        '{"model_type": "llama", "hidden_size": NaN}',
        '{"model_type": "llama", "hidden_size": 1e999}',
        '{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}",
        '{"a":' * 50_000 + "1" + "}" * 50_000,
        "[" * 100_000,
        '{"model_type": "llama", "layer_types": ' + "[" * 100 + "]" * 100 + "}",
    ],
    ids=lambda text: text[:40],
)
def test_damaged_files(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ShardwrightError) as caught:
        load_model(str(path))
    assert caught.value.where.startswith(str(path))


def test_files_that_are_no_text_or_far_too_large(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00\x80" * 10)
    with pytest.raises(DamagedFileError):
        read_config(path)
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(DamagedFileError, match="MB"):
        read_config(path)


def test_an_unknown_family_is_the_reason_even_where_a_value_is_no_number(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "rwkv", "scale": Infinity}')
    with pytest.raises(UnsupportedError, match="rwkv"):
        read_config(path)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from(
        [2**31, 2**63, -(2**63), 10**30, 10_000, 10_001, 0.5, 1e308, "", "silu", "relu", "256", [], [0], ["a"], {}, {"a": 1}]
    ),
    st.text(max_size=8),
)
PIECES = st.sampled_from(["", "{", "}", "[", "]", '"', ",", ":", "NaN", "-", "e", "\\", "\u0000", "null", "1e999", '{"a":1}'])


ALL = {**CONFIGS, **FAMILIES}


@st.composite
def mutated(draw):
    """A configuration with up to four changes; in half of the cases its text is damaged as well."""
    data = dict(ALL[draw(st.sampled_from(sorted(ALL)))])
    for _ in range(draw(st.integers(1, 4))):
        key = draw(st.sampled_from(sorted(data)))
        action = draw(st.sampled_from(["change", "change", "change", "drop", "rename", "add", "nest"]))
        if action == "change":
            data[key] = draw(VALUES)
        elif action == "drop" and len(data) > 1:
            del data[key]
        elif action == "rename":
            data[key + draw(st.sampled_from(["s", "_", "x"]))] = data.pop(key)
        elif action == "add":
            other = ALL[draw(st.sampled_from(sorted(ALL)))]
            extra = draw(st.sampled_from(sorted(other)))
            data[extra] = other[extra]
        else:
            data = {"model_type": draw(st.sampled_from(["some_vl", "llama"])), "text_config": data}
    text = json.dumps(data)
    if draw(st.booleans()):
        start = draw(st.integers(0, len(text)))
        text = text[:start] + draw(PIECES) + text[start + draw(st.integers(0, 4)) :]
    return text


@settings(max_examples=400)
@given(mutated())
def test_mutated_configurations_give_a_model_or_our_error(text):
    made = outcome(lambda given_: spec_from_config(parse_json(given_, "m/config.json")), text)
    if isinstance(made, ShardwrightError):
        assert made.message
        assert made.where.startswith("m/config.json")
        assert made.exit_code == 2
    else:
        model = build_graph(made)
        assert model.parameters >= model.active_parameters > 0
        assert model.layers == made.layers


def test_a_name_from_a_file_can_be_printed():
    config = parse_json(json.dumps(next(iter(CONFIGS.values()))), "m/\x1b[31mred\u202e.json")
    assert spec_from_config(config).name == "?[31mred?"
