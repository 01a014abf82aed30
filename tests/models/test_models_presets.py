"""Presets against the configurations they were made of, and against counts published with the weights."""

import json

import pytest
from published_configs import PUBLISHED

from shardwright.documents import parse_json
from shardwright.models.catalog import load_model, model_ids
from shardwright.models.huggingface import spec_from_config
from shardwright.models.transformer import build_graph

# Counts that the hub shows beside the weights, or that transformers 5.24 counts on the meta device.
COUNTS = {
    "bloom-176b": 176_247_271_424,
    "bloom-7b1": 7_069_016_064,
    "command-r-35b": 34_980_831_232,
    "command-r-plus-104b": 103_810_674_688,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3.2": 671_877_929_216,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "falcon-mamba-7b": 7_272_665_088,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-1b": 999_885_952,
    "gemma3-4b": 3_880_263_168,
    "gemma3-12b": 11_766_034_176,
    "gemma3-27b": 27_009_346_304,
    "glm-4-9b": 9_400_279_040,
    "glm-4.5": 352_797_814_784,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "granite3-8b": 8_170_848_256,
    "jamba-v0.1": 51_570_323_328,
    "jamba-1.5-large": 398_555_145_696,
    "llama2-13b": 13_015_864_320,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "llama4-scout-17b-16e": 107_769_861_120,
    "mamba-2.8b": 2_768_345_600,
    "mamba-codestral-7b": 7_285_403_648,
    "minimax-text-01": 456_089_655_296,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-large-123b": 122_610_069_504,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mpt-7b": 6_649_286_656,
    "nemotron-3-nano-30b-a3b": 31_577_937_344,
    "nemotron-h-56b": 56_324_350_464,
    "olmo2-7b": 7_298_617_344,
    "olmoe-1b-7b": 6_919_161_856,
    "opt-125m": 125_239_296,
    "opt-6.7b": 6_658_473_984,
    "opt-175b": 174_604_468_224,
    "phi-1": 1_418_270_720,
    "phi-2": 2_779_683_840,
    "phi3-mini": 3_821_079_552,
    "phi3-medium": 13_960_238_080,
    "phi3.5-moe": 41_873_153_344,
    "phi4": 14_659_507_200,
    "pythia-12b": 11_846_072_320,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-32b": 32_763_876_352,
    "qwen3-0.6b": 596_049_920,
    "qwen3-coder-480b-a35b": 480_154_875_392,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "seed-oss-36b": 36_151_104_512,
    "smollm2-135m": 134_515_008,
    "smollm3-3b": 3_075_098_624,
    "starcoder2-15b": 15_957_889_024,
    "tinyllama-1.1b": 1_100_048_384,
    "yi-34b": 34_388_917_248,
}
ACTIVE = {
    "llama4-scout-17b-16e": 17.17e9,  # its model card says 17e9
    "llama4-maverick-17b-128e": 17.19e9,
    "jamba-1.5-large": 94.1e9,  # arXiv 2408.12570 says 94e9
    "minimax-text-01": 48.4e9,  # arXiv 2501.08313 says 45.9e9, without embedding and head (2.46e9)
    "qwen3-next-80b-a3b": 3.875e9,
    "phi3.5-moe": 6.64e9,  # its model card says 6.6e9
    "olmoe-1b-7b": 1.282e9,  # arXiv 2409.02060 says 1.3e9
    "glm-4.5": 33.6e9,
}


def of_config(name):
    return build_graph(spec_from_config(parse_json(json.dumps(PUBLISHED[name]), f"{name}/config.json")))


def test_there_are_presets_for_what_people_train():
    assert len(model_ids()) >= 100
    assert set(PUBLISHED) <= set(model_ids())
    assert set(COUNTS) <= set(model_ids())


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_the_reader_makes_the_preset_of_the_published_configuration(name):
    preset, read = load_model(name).spec.to_dict(), of_config(name).spec.to_dict()
    assert {key: (preset[key], read[key]) for key in preset if preset[key] != read[key]}.keys() <= {"name", "source", "notes"}


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_published_counts(name):
    assert load_model(name).parameters == COUNTS[name]


@pytest.mark.parametrize("name", sorted(ACTIVE))
def test_published_active_counts(name):
    assert load_model(name).active_parameters == pytest.approx(ACTIVE[name], rel=2e-3)


@pytest.mark.parametrize("name", model_ids())
def test_the_source_is_a_page_of_its_own(name):
    assert load_model(name).spec.source.count("/") >= 4
