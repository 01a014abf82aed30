"""What is shown of a model: every part, its counts, and its operators as text."""

import json

import pytest

from shardwright.models.catalog import load_model, model_ids
from shardwright.models.summary import summary


@pytest.mark.parametrize("name", model_ids())
def test_parts_add_up_to_the_model(name):
    graph = load_model(name)
    made = summary(graph, 2048)
    assert json.loads(json.dumps(made)) == made
    parts = made["parts"]
    flops = sum(part["count"] * part["flops_per_token"] for part in parts.values())
    assert flops == pytest.approx(made["flops_per_token"]["full"], rel=1e-12)
    layers = {kind: part for kind, part in parts.items() if kind not in {"embedding", "head", "mtp"}}
    assert sum(part["count"] for part in layers.values()) == graph.layers
    assert all(part["saved_bytes_per_token"] > 0 for part in parts.values())
    assert made["flops_per_token"]["causal"] <= made["flops_per_token"]["full"]


def test_operators_are_written_out():
    lines = summary(load_model("llama3.1-8b"))["parts"]["dense"]["operators"]
    assert lines["down"] == "gemm (batch·seq) x (hidden) x (ffn): act_out -> mlp_out"
    assert lines["attention"] == "attention: query, key, value -> attn_out"
    scout = summary(load_model("llama4-scout-17b-16e"))["parts"]["moe-chunk-8192"]["operators"]
    assert scout["attention"].startswith("attention chunk 8192: ")
    mamba = summary(load_model("mamba-codestral-7b"))["parts"]["mamba2"]["operators"]
    assert mamba["scan"].startswith("scan state-space: ")
