"""The search and saved results under the rules of a framework's version."""

import json

import numpy as np
import pytest

from shardwright.cli import run
from shardwright.errors import UnknownNameError
from shardwright.planner.estimation import estimate, estimate_plan
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.rules.registry import rules_for
from shardwright.planner.rules.target_schedules import SCHEDULES_OF
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan
from shardwright.planner.search.space import declare, enumerate_legal

JOB = {"seq_len": 4096, "global_batch": 64}


def legal_of(version, framework="megatron"):
    options = PricingOptions(framework=framework, target_version=version)
    problem = build_problem("glm-4.5-air", "dgx-h100:4", **JOB, options=options)
    space = declare(build_problem("glm-4.5-air", "dgx-h100:4", **JOB), {})
    return enumerate_legal(problem, space), space


@pytest.mark.parametrize("version", ["0.12", "0.13", "0.16", None])
def test_every_candidate_is_counted_once_in_every_version(version):
    legal, space = legal_of(version)
    assert space.candidates == sum(legal.rejected.values()) + len(legal)
    places = [rule.id for rule in rules_for("megatron", version)]
    assert set(legal.rejected) <= set(places)


def test_later_versions_only_widen_the_space():
    sizes = [len(legal_of(version)[0]) for version in ("0.12", "0.13", "0.16", None)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[1] < sizes[2]


def test_the_search_never_reads_settings():
    assert all(not rule.settings and rule.severity == "error" for rule in rules_for("megatron"))


def schedules_of(problem, fix):
    legal = enumerate_legal(problem, declare(problem, fix))
    return {SCHEDULE_IDS[index] for index in np.unique(legal.columns["schedule"])}, legal.rejected


@pytest.mark.parametrize(
    ("stack", "schedules"),
    [
        (None, {"1f1b", "interleaved-1f1b"}),
        ("deepspeed", {"1f1b"}),
        ("torchtitan", set(SCHEDULE_IDS) - {"zb-h1"}),
        ("pytorch-fsdp2", set(SCHEDULE_IDS)),
    ],
)
def test_without_a_framework_schedules_are_those_of_the_target_whose_facts_price_them(stack, schedules):
    options = PricingOptions(stack=stack)
    problem = build_problem("llama3.1-8b", "dgx-h100:1", seq_len=4096, global_batch=32, options=options)
    found, rejected = schedules_of(problem, {})
    assert found == schedules
    assert (rejected["priced-schedules"] > 0) == (stack != "pytorch-fsdp2")
    fixed, rejected = schedules_of(problem, {"schedule": "zb-v"})
    assert fixed == {"zb-v"}
    assert "priced-schedules" not in rejected


@pytest.mark.parametrize(("framework", "stack", "warned"), [
    ("any", None, True), ("pytorch", "megatron-core", True), ("pytorch", None, False), ("any", "torchtitan", False),
    ("megatron", None, False),
])  # fmt: skip
def test_a_schedule_that_the_pricing_stack_has_not_is_warned_of(framework, stack, warned):
    options = PricingOptions(framework=framework, stack=stack)
    degrees = Degrees(pp=2, zero=2, schedule="zb-v")
    made = estimate("llama3.1-8b", "dgx-h100:1", seq_len=4096, global_batch=32, degrees=degrees, options=options).to_dict()
    said = "priced with the facts of megatron-core, a stack of megatron, which has no schedule zb-v; "
    said += "it can be launched by torchrun, torchtitan: name one by --framework"
    assert (said in made["warnings"]) is warned
    assert any("priced with the facts" in text for text in made["warnings"]) is warned


def test_405_billion_parameters_on_2048_gpus_keep_200_000_candidates():
    problem = build_problem("llama3.1-405b", "dgx-h100:256", seq_len=8192, global_batch=2048)
    legal = enumerate_legal(problem, declare(problem, {}))
    assert len(legal) >= 200_000
    runs = np.isin(SCHEDULE_IDS, SCHEDULES_OF["megatron"])
    assert runs[legal.columns["schedule"]].all()


def test_a_result_remembers_the_version_it_was_made_for():
    options = PricingOptions(framework="megatron", target_version="0.14.1")
    made = plan("gpt2", "dgx-h100:1", seq_len=1024, global_batch=16, options=options, search=SearchOptions(top=1)).to_dict()
    assert made["inputs"]["search"]["target_version"] == "0.14"
    version = next(a for a in made["assumptions"] if a["key"] == "framework.version")
    assert (version["value"], version["origin"]) == ("0.14", "given")
    again = estimate_plan(json.loads(json.dumps(made)))
    assert again.to_dict()["inputs"]["search"]["target_version"] == "0.14"


def test_versions_decide_what_can_launch_a_plan():
    plan_of = Degrees(tp=8, zero=1, etp=1)
    for version, legal in (("0.12", False), ("0.16", True)):
        options = PricingOptions(framework="megatron", target_version=version)
        made = estimate("qwen3-235b-a22b", "dgx-h100:8", **JOB, degrees=plan_of, options=options).to_dict()
        assert ("megatron-kv-heads" in {v["rule"] for v in made["violations"]}) is not legal
        assert ("megatron" in made["expressible_by"]) is legal


def test_unknown_versions_are_refused():
    with pytest.raises(UnknownNameError):
        build_problem("gpt2", "dgx-h100:1", **JOB, options=PricingOptions(framework="megatron", target_version="3.0"))


def test_the_command_line_takes_a_version(capsys):
    job = ["llama3.1-8b", "--cluster", "dgx-h100:2", "--seq-len", "4096", "--global-batch", "64", "--tp", "16"]
    assert run(["estimate", *job, "--framework", "megatron", "--target-version", "0.12"]) == 1
    assert "megatron-kv-heads" in capsys.readouterr().out
    assert run(["estimate", *job, "--framework", "megatron", "--target-version", "0.16"]) == 0
    assert run(["estimate", *job, "--target-version", "0.16"]) == 2
    assert "--target-version" in capsys.readouterr().err
