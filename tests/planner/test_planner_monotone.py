"""What must never get worse: better hardware, more freedom, less kept."""

import dataclasses
import functools
import itertools
from dataclasses import replace

import numpy as np
import planner_problems as problems
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.hardware.collectives import fabric_of
from shardwright.planner.plans import ALL_LAYERS, PlanBatch
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan
from shardwright.planner.search.scan import scan
from shardwright.planner.search.space import Space, enumerate_legal

PLANS = 200
SLACK = 1 + 1e-9
NAMES = st.sampled_from(["dense-7", "dense-8", "moe-16", "moe-96", "mtp-64", "dense-1000"])
STACKS = st.sampled_from([None, "megatron-2021", "pytorch-fsdp2", "deepspeed"])
FACTORS = st.floats(1.001, 8.0)
FEW = settings(max_examples=10)


@functools.cache
def batch_of(name, seed=0):
    made = problems.scan_of(name)
    return made.batch.take(problems.some_rows(made, PLANS, seed=seed)), made.splits


def with_node(problem, **changes):
    return replace(problem, cluster=problem.cluster.with_node_values(changes))


@functools.cache
def steps_of(name, stack):
    return problems.priced(problems.problem_of(name, stack=stack), *batch_of(name)).step_s


def assert_never_slower(better, name, stack=None, fabric=None):
    batch, splits = batch_of(name)
    before = steps_of(name, stack)
    after = problems.priced(better, batch, splits, fabric=fabric).step_s
    slower = np.flatnonzero(after > before * SLACK)
    assert slower.size == 0, (batch.take(slower[:1]), before[slower[:3]], after[slower[:3]])
    return before, after


@FEW
@given(name=NAMES, stack=STACKS, factor=FACTORS)
def test_more_flops_are_never_slower(name, stack, factor):
    problem = problems.problem_of(name, stack=stack)
    faster = {key: value * factor for key, value in problem.device.peak_flops.items()}
    before, after = assert_never_slower(with_node(problem, **{"device.peak_flops": faster}), name, stack)
    assert (after < before).any()


@FEW
@given(name=NAMES, stack=STACKS, factor=FACTORS)
def test_more_memory_bandwidth_is_never_slower(name, stack, factor):
    problem = problems.problem_of(name, stack=stack)
    rate = problem.device.memory_bytes_per_s * factor
    before, after = assert_never_slower(with_node(problem, **{"device.memory_bytes_per_s": rate}), name, stack)
    assert (after < before).all()


@FEW
@given(name=NAMES, stack=STACKS, factor=FACTORS)
@pytest.mark.parametrize("link", ["scaleup_bytes_per_s", "internode_bytes_per_s"])
def test_faster_links_are_never_slower(link, name, stack, factor):
    problem = problems.problem_of(name, stack=stack)
    rate = getattr(problem.cluster.node, link) * factor
    before, after = assert_never_slower(with_node(problem, **{link: rate}), name, stack)
    if link == "internode_bytes_per_s" and problem.cluster.nodes == 1:
        np.testing.assert_array_equal(before, after)
    else:
        assert (after < before).any()


@FEW
@given(name=NAMES, share=st.floats(0.0, 0.99))
@pytest.mark.parametrize("tier", ["scaleup", "network"])
def test_lower_latency_is_never_slower(tier, name, share):
    problem = problems.problem_of(name)
    fabric = fabric_of(problem.cluster)
    links = getattr(fabric, tier)
    quick = {k: replace(c, alpha_s=c.alpha_s * share, hop_s=c.hop_s * share) for k, c in links.curves.items()}
    assert_never_slower(problem, name, fabric=replace(fabric, **{tier: replace(links, curves=quick)}))


@FEW
@given(name=NAMES, factor=st.floats(0.0, 1.0))
def test_a_quicker_host_is_never_slower(name, factor):
    problem = problems.problem_of(name)
    quick = replace(problem.stack, host_s_per_kernel=problem.stack.host_s_per_kernel * factor)
    assert_never_slower(replace(problem, stack=quick), name)


@FEW
@given(name=NAMES, gained=st.integers(0, 2**37))
def test_more_device_memory_never_removes_a_plan(name, gained):
    problem = problems.problem_of(name)
    batch, splits = batch_of(name)
    larger = with_node(problem, **{"device.memory_bytes": problem.device.memory_bytes + gained})
    before, after = problems.priced(problem, batch, splits), problems.priced(larger, batch, splits)
    np.testing.assert_array_equal(after.peak_bytes, before.peak_bytes)
    np.testing.assert_array_equal(after.step_s, before.step_s)


def test_memory_alone_decides_what_fits():
    model, cluster, seq_len, batch = problems.CASES["dense-8"]
    counts = []
    for gib in (30, 60, 80, 160):
        options = PricingOptions(overrides=(f"cluster.memory_bytes={gib * 2**30}",))
        search = plan(model, cluster, seq_len=seq_len, global_batch=batch, options=options).data["search"]
        counts.append((search["fits"], -(search["best_step_time_s"] or np.inf)))
    assert counts == sorted(counts)
    assert counts[0][0] < counts[-1][0]


@pytest.mark.parametrize("axis", ["tp", "pp", "zero", "recompute", "micro_batch", "vpp", "split", "ep"])
def test_more_choice_never_worsens_the_best(axis):
    name = "moe-16" if axis == "ep" else "dense-8"
    problem, space, whole = problems.problem_of(name), problems.space_of(name), problems.scan_of(name)
    best = whole.step_s[whole.fits].min()
    least = []
    for value in space.axes[axis]:
        legal = enumerate_legal(problem, Space(axes={**space.axes, axis: (value,)}))
        if len(legal):
            made = scan(problem, legal)
            least.append(np.min(made.step_s, where=made.fits, initial=np.inf))
            assert least[-1] >= best
    assert min(least) == best


@pytest.mark.parametrize("fix", [{"tp": "2"}, {"pp": "2"}, {"zero": "1"}, {"recompute": "full"}, {"cp": "1"}])
@pytest.mark.parametrize("name", ["dense-8", "dense-1000"])
def test_fixing_an_axis_never_finds_a_better_plan(name, fix):
    model, cluster, seq_len, batch = problems.CASES[name]
    fixed = plan(model, cluster, seq_len=seq_len, global_batch=batch, search=SearchOptions(fix=fix)).data
    made = problems.scan_of(name)
    assert fixed["search"]["best_step_time_s"] >= made.step_s[made.fits].min()


@pytest.mark.parametrize(("name", "batch"), [("dense-8", 32), ("moe-16", 32), ("dense-1000", 1000)])
def test_a_bound_never_exceeds_an_estimate(name, batch):
    model, cluster, seq_len, _ = problems.CASES[name]
    data = plan(model, cluster, seq_len=seq_len, global_batch=batch, search=SearchOptions(top=100)).data
    search = data["search"]
    for record in data["plans"]:
        assert search["lower_bound_step_time_s"] <= record["predicted"]["step_time_s"] * SLACK
    assert 0 <= search["gap"] <= 1
    assert search["gap"] == pytest.approx(1 - search["lower_bound_step_time_s"] / search["best_step_time_s"], abs=1e-12)
    assert search["proven_optimal"] == (search["gap"] <= 1e-4)


AXES = {"tp": "exposed_tp_s", "cp": "exposed_cp_s", "ep": "exposed_ep_s", "pp": "exposed_pp_s"}


@pytest.mark.parametrize("name", ["dense-7", "dense-8", "moe-16", "mtp-64"])
def test_a_degree_of_one_is_the_identity_of_its_axis(name):
    made = problems.scan_of(name)
    batch = made.batch.take(problems.some_rows(made, 20_000))
    prices = problems.priced(problems.problem_of(name), batch, made.splits)
    for axis, part in AXES.items():
        alone = getattr(batch, axis) == 1
        alone &= (batch.etp == 1) if axis == "tp" else True
        assert (prices.parts[part][alone] == 0).all()
        if axis in {"tp", "pp"} and not alone.all():
            assert (prices.parts[part][~alone] > 0).any()
    assert (prices.parts["bubble_s"][batch.pp == 1] == 0).all()
    assert (prices.parts["exposed_dp_s"][(batch.dp == 1) & (batch.cp == 1) & (batch.edp == 1)] == 0).all()
    assert (prices.parts["recompute_s"][batch.recompute == 0] == 0).all()


def variant(batch, **columns):
    length = len(batch)
    return replace(batch, **{name: np.full(length, value) for name, value in columns.items()})


@pytest.mark.parametrize("stack", [None, "megatron-2021", "megatron-2022", "torchtitan", "pytorch-fsdp2", "deepspeed"])
@pytest.mark.parametrize("name", ["dense-8", "moe-16", "mtp-64"])
def test_more_recomputing_keeps_less_and_is_never_faster(name, stack):
    problem = problems.problem_of(name, stack=stack)
    batch, splits = batch_of(name, seed=2)
    prices = [
        problems.priced(problem, variant(batch, recompute=mode, recompute_layers=ALL_LAYERS), splits) for mode in (0, 1, 2)
    ]
    for less, more in itertools.pairwise(prices):
        assert (less.memory.total_bytes >= more.memory.total_bytes).all()
        assert (less.step_s <= more.step_s * SLACK).all()
    few, many = (problems.priced(problem, variant(batch, recompute=2, recompute_layers=n), splits) for n in (1, 3))
    assert (few.step_s <= many.step_s * SLACK).all()
    assert (few.memory.total_bytes >= many.memory.total_bytes).all()


@pytest.mark.parametrize("stack", [None, "torchtitan", "deepspeed"])
@pytest.mark.parametrize("name", ["dense-8", "moe-16", "mtp-64"])
def test_a_higher_zero_stage_never_raises_state_bytes(name, stack):
    problem = problems.problem_of(name, stack=stack)
    batch, splits = batch_of(name, seed=4)
    batch = replace(batch, dp_replicate=np.ones(len(batch), dtype=np.int64))
    memories = [problems.priced(problem, variant(batch, zero=stage), splits).memory for stage in (0, 1, 2, 3)]
    both = ("parameters_bytes", "optimizer_bytes")  # one and the same where a fully sharded parameter is its own master
    for parts in (("gradients_bytes",), *([both] if problem.stack.fp32_shards else [(part,) for part in both])):
        held = [sum(getattr(memory, part) for part in parts) for memory in memories]
        for lower, higher in itertools.pairwise(held):
            assert (lower >= higher).all()
        assert (held[0] > held[3]).any()


def test_gpipe_is_never_leaner_nor_faster_than_1f1b():
    name = "dense-8"
    batch, splits = batch_of(name, seed=9)
    piped = np.flatnonzero((batch.pp > 1) & (batch.vpp == 1))
    batch = batch.take(piped)
    plain, gpipe = (
        problems.priced(problems.problem_of(name), variant(batch, schedule=SCHEDULE_IDS.index(s)), splits)
        for s in ("1f1b", "gpipe")
    )
    assert len(piped) > 5
    assert (gpipe.peak_bytes >= plain.peak_bytes).all()
    assert (gpipe.step_s * SLACK >= plain.step_s).all()


def test_a_smaller_optimizer_or_gradient_never_needs_more():
    def peaks(**options):
        problem = build_problem("llama3.1-8b", "dgx-h100:1", seq_len=4096, global_batch=32, options=PricingOptions(**options))
        return problems.priced(problem, *batch_of("dense-8")).peak_bytes

    usual, as_they_are = peaks(), ("stack.casts_gradients=false",)
    assert (peaks(optimizer="adam-8bit") < usual).all()
    assert (peaks(grad_dtype="bf16", overrides=as_they_are) <= usual).all()  # Megatron makes them fp32 for the update
    assert (peaks(memory_margin_gib=2.0) == usual + 2 * 2**30).all()


def test_plan_batches_have_one_column_a_field():
    batch, _ = batch_of("dense-7")
    assert {len(getattr(batch, field.name)) for field in dataclasses.fields(PlanBatch)} == {len(batch)}
