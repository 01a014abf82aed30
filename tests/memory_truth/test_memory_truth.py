"""Saved bytes of operators against what torch keeps of the same layers: equal, or the difference is declared here.

Declared differences (`apart`), all of plain torch on the CPU:

    statistics   those of a LayerNorm of 16-bit values are kept in 16 bits (CUDA: fp32)
    window       the fused kernel is told a window by a mask, kept in the type of the activations (FlashAttention: none)
    places       those of chosen experts are four lists of 64-bit numbers (one of 32 bits where permuting is fused)
    weights      rows of experts are weighted after the last product: it keeps what it read and wrote, and the weights in the
                 type of the activations (Megatron-Core weights within the activation and keeps the weights alone, in fp32)
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from counted_layers import LATENT, counted, spec_of, unit_bytes

from shardwright.models.dtypes import PRECISIONS
from shardwright.models.transformer import build_graph

pytestmark = pytest.mark.frameworks
torch = pytest.importorskip("torch")
torch_layers = pytest.importorskip("torch_layers")

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
INT64, INT32, FP32 = 8, 4, 4
KINDS = {
    "classic": {},
    "biases": {"bias": True},
    "llama": {"norm": "rmsnorm", "gated": True},
    "normalised-heads": {"norm": "rmsnorm", "gated": True, "qk_norm": True},
    "unfused": {"fused": False},
    "grouped-heads": {"norm": "rmsnorm", "gated": True, "kv_heads": 4},
    "window": {"norm": "rmsnorm", "gated": True, "window": 8},
    "latent": {"norm": "rmsnorm", "gated": True, "latent": tuple(LATENT.values())},
    "experts": {"norm": "rmsnorm", "gated": True, "experts": 4},
}


def layer_of(kind, precision, **further):
    return torch_layers.Layer(dtype=DTYPES[precision], **{**KINDS[kind], **further})


def both(layer, precision, mode="none", modules=()):
    """(kept by torch, counted and what is declared apart)."""
    kept = torch_layers.kept_bytes(replace(layer, again=frozenset(modules)))
    return kept, counted(layer, precision, mode, modules) + apart(layer, precision, mode)


def apart(layer, precision, mode):
    """Declared differences, bytes; see the head of this file."""
    tokens, found = layer.batch * layer.seq // layer.cp, 0
    if layer.norm == "layernorm" and precision == "bf16":
        found -= 2 * 2 * 2 * tokens // layer.tp
    if layer.window is not None:
        found += layer.seq**2 * PRECISIONS[precision].activation_bytes
    if layer.experts and mode == "none":
        width = PRECISIONS[precision].activation_bytes
        found += tokens * layer.topk * (2 * layer.hidden * width + 4 * INT64 - INT32 + width - FP32)
    return found


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_keeps_what_is_counted(kind, precision):
    kept, said = both(layer_of(kind, precision), precision)
    assert kept == said


@pytest.mark.parametrize(("tp", "cp"), [(2, 1), (4, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"unfused", "window", "experts"}))
def test_a_rank_keeps_its_share(kind, tp, cp):
    kept, said = both(layer_of(kind, "bf16", tp=tp, cp=cp), "bf16")
    assert kept == said


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize(
    ("kind", "modules"),
    [
        ("llama", ("mlp_act",)),
        ("llama", ("mlp",)),
        ("llama", ("attn",)),
        ("llama", ("attn", "mlp")),
        ("llama", ("core_attn",)),
        ("normalised-heads", ("attn",)),
        ("unfused", ("core_attn",)),
        ("classic", ("mlp",)),
        ("latent", ("mla_up_proj", "core_attn")),
        ("latent", ("mla_up_proj", "core_attn", "mlp")),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_recomputed_modules_keep_what_is_counted(kind, modules, precision):
    layer = layer_of(kind, precision)
    kept, said = both(layer, precision, "selective", modules)
    assert kept == said


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_full_recomputing_keeps_the_input(kind, precision):
    layer = layer_of(kind, precision, again=frozenset({"layer"}))
    assert torch_layers.kept_bytes(layer) == counted(layer, precision, "full")


@pytest.mark.parametrize("precision", DTYPES)
def test_the_head_keeps_its_softmax(precision):
    layer, vocab = layer_of("llama", precision), 128
    unit = build_graph(spec_of(layer)).head
    (softmax,) = (t for o in unit.operators for t in o.saved if t.name == "softmax")
    tokens = layer.batch * layer.seq
    said = unit_bytes(unit, layer, precision) + softmax.bytes_per_element * vocab * tokens
    assert torch_layers.head_bytes(layer, vocab) == said
