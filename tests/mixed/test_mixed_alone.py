"""What a mixed cluster is worth: each kind is planned alone, and the report says how that compares."""

import json

import mixed_clusters as clusters
import pytest

from shardwright.errors import ShardwrightError
from shardwright.hardware.catalog import load_cluster, load_node
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.report.memory_table import memory_parts
from shardwright.planner.report.mixed_lines import _order, alone_in_words, stages_in_words
from shardwright.planner.report.plan_table import plan_parts
from shardwright.planner.report.style import Style, to_text
from shardwright.planner.schema import read_result
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan

JOB = {"seq_len": 4096, "global_batch": 16}
FIXED = SearchOptions(fix={"tp": "8"}, effort="scan", top=2)


@pytest.fixture(scope="module")
def found():
    return plan("llama3.1-8b", clusters.cluster_of(("dgx-h100", 1), ("dgx-a100-80g", 1)), search=FIXED, **JOB)


def test_every_kind_is_what_a_search_of_it_alone_finds(found):
    best = found.plans[0]["predicted"]
    rows = found.data["search"]["kinds_alone"]
    assert [(row["node"], row["gpus"]) for row in rows] == [("dgx-h100", 8), ("dgx-a100-80g", 8)]
    for row in rows:
        alone = plan("llama3.1-8b", f"{row['node']}:1", search=FIXED, **JOB)
        assert row["best_step_time_s"] == alone.data["search"]["best_step_time_s"]
        least = min(p["predicted"]["step_time_s"] for p in found.plans)
        assert row["rate_fraction"] == pytest.approx(least / row["best_step_time_s"])
        assert row["cost_fraction"] == pytest.approx(row["usd_per_1m_tokens"] / best["usd_per_1m_tokens"], rel=0.02)


def test_the_report_says_stages_and_kinds(found):
    text = " ".join(to_text(plan_parts(found.data), Style()).split())
    assert "rank 1: stage" in text
    assert "the 8 GPUs of dgx-h100 alone reach" in text
    assert "of this rate at" in text


def test_a_result_with_kinds_is_read_back(found, tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps(found.to_dict()))
    assert read_result(path)["search"]["kinds_alone"] == found.data["search"]["kinds_alone"]


def test_uniform_clusters_say_nothing_of_kinds():
    assert "kinds_alone" not in plan("llama3.1-8b", "dgx-h100:2", search=FIXED, **JOB).data["search"]


def test_a_kind_too_small_says_so():
    cluster = clusters.cluster_of(("dgx-h100", 2), (clusters.larger(clusters.twin("dgx-a100-40g"), 2**33), 1))
    row = plan("llama3.1-8b", cluster, search=SearchOptions(effort="scan", top=1), **JOB).data["search"]["kinds_alone"][1]
    assert (row["status"], row["rate_fraction"]) == ("nothing fits", None)


def test_slow_gpus_that_only_slow_are_told():
    row = {"node": "fast", "gpus": 8, "status": "searched", "rate_fraction": 1.25, "cost_fraction": None}
    assert alone_in_words(row, 16) == "the 8 GPUs of fast alone reach 125 % of this rate; the others only slow them down"
    assert alone_in_words(row, 8) == "the 8 GPUs of fast alone reach 125 % of this rate"


def test_equal_stages_are_told_together():
    stages = [{"index": n, "node_type": "a" if n < 2 else "b", "layers": [[0, 3]] if n < 2 else [None]} for n in range(3)]
    assert stages_in_words({"stages": stages}) == "stages 0-1 on a, 4 layers each; stage 2 on b, 0 layers"


@pytest.mark.parametrize(
    ("group", "place"),
    [
        ("- {node: dgx-h1000, count: 1}", "groups"),
        ("- {node: dgx-h100, count: 0}", "count"),
        ("- {node: {base: dgx-h100, device: null}, count: 1}", "device"),
        ("- {node: dgx-a100-80g, count: 1, gpus_per_node: 9}", "gpus_per_node"),
        ("- {nodes: dgx-h100, count: 1}", "nodes"),
    ],
)
def test_a_bad_second_group_is_named(tmp_path, group, place):
    path = tmp_path / "bad.yaml"
    path.write_text(f"name: bad\ngroups:\n  - {{node: dgx-h100, count: 1}}\n  {group}\n")
    with pytest.raises(ShardwrightError) as told:
        load_cluster(str(path))
    assert place in f"{told.value.where} {told.value}"


def test_the_other_order_is_what_a_search_of_the_reversed_file_finds(found):
    other = found.data["search"]["reversed_order"]
    cluster = clusters.cluster_of(("dgx-a100-80g", 1), ("dgx-h100", 1))
    turned = plan("llama3.1-8b", cluster, search=FIXED, **JOB).data["search"]
    assert other["nodes"] == ["dgx-a100-80g", "dgx-h100"]
    assert other["best_step_time_s"] == turned["best_step_time_s"]
    assert turned["reversed_order"]["best_step_time_s"] == found.data["search"]["best_step_time_s"]


def test_a_better_order_is_told():
    search = {"reversed_order": {"nodes": ["b", "a"], "best_step_time_s": 1.0, "rate_fraction": 1.05}}
    assert len(_order(search)) == 1
    assert _order({"reversed_order": {**search["reversed_order"], "rate_fraction": 1.001}}) == []
    assert _order({}) == []


def test_an_estimate_says_where_stages_run():
    for degrees, told in (
        (Degrees(tp=8, pp=2), "stage 0 on dgx-h100, 16 layers; stage 1 on dgx-a100-80g, 16 layers"),
        (Degrees(tp=8), "stage 0 on dgx-h100 + dgx-a100-80g, 32 layers"),
    ):
        record = estimate("llama3.1-8b", clusters.cluster_of(("dgx-h100", 1), ("dgx-a100-80g", 1)), degrees=degrees, **JOB)
        assert told in " ".join(to_text(memory_parts(record.data), Style()).split())
    record = estimate("llama3.1-8b", "dgx-h100:2", degrees=Degrees(tp=8, pp=2), **JOB)
    assert "stage 0 on" not in to_text(memory_parts(record.data), Style())


def test_where_nothing_fits_misses_and_their_reason_are_told():
    small = [clusters.larger(load_node(preset), 6 * 2**30) for preset in ("dgx-h100", "dgx-a100-40g")]
    cluster = clusters.cluster_of(*((node, 1) for node in small))
    data = plan("llama3.1-8b", cluster, search=SearchOptions(fix={"tp": "8", "pp": "2"}, effort="scan"), **JOB).data
    assert data["plans"] == []
    assert data["near_misses"]
    assert "6.0 GiB a GPU" in [each["constraint"] for each in data["conflict"]["constraints"]]
