"""Why no plan is left: the set is checked against every subset of what was asked, and every relaxation against a search."""

from dataclasses import replace
from itertools import combinations

import pytest

from shardwright.errors import ConflictError
from shardwright.hardware.catalog import load_cluster
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.search.conflict import FRAMEWORK, GPUS, MARGIN, MEMORY, asked, conflict, smallest
from shardwright.planner.search.near_misses import scaled
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan, plan_problem
from shardwright.planner.search.scan import scan
from shardwright.planner.search.space import declare, enumerate_legal

CASES = {
    "states": ("llama3.1-70b", "dgx-h100:1", 64, {}, {}),
    "fixed": ("llama3.1-8b", "dgx-h100:1", 64, {"tp": "1", "zero": "0", "pp": "1"}, {}),
    "idle": ("llama3.1-8b", "dgx-h100:1", 64, {"tp": "1", "zero": "0", "pp": "1", "recompute": "full", "sp": "0"}, {}),
    "product": ("llama3.1-8b", "dgx-h100:1", 64, {"tp": "4", "pp": "4"}, {}),
    "heads": ("llama3.1-8b", "dgx-h100:1", 64, {"tp": "3", "pp": "2"}, {}),
    "margin": ("llama3.1-8b", "dgx-h100:1", 64, {}, {"memory_margin_gib": 72.0}),
    "margin-fixed": ("llama3.1-8b", "dgx-h100:1", 64, {"tp": "8", "zero": "0"}, {"memory_margin_gib": 70.0}),
    "framework": ("llama3.1-8b", "dgx-h100:1", 64, {"cp": "2", "schedule": "zb-h1", "pp": "2"}, {"framework": "megatron"}),
}


def problem_and_fix(name):
    model, cluster, batch, fix, options = CASES[name]
    return build_problem(model, cluster, seq_len=8192, global_batch=batch, options=PricingOptions(**options)), fix


def a_plan_is_left(problem, fix, held):
    """Whether any candidate of the whole space is left under some of what was asked; written without the code under test."""
    if FRAMEWORK not in held:
        problem = replace(problem, framework="any", target_version=None)
    if MARGIN not in held:
        problem = replace(problem, memory_margin_bytes=0)
    kept = {axis: value for axis, value in fix.items() if axis in held}
    sizes = [problem]
    if GPUS not in held:
        sizes += [replace(problem, cluster=scaled(problem.cluster, factor)) for factor in (2, 4, 8, 16, 32, 64)]
    for each in sizes:
        legal = enumerate_legal(each, declare(each, kept))
        if len(legal) and (MEMORY not in held or scan(each, legal).fits.any()):
            return True
    return False


@pytest.mark.parametrize("name", CASES)
def test_the_set_excludes_all_and_no_part_of_it_does(name):
    problem, fix = problem_and_fix(name)
    request = asked(problem, fix)
    found = smallest(request)
    assert found <= set(request.names)
    assert not a_plan_is_left(problem, fix, found)
    for member in found:
        assert a_plan_is_left(problem, fix, found - {member}), member


@pytest.mark.parametrize("name", ["fixed", "product", "framework"])
def test_every_subset_is_judged_as_by_brute_force(name):
    problem, fix = problem_and_fix(name)
    request = asked(problem, fix)
    for size in range(len(request.names) + 1):
        for held in combinations(request.names, size):
            if GPUS in held or size == len(request.names) - 1:
                assert request.leaves_a_plan(frozenset(held)) == a_plan_is_left(problem, fix, held), held


def test_what_does_not_matter_is_not_named():
    problem, fix = problem_and_fix("idle")
    assert smallest(asked(problem, fix)) == {"tp", "zero", "pp", MEMORY}
    problem, fix = problem_and_fix("heads")
    assert smallest(asked(problem, fix)) == {"tp"}


@pytest.mark.parametrize("name", ["fixed", "margin", "margin-fixed"])
def test_relaxations_are_what_a_search_finds(name):
    problem, fix = problem_and_fix(name)
    found = conflict(problem, fix)
    assert found["relaxations"]
    for relaxation in found["relaxations"]:
        change, feasible = relaxation["change"], relaxation["feasible"]
        assert (relaxation["step_time_s"] is not None) == feasible
        if "nodes" in change:
            continue
        again = searched(problem, fix, change)
        assert bool(again.plans) == feasible
        if feasible:
            assert again.data["search"]["best_step_time_s"] == pytest.approx(relaxation["step_time_s"], rel=1e-9)


def searched(problem, fix, change):
    """The search with a change such as `drop --fix tp=1, for tp=8`, `--memory-margin 3`, `--set cluster.memory_bytes=90e9`."""
    option, _, value = change.removeprefix("drop ").partition(" ")
    search = SearchOptions(effort="scan", remedies=False, fix=fix)
    if option == "--fix":
        axis = value.split("=")[0]
        return plan_problem(problem, search=replace(search, fix={a: v for a, v in fix.items() if a != axis}))
    if option == "--memory-margin":
        return plan_problem(replace(problem, memory_margin_bytes=int(value) * 2**30), search=search)
    assert option == "--set"
    margin = problem.memory_margin_bytes / 2**30
    options = PricingOptions(overrides=(value,), memory_margin_gib=margin)
    return plan("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64, options=options, search=search)


def test_the_result_says_why_and_relaxations_without_hardware_come_first():
    search = SearchOptions(effort="scan", fix={"tp": "1", "zero": "0", "pp": "1"})
    data = plan("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64, search=search).data
    named = [each["constraint"] for each in data["conflict"]["constraints"]]
    assert named == ["--fix tp=1", "--fix zero=0", "--fix pp=1", "79.6 GiB a GPU"]
    assert "stage 0" in data["conflict"]["constraints"][-1]["detail"]
    assert all(each["detail"] is None for each in data["conflict"]["constraints"][:-1])
    changes = [each["change"] for each in data["conflict"]["relaxations"]]
    assert changes[-1].startswith("--set cluster.memory_bytes=")
    times = [each["step_time_s"] for each in data["conflict"]["relaxations"][:-1]]
    assert times == sorted(times)


def test_the_error_names_what_leaves_nothing_and_a_way_out():
    with pytest.raises(ConflictError, match="no plan keeps all rules") as caught:
        plan("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64, search=SearchOptions(fix={"tp": "4", "pp": "4"}))
    assert "--fix tp=4, --fix pp=4 and 8 GPUs together leave none" in caught.value.message
    assert "or drop --fix tp=4" in caught.value.hint or "or drop --fix pp=4" in caught.value.hint


def test_what_is_offloaded_is_named_as_it_is_typed():
    how = {"options": PricingOptions(framework="deepspeed"), "search": SearchOptions(fix={"offload": "activations"})}
    with pytest.raises(ConflictError, match="no plan keeps all rules") as caught:
        plan("gpt2", "dgx-h100:1", seq_len=1024, global_batch=8, **how)
    assert "drop --fix offload=activations, for offload=none: a step of" in caught.value.hint


def test_where_plans_fit_nothing_is_in_conflict():
    data = plan("gpt2", "dgx-h100:1", seq_len=1024, global_batch=8, search=SearchOptions(effort="scan")).data
    assert "conflict" not in data


def test_a_lone_node_without_network_has_no_more_gpus():
    problem, fix = problem_and_fix("states")
    assert GPUS in asked(problem, fix).names
    node = replace(problem.cluster.node, internode_bytes_per_s=None)
    lone = replace(problem.cluster, groups=(replace(problem.cluster.groups[0], node=node),))
    assert smallest(asked(replace(problem, cluster=lone), fix)) == {MEMORY}


def test_mixed_clusters_are_told_of_as_well():
    one, other = build_problem("llama3.1-405b", "dgx-h100:1", seq_len=8192, global_batch=64), "dgx-a100-40g:1"
    groups = (*one.cluster.groups, *load_cluster(other).groups)
    mixed = replace(one.cluster, name="mixed", groups=groups)
    data = plan("llama3.1-405b", mixed, seq_len=8192, global_batch=64, search=SearchOptions(effort="scan")).data
    named = [each["constraint"] for each in data["conflict"]["constraints"]]
    assert named == ["16 GPUs", "79.6 or 40.0 GiB a GPU"]
    assert any(each["feasible"] for each in data["conflict"]["relaxations"])
