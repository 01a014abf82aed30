"""Parameter counts against transformers itself, on the meta device."""

import json
import warnings

import pytest
from model_configs import CONFIGS

from shardwright.documents import parse_json
from shardwright.models.catalog import load_model, model_ids
from shardwright.models.huggingface import spec_from_config
from shardwright.models.transformer import build_graph

pytestmark = pytest.mark.frameworks
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def count(data):
    """(parameters, persistent router buffers, the configuration as transformers writes it)."""
    values = {key: value for key, value in data.items() if key not in {"model_type", "architectures", "quantization_config"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.AutoConfig.for_model(data["model_type"], **values)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
    buffers = sum(b.numel() for name, b in model.named_buffers() if "correction_bias" in name)
    return sum(p.numel() for p in model.parameters()), buffers, json.loads(config.to_json_string(use_diff=False))


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_small_configurations(name):
    parameters, buffers, written = count(CONFIGS[name])
    published = build_graph(spec_from_config(parse_json(json.dumps(CONFIGS[name]), "a/config.json")))
    rewritten = build_graph(spec_from_config(parse_json(json.dumps(written), "a/config.json")))
    assert (published.parameters, published.buffers) == (parameters, buffers)
    assert rewritten.digest == published.digest


FULL_SIZE = {
    "gpt2": {"model_type": "gpt2"},
    "llama2-7b": {"model_type": "llama"},
    "mistral-7b": {"model_type": "mistral"},
    "mixtral-8x7b": {"model_type": "mixtral"},
    "deepseek-v3": {"model_type": "deepseek_v3"},
    "gpt-oss-120b": {"model_type": "gpt_oss"},
    "glm-4.5-air": {"model_type": "glm4_moe", "head_dim": 128, "attention_bias": True},
    "qwen2.5-72b": {
        "model_type": "qwen2",
        "hidden_size": 8192,
        "intermediate_size": 29568,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 152064,
    },
    "qwen3-8b": {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    "deepseek-v2": {
        "model_type": "deepseek_v2",
        "hidden_size": 5120,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 60,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 160,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "n_group": 8,
        "topk_group": 3,
        "vocab_size": 102400,
    },
}


@pytest.mark.parametrize("name", sorted(FULL_SIZE))
def test_presets(name):
    assert name in model_ids()
    model = load_model(name)
    parameters, buffers, _ = count(FULL_SIZE[name])
    assert (model.parameters, model.buffers) == (parameters, buffers)
