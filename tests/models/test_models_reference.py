"""Published configurations: the readers agree with the presets, and refuse what is not modelled."""

import pytest

from shardwright.errors import UnsupportedError
from shardwright.models.catalog import load_model

SAME = {
    "DeepSeek-V3": "deepseek-v3",
    "DeepSeek-V3.2": "deepseek-v3.2",
    "Llama-4-Scout-17B-16E-Instruct": "llama4-scout-17b-16e",
    "Nemotron-H-56B-Base-8K": "nemotron-h-56b",
    "Qwen3-0.6B": "qwen3-0.6b",
    "Kimi-K2-Instruct": "kimi-k2",
    "Meta-Llama-3.1-8B": "llama3.1-8b",
    "Meta-Llama-3.1-70B": "llama3.1-70b",
    "Meta-Llama-3.1-405B": "llama3.1-405b",
    "Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen3-235B-A22B": "qwen3-235b-a22b",
    "gpt-oss-120b": "gpt-oss-120b",
}
COUNTS = {
    "Qwen3-0.6B": (596_049_920, 596_049_920),
    "Mixtral-8x22B-v0.1": (140_620_634_112, 39_152_031_744),
    "Llama-4-Scout-17B-16E-Instruct": (107_769_861_120, 17_172_894_720),
    "DeepSeek-V3.2": (671_877_929_216, 38_403_807_488),
    "Nemotron-H-56B-Base-8K": (56_324_350_464, 56_324_350_464),
    "MiMo-7B-Base": (7_622_619_136, 7_622_619_136),
    "Kimi-K2.5": (1_026_408_209_408, 32_861_477_888),
    "Qwen3-VL-235B-A22B-Instruct": (235_093_634_560, 22_190_763_520),
}
REFUSED = {"DeepSeek-V4-Flash": "deepseek_v4"}


@pytest.fixture
def config(reference_data):
    folder = reference_data / "cases" / "inputs" / "hf_config"
    return lambda name: str(folder / f"{name}.config.json")


@pytest.mark.parametrize("name", SAME)
def test_the_published_configuration_is_the_preset(config, name):
    assert load_model(config(name)).digest == load_model(SAME[name]).digest


@pytest.mark.parametrize("name", COUNTS)
def test_counts(config, name):
    model = load_model(config(name))
    assert (model.parameters, model.active_parameters) == COUNTS[name]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_modelled_is_refused_by_name(config, name):
    with pytest.raises(UnsupportedError, match=REFUSED[name]):
        load_model(config(name))


def test_every_configuration_is_known_to_this_test(reference_data):
    names = {path.name.removesuffix(".config.json") for path in (reference_data / "cases" / "inputs" / "hf_config").iterdir()}
    assert names <= {*SAME, *COUNTS, *REFUSED}
