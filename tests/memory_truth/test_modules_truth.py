"""Experts over ranks, modules run again, inputs of products below 16 bits, sinks: what torch keeps, byte for byte.

Kernels that plain torch lacks are functions of autograd that keep what the real ones keep (`torch_layers`): routing, moving and
activation of experts as in Megatron-Core, quantised products as in Transformer Engine, attention with sinks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from counted_layers import LATENT, counted

pytestmark = pytest.mark.frameworks
torch = pytest.importorskip("torch")
torch_layers = pytest.importorskip("torch_layers")

LLAMA = {"norm": "rmsnorm", "gated": True, "fused_gate": True}
ROUTED = LLAMA | {"experts": 4}
SHARED = ROUTED | {"shared": 96}
DEEPSEEK = SHARED | {"latent": tuple(LATENT.values())}
STATISTICS = 2 * 2
"""Bytes a token by which a LayerNorm of 16-bit values keeps less on a CPU than on a GPU."""

WIDE = {"hidden": 128, "ffn": 256, "heads": 8, "dim": 16}
"""Widths that all recipes divide into their blocks."""

MODULES = [
    (LLAMA, ("layernorm",)),
    (LLAMA, ("layernorm", "core_attn")),
    (LLAMA | {"fused": False}, ("layernorm", "core_attn")),
    (LLAMA, ("layernorm", "mlp")),
    ({"norm": "layernorm"}, ("layernorm",)),
    (ROUTED, ("layernorm",)),
    (ROUTED, ("moe_act",)),
    (ROUTED, ("moe",)),
    (ROUTED, ("layernorm", "moe")),
    (SHARED, ("moe_act",)),
    (SHARED, ("shared_experts",)),
    (SHARED, ("shared_experts", "moe_act", "layernorm")),
    (SHARED, ("moe",)),
    (DEEPSEEK, ("mla_up_proj",)),
    (DEEPSEEK, ("core_attn",)),
    (DEEPSEEK, ("mla_up_proj", "layernorm", "moe_act")),
]


def same(layer, precision, mode="none", modules=()):
    kept = torch_layers.kept_bytes(replace(layer, again=frozenset(modules)))
    again = 2 if "layernorm" in modules else 0
    if layer.norm == "layernorm":
        kept += STATISTICS * (2 - again) * layer.batch * layer.seq
    assert kept == counted(layer, precision, mode, modules)


def layer_of(kind, **further):
    return torch_layers.Layer(**(kind | {"dtype": torch.bfloat16} | further))


def name_of(value):
    return "+".join(value) if isinstance(value, tuple) else str(len(value)) if isinstance(value, dict) else None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", [LLAMA, ROUTED, SHARED, DEEPSEEK], ids=["dense", "routed", "shared", "latent"])
def test_fused_kernels_keep_what_is_counted(kind, precision):
    same(layer_of(kind, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[precision]), precision)


@pytest.mark.parametrize("ep", [1, 2, 4])
@pytest.mark.parametrize("topk", [1, 2, 4])
@pytest.mark.parametrize("kind", [ROUTED, SHARED], ids=["routed", "shared"])
def test_a_rank_of_experts_keeps_its_rows(kind, topk, ep):
    same(layer_of(kind, topk=topk, ep=ep), "bf16")
    same(layer_of(kind, topk=topk, ep=ep, cp=2), "bf16")


@pytest.mark.parametrize(("kind", "modules"), MODULES, ids=name_of)
def test_modules_run_again(kind, modules):
    same(layer_of(kind), "bf16", "selective", modules)


@pytest.mark.parametrize("precision", ["fp8-tensorwise", "fp8-blockwise", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("kind", [LLAMA, ROUTED, SHARED, {"norm": "layernorm"}], ids=["dense", "routed", "shared", "plain"])
def test_products_keep_their_inputs_quantised(kind, precision):
    same(layer_of(kind | WIDE, recipe=precision), precision)


@pytest.mark.parametrize("kind", [LLAMA, SHARED], ids=["dense", "shared"])
def test_products_that_cast_again_keep_16_bits(kind):
    layer = layer_of(kind | WIDE, recipe="as read")
    same(layer, "fp8-tensorwise")
    assert counted(layer, "fp8-tensorwise") == counted(replace(layer, recipe=None), "bf16")


@pytest.mark.parametrize("fused_gate", [True, False])
def test_sinks_keep_nothing_more(fused_gate):
    layer = layer_of(LLAMA | {"fused_gate": fused_gate, "sinks": True})
    same(layer, "bf16")
    assert counted(layer, "bf16") == counted(replace(layer, sinks=False), "bf16")
