"""Parameter and FLOP counts against transformers itself, on the meta device.

FLOPs are compared for dense models with attention: routing asks for values that the meta device does not have, and scans run
there as elementwise fallbacks, which the counter does not count (`models/operators.py` states what is counted for them).
"""

import json
import warnings

import pytest
from family_configs import FAMILIES
from model_configs import CONFIGS
from published_configs import PUBLISHED

from shardwright.documents import parse_json
from shardwright.models.catalog import load_model
from shardwright.models.huggingface import spec_from_config
from shardwright.models.transformer import build_graph

pytestmark = pytest.mark.frameworks
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {**CONFIGS, **FAMILIES}
OUTSIDE = {"model_type", "architectures", "quantization_config"}
SEQ = 64


def config_of(data):
    values = {key: value for key, value in data.items() if key not in OUTSIDE}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.AutoConfig.for_model(data["model_type"], **values)


def model_of(config, **further):
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        return transformers.AutoModelForCausalLM.from_config(config, **further)


def count(data):
    """(parameters, persistent router buffers, the configuration as transformers writes it)."""
    config = config_of(data)
    model = model_of(config)
    buffers = sum(b.numel() for name, b in model.named_buffers() if "correction_bias" in name)
    return sum(p.numel() for p in model.parameters()), buffers, json.loads(config.to_json_string(use_diff=False))


def graph_of(data):
    return build_graph(spec_from_config(parse_json(json.dumps(data), "a/config.json")))


@pytest.mark.parametrize("name", sorted(SMALL))
def test_small_configurations(name):
    parameters, buffers, written = count(SMALL[name])
    published, rewritten = graph_of(SMALL[name]), graph_of(written)
    assert (published.parameters, published.buffers) == (parameters, buffers)
    assert rewritten.digest == published.digest


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_presets(name):
    model = load_model(name)
    parameters, buffers, _ = count(PUBLISHED[name])
    assert (model.parameters, model.buffers) == (parameters, buffers)


# A whole mask keeps the models from asking for values that tensors on the meta device do not have; these make their own.
OWN_MASK = {"bloom", "opt", "mpt"}
DENSE = [
    *(name for name in SMALL if graph_of(SMALL[name]).spec.moe is None and graph_of(SMALL[name]).spec.scan is None),
    *("llama3.2-1b", "qwen3-0.6b", "gpt2-medium", "phi-2", "gemma2-2b", "pythia-6.9b", "olmo2-7b"),
]


@pytest.mark.parametrize("name", [name for name in DENSE if name != "falcon-alibi"])  # its mask cannot be made on meta
def test_flops_of_dense_models_forward_and_backward(name):
    """Equal, attention counted full; sequences are shorter than every window."""
    from torch.utils.flop_counter import FlopCounterMode

    graph = load_model(name) if name in PUBLISHED and name not in SMALL else graph_of(SMALL[name])
    model = model_of(config_of({**PUBLISHED, **SMALL}[name]), attn_implementation="eager").train()
    mask = None if name in OWN_MASK else torch.zeros((1, 1, SEQ, SEQ), device="meta")
    forward, backward = FlopCounterMode(display=False), FlopCounterMode(display=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with forward:
            ids = torch.zeros((1, SEQ), dtype=torch.long, device="meta")
            made = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        with backward:
            made.sum().backward()
    counted = forward.get_total_flops() + backward.get_total_flops()
    assert forward.get_total_flops() == graph.flops_forward(1, SEQ, mtp=False)
    assert counted == graph.flops_per_token(SEQ, mtp=False) * SEQ
