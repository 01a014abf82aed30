"""Every kind of layer is priced by the rules for operators: plans of hybrid, sparse, parallel and searched models."""

import json

import pytest
from test_models_families import NAS

from shardwright.documents import parse_json
from shardwright.hardware.catalog import load_cluster
from shardwright.models.catalog import load_model
from shardwright.models.huggingface import spec_from_config
from shardwright.models.spec import ModelSpec
from shardwright.models.transformer import build_graph
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees

CLUSTER = load_cluster("dgx-h100:8")
HYBRIDS = ["mamba-codestral-7b", "falcon-mamba-7b", "nemotron-h-8b", "jamba-v0.1", "qwen3-next-80b-a3b"]
OTHERS = ["llama4-scout-17b-16e", "falcon-40b", "gemma2-9b", "olmo2-7b", "minimax-m2", "bloom-7b1"]


def priced(model, seq_len=4096, global_batch=256, **degrees):
    graph = load_model(model) if isinstance(model, str) else model
    return estimate(graph, CLUSTER, seq_len=seq_len, global_batch=global_batch, degrees=Degrees(**degrees)).data


@pytest.mark.parametrize("name", [*HYBRIDS, *OTHERS])
@pytest.mark.parametrize("degrees", [{}, {"tp": 2}, {"tp": 2, "cp": 2, "pp": 2}, {"pp": 2, "recompute": "full"}], ids=str)
def test_plans_are_priced_and_add_up(name, degrees):
    made = priced(name, **degrees)
    assert all(part >= 0 for part in made["time"].values())
    assert sum(made["time"].values()) == pytest.approx(made["predicted"]["step_time_s"], rel=1e-9)
    assert 0.004 < made["predicted"]["mfu"] < 0.75
    assert sum(last - first + 1 for stage in made["stages"] for first, last in stage["layers"]) == load_model(name).layers


@pytest.mark.parametrize("name", HYBRIDS)
def test_recomputing_and_splitting_free_memory_of_scans_too(name):
    def activations(**degrees):
        return max(stage["memory"]["activations_bytes"] for stage in priced(name, **degrees)["stages"])

    assert activations(recompute="full") < 0.5 * activations()
    assert activations(tp=2) < 0.8 * activations()


def test_scans_exchange_sequence_for_heads_under_context_parallelism():
    rows = [row for row in priced("mamba-codestral-7b", cp=2)["communication"] if row["axis"] == "cp"]
    assert [row["collective"] for row in rows] == ["all_to_all"]
    assert rows[0]["time_s"] > 0
    mixed = {row["collective"] for row in priced("nemotron-h-8b", cp=2)["communication"] if row["axis"] == "cp"}
    assert mixed == {"all_gather", "all_to_all"}


def test_a_scan_scales_with_the_tokens_and_attention_faster():
    def compute(name, seq_len):
        return priced(name, seq_len=seq_len, global_batch=2**22 // seq_len)["time"]["compute_s"]

    assert compute("mamba-codestral-7b", 32768) == pytest.approx(compute("mamba-codestral-7b", 4096), rel=0.03)
    assert compute("mistral-7b-v0.3", 32768) > 1.3 * compute("mistral-7b-v0.3", 4096)


def test_chunks_cost_less_than_sliding_windows_and_those_less_than_all():
    sizes = {"name": "m", "layers": 8, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 32000}

    def compute(**changes):
        return priced(build_graph(ModelSpec.from_dict({**sizes, **changes})), seq_len=32768, global_batch=64)["time"][
            "compute_s"
        ]

    assert compute(windows=[4096], chunked=True) < compute(windows=[4096]) < compute()


def test_sparse_attention_is_cheaper_on_long_sequences():
    long = {"seq_len": 131072, "global_batch": 64, "cp": 8}
    assert priced("deepseek-v3.2", **long)["time"]["compute_s"] < priced("deepseek-v3", **long)["time"]["compute_s"]


def test_searched_models_with_layers_that_skip_attention():
    graph = build_graph(spec_from_config(parse_json(json.dumps(NAS), "nas/config.json")))
    made = priced(graph, seq_len=512, tp=2)
    assert made["predicted"]["step_time_s"] > 0
