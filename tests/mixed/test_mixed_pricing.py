"""Prices on clusters that mix kinds of node: equal machines change nothing, each stage has its own machine and memory."""

import itertools
import json

import mixed_clusters as clusters
import numpy as np
import pytest

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.hardware.areas import areas_of
from shardwright.hardware.catalog import load_node
from shardwright.hardware.groups import group_shape, some_within
from shardwright.planner.estimation import estimate, estimate_plan
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.search.limits import least_step_s
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan
from shardwright.planner.simulation import step_timeline

NUMBERS = ("parallel", "predicted", "time", "memory", "communication", "account")
PLANS = (
    Degrees(tp=2, pp=4, micro_batch=1),
    Degrees(tp=8, pp=2, micro_batch=2, recompute="full"),
    Degrees(tp=4, pp=2, vpp=2, micro_batch=1, zero=1),
    Degrees(tp=4, pp=1, micro_batch=1, zero=3),
    Degrees(tp=2, cp=2, pp=2, micro_batch=1, schedule="gpipe"),
)


def price_of(cluster, degrees, model="llama3.1-8b", options=None):
    return estimate(model, cluster, seq_len=4096, global_batch=64, degrees=degrees, options=options).data


def numbers(record):
    stages = [{key: value for key, value in stage.items() if key != "node_type"} for stage in record["stages"]]
    return {name: record[name] for name in NUMBERS} | {"stages": stages}


@pytest.mark.parametrize("degrees", PLANS, ids=str)
@pytest.mark.parametrize("preset", ["dgx-h100", "dgx-a100-40g"])
def test_equal_machines_of_two_names_price_as_one(preset, degrees):
    alike = price_of(clusters.cluster_of((preset, 2)), degrees)
    mixed = price_of(clusters.cluster_of((preset, 1), (clusters.twin(preset), 1)), degrees)
    assert numbers(mixed) == numbers(alike)


def test_routed_models_too():
    degrees = Degrees(tp=2, pp=2, ep=4, etp=1, micro_batch=1)
    alike = price_of(clusters.cluster_of(("dgx-h100", 4)), degrees, "qwen3-30b-a3b")
    mixed = price_of(clusters.cluster_of(("dgx-h100", 2), (clusters.twin("dgx-h100"), 2)), degrees, "qwen3-30b-a3b")
    assert numbers(mixed) == numbers(alike)


def test_full_sharding_under_a_pipeline_too():
    degrees, options = Degrees(pp=2, micro_batch=1, zero=3), PricingOptions(framework="pytorch")
    alike = price_of(clusters.cluster_of(("dgx-h100", 2)), degrees, options=options)
    mixed = price_of(clusters.cluster_of(("dgx-h100", 1), (clusters.twin("dgx-h100"), 1)), degrees, options=options)
    assert numbers(mixed) == numbers(alike)


def test_groups_of_one_node_plan_as_one_group():
    job, search = {"seq_len": 4096, "global_batch": 16}, SearchOptions(effort="scan", fix={"tp": "2"})
    one, two = (
        plan("llama3.1-8b", clusters.cluster_of(*groups), search=search, **job).data
        for groups in ([("dgx-h100", 2)], [("dgx-h100", 1), ("dgx-h100", 1)])
    )
    assert one["plans"] == two["plans"]
    assert one["search"] == two["search"]
    assert one["assumptions"] == two["assumptions"]


@pytest.mark.parametrize("degrees", PLANS, ids=str)
def test_a_faster_second_kind_never_slows(degrees):
    node = load_node("dgx-a100-80g")
    seconds = [
        price_of(clusters.cluster_of((node, 1), (clusters.faster(node, factor), 1)), degrees)["predicted"]["step_time_s"]
        for factor in (0.5, 0.9, 1.1, 2.0)
    ]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > seconds[2]


@pytest.mark.parametrize("order", [("dgx-h100", "dgx-a100-80g"), ("dgx-a100-80g", "dgx-h100")])
def test_each_stage_runs_on_its_own_kind(order):
    degrees = Degrees(tp=8, pp=2, micro_batch=1)
    mixed = price_of(clusters.cluster_of((order[0], 1), (order[1], 1)), degrees)
    for index, preset in enumerate(order):
        alone = price_of(clusters.cluster_of((preset, 2)), degrees)
        assert mixed["stages"][index]["node_type"] == preset
        assert mixed["stages"][index]["memory"]["capacity_bytes"] == load_node(preset).device.memory_bytes
        own, same = mixed["stages"][index]["time"], alone["stages"][index]["time"]
        assert own["forward_s"] == pytest.approx(same["forward_s"], rel=0.05)  # sends take the slower network
        assert own["forward_s"] >= same["forward_s"] * (1 - 1e-12)


@pytest.mark.parametrize("degrees", [Degrees(tp=8, pp=1, zero=1), Degrees(tp=2, pp=1, zero=3)], ids=str)
def test_without_a_pipeline_all_wait_for_the_slowest(degrees):
    slow = price_of(clusters.cluster_of(("dgx-a100-40g", 2)), degrees)
    mixed = price_of(clusters.cluster_of(("dgx-h100", 1), ("dgx-a100-40g", 1)), degrees)
    assert mixed["time"]["compute_s"] == pytest.approx(slow["time"]["compute_s"], rel=1e-3)
    assert mixed["predicted"]["step_time_s"] >= slow["predicted"]["step_time_s"] * (1 - 1e-9)
    assert mixed["memory"]["capacity_bytes"] == slow["memory"]["capacity_bytes"]
    assert mixed["stages"][0]["node_type"] == "dgx-h100 + dgx-a100-40g"


def test_memory_binds_by_kind():
    node = load_node("dgx-a100-80g")
    degrees = Degrees(tp=2, pp=2, micro_batch=4, zero=1)
    needs = [stage["memory"]["total_bytes"] for stage in price_of(clusters.cluster_of((node, 2)), degrees)["stages"]]
    assert needs[0] > needs[1]
    middle = clusters.larger(node, (needs[0] + needs[1]) // 2)
    assert price_of(clusters.cluster_of((node, 1), (middle, 1)), degrees)["feasible"]
    other = price_of(clusters.cluster_of((middle, 1), (node, 1)), degrees)
    assert not other["feasible"]
    assert other["memory"]["peak_stage"] == 0
    assert other["memory"]["capacity_bytes"] == middle.device.memory_bytes
    assert [v["rule"] for v in other["violations"]] == ["memory"]


def test_the_stage_that_lacks_memory_is_told_though_another_needs_more():
    node = load_node("dgx-a100-80g")
    degrees = Degrees(tp=2, pp=2, micro_batch=4, zero=1)
    needs = [stage["memory"]["total_bytes"] for stage in price_of(clusters.cluster_of((node, 2)), degrees)["stages"]]
    small = clusters.larger(node, needs[1] - 2**20)
    short = price_of(clusters.cluster_of((node, 1), (small, 1)), degrees)
    assert (short["feasible"], short["memory"]["peak_stage"]) == (False, 1)
    assert short["memory"]["peak_bytes"] == needs[1]


def test_parts_sum_to_the_step():
    for degrees in PLANS:
        record = price_of(clusters.cluster_of(("dgx-h100", 1), ("dgx-a100-40g", 1)), degrees)
        assert sum(record["time"].values()) == pytest.approx(record["predicted"]["step_time_s"], rel=1e-12)


def test_a_result_is_priced_again_to_the_same_numbers(tmp_path):
    cluster = clusters.cluster_of(("dgx-h100", 1), ("dgx-a100-80g", 1))
    found = plan("llama3.1-8b", cluster, seq_len=4096, global_batch=16, search=SearchOptions(effort="scan", fix={"tp": "4"}))
    path = tmp_path / "result.json"
    path.write_text(json.dumps(found.to_dict()))
    for rank in (1, 4, 10):
        again = json.loads(json.dumps(estimate_plan(path, rank=rank).data))
        ranked = json.loads(json.dumps(found.plans[rank - 1]))
        for name in (*NUMBERS, "stages"):
            assert again[name] == ranked[name], name


def test_fits_of_all_devices_are_in_the_file():
    problem = build_problem(
        "llama3.1-8b", clusters.cluster_of(("dgx-h100", 1), ("dgx-a100-80g", 1)), seq_len=4096, global_batch=16
    )
    inline = problem.to_inputs()["calibration"]["inline"]
    assert [fit["id"] for fit in (inline["kernels"], *inline["further_kernels"])] == ["h100", "a100"]


def test_every_kind_must_know_the_precision():
    cluster = clusters.cluster_of(("dgx-h100", 1), ("dgx-a100-80g", 1))
    with pytest.raises(InvalidValueError, match="a100"):
        price_of(cluster, Degrees(tp=8), options=PricingOptions(precision="fp8-tensorwise"))


def test_the_least_step_counts_every_gpu_with_its_own_rate():
    h100, a100, both = (
        build_problem("llama3.1-8b", clusters.cluster_of(*groups), seq_len=4096, global_batch=16)
        for groups in ([("dgx-h100", 1)], [("dgx-a100-80g", 1)], [("dgx-h100", 1), ("dgx-a100-80g", 1)])
    )
    assert 1 / least_step_s(both) == pytest.approx(1 / least_step_s(h100) + 1 / least_step_s(a100))


# --- where stages stand ------------------------------------------------------------------------------


def test_stages_stand_on_the_kinds_of_their_ranks():
    areas = areas_of(clusters.cluster_of(("dgx-h100", 1), ("dgx-a100-40g", 3)))
    assert areas.members == ((0,), (1,), (0, 1))
    assert areas.of_stages(4).tolist() == [0, 1, 1, 1]
    assert areas.of_stages(2).tolist() == [2, 1]
    assert areas.of_stages(1).tolist() == [2]
    assert areas.of_stages(8).tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


def test_kinds_are_found_wherever_they_stand_in_the_file():
    areas = areas_of(clusters.cluster_of(("dgx-h100", 1), ("dgx-a100-40g", 1), ("dgx-h100", 2)))
    assert areas.kind_of_group == (0, 1, 0)
    assert areas.of_stages(4).tolist() == [0, 1, 0, 0]
    assert [areas.gpus_of(kind) for kind in (0, 1)] == [24, 8]


@pytest.mark.parametrize(("size", "stride"), [(2, 1), (4, 2), (2, 8), (4, 4), (8, 2), (16, 1)])
def test_groups_of_an_area_are_those_that_lie_on_it(size, stride):
    cluster = clusters.cluster_of(("dgx-h100", 1), ("hgx-h100-4", 4))
    areas = areas_of(cluster)
    for area in range(len(areas)):
        marked = areas.ranks(area)
        blocks = np.arange(cluster.gpus // (size * stride) * size * stride).reshape(-1, size, stride)
        groups = blocks.transpose(0, 2, 1).reshape(-1, size)
        inside = [group for group in groups if marked[group].all()]
        assert some_within(marked, size, stride) == bool(inside)
        if inside:
            shape, node = group_shape(cluster, size, stride, within=marked), np.repeat(range(5), (8, 4, 4, 4, 4))
            assert shape.nodes <= max(len(set(node[group])) for group in inside)
            assert shape.islands >= max(len(set(node[group])) for group in inside)


def test_a_calibration_is_refused_on_mixed_nodes(tmp_path):
    from shardwright.planner.corrections import corrections_from

    assert corrections_from(None, clusters.cluster_of(("dgx-h100", 1), ("dgx-a100-40g", 1))) is None
    with pytest.raises(ConflictError, match="one kind of node"):
        corrections_from(tmp_path / "any.json", clusters.cluster_of(("dgx-h100", 1), ("dgx-a100-40g", 1)))


def test_three_kinds_price_and_keep_their_order():
    order = ("dgx-h200", "dgx-h100", "dgx-a100-80g")
    degrees = Degrees(tp=8, pp=3, micro_batch=1, layers_per_stage=(12, 11, 9))
    steps = {}
    for nodes in itertools.permutations(order):
        record = estimate(
            "llama3.1-8b", clusters.cluster_of(*((n, 1) for n in nodes)), seq_len=4096, global_batch=64, degrees=degrees
        ).data
        assert [stage["node_type"] for stage in record["stages"]] == list(nodes)
        steps[nodes] = record["predicted"]["step_time_s"]
    assert min(steps.values()) == min(
        steps[("dgx-h200", "dgx-h100", "dgx-a100-80g")], steps[("dgx-h100", "dgx-h200", order[2])]
    )


@pytest.mark.parametrize("degrees", [plan for plan in PLANS if plan.pp > 1], ids=str)
def test_the_printed_step_is_that_of_the_simulated_pipeline(degrees):
    cluster = clusters.cluster_of(("dgx-h100", 1), ("dgx-a100-40g", 1))
    problem = build_problem("llama3.1-8b", cluster, seq_len=4096, global_batch=64)
    ends = step_timeline(problem, degrees).step_s
    assert ends == pytest.approx(price_of(cluster, degrees)["predicted"]["step_time_s"], rel=1e-9)
