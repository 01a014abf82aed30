"""Sends between pipeline stages go over the slowest link between any two neighbours."""

import pytest

from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions


def pipeline_rows(model, cluster, degrees, rate, **job):
    options = PricingOptions(overrides=(f"cluster.internode_bytes_per_s={rate}",))
    record = estimate(model, cluster, degrees=degrees, options=options, **job).data
    return record, [row for row in record["communication"] if row["axis"] == "pp"]


@pytest.mark.parametrize(("tp", "pp"), [(4, 8), (2, 16), (8, 4)])
def test_stages_that_share_a_node_still_send_across_nodes(tp, pp):
    """Stages 0 and 1 share a node where tp is 4, stages 1 and 2 do not."""
    job = {"seq_len": 4096, "global_batch": 64}
    fast, rows = pipeline_rows("llama3.1-70b", "dgx-h100:4", Degrees(tp=tp, pp=pp), "400e9", **job)
    slow, _ = pipeline_rows("llama3.1-70b", "dgx-h100:4", Degrees(tp=tp, pp=pp), "10e9", **job)
    assert {row["bottleneck_link"] for row in rows} == {"infiniband"}
    assert slow["time"]["exposed_pp_s"] > 5 * fast["time"]["exposed_pp_s"]


def test_a_pipeline_inside_a_node_does_not_touch_the_network():
    job = {"seq_len": 4096, "global_batch": 16}
    _, rows = pipeline_rows("llama3.1-8b", "dgx-h100:1", Degrees(tp=2, pp=4), "10e9", **job)
    assert {row["bottleneck_link"] for row in rows} == {"nvlink4"}


def test_tied_embeddings_meet_between_the_first_and_the_last_stage():
    """Two nodes, four stages of four ranks: neighbours may share a node, the ends never do."""
    job = {"seq_len": 1024, "global_batch": 64}
    record, rows = pipeline_rows("gpt3-175b", "dgx-a100-80g:2", Degrees(tp=4, pp=4), "200e9", **job)
    tied = [row for row in rows if row["collective"] == "all_reduce"]
    assert len(tied) == 1
    assert tied[0]["bottleneck_link"] == "infiniband"
    assert tied[0]["group_size"] == 2
    assert record["time"]["exposed_pp_s"] >= tied[0]["exposed_s"] > 0
