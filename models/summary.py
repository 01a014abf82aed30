"""What a model is, for the eye: counts and FLOPs of each kind of layer, and its operators as text.

    flops_per_token           forward and backward at a sequence length, attention counted full and causal
    saved_bytes_per_token     what a layer keeps for the backward pass, 16-bit activations, nothing divided
    operators                 one line each: kind, product m x n x k where there is one, what it reads and writes

`summary` gives plain data; dims stand by their names, as in the model's graph.
"""

from __future__ import annotations

from typing import Any

from shardwright.models.graph import GemmShape, LayerGraph, ModelGraph, Operator

SEQ_LEN = 4096


def summary(graph: ModelGraph, seq_len: int = SEQ_LEN) -> dict[str, Any]:
    """FLOPs, bytes and operators of a model.

    Args:
        graph: the model.
        seq_len: tokens a sequence, on which FLOPs a token depend.
    """
    kinds = zip(graph.kind_counts, graph.layer_kinds, strict=True)
    parts = [(1, graph.embedding), *kinds, (1, graph.head), *([(graph.mtp_layers, graph.mtp)] if graph.mtp else [])]
    return {
        "flops_per_token": {
            "seq_len": seq_len,
            "full": graph.flops_per_token(seq_len),
            "causal": graph.flops_per_token(seq_len, "causal"),
        },
        "parts": {layer.kind: _part(layer, count, seq_len) for count, layer in parts},
    }


def _part(layer: LayerGraph, count: int, seq_len: int) -> dict[str, Any]:
    return {
        "count": count,
        "parameters": layer.parameters,
        "flops_per_token": layer.model_flops(1, seq_len) / seq_len,
        "saved_bytes_per_token": layer.saved_bytes(1, seq_len) / seq_len,
        "operators": {operator.name: _line(operator) for operator in layer.operators},
    }


def _line(operator: Operator) -> str:
    shape = f" {_product(operator.gemm)}" if operator.gemm is not None else ""
    if operator.attention is not None and operator.attention.window is not None:
        shape = f" {'chunk' if operator.attention.chunked else 'window'} {operator.attention.window}"
    if operator.scan is not None:
        shape = f" {operator.scan.method}"
    read, written = (", ".join(spec.name for spec in specs) for specs in (operator.inputs, operator.outputs))
    return f"{operator.kind}{shape}: {read} -> {written}"


def _product(gemm: GemmShape) -> str:
    columns = " + ".join("·".join(part) for part in gemm.n)
    return f"({'·'.join(gemm.m)}) x ({columns}) x ({'·'.join(gemm.k)})"
