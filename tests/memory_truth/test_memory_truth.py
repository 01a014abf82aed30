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
from types import SimpleNamespace

import numpy as np
import pytest

from shardwright.models.dtypes import PRECISIONS
from shardwright.models.spec import ModelSpec
from shardwright.models.transformer import build_graph
from shardwright.planner.axes.sharding import LocalSizes, OperatorKeys
from shardwright.planner.cost.activations import saved_bytes
from shardwright.planner.cost.compute import SCORE_WIDTH
from shardwright.planner.plans import RECOMPUTE_MODES
from shardwright.planner.stacks import load_stack

pytestmark = pytest.mark.frameworks
torch = pytest.importorskip("torch")
torch_layers = pytest.importorskip("torch_layers")

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
INT64, INT32, FP32 = 8, 4, 4
LATENT = {"q_rank": 24, "kv_rank": 16, "nope_dim": 8, "rope_dim": 4, "v_dim": 12}
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


def spec_of(layer):
    latent = {"mla": LATENT, "head_dim": LATENT["nope_dim"] + LATENT["rope_dim"]} if layer.latent else {}
    moe = {"experts": layer.experts, "topk": layer.topk, "expert_ffn": layer.ffn} if layer.experts else None
    sizes = {
        "layers": 1,
        "hidden": layer.hidden,
        "heads": layer.heads,
        "kv_heads": layer.kv_heads,
        "ffn": layer.ffn,
        "vocab": 128,
    }
    kinds = {
        "norm": layer.norm,
        "activation": "swiglu" if layer.gated else "gelu",
        "qk_norm": "head" if layer.qk_norm else "none",
        **({} if layer.latent else {"positions": "none"}),
    }
    return ModelSpec.from_dict({"name": "m", **sizes, **kinds, **latent, **({"moe": moe} if moe else {})})


def machine_of(layer, precision, modules=()):
    stack = load_stack("pytorch-fsdp2")
    eager = {"fused_gate": False, "fused_norms": False, "keeps_gathered_inputs": True}
    score = {"fused_attention": layer.fused, "score_saved_bytes": SCORE_WIDTH}
    return SimpleNamespace(precision=PRECISIONS[precision], stack=replace(stack, selective_modules=modules, **eager, **score))


def counted(layer, precision, mode="none", modules=()):
    unit = build_graph(spec_of(layer)).layer_kinds[0]
    degrees = {
        "tp": layer.tp,
        "sp": int(layer.tp > 1),
        "cp": layer.cp,
        "ep": 1,
        "etp": 1,
        "micro_batch": layer.batch,
        "cp_comm": 0,
        "loss_chunks": 1,
        "moe_dispatcher": 1,
    }
    keys = OperatorKeys(**{name: np.array([value]) for name, value in degrees.items()}, seq_len=layer.seq)
    table = saved_bytes(unit, LocalSizes(unit.dims, keys), keys, machine_of(layer, precision, modules))
    return float(table[0, RECOMPUTE_MODES.index(mode)])


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
    unit, machine = build_graph(spec_of(layer)).head, machine_of(layer, precision)
    keys = OperatorKeys(
        **{n: np.array([1]) for n in ("tp", "cp", "ep", "etp")},
        sp=np.array([0]),
        cp_comm=np.array([0]),
        loss_chunks=np.array([1]),
        moe_dispatcher=np.array([1]),
        micro_batch=np.array([2]),
        seq_len=layer.seq,
    )
    beside = float(saved_bytes(unit, LocalSizes(unit.dims, keys), keys, machine)[0, 0])
    (softmax,) = (t for o in unit.operators for t in o.saved if t.name == "softmax")
    tokens = layer.batch * layer.seq
    assert torch_layers.head_bytes(layer, vocab) == beside + softmax.bytes_per_element * vocab * tokens
