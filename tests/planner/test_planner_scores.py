"""Attention whose scores are written to memory: width of activations, passes that multiprocessors bound, head sizes."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.hardware.kernels import DeviceRates, gemm_s, load_fit, precision_rates
from shardwright.models.catalog import load_model, model_from_dict
from shardwright.planner.axes.sharding import LocalSizes, unique_keys
from shardwright.planner.cost.compute import EAGER_BYTES_PER_S_PER_SM, machine_of, operator_times
from shardwright.planner.estimation import estimate_problem
from shardwright.planner.plans import Degrees, PlanBatch
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.settling import settle

EAGER = "megatron-deepspeed-eager-softmax"
V100 = DeviceRates(peak_flops=125e12, memory_bytes_per_s=0.9e12, sm_count=80)


def problem_in(precision, stack=EAGER, node="dgx-a100-80g:1x1", **changes):
    options = PricingOptions(precision=precision, stack=stack)
    made = build_problem("gpt2", node, seq_len=1024, global_batch=8, options=options)
    return replace(made, stack=replace(made.stack, **changes))


def core_s(problem, memory=1.0):
    """Both passes of one attention core, with so many times the memory bandwidth."""
    machine = machine_of(problem)
    rates = replace(machine.plain, memory_bytes_per_s=memory * machine.plain.memory_bytes_per_s)
    unit = problem.graph.layer_kinds[0]
    row = settle(problem, Degrees(micro_batch=8), None).row
    keys, _ = unique_keys(PlanBatch.stack([row]), problem.job.seq_len, 1.0)
    core = next(o for o in unit.operators if o.attention is not None)
    time = operator_times(core, LocalSizes(unit.dims, keys), replace(machine, plain=rates))
    return np.array([time.forward_s[0], time.backward_s[0]])


def passes_s(problem, memory=1.0):
    """The part of a core that passes over its scores take."""
    without = replace(problem, stack=replace(problem.stack, score_bytes_forward=0.0, score_bytes_backward=0.0))
    return core_s(problem, memory) - core_s(without, memory)


def test_scores_of_whole_words_move_twice_as_much():
    assert passes_s(problem_in("tf32")) == pytest.approx(2.0 * passes_s(problem_in("bf16")))


def test_operators_of_their_own_do_not_gain_from_memory_that_multiprocessors_cannot_use():
    eager, fused = problem_in("bf16"), problem_in("bf16", eager_scores=False)
    assert passes_s(eager, memory=4.0) == pytest.approx(passes_s(eager, memory=2.0))
    assert passes_s(fused, memory=4.0) == pytest.approx(passes_s(fused, memory=2.0) / 2.0)
    rate = EAGER_BYTES_PER_S_PER_SM["ampere"] * 108
    scores = 8 * 12 * 1024**2
    moved = scores * np.array([eager.stack.score_bytes_forward, eager.stack.score_bytes_backward])
    assert passes_s(eager, memory=2.0) == pytest.approx(moved / rate)


def test_tf32_lies_between_half_and_whole_words():
    steps = [
        estimate_problem(problem_in(name, "megatron-core"), Degrees()).data["predicted"]["step_time_s"]
        for name in ("bf16", "tf32", "fp32")
    ]
    assert steps[0] < steps[1] < steps[2]


def test_whole_words_are_kept_in_four_bytes():
    parts = [estimate_problem(problem_in(name), Degrees()).data["stages"][0]["memory"] for name in ("fp32", "tf32")]
    assert parts[0] == parts[1]
    half = estimate_problem(problem_in("bf16"), Degrees()).data["stages"][0]["memory"]
    assert parts[1]["activations_bytes"] > 1.9 * half["activations_bytes"]


def test_slow_units_wait_less_for_their_operands():
    """Volta's fp32 products reach nine tenths of peak, and short sums cost them little; fp16 products fall far below."""
    fit = replace(load_fit("v100"), sustained_factor=1.0, throttles_in_training=True)
    whole, half = precision_rates(fit, V100, "fp32"), precision_rates(fit, V100, "fp16")

    def share(rates, width, k):
        n = 8192.0
        return float(2 * n * n * k / gemm_s(fit, rates, n, n, k, 1.0, width, width) / rates.peak_flops)

    assert share(whole, 4.0, 8192.0) > 0.85
    assert share(whole, 4.0, 8192.0) > share(half, 2.0, 8192.0) + 0.05
    assert share(whole, 4.0, 64.0) > 2.0 * share(half, 2.0, 64.0)


def core_of_heads(size, precision="bf16"):
    """Both passes of a core with heads of such a size."""
    spec = load_model("gpt2").spec
    graph = model_from_dict(replace(spec, hidden=12 * size, head_dim=size, ffn=48 * size).to_dict())
    options = PricingOptions(precision=precision, stack="megatron-2021")
    return core_s(build_problem(graph, "dgx-a100-80g:1x1", seq_len=1024, global_batch=8, options=options))


def test_heads_whose_rows_do_not_line_up_run_on_vector_units():
    assert (core_of_heads(108) > 2.0 * core_of_heads(112)).all()
    assert (core_of_heads(150) > 2.0 * core_of_heads(152)).all()
    assert core_of_heads(104) == pytest.approx(core_of_heads(112), rel=0.1)
    assert (core_of_heads(108, "tf32") < 1.1 * core_of_heads(112, "tf32")).all()


def step_parts(micro_batch, **changes):
    problem = problem_in("bf16", "megatron-2021", **changes)
    return estimate_problem(problem, Degrees(micro_batch=micro_batch)).data["time"]


def test_softmax_runs_operator_by_operator_where_no_kernel_serves_it():
    """GPT-2 has 12 heads: with a kernel that wants a multiple of eight, one sequence is not served and two are."""
    for micro_batch, served in ((1, False), (2, True)):
        some = step_parts(micro_batch, softmax_heads_multiple=8)
        all_of_them = step_parts(micro_batch, softmax_heads_multiple=1)
        assert (some == all_of_them) == served
        if not served:
            assert some["compute_s"] > 1.2 * all_of_them["compute_s"]
    assert step_parts(2, softmax_most_keys=1023)["compute_s"] > 1.2 * step_parts(2, softmax_most_keys=1024)["compute_s"]


def test_softmax_operator_by_operator_launches_more():
    """Four more launches a pass of each of 12 layers, both ways, in 8 micro-batches, where the host waits for each."""
    some, whole = (step_parts(1, softmax_heads_multiple=m, launches_block=True)["other_s"] for m in (8, 1))
    assert some - whole == pytest.approx(4 * 2 * 12 * 8 * problem_in("bf16", "megatron-2021").stack.host_s_per_kernel)
