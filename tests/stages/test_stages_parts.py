"""Rows never exceed a step, places of layers, freedom of targets, bounds of families."""

from pathlib import Path

import numpy as np
import pytest

from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.schedules.exact import exact_step_s
from shardwright.planner.schedules.shape import Shape
from shardwright.planner.schedules.timing import chunk_times
from shardwright.planner.search.scan import scan
from shardwright.planner.search.space import declare, enumerate_legal
from shardwright.planner.search.stages.bounds import least_step_s
from shardwright.planner.search.stages.freedom import dividable, families_of, freedom_of
from shardwright.planner.search.stages.periods import places_of
from shardwright.planner.search.stages.rows import first_chains

SHAPES = [
    Shape(schedule=schedule, pp=pp, vpp=vpp, micro_batches=count)
    for schedule, vpp in (
        ("1f1b", 1),
        ("gpipe", 1),
        ("interleaved-1f1b", 2),
        ("interleaved-1f1b", 3),
        ("zb-h1", 1),
        ("zb-v", 2),
    )
    for pp, count in ((2, 4), (3, 9), (4, 4))
] + [Shape(schedule="dualpipe-v", pp=3, vpp=2, micro_batches=7)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.schedule}-{s.pp}-{s.vpp}-{s.micro_batches}")
def test_no_chain_is_longer_than_the_step(shape):
    rng = np.random.default_rng(3)
    parts = rng.uniform(0.3, 3, (3, 40, shape.pp * shape.vpp))
    times = chunk_times(*parts, pp=shape.pp, tail_s=rng.uniform(0, 3, (40, shape.pp)))
    lengths = first_chains(shape, 1.0, 1.0, 1.0).length_s(times)
    assert (lengths <= exact_step_s(shape, times)[:, None] * (1 + 1e-12)).all()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.schedule}-{s.pp}-{s.vpp}-{s.micro_batches}")
def test_a_chain_is_the_step_of_equal_stages(shape):
    equal = np.ones((1, shape.pp * shape.vpp))
    times = chunk_times(equal, equal, equal, pp=shape.pp)
    lengths = first_chains(shape, 1.0, 1.0, 1.0).length_s(times)
    assert lengths.max() == pytest.approx(exact_step_s(shape, times)[0], rel=1e-12)


@pytest.mark.parametrize(
    ("pattern", "before", "period"),
    [((0,) * 7, 0, 1), ((0, 0, 0, 1, 1, 1, 1, 1), 3, 1), ((0, 1) * 5, 0, 2), ((0, 1, 0, 1, 0), 0, 2), ((1, 0, 0, 0, 2), 4, 1)],
)
def test_places_of_layers(pattern, before, period):
    made = places_of(pattern, max(pattern) + 1, len(pattern))
    assert (made.before, made.period) == (before, period)
    for start in range(len(pattern)):
        for count in range(len(pattern) - start + 1):
            held = np.bincount(pattern[start : start + count], minlength=max(pattern) + 1)
            assert made.held[made.of(np.array(start)), count].tolist() == held.tolist()


@pytest.mark.parametrize(
    ("framework", "version", "fix", "layers", "recompute"),
    [
        ("any", None, {}, True, True),
        ("megatron", None, {}, True, True),
        ("megatron", "0.12", {}, False, False),
        ("torchtitan", None, {}, True, False),
        ("pytorch", None, {}, True, True),
        ("any", None, {"split": "even"}, False, False),
        ("any", None, {"recompute": "full"}, True, False),
    ],
)
def test_targets_leave_free_what_they_can_say(framework, version, fix, layers, recompute):
    options = PricingOptions(framework=framework, target_version=version)
    problem = build_problem("llama3.1-8b", "dgx-h100:1", seq_len=4096, global_batch=32, options=options)
    made = freedom_of(problem, declare(problem, fix))
    assert (made.layers, made.recompute) == (layers, recompute)


@pytest.mark.parametrize(
    ("model", "cluster", "seq_len", "batch"),
    [("llama3.1-8b", "dgx-h100:1", 4096, 32), ("deepseek-v2", "dgx-h100:8", 4096, 128), ("gpt2", "dgx-a100-80g:1x6", 1024, 24)],
)
def test_no_candidate_takes_less_than_the_bound_of_its_family(model, cluster, seq_len, batch):
    problem = build_problem(model, cluster, seq_len=seq_len, global_batch=batch)
    made = scan(problem, enumerate_legal(problem, declare(problem, {})))
    rows, family = families_of(made.batch)
    least = least_step_s(made.context, made.batch.take(rows), made.key[rows], (0, 1, 2))
    exact = made.fits & np.isin(made.batch.schedule, (0, 2)) & dividable(made.batch) & (made.batch.recompute_layers > 10**6)
    assert exact.any()
    bound = least[made.batch.recompute, family]
    assert (bound[exact] <= made.step_s[exact] * 1.0000001).mean() == 1.0


def test_a_graph_keeps_the_divisions_of_the_scan():
    path = Path(__file__).parents[1] / "graphs" / "files" / "wide_resnet.pt2"
    problem = build_problem(str(path), "dgx-h100:2", seq_len=1, global_batch=1024)
    made = freedom_of(problem, declare(problem, {}))
    assert (made.layers, made.recompute) == (False, False)
