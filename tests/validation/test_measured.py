"""One step time from whatever a row measured."""

import pytest
from rows import row

from shardwright.hardware.catalog import load_device
from shardwright.planner.runs.measured import counts_recompute, states_time, step_time_of
from shardwright.planner.runs.model import model_of

H100 = load_device("h100-sxm5-80g")
NO_TIME = {"step_time_s": None}


def seconds(run):
    found = step_time_of(run, model_of(run).graph, H100, run.global_batch)
    return found and (found.seconds, found.origin)


def test_the_step_time_itself_is_preferred():
    assert seconds(row(tokens_per_s_per_gpu=1.0)) == (2.0, "step_time_s")


def test_from_tokens_per_second():
    assert seconds(row(**NO_TIME, tokens_per_s_per_gpu=8192.0)) == (64 * 4096 / (8192 * 16), "tokens_per_s_per_gpu")


def test_from_model_flops():
    run = row(**NO_TIME, tflops_per_gpu_reported=400.0)
    expected = model_of(run).graph.flops_per_token(4096) * 64 * 4096 / (400e12 * 16)
    assert seconds(run) == (pytest.approx(expected), "tflops_per_gpu_reported")


def test_from_hardware_flops_by_the_formula_of_the_source():
    cells = {"model": "GPT-18B", "layers": 40, "hidden": 6144, "ffn": 24576, "heads": 48, "kv_heads": 48, "vocab": 51200}
    note = "hardware FLOPs per SC21 formula, INCLUDES full recompute forward"
    run = row(**cells, **NO_TIME, tflops_per_gpu_reported=135.0, seq_len=2048, flops_definition_note=note, recompute="full")
    flops = 96 * 64 * 2048 * 40 * 6144**2 * (1 + 2048 / (6 * 6144) + 51200 / (16 * 40 * 6144))
    assert seconds(run)[0] == pytest.approx(flops / (135e12 * 16))


def test_from_utilisation():
    run = row(**NO_TIME, mfu_reported=40.0)
    expected = model_of(run).graph.flops_per_token(4096) * 64 * 4096 / (0.4 * H100.peak_flops["bf16"] * 16)
    assert seconds(run) == (pytest.approx(expected), "mfu_reported")


def test_nothing_measured():
    assert seconds(row(**NO_TIME)) is None
    assert not states_time(row(**NO_TIME))


@pytest.mark.parametrize(
    ("note", "counted"),
    [
        ("hardware FLOPs incl. recompute (factor 4)", True),
        ("hardware FLOPs: recompute forward counted (factor 4 instead of 3)", True),
        ("Megatron SC21 formula", True),
        ("numerically consistent with ~8*P*tokens, i.e. recompute counted", True),
        ('"Model TFLOP/s/GPU" (model FLOPs, no recompute)', False),
        ("6N + 12LHS attention", False),
        ("", False),
    ],
)
def test_conventions_are_told_apart(note, counted):
    assert counts_recompute(row(flops_definition_note=note)) == counted
