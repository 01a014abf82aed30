"""Searches that divide layers: what their account says, and that nothing is below their bound."""

import functools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardwright.documents import canonical_json
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.search import run
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.space import declare, enumerate_legal
from shardwright.planner.search.stages import proof
from shardwright.planner.search.stages.clock import Clock
from shardwright.planner.search.stages.menu import layer_range
from shardwright.planner.search.stages.tasks import solve_task

ROOT = Path(__file__).parents[2]

CASES = {
    "dense": ("llama3.1-8b", "dgx-a100-40g:2", 4096, 64),
    "routed": ("qwen3-30b-a3b", "dgx-h100:2", 4096, 32),
    "tied-odd": ("gpt2", "dgx-a100-80g:1x6", 1024, 24),
}


def searched(name, **search):
    model, cluster, seq_len, batch = CASES[name]
    return run.plan(model, cluster, seq_len=seq_len, global_batch=batch, search=SearchOptions(**search)).data


@functools.cache
def result_of(name, effort="search"):
    return searched(name, effort=effort, tie_percent=0)


def random_plans(problem, count, seed):
    """Random legal plans with a random legal division and any number of recomputed layers."""
    rng = np.random.default_rng(seed)
    legal = enumerate_legal(problem, declare(problem, {}))
    layers = problem.graph.layers
    for at in rng.choice(len(legal), size=count):
        c = {name: int(column[at]) for name, column in legal.columns.items()}
        mode = ("none", "selective", "full", "full")[rng.integers(0, 4)]
        covered = int(rng.integers(1, max(layers // (c["pp"] * c["vpp"]), 1) + 1)) * c["vpp"] if rng.random() < 0.5 else None
        yield Degrees(
            **{name: c[name] for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp_replicate", "micro_batch", "zero")},
            schedule=SCHEDULE_IDS[c["schedule"]],
            sequence_parallel=bool(c["sp"]),
            recompute=mode,
            recompute_layers=covered if mode == "full" else None,
            layers_per_stage=random_division(rng, layers, c["pp"], c["vpp"]),
        )


def random_division(rng, layers, pp, vpp):
    """Layers of each chunk, moved about at random."""
    chunks = pp * vpp
    if chunks == 1:
        return (layers,)
    low, high = layer_range(layers, pp, vpp, layers)
    least = np.array([0, *[low] * (chunks - 2), 0])
    made = np.full(chunks, layers // chunks) + (np.arange(chunks) < layers % chunks)
    for _ in range(int(rng.integers(0, 2 * chunks))):
        source, target = rng.integers(0, chunks, 2)
        if made[source] > least[source] and made[target] < high:
            made[source] -= 1
            made[target] += 1
    return tuple(made.tolist())


@pytest.mark.parametrize("name", list(CASES))
def test_no_plan_of_the_space_is_below_the_bound(name):
    model, cluster, seq_len, batch = CASES[name]
    problem = build_problem(model, cluster, seq_len=seq_len, global_batch=batch)
    bound = result_of(name)["search"]["lower_bound_step_time_s"]
    fitting = 0
    for degrees in random_plans(problem, 200, seed=5):
        made = estimate_degrees(problem, degrees)
        if made["feasible"]:
            fitting += 1
            assert made["predicted"]["step_time_s"] >= bound * (1 - 1e-9), degrees
    assert fitting > 5


@pytest.mark.parametrize("name", list(CASES))
def test_dividing_never_loses(name):
    scanned, made = (searched(name, effort="scan")["search"], result_of(name)["search"])
    assert made["best_step_time_s"] <= scanned["best_step_time_s"] * (1 + 1e-12)
    assert made["candidates"] == scanned["candidates"] == sum(made["rejected"].values()) + made["priced"]
    assert (made["fits"], made["pruned_by_bound"]) == (scanned["fits"], 0)
    assert made["space"] == scanned["space"] | {"layers_per_stage": ["any"], "recompute_layers": ["any"]}
    assert made["gap"] == pytest.approx(1 - made["lower_bound_step_time_s"] / made["best_step_time_s"], abs=1e-12)
    assert made["gap"] <= 0.01
    assert made["stopped"] is None
    assert scanned["division"] == {"families": 0, "tasks": 0, "solved": 0, "programs": 0, "variables": 0, "plans": 0}


def test_proving_closes_the_gap():
    made = result_of("tied-odd", "prove")["search"]
    assert made["proven_optimal"]
    assert made["gap"] <= 1e-4


def test_workers_change_nothing():
    results = [{k: v for k, v in searched("dense", workers=workers).items() if k != "run"} for workers in (1, 2, 4)]
    texts = {canonical_json(result) for result in results}
    assert len(texts) == 1


def test_without_time_the_gap_is_honest():
    made = searched("dense", effort="prove", time_limit_s=1e-9)["search"]
    assert made["stopped"] == "time_limit"
    assert made["gap"] > 1e-4
    assert made["best_step_time_s"] == pytest.approx(searched("dense", effort="scan")["search"]["best_step_time_s"])


def test_a_program_is_not_begun_once_the_time_is_over(monkeypatch):
    solved = []

    def late(context, families, job):
        solved.append(solve_task(context, families, replace(job, clock=Clock(deadline=0.0))))
        return solved[-1]

    monkeypatch.setattr(proof, "solve_task", late)
    made = searched("dense", effort="prove")["search"]
    assert solved
    assert {solution.programs for solution in solved} == {0}
    assert made["lower_bound_step_time_s"] <= result_of("dense")["search"]["best_step_time_s"]


def test_the_time_limit_reaches_the_tasks(monkeypatch):
    clocks = []

    def noted(context, families, job):
        clocks.append(job.clock)
        return solve_task(context, families, job)

    monkeypatch.setattr(proof, "solve_task", noted)
    searched("dense", effort="prove", time_limit_s=30.0)
    assert clocks
    assert all(0 < clock.left_s <= 30.0 for clock in clocks)


def test_interrupted_it_shows_the_best_so_far(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(proof, "solve_task", interrupted)
    made = searched("dense")
    assert made["search"]["stopped"] == "interrupted"
    assert made["plans"]
    assert made["search"]["lower_bound_step_time_s"] <= made["search"]["best_step_time_s"]


def test_what_is_found_is_priced_as_estimated():
    model, cluster, seq_len, batch = CASES["routed"]
    problem = build_problem(model, cluster, seq_len=seq_len, global_batch=batch)
    from shardwright.planner.estimation import degrees_of

    for plan in result_of("routed")["plans"]:
        again = estimate_degrees(problem, degrees_of(plan))
        assert again["predicted"]["step_time_s"] == pytest.approx(plan["predicted"]["step_time_s"], rel=1e-12)
        assert again["feasible"]


def test_old_megatron_has_no_divisions():
    model, cluster, seq_len, batch = CASES["dense"]
    options = PricingOptions(framework="megatron", target_version="0.12")
    made = run.plan(model, cluster, seq_len=seq_len, global_batch=batch, options=options).data["search"]
    assert "layers_per_stage" not in made["space"]
    assert made["proven_optimal"]


INTERRUPTED = """
import os, signal, time
import shardwright
from ortools.sat.python import cp_model

solved, solve = [], cp_model.CpSolver.solve
cp_model.CpSolver.solve = lambda *given, **more: solved.append(1) or solve(*given, **more)
try:
    options = shardwright.PricingOptions(framework="megatron")
    shardwright.plan("llama3.1-70b", "dgx-a100-40g:8", seq_len=4096, global_batch=64, options=options)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted after", len(solved) > 0)
"""


def test_interrupts_after_a_program_still_reach_the_search():
    """A solver that takes the signal leaves the handler behind that ends the process without a word."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.strip() == "interrupted after True"
