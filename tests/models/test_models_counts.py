"""Parameter counts of the presets against published and counted figures."""

import pytest

from shardwright.models.catalog import load_model, model_ids

# transformers 5.24, trainable parameters, without MTP layers and buffers
PARAMETERS = {
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_404_352,
    "glm-4.5-air": 106_852_245_504,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "kimi-k2": 1_026_408_209_408,
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
}
ACTIVE = {
    "mixtral-8x7b": 12.88e9,
    "mixtral-8x22b": 39.16e9,
    "qwen3-30b-a3b": 3.353e9,
    "qwen3-235b-a22b": 22.19e9,
    "deepseek-v3": 37.55e9,  # arXiv 2412.19437 says 37e9
    "kimi-k2": 32.86e9,  # its model card says 32e9
    "gpt-oss-120b": 5.71e9,  # arXiv 2508.10925 says 5.13e9, without the embedding (0.58e9)
}
MEGATRON = {
    "megatron-22b": (48, 6144),
    "megatron-175b": (96, 12288),
    "megatron-530b": (105, 20480),
    "megatron-1t": (128, 25600),
}
BUFFERS = {
    "deepseek-v3": 58 * 256,
    "deepseek-v3.2": 58 * 256,
    "glm-4.5": 89 * 160,
    "glm-4.5-air": 45 * 128,
    "kimi-k2": 60 * 384,
    "minimax-m2": 62 * 256,
    "nemotron-3-nano-30b-a3b": 23 * 128,
}


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_parameters_are_exact(name):
    assert load_model(name).parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", sorted(MEGATRON))
def test_megatron_models_follow_the_papers_formula(name):
    layers, hidden = MEGATRON[name]
    blocks = layers * (12 * hidden**2 + 13 * hidden)
    ends = (51200 + 2048) * hidden + 2 * hidden  # word and position embedding, final norm
    assert load_model(name).parameters == blocks + ends


def test_gpt3_has_175_billion():
    assert load_model("gpt3-175b").parameters == 174_604_259_328


@pytest.mark.parametrize("name", sorted(ACTIVE))
def test_active_parameters(name):
    assert load_model(name).active_parameters == pytest.approx(ACTIVE[name], rel=1e-3)


@pytest.mark.parametrize("name", model_ids())
def test_active_equals_total_only_for_dense_models(name):
    model = load_model(name)
    if model.spec.moe is None:
        assert model.active_parameters == model.parameters
    else:
        assert model.active_parameters < model.parameters
        inactive = model.spec.moe.experts - model.spec.moe.topk
        assert model.parameters - model.active_parameters == model.expert_parameters // model.spec.moe.experts * inactive


@pytest.mark.parametrize("name", model_ids())
def test_buffers_are_the_correction_biases(name):
    assert load_model(name).buffers == BUFFERS.get(name, 0)


def test_multi_token_prediction_is_counted_apart():
    v3 = load_model("deepseek-v3")
    assert v3.mtp_parameters == pytest.approx(11.6e9, rel=2e-3)
    last = v3.layer_kinds[v3.pattern[-1]]
    hidden = v3.spec.hidden
    assert v3.mtp_parameters == last.parameters + 2 * hidden * hidden + 3 * hidden  # joins two streams; three norms
    assert load_model("kimi-k2").mtp_parameters == 0


@pytest.mark.parametrize("name", model_ids())
def test_layers_are_folded_but_all_there(name):
    model = load_model(name)
    assert model.layers == model.spec.layers == sum(model.kind_counts)
    assert len({kind.kind for kind in model.layer_kinds}) == len(model.layer_kinds) <= 3
    assert min(model.kind_counts) >= 1


def test_patterns():
    assert load_model("deepseek-v3").pattern == (0, 0, 0, *(1,) * 58)
    oss = load_model("gpt-oss-20b")
    assert [oss.layer_kinds[i].operator("attention").attention.window for i in oss.pattern[:4]] == [128, None, 128, None]


def test_a_tied_head_counts_once_but_is_held_twice():
    model = load_model("gpt2")
    table = 50257 * 768
    assert model.tied_embeddings
    assert model.embedding.parameters + model.head.parameters == 2 * table + 1024 * 768 + 2 * 768
    blocks = sum(count * kind.parameters for count, kind in zip(model.kind_counts, model.layer_kinds, strict=True))
    assert model.parameters == blocks + table + 1024 * 768 + 2 * 768
