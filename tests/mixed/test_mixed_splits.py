"""Layers in proportion to speed: the best division for its costs, and near the best that brute force over splits finds."""

import itertools
from dataclasses import replace

import mixed_clusters as clusters
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import ConflictError
from shardwright.hardware.catalog import load_node
from shardwright.planner.cost.stages import SPEED_KINDS, SPLIT_KINDS, Split
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.search.finalists import least_s, with_exact
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan, plan_problem
from shardwright.planner.search.scan import scan
from shardwright.planner.search.space import declare, enumerate_legal
from shardwright.planner.search.speed_splits import divided

JOB = {"seq_len": 4096, "global_batch": 16}
SLOW, FAST = "dgx-a100-80g", "dgx-h100"


def problem_of(*groups, model="llama3.1-8b", framework="any", version=None):
    options = PricingOptions(framework=framework, target_version=version)
    return build_problem(model, clusters.cluster_of(*groups), options=options, **JOB)


def all_splits(layers, stages):
    """Layers of each stage, at least one each."""
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, layers)))


seconds = st.floats(0.1, 10.0)


@given(
    st.integers(2, 4).flatmap(lambda n: st.tuples(st.lists(seconds, min_size=n, max_size=n), st.integers(n, 12))),
    seconds,
    seconds,
)
def test_the_longest_chunk_is_as_short_as_any_division_makes_it(drawn, embedding, head):
    each, layers = drawn
    area, layer = np.arange(len(each)), np.array([each])
    beside = [np.full_like(layer, embedding), np.full_like(layer, head)]
    held = divided(layers, area, Split(chunks=(1,) * len(each), pp=len(each), vpp=1), (layer, *beside))[0]

    def longest(chunks):
        ends = np.zeros(len(each))
        ends[0] += embedding
        ends[-1] += head
        return float((np.array(chunks) * each + ends).max())

    assert held.sum() == layers
    assert held.min() >= 1
    assert longest(held) <= min(map(longest, all_splits(layers, len(each)))) * (1 + 1e-12)


@pytest.mark.parametrize(
    "groups",
    [((FAST, 1), (SLOW, 1)), ((SLOW, 1), (FAST, 1)), ((FAST, 2), (SLOW, 2)), ((FAST, 1), (SLOW, 2), ("dgx-h200", 1))],
    ids=str,
)
def test_the_division_by_speed_is_near_the_best_of_all_divisions(groups):
    problem = problem_of(*groups)
    pp = sum(count for _, count in groups)
    fixed = {"pp": str(pp), "tp": "8", "cp": "1", "vpp": "1", "schedule": "1f1b", "recompute": "selective", "micro_batch": "1"}
    fixed |= {"zero": "0", "sequence_parallel": "true"}
    found = plan_problem(problem, search=SearchOptions(fix=fixed | {"split": "by-speed"}, effort="scan")).plans[0]
    best, even = np.inf, np.inf
    near = [tuple(s["layers"][0][1] - s["layers"][0][0] + 1 for s in found["stages"])]
    spread = [
        chunks for chunks in all_splits(32, pp) if pp == 2 or max(abs(a - b) for a, b in zip(chunks, near[0], strict=True)) <= 2
    ]
    base = Degrees(tp=8, pp=pp, micro_batch=1, zero=0, recompute="selective")
    for chunks in spread:
        record = estimate_degrees(problem, replace(base, layers_per_stage=chunks))
        if record["feasible"]:
            best = min(best, record["predicted"]["step_time_s"])
    even = estimate_degrees(problem, base)["predicted"]["step_time_s"]
    step = found["predicted"]["step_time_s"]
    assert step < even
    assert best <= step * (1 + 1e-12)
    assert step <= best * 1.03


def test_the_faster_kind_holds_more_layers_and_the_search_gains_by_it():
    cluster = clusters.cluster_of((FAST, 1), (SLOW, 1))
    search = SearchOptions(fix={"pp": "2"}, effort="scan")
    best = plan("llama3.1-8b", cluster, search=search, **JOB).plans[0]
    by_stage = [sum(b - a + 1 for a, b in stage["layers"]) for stage in best["stages"]]
    assert [stage["node_type"] for stage in best["stages"]] == [FAST, SLOW]
    assert by_stage[0] > by_stage[1]
    assert best["expressible_by"]
    even = plan("llama3.1-8b", cluster, search=replace(search, fix={"pp": "2", "split": "even"}), **JOB).plans[0]
    assert best["predicted"]["step_time_s"] < 0.9 * even["predicted"]["step_time_s"]


def test_less_memory_on_the_slow_kind_is_kept():
    node = load_node(SLOW)
    cluster = clusters.cluster_of((FAST, 1), (clusters.larger(node, 24 * 2**30), 1))
    best = plan("llama3.1-8b", cluster, search=SearchOptions(fix={"pp": "2"}, effort="scan"), **JOB).plans
    assert best
    for found in best:
        assert all(s["memory"]["total_bytes"] <= s["memory"]["capacity_bytes"] for s in found["stages"])


def test_where_the_fast_kind_has_little_memory_layers_go_by_memory():
    node = load_node(FAST)
    cluster = clusters.cluster_of((clusters.larger(node, 30 * 2**30), 1), (SLOW, 1))
    fixed = {"pp": "2", "recompute": "none", "tp": "8", "vpp": "1"}
    splits = {}
    for way in ("by-speed", "by-memory", "speed-and-memory"):
        found = plan("llama3.1-8b", cluster, search=SearchOptions(fix=fixed | {"split": way}, effort="scan"), **JOB).plans[0]
        splits[way] = sum(b - a + 1 for a, b in found["stages"][0]["layers"])
    assert splits["by-memory"] < splits["speed-and-memory"] < splits["by-speed"]


# --- the space ---------------------------------------------------------------------------------------


def test_the_space_says_the_divisions_and_counts_them():
    problem = problem_of((FAST, 1), (SLOW, 1))
    space = declare(problem, {})
    assert space.to_dict()["split"] == [*SPLIT_KINDS, *SPEED_KINDS]
    legal = enumerate_legal(problem, space)
    assert sum(legal.rejected.values()) + len(legal) == space.candidates
    assert (legal.columns["split"][legal.columns["pp"] == 1] == 0).all()


def test_uniform_clusters_have_no_such_divisions():
    problem = problem_of((FAST, 2))
    assert declare(problem, {}).to_dict()["split"] == list(SPLIT_KINDS)
    with pytest.raises(ConflictError, match="different kinds of node"):
        declare(problem, {"split": "by-speed"})


def test_flags_of_old_releases_cannot_say_them():
    problem = problem_of((FAST, 1), (SLOW, 1), framework="megatron", version="0.12")
    legal = enumerate_legal(problem, declare(problem, {}))
    assert (legal.columns["split"] < len(SPLIT_KINDS)).all()


def test_programs_of_stages_leave_the_bound_to_the_scan():
    data = plan_problem(problem_of((FAST, 1), (SLOW, 1)), search=SearchOptions(fix={"tp": "8"}, effort="search")).data["search"]
    assert "layers_per_stage" not in data["space"]
    assert data["division"]["programs"] == 0
    assert data["lower_bound_step_time_s"] <= data["best_step_time_s"]
    assert data["gap"] == pytest.approx(1 - data["lower_bound_step_time_s"] / data["best_step_time_s"])


@pytest.mark.parametrize("workers", [1, 2])
def test_the_answer_does_not_depend_on_workers(workers):
    cluster = clusters.cluster_of((FAST, 1), (SLOW, 1))
    one, other = (
        plan("llama3.1-8b", cluster, search=SearchOptions(fix={"tp": "8"}, effort="scan", workers=n), **JOB).data
        for n in (1, workers)
    )
    assert one["plans"] == other["plans"]


def test_no_plan_is_priced_below_what_bounds_it():
    problem = build_problem("llama3.1-8b", clusters.cluster_of((FAST, 1), ("dgx-a100-40g", 3)), **JOB)
    made = scan(problem, enumerate_legal(problem, declare(problem, {"recompute": "none"})))
    pipelines = np.flatnonzero(made.batch.pp > 1)
    rows = np.random.default_rng(0).choice(pipelines, 400, replace=False)
    assert (least_s(made)[rows] <= with_exact(made, rows).step_s[rows] * (1 + 1e-9)).all()
