"""Pipelines as they are printed: the event simulation of the plan's own stages, whatever the schedule."""

from dataclasses import replace

import numpy as np
import planner_problems as problems
import pytest

from shardwright.planner.cost.exchange import exposed_data
from shardwright.planner.cost.sends import send_s
from shardwright.planner.cost.sharing import shared_rows
from shardwright.planner.cost.stages import by_chunk
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import ALL_LAYERS, Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.schedules.shape import Shape, order_of
from shardwright.planner.schedules.simulator import simulate
from shardwright.planner.schedules.timing import chunk_times

APART = ("zb-h1", "zb-v", "dualpipe-v")


def record(schedule=None, model="llama3.1-8b", cluster="dgx-h100:1", batch=32, **degrees):
    plan = Degrees(schedule=schedule, **degrees)
    return estimate(model, cluster, seq_len=4096, global_batch=batch, degrees=plan).data


def piped_rows(made, schedule, count):
    """Pipelines whose passes are those of their chunks: no exchange of states in every pass, no partial recomputing."""
    batch = made.batch
    partial = (batch.recompute == 2) & (batch.recompute_layers < ALL_LAYERS)
    rows = np.flatnonzero((batch.schedule == SCHEDULE_IDS.index(schedule)) & (batch.pp > 1) & (batch.zero < 2) & ~partial)
    return np.random.default_rng(3).permutation(rows)[:count]


def simulated(problem, batch, split):
    """The event simulation of one plan, each chunk priced as if it stood on a rank of its own."""
    pp, vpp, count = (int(column[0]) for column in (batch.pp, batch.vpp, batch.micro_batches))
    apart, key = problems.context_for(problem, batch, by_chunk([split]), every_rank=True)
    chunks = problems.priced(problem, batch, by_chunk([split]), every_rank=True)
    less = send_s(apart, batch, key)[0] * (1 - 1 / vpp)
    weight = apart.splits.counts[0] @ apart.tables.weight_s[key[0]]
    context, key = problems.context_for(problem, batch, [split], every_rank=True)
    shared = shared_rows(context, batch, key, pp)
    whole = problems.priced(problem, batch, [split], every_rank=True)
    sends = send_s(context, batch, key)[0]
    data = exposed_data(context, batch, shared, whole.forward_s - sends, whole.backward_s - sends).after_s
    times = chunk_times(
        chunks.forward_s - less,
        chunks.backward_s - less - weight,
        weight,
        pp=pp,
        tail_s=data + shared.state.update_s[shared.state_row],
    )
    return simulate(order_of(Shape(schedule=split_schedule(batch), pp=pp, vpp=vpp, micro_batches=count)), times).step_s


def split_schedule(batch):
    return SCHEDULE_IDS[int(batch.schedule[0])]


@pytest.mark.parametrize("schedule", SCHEDULE_IDS)
def test_the_exact_step_is_the_simulation_of_the_stages(schedule):
    problem, made = problems.problem_of("torch-8"), problems.scan_of("torch-8")
    rows = piped_rows(made, "1f1b" if schedule == "gpipe" else schedule, 12)
    assert len(rows) > 3
    for row in rows:
        split = made.splits[int(made.batch.split[row])]
        schedules = np.array([SCHEDULE_IDS.index(schedule)])
        one = replace(made.batch.take(np.array([row])), split=np.zeros(1, dtype=np.int64), schedule=schedules)
        exact = problems.priced(problem, one, [split], exact=True)
        assert exact.step_s[0] == pytest.approx(simulated(problem, one, split), rel=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULE_IDS)
def test_parts_sum_to_the_exact_step_and_none_is_negative(schedule):
    plan = record(schedule, pp=4, vpp=2 if schedule == "interleaved-1f1b" else None, tp=2, micro_batch=1)
    assert sum(plan["time"].values()) == pytest.approx(plan["predicted"]["step_time_s"], rel=1e-9)
    assert min(plan["time"].values()) >= 0
    assert plan["time"]["bubble_s"] > 0


@pytest.mark.parametrize("name", ["dense-8", "dense-8-odd", "torch-8", "torch-moe-16", "mtp-64", "dense-1000"])
def test_chains_of_1f1b_and_busy_stages_never_exceed_the_exact_step(name):
    problem, made = problems.problem_of(name), problems.scan_of(name)
    rows = problems.some_rows(made, 400, seed=2)
    batch = made.batch.take(rows)
    exact = problems.priced(problem, batch, made.splits, exact=True).step_s
    assert (made.busy_s[rows] <= exact * (1 + 1e-9)).all()
    plain = batch.schedule == SCHEDULE_IDS.index("1f1b")
    assert (made.step_s[rows][plain] <= exact[plain] * (1 + 1e-9)).all()
    assert np.median(np.abs(made.step_s[rows] / exact - 1)) < 0.02


def test_putting_weight_gradients_off_shortens_the_step():
    steps = {s: record(s, pp=8, zero=0, batch=64)["predicted"]["step_time_s"] for s in ("1f1b", "zb-h1", "zb-v", "dualpipe-v")}
    assert steps["1f1b"] > 1.02 * steps["zb-h1"]
    assert steps["zb-h1"] > steps["zb-v"]
    assert steps["dualpipe-v"] < steps["zb-h1"]


def test_about_half_of_the_products_backward_is_for_weights():
    problem = problems.problem_of("dense-8")
    made = problems.scan_of("dense-8")
    context, _ = problems.context_for(problem, made.batch.take(np.array([0])), made.splits)
    tables = context.tables
    kinds = len(problem.graph.layer_kinds)
    share = tables.weight_s[:, :kinds] / tables.compute_backward_s[:, :kinds]
    assert (share > 0.3).all()
    assert (share < 0.5).all()
    assert (tables.weight_s[:, kinds] == 0).all()  # the embedding has no product


def test_frozen_weights_have_no_weight_gradient():
    plan = {
        lora: estimate(
            "llama3.1-8b",
            "dgx-h100:1",
            seq_len=4096,
            global_batch=32,
            degrees=Degrees(pp=8, zero=0, schedule="zb-h1"),
            options=PricingOptions(lora=lora),
        ).data
        for lora in (None, "rank=8,targets=qkv")
    }
    idle = {lora: made["time"]["bubble_s"] / made["predicted"]["step_time_s"] for lora, made in plan.items()}
    assert idle["rank=8,targets=qkv"] > idle[None]


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
def test_a_v_holds_both_ends_on_its_first_rank_and_needs_no_exchange_of_tied_embeddings(schedule):
    loop = record("interleaved-1f1b", model="gpt3-175b", cluster="dgx-a100-80g:2", batch=64, tp=4, pp=4, vpp=2)
    fold = record(schedule, model="gpt3-175b", cluster="dgx-a100-80g:2", batch=64, tp=4, pp=4)
    assert [row["collective"] for row in loop["communication"] if row["axis"] == "pp"].count("all_reduce") == 1
    assert "all_reduce" not in [row["collective"] for row in fold["communication"] if row["axis"] == "pp"]
    assert fold["stages"][0]["holds"] == ["embedding", "head", "loss"]
    assert [stage["layers"] for stage in fold["stages"]][:2] == [[[0, 11], [84, 95]], [[12, 23], [72, 83]]]
    held = [sum(stage["memory"]["parameters_bytes"] for stage in plan["stages"]) for plan in (loop, fold)]
    assert held[0] > held[1]  # the head reads the embedding's own weights, each weight is held once


def test_putting_gradients_off_keeps_as_much_on_every_rank_as_1f1b_on_its_first():
    def kept(schedule):
        return [s["memory"]["activations_bytes"] for s in record(schedule, pp=8, zero=0, batch=64)["stages"]]

    plain, late, fold = kept("1f1b"), kept("zb-h1"), kept("zb-v")
    assert late[1:-1] == pytest.approx([8 / 7 * plain[1]] * 6, rel=1e-6)
    assert fold[1:] == pytest.approx([8 / 7 * plain[1]] * 7, rel=1e-6)


def test_the_head_keeps_gradients_of_logits_whose_weight_gradient_is_put_off():
    def logits(schedule):
        return record(schedule, pp=8, zero=0, batch=64)["stages"][-1]["memory"]["logits_bytes"]

    assert logits("zb-h1") == pytest.approx((6 + 7 * 2) / 6 * logits("1f1b"), rel=1e-6)


@pytest.mark.parametrize("schedule", APART)
def test_a_single_stage_costs_the_same_under_any_schedule(schedule):
    plain = problems.scan_of("dense-8")
    alone = np.flatnonzero(plain.batch.pp == 1)[:50]
    batch = replace(plain.batch.take(alone), schedule=np.full(len(alone), SCHEDULE_IDS.index(schedule)))
    for exact in (False, True):
        step = problems.priced(problems.problem_of("dense-8"), batch, plain.splits, exact=exact).step_s
        np.testing.assert_allclose(step, plain.step_s[alone], rtol=1e-12)


def test_dualpipe_hides_the_share_of_expert_exchange_that_is_asked_for():
    def priced(share, schedule="dualpipe-v"):
        options = PricingOptions(overrides=(f"stack.dualpipe_ep_hidden={share}",))
        plan = Degrees(pp=4, ep=4, schedule=schedule)
        return estimate("qwen3-30b-a3b", "dgx-h100:2", seq_len=4096, global_batch=64, degrees=plan, options=options).data

    plain, half, whole = (priced(share) for share in (0, 0.5, 1))
    exchange = [made["time"]["exposed_ep_s"] for made in (plain, half, whole)]
    assert exchange[1] == pytest.approx((exchange[0] + exchange[2]) / 2, rel=1e-6)
    assert exchange[2] == pytest.approx((3 * 4 - 1) / (2 * 16) * exchange[0], rel=1e-6)
    assert plain["predicted"]["step_time_s"] > half["predicted"]["step_time_s"] > whole["predicted"]["step_time_s"]
    assert whole["parallel"]["overlap"]["ep"]
    assert not plain["parallel"]["overlap"]["ep"]
    assert sum(whole["time"].values()) == pytest.approx(whole["predicted"]["step_time_s"], rel=1e-9)
    assert priced(1, "zb-v")["time"] == priced(0, "zb-v")["time"]
