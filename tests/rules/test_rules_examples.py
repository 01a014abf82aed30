"""Every rule of a target: kept by a plan, broken by one change of it, explained with its numbers, mended by its remedy."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from rule_examples import EXAMPLES

from shardwright.models.catalog import load_model, model_from_dict
from shardwright.planner.offloading import offload_of
from shardwright.planner.plans import ALL_TO_ALL, CP_COMM_KINDS, MOE_DISPATCHERS, RECOMPUTE_CHOICES
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.rules.base import facts_of
from shardwright.planner.rules.checking import violation
from shardwright.planner.rules.defaults import defaults_of, spoken
from shardwright.planner.rules.registry import ALL_TARGET_RULES, AXIS_ORDER
from shardwright.planner.rules.settings import Settings
from shardwright.planner.rules.targets import TARGET_RULES
from shardwright.planner.rules.versions import VERSIONS
from shardwright.planner.schedules.registry import SCHEDULE_IDS

GPUS = 96
COLUMNS = {*AXIS_ORDER, "dp", "edp", "dp_shard", "micro_batches"}
WITHOUT = {"model", "device", "global_batch"}
INDEX = {"schedule": SCHEDULE_IDS, "recompute": RECOMPUTE_CHOICES, "cp_comm": CP_COMM_KINDS}
BASE = dict.fromkeys(("tp", "cp", "pp", "ep", "etp", "dp_replicate", "micro_batch", "vpp", "loss_chunks"), 1)
INDEX |= {"moe_dispatcher": MOE_DISPATCHERS}
BASE |= dict.fromkeys(("sp", "split", "recompute", "cp_comm", "offload"), 0)
BASE |= {"zero": 1, "schedule": SCHEDULE_IDS.index("1f1b"), "moe_dispatcher": ALL_TO_ALL}

CASES = [
    pytest.param(rule, target, EXAMPLES[target][rule.id], id=f"{target}-{rule.id}-{number}")
    for number, rule in enumerate(ALL_TARGET_RULES)
    for target in EXAMPLES
    if target in rule.targets and rule.id in EXAMPLES[target]
]


@cache
def graph_of(name):
    if name == "linear":
        return model_from_dict(_linear())
    if name == "odd-heads":
        return model_from_dict(load_model("llama3.1-8b").spec.to_dict() | {"heads": 24, "hidden": 4000, "head_dim": 128})
    return load_model(name)


def _linear():
    base = load_model("llama3.1-8b").spec.to_dict()
    scan = {"kind": "gated-delta", "heads": 32, "head_dim": 128, "state": 128, "groups": 16, "conv": 4}
    return base | {"mixers": ["scan", "scan", "scan", "attention"], "scan": scan}


@cache
def job_facts(model, target):
    options = PricingOptions(framework="megatron" if target == "megatron-bridge" else target)
    return facts_of(build_problem(graph_of(model), "dgx-h100:12", seq_len=4096, global_batch=GPUS, options=options))


def version_of(rule, target):
    """The first version of the target in which the rule holds."""
    return next(version for version in VERSIONS[target] if rule.holds_for(target, version))


def indexed(column, text):
    return offload_of(text).code if column == "offload" else INDEX[column].index(text)


def situation(values, target, version):
    """Columns and facts of a plan with a configuration."""
    facts = job_facts(values.get("model", "llama3.1-8b"), target)
    given = {k: v for k, v in values.items() if k not in COLUMNS and k not in WITHOUT and v is not None}
    settings = Settings(given=given, defaults=defaults_of(target, version), version=version)
    facts = replace(facts, settings=settings, compute_capability=values.get("device", 9))
    c = BASE | {k: indexed(k, v) if isinstance(v, str) else v for k, v in values.items() if k in COLUMNS}
    c.setdefault("dp", max(GPUS // (c["tp"] * c["cp"] * c["pp"]), 1))
    c.setdefault("edp", max(c["tp"] * c["cp"] * c["dp"] // (c["etp"] * c["ep"]), 1))
    c.setdefault("micro_batches", max(GPUS // (c["dp"] * c["micro_batch"]), 1))
    return c, facts


def breaks(rule, values, target):
    c, facts = situation(values, target, version_of(rule, target))
    return bool(rule.broken({name: np.array([value]) for name, value in c.items()}, facts)[0])


@pytest.mark.parametrize(("rule", "target", "pair"), CASES)
def test_one_change_breaks_the_rule(rule, target, pair):
    kept, change = pair
    assert not breaks(rule, kept, target)
    assert breaks(rule, kept | change, target)


@pytest.mark.parametrize(("rule", "target", "pair"), CASES)
def test_the_remedy_mends_what_was_broken(rule, target, pair):
    kept, change = pair
    c, facts = situation(kept | change, target, version_of(rule, target))
    found = violation(rule, c, facts)
    assert found.message
    assert found.remedy
    assert "{" not in found.message
    assert "None" not in found.message.replace("None of", "")
    if found.remedy == "nothing to do":
        return
    assert found.changes
    assert not breaks(rule, kept | change | found.changes, target)


@pytest.mark.parametrize(("rule", "target", "pair"), CASES)
def test_the_message_holds_what_was_given(rule, target, pair):
    values = pair[0] | pair[1]
    c, facts = situation(values, target, version_of(rule, target))
    text = violation(rule, c, facts).message
    named = [*values, *(key.replace("_", "-") for key in values), *map(str, values.values())]
    assert re.search(r"\d", text) or any(word in text for word in named)


def test_every_rule_of_a_target_has_an_example():
    generated = {"megatron-argument", "torchtitan-key"}
    known = {name for table in EXAMPLES.values() for name in table}
    of_the_job = {rule.id for rule in TARGET_RULES if not rule.reads}
    assert {rule.id for rule in ALL_TARGET_RULES} - of_the_job - generated == known


@pytest.mark.parametrize("name", ["megatron-argument", "torchtitan-key"])
def test_settings_a_version_does_not_have_are_named(name):
    for rule in (rule for rule in ALL_TARGET_RULES if rule.id == name):
        target, (key,) = rule.targets[0], rule.settings
        assert not breaks(rule, {}, target)
        assert breaks(rule, {key: 2}, target)
        c, facts = situation({key: 2}, target, version_of(rule, target))
        found = violation(rule, c, facts)
        assert key.replace("_", "-") in found.message.replace("_", "-")
        assert found.changes == {key: None}


def test_rules_read_the_columns_and_settings_they_declare():
    """A rule that looks at an undeclared column or setting would be tested too early, or not listed rightly."""
    for rule, target, pair in (case.values for case in CASES):
        c, facts = situation(pair[0] | pair[1], target, version_of(rule, target))
        seen = {name: np.array([c[name]]) for name in rule.axes | set(rule.reads) | {"tp", "pp"} if name in c}
        derived = [n for n in ("dp", "edp", "micro_batches") if n in rule.reads]
        seen |= {name: np.array([c[name]]) for name in derived}
        given = {k: v for k, v in facts.settings.given.items() if k in rule.settings or rule.id.startswith("deepspeed-")}
        settings = Settings(given=given, defaults=facts.settings.defaults)
        assert bool(rule.broken(seen, replace(facts, settings=settings))[0]), rule.id


def test_remedies_are_written_as_the_configuration_is():
    assert spoken({"overlap_grad_reduce": True}, "megatron") == "give --overlap-grad-reduce"
    assert spoken({"overlap_p2p_comm": True}, "megatron") == "leave out --no-overlap-p2p-communication"
    assert spoken({"gradient_accumulation_fusion": False}, "megatron") == "give --no-gradient-accumulation-fusion"
    assert spoken({"recompute_modules": ("mlp", "moe")}, "megatron") == "give --recompute-modules mlp moe"
    assert spoken({"env.CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "megatron") == "export CUDA_DEVICE_MAX_CONNECTIONS=1"
    assert spoken({"compile.enable": True}, "torchtitan") == "set compile.enable = true"
    assert (
        spoken({"train_batch_size": 96, "fp16.enabled": None}, "deepspeed")
        == "set train_batch_size = 96, leave out fp16.enabled"
    )
    assert spoken({"tp": 4, "sp": 1}, None) == "use tp 4, switch sequence parallelism on"
    assert spoken({"fp4": None, "sp": 0}, "megatron") == "leave out --fp4-format, switch sequence parallelism off"
