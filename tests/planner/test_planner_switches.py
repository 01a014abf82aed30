"""What must never get worse as a switch is turned on: offloading, losses in pieces, skew of routing, dispatchers."""

import functools

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.offloading import PARTS, Offload
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem

SLACK = 1 + 1e-9
SOME = settings(max_examples=25)
DENSE, ROUTED = ("llama3.1-8b", "gpt2"), ("qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v2")
CLUSTERS = st.sampled_from(["dgx-h100:1", "dgx-h100:4", "dgx-a100-80g:2", "gb200-nvl72:1"])
FRAMEWORKS = st.sampled_from(["any", "megatron", "torchtitan", "pytorch", "deepspeed"])
NAMES = st.sampled_from((*DENSE, *ROUTED))
FRACTIONS = st.integers(0, 16).map(lambda n: n / 16)
SKEWS = st.one_of(st.just(1.0), st.floats(1.0, 64.0))
PIECES = st.integers(2, 64)
PLANS = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 1, 2, 4]),
        "pp": st.sampled_from([1, 1, 2]),
        "cp": st.sampled_from([1, 1, 2]),
        "micro_batch": st.sampled_from([1, 2]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "zero": st.sampled_from([None, 0, 1, 2, 3]),
    }
)


@functools.cache
def problem_of(model, cluster, framework="any", skew=None):
    options = PricingOptions(framework=framework, routing_skew=skew)
    return build_problem(model, cluster, seq_len=2048, global_batch=256, options=options)


def priced(problem, plan, **changes):
    """The record of a plan that has a price, broken rules or not."""
    made = estimate_degrees(problem, Degrees(**(plan | changes)))
    assume(made["predicted"] is not None)
    return made


def device_bytes(record):
    return [stage["memory"]["total_bytes"] for stage in record["stages"]]


def exchanged_bytes(record):
    """Bytes that a rank sends to other ranks' experts and back."""
    return sum(row["wire_bytes"] for row in record["communication"] if row["axis"] == "ep")


def assert_no_more(after, before):
    assert all(one <= other for one, other in zip(device_bytes(after), device_bytes(before), strict=True))


def assert_no_faster(after, before):
    assert after["predicted"]["step_time_s"] * SLACK >= before["predicted"]["step_time_s"]


@SOME
@given(model=NAMES, cluster=CLUSTERS, framework=FRAMEWORKS, plan=PLANS, part=st.sampled_from(PARTS), data=st.data())
def test_more_on_the_host_is_no_more_on_the_device_and_no_faster(model, cluster, framework, plan, part, data):
    problem = problem_of(model, cluster, framework)
    shares = {name: data.draw(FRACTIONS) for name in PARTS}
    less, more = sorted((shares[part], data.draw(FRACTIONS)))
    before, after = (priced(problem, plan, offload=Offload(**(shares | {part: share}))) for share in (less, more))
    assert_no_more(after, before)
    assert_no_faster(after, before)
    assert (after["memory"]["host_peak_bytes"] or 0) >= (before["memory"]["host_peak_bytes"] or 0)


@SOME
@given(model=NAMES, cluster=CLUSTERS, framework=FRAMEWORKS, plan=PLANS, pieces=PIECES, more=PIECES)
def test_further_pieces_of_a_loss_hold_no_more(model, cluster, framework, plan, pieces, more):
    """Against the whole loss the gradient of the head stands beside the first cut: from two pieces on."""
    problem = problem_of(model, cluster, framework)
    few, many = (priced(problem, plan, loss_chunks=count) for count in (pieces, pieces + more))
    assert_no_more(many, few)


@SOME
@given(
    model=st.sampled_from(ROUTED),
    cluster=CLUSTERS,
    plan=PLANS,
    ep=st.sampled_from([1, 2, 4, 8]),
    kind=st.sampled_from(["allgather", "alltoall", "deepep", "hybridep"]),
    skews=st.tuples(SKEWS, SKEWS),
)
def test_skewed_routing_is_never_faster_nor_leaner(model, cluster, plan, ep, kind, skews):
    even, uneven = (priced(problem_of(model, cluster, skew=skew), plan, ep=ep, moe_dispatcher=kind) for skew in sorted(skews))
    assert_no_faster(uneven, even)
    assert_no_more(even, uneven)


@SOME
@given(model=st.sampled_from(ROUTED), plan=PLANS, ep=st.sampled_from([16, 32]), kind=st.sampled_from(["deepep", "hybridep"]))
def test_one_copy_a_node_is_no_more_than_every_copy(model, plan, ep, kind):
    problem = problem_of(model, "dgx-h100:8")
    every, once = (priced(problem, plan, ep=ep, moe_dispatcher=name) for name in ("alltoall", kind))
    assert 0 < exchanged_bytes(once) <= exchanged_bytes(every) * SLACK


@SOME
@given(model=NAMES, cluster=CLUSTERS, framework=FRAMEWORKS, plan=PLANS, pieces=st.integers(1, 16), share=FRACTIONS)
def test_parts_sum_whatever_is_switched(model, cluster, framework, plan, pieces, share):
    switched = {"loss_chunks": pieces, "offload": Offload(activations=share, optimizer=1.0)}
    made = priced(problem_of(model, cluster, framework), plan, **switched)
    step = made["predicted"]["step_time_s"]
    assert abs(sum(made["time"].values()) - step) <= 1e-9 * step
    assert min(made["time"].values()) >= 0
    for stage in made["stages"]:
        parts = {name: size for name, size in stage["memory"].items() if name not in {"total_bytes", "capacity_bytes"}}
        assert sum(parts.values()) == stage["memory"]["total_bytes"]
        assert min(parts.values()) >= 0
