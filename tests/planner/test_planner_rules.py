"""Every rule: a plan it accepts, the same with one field changed that it rejects, numbers, and a remedy that works."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import planner_problems as problems
import pytest

from shardwright.planner.estimation import estimate, estimate_degrees
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.report.listings import listing
from shardwright.planner.rules.base import DERIVED, divisors, facts_of, nearest
from shardwright.planner.rules.elementary import ELEMENTARY
from shardwright.planner.rules.registry import AXIS_ORDER, RULES, last_axis, rules_for, rules_of_a_plan
from shardwright.planner.rules.targets import TARGET_RULES
from shardwright.planner.rules.versions import TARGETS
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan
from shardwright.planner.search.space import declare, enumerate_legal
from shardwright.planner.settling import settle

DENSE = {"model": "llama3.1-8b", "cluster": "dgx-h100:12", "seq_len": 4096, "global_batch": 24}
ROUTED = DENSE | {"model": "mixtral-8x7b"}
FINE = DENSE | {"model": "qwen3-30b-a3b"}
GRAPH = Path(__file__).parents[1] / "graphs" / "files" / "gpt.pt2"
READ = {"model": str(GRAPH), "cluster": "dgx-h100:1", "seq_len": 1024, "global_batch": 64}
BASE = Degrees(tp=2, pp=2, zero=1)
MOE = replace(BASE, ep=2, etp=1)

#: rule, problem, a plan that keeps it, the changed field
EXAMPLES = {
    "graph-axes": (READ, Degrees(), {"cp": 2}),
    "attention-heads": (DENSE, BASE, {"tp": 3}),
    "kv-heads": (DENSE | {"model": "glm-4.5-air"}, replace(BASE, etp=1), {"tp": 12}),
    "mlp-width": (DENSE, BASE, {"tp": 3}),
    "sequence-cp": (DENSE, BASE, {"cp": 3}),
    "world-size": (DENSE, BASE, {"pp": 5}),
    "batch-dp": (DENSE, BASE, {"tp": 1}),
    "batch-micro": (DENSE, BASE, {"micro_batch": 2}),
    "experts-ep": (DENSE, BASE, {"ep": 2}),
    "expert-width": (ROUTED, MOE, {"etp": 3}),
    "expert-mesh": (FINE, MOE, {"ep": 32}),
    "sequence-sp": (DENSE | {"seq_len": 1026}, BASE, {"tp": 4}),
    "expert-sequence": (ROUTED, MOE, {"sequence_parallel": False}),
    "dp-replicate": (DENSE, BASE, {"dp_replicate": 5}),
    "replicas": (DENSE, BASE, {"zero": 0, "dp_replicate": 2}),
    "expert-replicate": (FINE, replace(MOE, ep=16), {"dp_replicate": 2}),
    "virtual-stages": (DENSE | {"global_batch": 96}, replace(BASE, vpp=2), {"pp": 1}),
    "layers-stages": (DENSE, BASE, {"pp": 48}),
    "schedule-chunks": (DENSE | {"global_batch": 96}, BASE, {"schedule": "interleaved-1f1b"}),
    "interleaved-batch": (DENSE, BASE, {"vpp": 2}),
    "schedule-rounds": (DENSE | {"global_batch": 96}, replace(BASE, schedule="dualpipe-v"), {"micro_batch": 2}),
}
ALONE = {
    "world-size",
    "batch-micro",
    "expert-width",
    "expert-mesh",
    "sequence-sp",
    "expert-sequence",
    "dp-replicate",
    "replicas",
    "expert-replicate",
    "layers-stages",
    "schedule-chunks",
    "interleaved-batch",
    "schedule-rounds",
}


def problem_for(job, framework="any"):
    job = dict(job)
    options = PricingOptions(framework=framework)
    return build_problem(job.pop("model"), job.pop("cluster"), **job, options=options)


def broken(problem, degrees):
    return {v["rule"]: v for v in settle(problem, degrees).violations}


def test_every_rule_that_arithmetic_demands_has_an_example():
    assert set(EXAMPLES) == {rule.id for rule in ELEMENTARY}


@pytest.mark.parametrize("rule", EXAMPLES)
def test_one_changed_field_breaks_the_rule(rule):
    job, kept, change = EXAMPLES[rule]
    problem = problem_for(job)
    assert broken(problem, kept) == {}
    found = broken(problem, replace(kept, **change))
    assert rule in found
    if rule in ALONE:
        assert set(found) == {rule}
    assert re.search(r"\d", found[rule]["message"])
    assert len(found[rule]["remedy"]) > 4


@pytest.mark.parametrize("rule", EXAMPLES)
def test_a_plan_that_breaks_a_rule_is_infeasible_and_never_raises(rule):
    job, kept, change = EXAMPLES[rule]
    made = estimate(**job, degrees=replace(kept, **change))
    assert not made.feasible
    assert made.exit_code == 1
    assert rule in {v["rule"] for v in made.to_dict()["violations"]}


#: how the numbers of a remedy become columns
MENDED = {
    "attention-heads": lambda v: {"tp": v},
    "kv-heads": lambda v: {"tp": v},
    "mlp-width": lambda v: {"tp": v},
    "sequence-cp": lambda v: {"cp": v},
    "world-size": lambda v: {"tp": 1, "cp": 1, "pp": v},
    "experts-ep": lambda v: {"ep": v},
    "expert-width": lambda v: {"etp": v},
    "expert-mesh": lambda v: {"etp": 1, "ep": v},
    "sequence-sp": lambda v: {"tp": v, "cp": 1},
    "expert-sequence": lambda v: {"etp": v},
    "dp-replicate": lambda v: {"dp_replicate": v},
    "expert-replicate": lambda v: {"dp_replicate": v},
    "layers-stages": lambda v: {"pp": v, "vpp": 1},
    "schedule-chunks": lambda v: {"vpp": v},
    "interleaved-batch": lambda v: {"micro_batches": v},
}


def columns_for(problem, degrees, **changed):
    shown = settle(problem, degrees).shown
    words = {name: value for name, value in shown.items() if isinstance(value, (int, np.integer))}
    dp = max(words["dp"], 1)
    found = words | {"dp": dp, "split": 0, "recompute": 0, "schedule": SCHEDULE_IDS.index(shown["schedule"])}
    found["edp"] = words["tp"] * words["cp"] * dp // (words["ep"] * words["etp"])
    found["micro_batches"] = max(problem.job.global_batch // (dp * words["micro_batch"]), 1)
    return {name: np.array([value]) for name, value in (found | changed).items()}


@pytest.mark.parametrize("rule", MENDED)
def test_the_values_a_remedy_names_keep_the_rule(rule):
    job, kept, change = EXAMPLES[rule]
    problem = problem_for(job)
    violation = broken(problem, replace(kept, **change))[rule]
    clause = violation["remedy"].split(", ")[1 if rule == "expert-sequence" else 0]
    values = [int(text) for text in re.findall(r"\d+", clause)]
    record = next(r for r in RULES if r.id == rule)
    assert values
    for value in values:
        columns = columns_for(problem, replace(kept, **change), **MENDED[rule](value))
        assert not record.broken(columns, facts_of(problem))[0], value


@pytest.mark.parametrize("rule", ["batch-dp", "batch-micro"])
def test_the_batches_a_remedy_names_keep_the_rule(rule):
    job, kept, change = EXAMPLES[rule]
    violation = broken(problem_for(job), replace(kept, **change))[rule]
    batches = [int(text) for text in re.findall(r"\d+", violation["remedy"])]
    assert batches
    for batch in batches:
        assert rule not in broken(problem_for(job | {"global_batch": batch}), replace(kept, **change))


def test_rules_stand_in_the_order_of_the_axes_they_read():
    places = [last_axis(rule) for rule in RULES if rule.rejects]
    assert places == sorted(places)
    assert [rule.rejects for rule in RULES] == sorted((rule.rejects for rule in RULES), reverse=True)
    for rule in RULES:
        assert rule.axes <= set(AXIS_ORDER)
        assert all(name in AXIS_ORDER or name in DERIVED for name in rule.reads)
        assert rule.says
        assert rule.source


def test_show_rules_lists_them_in_the_order_of_rejection():
    shown = [item["id"] for item in listing("rules", None)["items"]]
    assert shown == [rule.id for rule in RULES]
    rejected = list(problems.legal_of("moe-96").rejected)
    positions = [shown.index(rule) for rule in rejected]
    assert positions == sorted(positions)


@pytest.mark.parametrize("name", ["dense-8", "moe-96"])
def test_rules_read_what_they_say_they_read(name):
    """A rule that looks at another column than it declares would be tested too early."""
    problem = problems.problem_of(name)
    columns = dict(problems.legal_of(name).columns)
    for rule in RULES:
        seen = {axis: columns[axis] for axis in rule.axes} | {
            n: columns[n] for n in rule.reads if n in DERIVED and n in columns
        }
        seen |= {n: columns[n] for n in DERIVED if n in columns and set(DERIVED[n]) <= rule.axes}
        if not rule.targets:
            assert not rule.broken(seen, facts_of(problem)).any(), rule.id


def test_search_rules_never_bind_a_user():
    problem = problem_for(DENSE | {"global_batch": 96})
    odd = Degrees(tp=1, pp=1, zero=1, dp_replicate=3)
    assert broken(problem, odd) == {}
    assert all(rule.canonical is False for rule in rules_of_a_plan("any"))
    assert any(rule.canonical for rule in rules_for("any"))


# --- what targets can express


def able(**fields):
    model = fields.pop("model", "llama3.1-8b")
    made = estimate(model, "dgx-h100:12", seq_len=4096, global_batch=96, degrees=Degrees(**fields))
    return set(made.to_dict()["expressible_by"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"zero": 1}, {"megatron", "megatron-bridge", "deepspeed"}),
        ({"zero": 3}, {"megatron", "megatron-bridge", "torchtitan", "torchrun", "deepspeed"}),
        ({"zero": 2}, {"torchtitan", "torchrun", "deepspeed"}),
        ({"zero": 3, "pp": 2}, {"torchtitan", "torchrun"}),
        ({"zero": 1, "tp": 2}, {"megatron", "megatron-bridge"}),
        ({"zero": 3, "tp": 2, "sequence_parallel": False}, {"megatron", "megatron-bridge", "torchrun"}),
        ({"zero": 1, "pp": 2, "schedule": "gpipe"}, set()),
        ({"zero": 1, "pp": 2}, {"megatron", "megatron-bridge"}),
        ({"zero": 3, "pp": 2, "schedule": "gpipe"}, {"torchtitan", "torchrun"}),
        ({"zero": 3, "pp": 2, "schedule": "zb-h1"}, {"torchrun"}),
        ({"zero": 3, "pp": 2, "schedule": "zb-v"}, {"torchtitan", "torchrun"}),
        ({"zero": 3, "pp": 2, "tp": 2, "schedule": "dualpipe-v"}, {"torchtitan", "torchrun"}),
        ({"zero": 3, "pp": 2, "schedule": "dualpipe-v"}, set()),
        ({"zero": 3, "pp": 4, "micro_batch": 4}, set()),
        ({"zero": 1, "pp": 2, "schedule": "zb-v"}, set()),
        ({"zero": 1, "pp": 2, "vpp": 2}, {"megatron", "megatron-bridge"}),
        ({"zero": 3, "recompute": "full", "recompute_layers": 8}, {"megatron", "megatron-bridge", "torchrun", "deepspeed"}),
        ({"model": "mixtral-8x7b", "zero": 3, "tp": 4, "ep": 2, "etp": 2}, {"megatron", "megatron-bridge"}),
        ({"model": "mixtral-8x7b", "zero": 1, "tp": 2, "etp": 2, "sequence_parallel": False}, set()),
    ],
)
def test_targets_that_can_express_a_plan(fields, expected):
    assert able(**fields) == expected


@pytest.mark.parametrize(("layers", "expected"), [(31, {"torch-recompute"}), (32, set()), (40, set())])
def test_recomputing_as_many_layers_as_there_are_is_recomputing_all(layers, expected):
    degrees = Degrees(tp=2, zero=3, recompute="full", recompute_layers=layers)
    record = estimate_degrees(problem_for(DENSE | {"global_batch": 96}, "torchtitan"), degrees)
    assert {v["rule"] for v in record["violations"]} == expected
    assert ("torchtitan" in record["expressible_by"]) == (not expected)


FRAMEWORKS = {"megatron": "megatron", "torchtitan": "torchtitan", "pytorch": "torchrun", "deepspeed": "deepspeed"}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_named_framework_keeps_its_rules_and_ranks_first_what_it_writes(framework):
    options, target = PricingOptions(framework=framework), FRAMEWORKS[framework]
    data = plan("qwen3-0.6b", "dgx-h100:1", seq_len=1024, global_batch=16, options=options, search=SearchOptions(top=20)).data
    assert target in data["plans"][0]["expressible_by"]
    written = [(record["tie_group"], target not in record["expressible_by"]) for record in data["plans"]]
    assert written == sorted(written)
    named = {rule.id for rule in TARGET_RULES if FRAMEWORKS[framework] in rule.targets}
    assert named & set(data["search"]["rejected"])
    assert not ({rule.id for rule in TARGET_RULES} - named) & set(data["search"]["rejected"])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_only_narrows_the_space(framework):
    free, bound = problem_for(DENSE), problem_for(DENSE, framework)
    space = declare(bound, {})
    assert len(enumerate_legal(replace(free, stack=bound.stack), space)) >= len(enumerate_legal(bound, space))


def test_a_users_plan_is_told_which_target_rule_it_breaks():
    problem = problem_for(DENSE, "torchtitan")
    record = estimate_degrees(problem, Degrees(zero=1, tp=2, pp=2))
    assert "torch-zero" in {v["rule"] for v in record["violations"]}
    assert record["predicted"] is not None


def test_every_target_rule_names_known_targets_and_sources():
    for rule in TARGET_RULES:
        assert rule.targets
        assert set(rule.targets) <= set(TARGETS)
        assert not rule.canonical


def test_divisors_and_the_nearest_of_them():
    assert divisors(96) == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96)
    assert divisors(1) == (1,)
    assert nearest(5, (1, 2, 4, 8)) == "2 or 4" or nearest(5, (1, 2, 4, 8)) == "4 or 8"
    assert nearest(3, (1,)) == "1"


@pytest.mark.parametrize("degrees", [Degrees(zero=2), Degrees(zero=3, pp=2)])
def test_what_megatron_accepts_and_nobody_tests_is_not_planned(degrees):
    record = estimate_degrees(problem_for(DENSE | {"global_batch": 96}, "megatron"), degrees)
    said = [v["message"] for v in record["violations"] if v["rule"] == "megatron-zero"]
    assert len(said) == 1
    assert said[0].startswith("not planned: ZeRO 2, and ZeRO 3 with a pipeline")
    assert "no upstream test" in said[0]
