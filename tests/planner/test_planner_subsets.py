"""Objectives and fewer nodes: the ranking of all sizes against enumerating them, the account, the front, the saved plan."""

from functools import cache

import numpy as np
import pytest
from planner_problems import CASES, problem_of, scan_of

from shardwright.errors import InvalidValueError
from shardwright.planner.estimation import estimate_plan
from shardwright.planner.problem import OBJECTIVES, PricingOptions, build_problem
from shardwright.planner.search.limits import holds_states, least_step_s
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.pareto import FINEST, beats, front, merged
from shardwright.planner.search.ranking import launchable
from shardwright.planner.search.run import plan_problem
from shardwright.planner.search.scan import scan
from shardwright.planner.search.space import declare_all, enumerate_legal
from shardwright.planner.search.subsets import SUBSET_BUDGET, subset_nodes
from shardwright.planner.spending import Spending

JOB = {"seq_len": 4096, "global_batch": 32}
ABLE = ("cost", "energy", "goodput")


@cache
def problem(objective="throughput", cluster="dgx-h100:4", **options):
    return build_problem("llama3.1-8b", cluster, **JOB, options=PricingOptions(objective=objective, **options))


@cache
def planned(objective, cluster="dgx-h100:4", **search):
    chosen = SearchOptions(allow_subset=True, tie_percent=0.0, effort="scan", **search)
    return plan_problem(problem(objective, cluster), search=chosen).data


@cache
def least_by_enumeration(objective, cluster="dgx-h100:4"):
    """Every legal candidate of every size of the declared space, priced: the least value and its GPUs."""
    whole = problem(objective, cluster)
    parts = [whole.on_first(nodes * whole.cluster.gpus_per_node) for nodes in subset_nodes(whole.cluster.nodes)]
    space = declare_all(parts, {}, SUBSET_BUDGET)
    found = []
    for part in parts:
        made = scan(part, enumerate_legal(part, space))
        value = Spending.of(part).weight(objective) * made.step_s[made.fits]
        found += [(float(value.min()), part.cluster.gpus)] if len(value) else []
    return min(found)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_best_is_that_of_enumerating_all_sizes(objective):
    value, gpus = least_by_enumeration(objective)
    found = planned(objective)
    assert found["search"]["best_objective"] == pytest.approx(
        value, rel=2e-3
    )  # exact pipelines are a little longer than chains
    assert found["plans"][0]["parallel"]["world_size"] == gpus
    assert found["plans"][0]["objective_value"] == found["search"]["best_objective"]


def test_cost_and_throughput_pick_different_plans():
    cheap, fast = (planned(objective)["plans"][0] for objective in ("cost", "throughput"))
    assert cheap["parallel"]["world_size"] < fast["parallel"]["world_size"]
    assert cheap["predicted"]["usd_per_1m_tokens"] < fast["predicted"]["usd_per_1m_tokens"]
    assert cheap["predicted"]["step_time_s"] > fast["predicted"]["step_time_s"]


def test_a_small_job_uses_fewer_nodes_even_for_speed():
    job = build_problem("gpt2", "dgx-h100:6", seq_len=1024, global_batch=8)
    found = plan_problem(job, search=SearchOptions(allow_subset=True, effort="scan")).data
    assert found["plans"][0]["parallel"]["world_size"] < job.cluster.gpus
    whole = plan_problem(job, search=SearchOptions(effort="scan")).data
    assert found["plans"][0]["predicted"]["step_time_s"] <= whole["plans"][0]["predicted"]["step_time_s"]


@pytest.mark.parametrize("objective", ABLE)
def test_the_account_adds_up(objective):
    search = planned(objective)["search"]
    assert search["candidates"] == np.prod([len(values) for values in search["space"].values()], dtype=object)
    assert search["candidates"] == sum(search["rejected"].values()) + search["pruned_by_bound"] + search["priced"]
    assert search["objective"] == objective
    assert search["gap"] == pytest.approx(1 - search["lower_bound_step_time_s"] / search["best_step_time_s"], abs=1e-12)
    assert search["lower_bound_objective"] <= search["best_objective"]
    assert [row["nodes"] for row in search["subsets"]] == list(subset_nodes(4))
    for row in search["subsets"]:
        assert row["best_objective"] is None or row["least_objective"] <= row["best_objective"]


@pytest.mark.parametrize("objective", ABLE)
def test_plans_are_ranked_by_the_objective(objective):
    plans = planned(objective)["plans"]
    values = [plan["objective_value"] for plan in plans]
    assert values == sorted(values)  # without ties
    assert [plan["rank"] for plan in plans] == list(range(1, len(plans) + 1))
    assert len({plan["id"] for plan in plans}) == len(plans)
    units = {"cost": "usd_per_1m_tokens", "energy": "joules_per_token"}
    for plan in plans:
        predicted = plan["predicted"]
        other = predicted["step_time_s"] / predicted["goodput_fraction"]
        assert plan["objective_value"] == pytest.approx(predicted[units[objective]] if objective in units else other)


def test_sizes_that_cannot_be_among_the_best_are_pruned_and_counted():
    search = planned("throughput", "dgx-h100:8", top=1)["search"]
    assert any(row["status"] == "pruned" for row in search["subsets"])
    assert search["pruned_by_bound"] > 0
    assert planned("throughput", "dgx-h100:8")["plans"][0]["id"] == planned("throughput", "dgx-h100:8", top=1)["plans"][0]["id"]


def test_a_saved_plan_on_fewer_nodes_is_priced_the_same():
    data = planned("cost")
    assert len({plan["parallel"]["world_size"] for plan in data["plans"]}) > 1
    for plan in data["plans"]:
        again = estimate_plan(data, rank=plan["rank"]).data
        assert again["predicted"] == plan["predicted"]
        assert again["parallel"] == plan["parallel"]
        assert again["stages"] == plan["stages"]
        assert estimate_plan(dict(again)).data["predicted"] == plan["predicted"]


def test_a_higher_price_never_lowers_cost_and_keeps_the_plan():
    dear = problem("cost", prices=("dgx-h100=6",))
    search = SearchOptions(tie_percent=0.0, effort="scan")
    usual, twice = planned("cost")["plans"], plan_problem(dear, search=search).data["plans"]
    assert [plan["id"] for plan in usual] == [plan["id"] for plan in twice]
    for one, two in zip(usual, twice, strict=True):
        assert two["predicted"]["usd_per_1m_tokens"] == pytest.approx(2 * one["predicted"]["usd_per_1m_tokens"])


def test_cost_by_hand():
    predicted = planned("cost")["plans"][0]["predicted"]
    world = planned("cost")["plans"][0]["parallel"]["world_size"]
    seconds = 1e6 / (4096 * 32) * predicted["step_time_s"]
    assert predicted["usd_per_1m_tokens"] == pytest.approx(seconds / 3600 * 3.0 * world)  # dgx-h100: 3 USD a GPU-hour
    assert predicted["joules_per_token"] == pytest.approx(seconds / 1e6 * 10_200 * world / 8 * 0.76 * 1.58)
    assert predicted["checkpoint_bytes_per_rank"] == pytest.approx(8_030_261_248 * 14 / world)
    assert predicted["goodput_low_fraction"] < predicted["goodput_fraction"] < predicted["goodput_high_fraction"]


def test_cost_without_a_price_and_energy_without_power_are_refused():
    with pytest.raises(InvalidValueError, match="no price is known for dgx-b200"):
        plan_problem(problem("cost", "dgx-b200:1"))
    with pytest.raises(InvalidValueError, match="no power is known"):
        plan_problem(problem("energy", "dgx-a100-80g:1", overrides=("cluster.power_w=null", "cluster.tdp_w=null")))


def test_where_nothing_fits_at_any_size_the_nearest_are_of_the_largest():
    huge = build_problem("llama3.1-405b", "dgx-h100:2", **JOB, options=PricingOptions(objective="cost"))
    data = plan_problem(huge, search=SearchOptions(effort="scan")).data
    assert data["plans"] == []
    assert data["near_misses"][0]["parallel"]["world_size"] == 16
    assert data["search"]["best_step_time_s"] is None


@pytest.mark.parametrize("name", ["dense-8", "moe-16", "dense-8-odd", "mtp-64", "dense-7"])
def test_nothing_is_faster_than_the_least_step(name):
    made = scan_of(name)
    assert least_step_s(problem_of(name)) <= made.step_s.min()


@pytest.mark.parametrize("precision", ["fp8-tensorwise", "fp8-blockwise", "fp16", "fp32"])
def test_nothing_is_faster_than_the_least_step_at_any_precision(precision):
    some = build_problem("llama3.1-8b", "dgx-h100:1", **JOB, options=PricingOptions(precision=precision))
    assert least_step_s(some) <= scan(some, enumerate_legal(some, declare_all([some], {}))).step_s.min()


def test_what_cannot_hold_the_states_fits_nowhere():
    some = build_problem("llama3.1-70b", "dgx-h100:1", **JOB)
    assert not holds_states(some)
    assert not scan(some, enumerate_legal(some, declare_all([some], {}))).fits.any()
    assert all(holds_states(problem_of(name)) for name in CASES if scan_of(name).fits.any())


def test_limits_fall_as_the_cluster_grows():
    parts = [problem().on_first(8 * nodes) for nodes in (1, 2, 3, 4)]
    assert sorted((least_step_s(part) for part in parts), reverse=True) == [least_step_s(part) for part in parts]


@pytest.mark.parametrize("name", ["dense-8", "moe-16"])
def test_the_front_covers_every_plan_and_no_point_is_beaten(name):
    some, made = problem_of(name), scan_of(name)
    rows = front(some, made)
    others = np.flatnonzero(made.fits)
    others = others[launchable(some, made, others)]
    steps, peaks = made.step_s, made.peak_bytes
    for row in rows:
        assert not ((steps[others] < steps[row]) & (peaks[others] <= peaks[row])).any()
    finest = FINEST * some.device.memory_bytes
    for row in others:
        assert ((steps[rows] <= steps[row]) & (peaks[rows] < peaks[row] + finest)).any()


def test_fronts_of_several_sizes_are_joined():
    data = planned("cost", pareto=True)
    shown = data["pareto"]
    assert len({point["parallel"]["world_size"] for point in shown}) > 1
    assert not any(beats(one, other) for one in shown for other in shown)
    assert [p["step_time_s"] for p in shown] == sorted(p["step_time_s"] for p in shown)
    assert merged([shown[1::2], shown[::2]]) == shown


def test_a_plan_on_fewer_nodes_is_explained_among_those_of_its_size():
    from shardwright.planner.explanation.explain import explain

    data = planned("cost")
    few = next(plan for plan in data["plans"] if plan["parallel"]["world_size"] == 16)
    told = explain(dict(data), rank=few["rank"]).data
    same = [plan for plan in data["plans"] if plan["parallel"]["world_size"] == 16]
    assert told["predicted"]["step_time_s"] == pytest.approx(few["predicted"]["step_time_s"])
    assert all(change["parallel"]["world_size"] == 16 for change in told["changes"] if "parallel" in change)
    assert told["winner"] is None or (told["winner"]["rank"], told["winner"]["among"]) == (same[0]["rank"], len(same))


def test_a_range_of_batches_is_compared_by_the_objective():
    from shardwright.planner.batches import parse_batch
    from shardwright.planner.search.batches import merit, plan_range

    ask = {"seq_len": 1024, "options": PricingOptions(objective="cost"), "search": SearchOptions(effort="scan")}
    found = plan_range("gpt2", "dgx-h100:2", batches=parse_batch("16..64"), **ask)
    each = [plan_range("gpt2", "dgx-h100:2", batches=parse_batch(f"{b}..{b}"), **ask) for b in (16, 32, 64)]
    assert merit(found) >= max(merit(one) for one in each)
    assert merit(found) == -min(plan["predicted"]["usd_per_1m_tokens"] for plan in found.plans)


def test_a_site_that_never_runs_is_refused_and_sizes_that_never_do_left_out():
    rate = [f"operation.interruptions_per_gpu_hour{end}=0.9" for end in ("", "_low", "_high")]
    with pytest.raises(InvalidValueError, match="no time to train"):
        plan_problem(problem("goodput", overrides=(*rate, "operation.restart_s=1000000", "operation.restart_s_high=1000000")))
    some = problem("goodput", overrides=(*rate, "operation.restart_s=100000", "operation.restart_s_high=100000"))
    data = plan_problem(some, search=SearchOptions(effort="scan")).data
    assert [row["status"] for row in data["search"]["subsets"]][-1] == "never runs"
    assert data["plans"][0]["parallel"]["world_size"] == 8
