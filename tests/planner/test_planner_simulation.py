"""The timeline of a plan adds up to the price of that plan, for every schedule."""

import pytest

from shardwright.errors import InvalidValueError
from shardwright.planner.estimation import estimate_problem
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, WEIGHT
from shardwright.planner.simulation import AXES, step_timeline

PLANS = {
    "no pipeline": Degrees(tp=2),
    "1f1b": Degrees(tp=2, pp=4),
    "uneven": Degrees(tp=2, pp=4, layers_per_stage=(9, 8, 8, 7)),
    "interleaved": Degrees(tp=2, pp=4, vpp=2, schedule="interleaved-1f1b"),
    "gpipe": Degrees(pp=4, schedule="gpipe"),
    "zb-h1": Degrees(pp=4, schedule="zb-h1"),
    "zb-v": Degrees(pp=4, vpp=2, schedule="zb-v"),
    "dualpipe-v": Degrees(pp=4, vpp=2, schedule="dualpipe-v"),
    "recompute": Degrees(tp=4, pp=2, recompute="full", recompute_layers=5),
    "sharded parameters": Degrees(pp=2, zero=3),
}


def problem(model="llama3-8b", cluster="dgx-h100:2", **options):
    return build_problem(model, cluster, seq_len=4096, global_batch=64, options=PricingOptions(**options))


@pytest.mark.parametrize("degrees", PLANS.values(), ids=PLANS)
def test_the_timeline_ends_when_the_price_says(degrees):
    asked = problem()
    priced, made = estimate_problem(asked, degrees).data, step_timeline(asked, degrees)
    step, time = priced["predicted"]["step_time_s"], priced["time"]
    assert made.step_s == pytest.approx(step, rel=1e-9)
    critical = min(range(made.timeline.pp), key=made.idle)
    assert made.idle(critical) * step == pytest.approx(time["bubble_s"] + made.tied_s, abs=1e-9 * step)
    assert made.tails.data_s[critical] == pytest.approx(time["exposed_dp_s"])
    assert made.tails.update_s[critical] == pytest.approx(time["optimizer_s"])
    for axis, name in enumerate(AXES):
        count = priced["parallel"]["micro_batches"]
        mine = [s for s, rank in enumerate(made.timeline.stage_rank) if rank == critical]
        inside = count * sum(made.passes.forward_s[s, axis] + made.passes.backward_s[s, axis] for s in mine)
        assert inside == pytest.approx(time[f"exposed_{name}_s"], abs=1e-9 * step), name


@pytest.mark.parametrize("degrees", [Degrees(tp=2, pp=4, ep=4), Degrees(pp=4, ep=4, schedule="dualpipe-v")], ids=str)
def test_so_does_that_of_a_model_with_experts(degrees):
    asked = problem("mixtral-8x7b", "dgx-h100:4")
    made = step_timeline(asked, degrees)
    assert made.step_s == pytest.approx(estimate_problem(asked, degrees).data["predicted"]["step_time_s"], rel=1e-9)
    assert made.passes.forward_s[:, AXES.index("ep")].min() > 0


def test_tied_embeddings_come_last():
    asked = problem("gpt2", "dgx-h100:1")
    made = step_timeline(asked, Degrees(pp=2))
    assert made.tied_s > 0
    assert made.step_s == pytest.approx(estimate_problem(asked, Degrees(pp=2)).data["predicted"]["step_time_s"], rel=1e-9)


def test_passes_take_what_the_stages_say():
    asked = problem()
    degrees = Degrees(pp=4, schedule="zb-h1")
    priced, made = estimate_problem(asked, degrees).data, step_timeline(asked, degrees)
    for stage in priced["stages"]:
        events = made.timeline.of_rank(stage["index"])[:40]
        seconds = {e.phase: e.end_s - e.start_s for e in events}
        assert seconds[FORWARD] == pytest.approx(stage["time"]["forward_s"])
        assert seconds[INPUT] + seconds[WEIGHT] == pytest.approx(stage["time"]["backward_s"])
        assert BACKWARD not in seconds


def test_a_plan_without_known_order_is_refused():
    degrees = Degrees(tp=2, pp=4, vpp=2, dp_replicate=1, micro_batch=1)
    asked = build_problem("llama3-8b", "dgx-h100:2", seq_len=4096, global_batch=2 * 6)
    with pytest.raises(InvalidValueError, match="groups of 4"):
        step_timeline(asked, degrees)


def test_degrees_that_do_not_multiply_up_are_refused():
    with pytest.raises(InvalidValueError, match="multiply"):
        step_timeline(problem(), Degrees(tp=3))
