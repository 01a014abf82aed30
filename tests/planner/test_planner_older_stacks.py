"""What stacks of 2020 to 2022 do beside computing: wait for launches, add gradients apart, reduce them whole."""

from dataclasses import replace

import pytest

from shardwright.hardware.kernels import memory_bound_s
from shardwright.planner.cost.compute import machine_of
from shardwright.planner.estimation import estimate_problem
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem

OLD = "megatron-2021"


def problem_with(gpus=8, stack=OLD, **changes):
    options = PricingOptions(stack=stack)
    made = build_problem("gpt2", f"dgx-a100-80g:1x{gpus}", seq_len=1024, global_batch=32, options=options)
    return replace(made, stack=replace(made.stack, **changes))


def times_of(problem, **degrees):
    data = estimate_problem(problem, Degrees(**degrees)).data
    return data["time"], data["communication"]


def test_hosts_that_wait_for_kernels_launch_after_them():
    """12 layers, both passes of 32 micro-batches: where launches block each is added, else little is."""
    launched = 12 * 2 * 32 * problem_with().stack.kernels_per_layer * problem_with().stack.host_s_per_kernel
    blocking, ahead = (times_of(problem_with(1, launches_block=b), micro_batch=1)[0]["other_s"] for b in (True, False))
    assert blocking == pytest.approx(launched)
    assert ahead < 0.5 * launched


def test_adding_gradients_moves_their_bytes_once_a_micro_batch():
    fused, apart = problem_with(1, accumulation_bytes=0.0), problem_with(1, accumulation_bytes=6.0, host_s_per_kernel=0.0)
    fused = replace(fused, stack=replace(fused.stack, host_s_per_kernel=0.0))
    one, other = (times_of(problem, micro_batch=2)[0]["compute_s"] for problem in (fused, apart))
    products = sum(12 * 768 * n for n in (3 * 768, 768, 4 * 768, 4 * 768)) + 768 * 50304
    machine = machine_of(apart)
    wanted = 16 * float(memory_bound_s(machine.fit, machine.plain, 6.0 * products))
    assert other - one == pytest.approx(wanted, rel=1e-6)


def test_whole_gradients_are_reduced_under_zero_1_where_the_stack_does_so():
    time, rows = times_of(problem_with(zero1_reduces_whole=True), zero=1, micro_batch=4)
    kinds = {row["collective"] for row in rows if row["axis"] == "dp"}
    assert kinds == {"all_reduce", "all_gather"}
    parts, other = times_of(problem_with(), zero=1, micro_batch=4)
    assert {row["collective"] for row in other if row["axis"] == "dp"} == {"reduce_scatter", "all_gather"}
    assert time["exposed_dp_s"] > 1.2 * parts["exposed_dp_s"]
    assert times_of(problem_with(zero1_reduces_whole=True), zero=2, micro_batch=4) == times_of(
        problem_with(), zero=2, micro_batch=4
    )


def test_gradients_of_inputs_are_reduced_while_those_of_weights_are_made():
    """Of the four all-reduces of a layer and micro-batch, the two backward ones are exposed as the stack says."""
    degrees = {"tp": 2, "sequence_parallel": False, "micro_batch": 16}
    none, quarter = (
        times_of(problem_with(2, tp_exposed_unsequenced=share), **degrees)[0]["exposed_tp_s"] for share in (1.0, 0.25)
    )
    assert 0.6 < quarter / none < 0.65
    apart = [
        times_of(problem_with(2, tp_exposed_unsequenced=s), **degrees | {"sequence_parallel": True})[0] for s in (1.0, 0.25)
    ]
    assert apart[0] == apart[1]


def test_gradients_of_biases_are_read_from_those_of_outputs():
    """Outputs of the four products of a layer: 3 h, h, 4 h and h, of 1,024 tokens in two bytes."""
    one, other = (
        times_of(problem_with(1, sums_biases=s, host_s_per_kernel=0.0), micro_batch=1)[0]["compute_s"] for s in (False, True)
    )
    machine = machine_of(problem_with(1))
    wanted = 12 * 32 * float(memory_bound_s(machine.fit, machine.plain, 2.0 * 1024 * 9 * 768))
    assert other - one == pytest.approx(wanted, rel=1e-6)
