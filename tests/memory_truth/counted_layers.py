"""The layers of `torch_layers` as the product builds and counts them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from shardwright.models.dtypes import PRECISIONS
from shardwright.models.spec import ModelSpec
from shardwright.models.transformer import build_graph
from shardwright.planner.axes.sharding import LocalSizes, OperatorKeys
from shardwright.planner.cost.activations import saved_bytes
from shardwright.planner.cost.compute import SCORE_WIDTH
from shardwright.planner.plans import RECOMPUTE_MODES
from shardwright.planner.stacks import load_stack

LATENT = {"q_rank": 24, "kv_rank": 16, "nope_dim": 8, "rope_dim": 4, "v_dim": 12}


def spec_of(layer):
    """The specification of a model of one such layer."""
    latent = {"mla": LATENT, "head_dim": LATENT["nope_dim"] + LATENT["rope_dim"]} if layer.latent else {}
    moe = (
        {"experts": layer.experts, "topk": layer.topk, "expert_ffn": layer.ffn, "shared_ffn": layer.shared}
        if layer.experts
        else None
    )
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
        "sinks": layer.sinks,
        **({} if layer.latent else {"positions": "none"}),
    }
    return ModelSpec.from_dict({"name": "m", **sizes, **kinds, **latent, **({"moe": moe} if moe else {})})


def machine_of(layer, precision, modules=()):
    """Plain torch: nothing fused but what the layer fuses."""
    stack = load_stack("pytorch-fsdp2")
    eager = {"fused_gate": layer.fused_gate, "fused_norms": False, "keeps_gathered_inputs": True}
    kept = {"keeps_quantised_inputs": layer.recipe != "as read"}
    score = {"fused_attention": layer.fused, "score_saved_bytes": SCORE_WIDTH}
    return SimpleNamespace(
        precision=PRECISIONS[precision], stack=replace(stack, selective_modules=modules, **eager, **kept, **score)
    )


def keys_of(layer):
    """The degrees of a layer."""
    degrees = {
        "tp": layer.tp,
        "sp": int(layer.tp > 1),
        "cp": layer.cp,
        "ep": layer.ep,
        "etp": 1,
        "micro_batch": layer.batch,
        "cp_comm": 0,
        "loss_chunks": 1,
        "moe_dispatcher": 1,
    }
    return OperatorKeys(**{name: np.array([value]) for name, value in degrees.items()}, seq_len=layer.seq)


def counted(layer, precision, mode="none", modules=()):
    """Bytes that one layer keeps in a mode."""
    return unit_bytes(build_graph(spec_of(layer)).layer_kinds[0], layer, precision, mode, modules)


def unit_bytes(unit, layer, precision, mode="none", modules=()):
    """Bytes that a layer, or the head, keeps in a mode."""
    keys = keys_of(layer)
    table = saved_bytes(unit, LocalSizes(unit.dims, keys), keys, machine_of(layer, precision, modules))
    return float(table[0, RECOMPUTE_MODES.index(mode)])
