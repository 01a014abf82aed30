"""Ranking compares plans of one job: what `plan` chooses differs, what it is given does not."""

import pytest
from rows import fake_estimate, row

from shardwright.planner.problem import PricingOptions
from shardwright.planner.validation.jobs import PLANNED, job_of, plan_of
from shardwright.planner.validation.rows import price_run, read_run


def asked(**cells):
    """Job and plan of a run."""
    run = read_run(row(**cells), PricingOptions())
    price = price_run(run, "reserved", fake_estimate)
    return job_of(run.problem, run.problem.job.global_batch), plan_of(run.problem, price.degrees)


@pytest.mark.parametrize(
    "cells",
    [
        {"tp": 4}, {"pp": 1}, {"micro_batch": 2}, {"zero_or_fsdp": "ZeRO-3"}, {"recompute": "full"},
        {"recompute": "selective (core_attn)"}, {"notes": "TP_COMM_OVERLAP=False"},
    ],
)  # fmt: skip
def test_what_a_plan_chooses_is_another_plan_of_the_job(cells):
    (job, plan), (other_job, other_plan) = asked(), asked(**cells)
    assert job == other_job
    assert plan != other_plan


@pytest.mark.parametrize(
    "cells",
    [
        {"precision": "FP8"}, {"global_batch": 128}, {"seq_len": 8192}, {"gpus": 32}, {"node": "dgx-a100-80g"},
        {"heads": 64, "kv_heads": 64, "head_dim": 64}, {"framework": "Megatron-LM v2"}, {"notes": "FP8_DPA=True"},
    ],
)  # fmt: skip
def test_what_a_plan_is_given_is_another_job(cells):
    assert asked()[0] != asked(**cells)[0]


@pytest.mark.parametrize("cells", [{"id": "again"}, {"step_time_s": 2.2}, {"source": "another"}, {"model": "Llama-2-7B-copy"}])
def test_a_run_again_is_the_same_plan(cells):
    assert asked() == asked(**cells)


def test_selective_modules_tell_plans_apart():
    one, other = (asked(recompute=f"selective ({names})") for names in ("core_attn", "core_attn mlp_act"))
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_fields_behind_switches_are_fields_of_a_profile():
    run = read_run(row(), PricingOptions())
    assert all(hasattr(run.problem.stack, name) for name in PLANNED)
