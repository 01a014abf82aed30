"""When nothing fits: what is short, and remedies that do what they say."""

import functools
from dataclasses import replace

import pytest

from shardwright.errors import ConflictError
from shardwright.hardware.catalog import load_cluster
from shardwright.models.dtypes import GRAD_DTYPES, OPTIMIZERS
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.plan_records import degrees_of
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.search.near_misses import near_misses
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.remedies import remedies
from shardwright.planner.search.run import plan

CASES = {
    "dense": ("llama3.1-70b", "dgx-h100:1", 8192, 64),
    "routed": ("mixtral-8x7b", "dgx-h100:1x7", 4096, 63),
    "old": ("gpt3-175b", "dgx-a100-40g:2", 2048, 64),
}


@functools.cache
def planned(name):
    model, cluster, seq_len, batch = CASES[name]
    return plan(model, cluster, seq_len=seq_len, global_batch=batch)


@pytest.fixture(params=CASES)
def case(request):
    model, cluster, seq_len, batch = CASES[request.param]
    return build_problem(model, cluster, seq_len=seq_len, global_batch=batch), planned(request.param)


def test_nothing_fits_is_an_answer_of_no(case):
    result = case[1]
    search = result.data["search"]
    assert result.exit_code == 1
    assert result.data["plans"] == []
    assert search["fits"] == 0
    assert search["priced"] > 0
    assert search["best_step_time_s"] is search["lower_bound_step_time_s"] is search["gap"] is None
    assert search["proven_optimal"] is False
    assert 1 <= len(result.data["near_misses"]) <= 3


def test_the_shortage_is_what_is_missing_on_the_fullest_stage(case):
    for miss in case[1].data["near_misses"]:
        memory = miss["memory"]
        assert miss["shortage_bytes"] == memory["peak_bytes"] - memory["capacity_bytes"] > 0
        assert miss["feasible"] is False
        assert [v["rule"] for v in miss["violations"]] == ["memory"]
        assert miss["violations"][0]["remedy"]


def test_near_misses_are_the_leanest_candidates(case):
    shortages = [miss["shortage_bytes"] for miss in case[1].data["near_misses"]]
    assert shortages == sorted(shortages)


def after(problem, miss, change):
    """The record of a near miss after a change of its degrees, or of what the job keeps (`--grad-dtype bf16`)."""
    option, _, value = change.partition(" ")
    job = problem.job
    if option == "--grad-dtype":
        job = replace(job, grad_bytes=GRAD_DTYPES[value])
    elif option == "--optimizer":
        job = replace(job, optimizer=OPTIMIZERS[value])
    else:
        return estimate_degrees(problem, changed_degrees(degrees_of(miss), change))
    return estimate_degrees(replace(problem, job=job), degrees_of(miss))


def changed_degrees(degrees, change):
    """The plan after a change such as `tp 8`, `micro-batch 1`, `zero 2` or `recompute full`."""
    name, value = change.rsplit(" ", 1)
    field = name.replace("-", "_")
    if field == "offload":
        together = {"zero": 3} if value == "optimizer,parameters" else {}
        return replace(degrees, offload=value, **together)
    if field == "recompute_layers":
        return replace(degrees, recompute="full", recompute_layers=int(value))
    if field == "recompute":
        return replace(degrees, recompute=value, recompute_layers=None)
    if field == "micro_batch":
        return replace(degrees, micro_batch=int(value))
    if field == "zero":
        return replace(degrees, zero=int(value), dp_replicate=None)
    plain = {"vpp": 1, "schedule": None} if degrees.vpp > 1 else {}
    return replace(degrees, layers_per_stage=None, dp_replicate=None, **plain, **{field: int(value)})


def searched(remedy):
    """Whether a remedy is another plan, found by searching."""
    return "nodes" in remedy["change"] or remedy["change"].startswith("another plan")


def test_every_remedy_does_what_it_says(case):
    problem, result = case
    for miss in result.data["near_misses"]:
        for remedy in miss["remedies"]:
            assert isinstance(remedy["feasible"], bool)
            if searched(remedy):
                continue
            again = after(problem, miss, remedy["change"])
            assert again["feasible"] == remedy["feasible"]
            assert again["predicted"]["step_time_s"] == pytest.approx(remedy["step_time_s"], rel=1e-9)
            assert again["memory"]["peak_bytes"] < miss["memory"]["peak_bytes"]


def test_more_nodes_are_as_many_as_it_takes(case):
    problem, result = case
    node = problem.cluster.node.id
    for miss in result.data["near_misses"][:1]:
        remedy = next(r for r in miss["remedies"] if "nodes" in r["change"])
        nodes = int(remedy["change"].split()[0])
        assert remedy["feasible"]
        shape = f"x{problem.cluster.gpus_per_node}" if problem.cluster.gpus_per_node < problem.cluster.node.gpus else ""
        job = {"seq_len": problem.job.seq_len, "global_batch": problem.job.global_batch}
        larger = plan(problem.graph, f"{node}:{nodes}{shape}", **job, search=SearchOptions(effort="scan"))
        assert larger.exit_code == 0
        assert larger.data["search"]["best_step_time_s"] == pytest.approx(remedy["step_time_s"], rel=1e-9)
        half = load_cluster(f"{node}:{nodes // 2}{shape}")
        assert plan(problem.graph, half, **job).exit_code == 1


@pytest.mark.parametrize(
    ("fix", "wanted"),
    [
        ({"tp": "1", "pp": "1", "zero": "0", "recompute": "none"}, {"zero 1", "recompute full"}),
        ({"tp": "4", "pp": "1", "cp": "1", "micro_batch": "8", "recompute": "none", "zero": "1"}, {"micro-batch 4"}),
    ],
)
def test_remedies_of_a_plan_that_nearly_fits_are_feasible(fix, wanted):
    model, cluster, seq_len, batch = "llama3.1-8b", "dgx-h100:1", 8192, 64
    options = PricingOptions(overrides=("cluster.memory_bytes=60000000000",))
    result = plan(model, cluster, seq_len=seq_len, global_batch=batch, options=options, search=SearchOptions(fix=fix))
    assert result.exit_code == 1
    changes = {
        remedy["change"].removesuffix(" (against --fix)") for miss in result.data["near_misses"] for remedy in miss["remedies"]
    }
    assert changes & wanted
    problem = build_problem(model, cluster, seq_len=seq_len, global_batch=batch, options=options)
    tried = near_misses(problem, result.data["near_misses"], {})
    for miss in tried:
        feasible = [remedy for remedy in miss["remedies"] if remedy["feasible"]]
        for remedy in feasible:
            if searched(remedy):
                continue
            again = after(problem, miss, remedy["change"])
            assert again["feasible"], remedy["change"]
            assert again["memory"]["peak_bytes"] <= again["memory"]["capacity_bytes"]


def test_a_space_without_any_legal_plan_is_refused_with_the_rule():
    with pytest.raises(ConflictError, match=r"\d") as caught:
        plan("llama3.1-8b", "dgx-h100:1", seq_len=4096, global_batch=64, search=SearchOptions(fix={"tp": "3"}))
    assert caught.value.hint


def logits_miss(framework):
    """A plan whose logits are too large, by a framework that cuts losses or by one that does not."""
    options = PricingOptions(framework=framework, stack="torchtitan")
    problem = build_problem("llama3.1-8b", "dgx-h100:1", seq_len=65_536, global_batch=64, options=options)
    return problem, estimate_degrees(problem, Degrees(recompute="full"))


def test_a_smaller_piece_of_the_loss_is_offered_where_logits_are_the_peak():
    problem, record = logits_miss("torchtitan")
    assert [v["rule"] for v in record["violations"]] == ["memory"]
    (found,) = (r for r in remedies(problem, record) if r["change"] == "loss-chunks 8")
    again = estimate_degrees(problem, Degrees(recompute="full", loss_chunks=8))
    assert found["feasible"] is again["feasible"] is True
    assert found["step_time_s"] == again["predicted"]["step_time_s"]
    assert found["step_time_s"] >= record["predicted"]["step_time_s"] * (1 - 1e-12)
    assert found["peak_bytes"] == again["memory"]["peak_bytes"]


def test_remedies_keep_the_rules():
    problem, record = logits_miss("megatron")
    assert record["stages"][0]["memory"]["logits_bytes"] > record["memory"]["capacity_bytes"]
    changes = [r["change"] for r in remedies(problem, record)]
    assert changes
    assert not any(change.startswith("loss-chunks") for change in changes)


def tight(memory, framework="megatron"):
    """A job on devices of so many bytes."""
    options = PricingOptions(overrides=(f"cluster.memory_bytes={memory:.0f}",), framework=framework)
    return build_problem("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64, options=options)


def between(degrees, leaner, framework="megatron"):
    """The job on devices half-way between what a plan needs and what a leaner one does, and the record of the first."""
    wide = tight(200e9, framework)
    peaks = [estimate_degrees(wide, one)["memory"]["peak_bytes"] for one in (degrees, leaner)]
    problem = tight(sum(peaks) / 2, framework)
    return problem, estimate_degrees(problem, degrees)


PLAIN = Degrees(tp=2, zero=1)


def test_remedies_that_fit_come_first_and_the_fastest_of_them():
    problem, record = between(PLAIN, replace(PLAIN, recompute="full"))
    found = remedies(problem, record)
    fits = [remedy["feasible"] for remedy in found]
    assert fits == sorted(fits, reverse=True)
    steps = [remedy["step_time_s"] for remedy in found if remedy["feasible"]]
    assert steps == sorted(steps)
    assert len(steps) > 1


@pytest.mark.parametrize("framework", ["megatron", "any", "pytorch"])
@pytest.mark.parametrize("vpp", [1, 2])
def test_the_fewest_recomputed_layers_are_offered(framework, vpp):
    plain = replace(PLAIN, zero=3) if framework == "pytorch" else PLAIN
    degrees = replace(plain, pp=vpp, vpp=vpp)
    problem, record = between(degrees, replace(degrees, recompute="full"), framework)
    (found,) = [remedy for remedy in remedies(problem, record) if remedy["change"].startswith("recompute-layers")]
    layers = int(found["change"].split()[1])
    assert 1 < layers < 32 // vpp
    assert layers % vpp == 0
    assert found["feasible"]
    fewer = estimate_degrees(problem, replace(degrees, recompute="full", recompute_layers=layers - vpp))
    assert not fewer["feasible"]
    (whole,) = [remedy for remedy in remedies(problem, record) if remedy["change"] == "recompute full"]
    assert found["step_time_s"] < whole["step_time_s"]


def test_the_least_of_the_optimizer_is_offloaded():
    problem, record = between(PLAIN, replace(PLAIN, offload="optimizer"))
    (found,) = [r for r in remedies(problem, record) if r["change"].startswith("offload optimizer")]
    assert found["feasible"]
    share = float(found["change"].partition("=")[2])
    assert 0.125 < share < 1
    assert not estimate_degrees(problem, replace(PLAIN, offload=f"optimizer={share - 0.125}"))["feasible"]


def test_activations_are_offloaded_by_layers():
    problem, record = between(PLAIN, replace(PLAIN, offload="activations"))
    (found,) = [r for r in remedies(problem, record) if "activations" in r["change"]]
    assert found["feasible"]
    layers = float(found["change"].partition("=")[2]) * 32
    assert layers == pytest.approx(round(layers), abs=1e-3)
    assert 1 < layers < 31
    fewer = estimate_degrees(problem, replace(PLAIN, offload=f"activations={(layers - 1) / 32}"))
    assert not fewer["feasible"]


def test_fsdp_offloads_all_states_together():
    problem = tight(20e9, "pytorch")
    record = estimate_degrees(problem, Degrees(recompute="full"))
    changes = [remedy["change"] for remedy in remedies(problem, record) if remedy["change"].startswith("offload")]
    assert changes == ["offload optimizer,parameters"]


def test_a_plan_with_states_on_the_host_is_found_for_the_whole_space():
    model, cluster, seq_len, batch = "llama3.1-70b", "dgx-h100:1", 8192, 64
    result = planned("dense").data
    (found,) = [r for r in result["near_misses"][0]["remedies"] if r["change"].startswith("another plan")]
    held = SearchOptions(fix={"offload": "optimizer"}, effort="scan", remedies=False)
    best = plan(model, cluster, seq_len=seq_len, global_batch=batch, search=held).data["search"]["best_step_time_s"]
    assert found["step_time_s"] == pytest.approx(best, rel=1e-9)
    fixed = SearchOptions(fix={"offload": "none"}, effort="scan")
    other = plan(model, cluster, seq_len=seq_len, global_batch=batch, search=fixed).data
    assert not [r for miss in other["near_misses"] for r in miss["remedies"] if r["change"].startswith("another plan")]
    assert any(r["change"].endswith("(against --fix)") for r in other["near_misses"][0]["remedies"])
