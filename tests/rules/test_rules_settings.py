"""Rules of settings: read what a configuration gives and what the framework takes otherwise."""

import pytest

from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.rules.base import facts_of
from shardwright.planner.rules.checking import violations
from shardwright.planner.rules.defaults import defaults_of
from shardwright.planner.rules.settings import Settings
from shardwright.planner.rules.versions import VERSIONS, target_of
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.settling import settle


def test_given_values_stand_over_defaults():
    settings = Settings(given={"optimizer": "sgd"}, defaults={"optimizer": "adam", "overlap_p2p_comm": True})
    assert settings.text("optimizer") == "sgd"
    assert settings.on("overlap_p2p_comm")
    assert not settings.on("tp_comm_overlap")
    assert settings.number("decoder_first_pipeline_num_layers") == 0
    assert settings.words("optimizer") == ("sgd",)
    assert settings.words("recompute_modules") == ()
    assert "optimizer" in settings
    assert "recompute_method" not in settings


def test_defaults_follow_the_version():
    key = "data_parallel_sharding_strategy"
    assert defaults_of("megatron", "0.16")[key] == "no_shard"
    assert defaults_of("megatron", None)[key] == "optim_grads_params"


ONE = {"env.CUDA_DEVICE_MAX_CONNECTIONS": "1"}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        (None, set()),
        ({}, {"megatron-connections"}),
        (ONE, set()),
        (ONE | {"tp_comm_overlap": True}, {"megatron-tp-overlap"}),
    ],
)
def test_settings_are_tested_where_they_are_given(settings, found):
    options = PricingOptions(framework="megatron")
    problem = build_problem("llama3.1-8b", "dgx-h100:1", seq_len=4096, global_batch=64, options=options)
    settled = settle(problem, Degrees(tp=2, sequence_parallel=False), settings)
    assert {v["rule"] for v in settled.violations} == found


def test_what_is_changed_in_silence_is_a_warning():
    options = PricingOptions(framework="megatron")
    problem = build_problem("llama3.1-8b", "dgx-h100:1", seq_len=4096, global_batch=64, options=options)
    settled = settle(problem, Degrees(tp=1), {"sequence_parallel": True})
    assert settled.violations == []
    assert any("--sequence-parallel with tp 1" in text for text in settled.warnings)


def test_violations_take_one_candidate_with_its_facts():
    problem = build_problem("llama3.1-8b", "dgx-h100:1", seq_len=4096, global_batch=64)
    row = settle(problem, Degrees(tp=2)).row
    candidate = row | {"sp": 0, "tp": 3, "dp": 0}
    found = violations(candidate, facts_of(problem), {"tp_comm_overlap": True}, "megatron", "0.16")
    assert {v.rule for v in found} >= {"attention-heads", "world-size", "megatron-tp-overlap"}
    overlap = next(v for v in found if v.rule == "megatron-tp-overlap")
    assert overlap.changes == {"sp": 1}
    assert overlap.severity == "error"


PLANS = [Degrees(), Degrees(tp=2, pp=2), Degrees(tp=2, cp=2), Degrees(pp=2, vpp=2), Degrees(tp=4, pp=4)]


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "deepspeed", "pytorch"])
def test_a_plain_configuration_breaks_no_rule_of_settings(framework):
    """What a configuration leaves out takes the framework's default, which breaks nothing."""
    plain = {
        "megatron": ONE | {"max_position_embeddings": 4096},
        "torchtitan": {},
        "deepspeed": {"train_micro_batch_size_per_gpu": 1},
        "pytorch": {},
    }
    wanted = {"torchtitan-graphs"}  # CUDA graphs are on by default, which a pipeline excludes
    for target_version in VERSIONS[target_of(framework)]:
        options = PricingOptions(framework=framework, target_version=target_version)
        problem = build_problem("llama3.1-8b", "dgx-h100:2", seq_len=4096, global_batch=64, options=options)
        facts = facts_of(problem)
        for degrees in PLANS:
            columns = dict(settle(problem, degrees).shown)
            columns |= {"schedule": SCHEDULE_IDS.index(columns["schedule"]), "split": 0, "recompute": 0}
            without = {v.rule for v in violations(columns, facts, None, framework, target_version)}
            found = violations(columns, facts, plain[framework], framework, target_version)
            assert {v.rule for v in found} - without <= wanted, (target_version, degrees)
