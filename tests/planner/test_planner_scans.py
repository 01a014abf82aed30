"""Scans, their convolution and gated norm against kernels measured in training and in tables, none of them a fitted run.

H100: kernels of whole training steps of Nemotron-3-Nano (GiscardBiamby/Automodel-scalingai-f26, mfu/results); B200: the forward
pass alone (ai-dynamo/aiconfigurator 095f58a5, mamba2_perf). Both in microseconds a token, one layer.
"""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.models.operators import ScanShape
from shardwright.planner.axes.sharding import LocalSizes, unique_keys
from shardwright.planner.cost.compute import machine_of, operator_times
from shardwright.planner.cost.scans import scan_bytes
from shardwright.planner.plans import Degrees, PlanBatch
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.settling import settle

NANO = "nemotron-3-nano-30b-a3b"
TOKENS = 16_384


def times_of(name, node, model=NANO, memory=1.0, **changes):
    """Microseconds a token of an operator of the first layer that has it, both ways, with so many times the memory rate."""
    problem = build_problem(model, f"{node}:1", seq_len=8192, global_batch=64, options=PricingOptions(framework="megatron"))
    machine = replace(machine_of(problem), **changes)
    machine = replace(machine, plain=replace(machine.plain, memory_bytes_per_s=memory * machine.plain.memory_bytes_per_s))
    unit = next(u for u in problem.graph.layer_kinds if any(o.name == name for o in u.operators))
    row = settle(problem, Degrees(micro_batch=TOKENS // 8192, ep=8), None).row
    keys, _ = unique_keys(PlanBatch.stack([row]), problem.job.seq_len, 1.0)
    time = operator_times(unit.operator(name), LocalSizes(unit.dims, keys), machine)
    return np.array([time.forward_s[0], time.backward_s[0]]) / TOKENS * 1e6


@pytest.mark.parametrize(
    ("name", "node", "way", "measured"),
    [
        ("scan", "dgx-h100", 0, 0.066),
        ("scan", "dgx-h100", 1, 0.222),
        ("scan", "dgx-b200", 0, 0.044),
        ("scan_conv", "dgx-h100", 0, 0.0225),
        ("scan_conv", "dgx-h100", 1, 0.067),
        ("scan_gate", "dgx-h100", 1, 0.0445),
    ],
)
def test_kernels_take_what_is_measured(name, node, way, measured):
    assert times_of(name, node)[way] == pytest.approx(measured, rel=0.15)


def test_a_delta_rule_is_no_slower_than_measured_on_b200_and_no_faster_than_its_chunks():
    """16 key heads and 32 value heads of 128: 0.056 to 0.070 in the tables, by sequences at once."""
    assert 0.05 < times_of("scan", "dgx-b200", "qwen3-next-80b-a3b")[0] < 0.07


def test_faster_memory_does_not_help_what_multiprocessors_bound():
    convolved = times_of("scan_conv", "dgx-b200")
    assert times_of("scan_conv", "dgx-b200", memory=4.0) == pytest.approx(convolved)
    gated, faster = times_of("scan_gate", "dgx-b200"), times_of("scan_gate", "dgx-b200", memory=4.0)
    assert faster == pytest.approx([gated[0] / 4.0, gated[1]])
    assert times_of("scan_conv", "dgx-b200", staged_bytes_per_s=np.inf)[0] < convolved[0] / 4.0


def test_the_gate_of_other_scans_is_a_pass_over_memory():
    gate = times_of("scan_gate", "dgx-b200", "minimax-text-01")
    assert times_of("scan_gate", "dgx-b200", "minimax-text-01", memory=4.0) == pytest.approx(gate / 4.0)


def test_devices_of_other_kinds_run_scans_as_products():
    as_products = times_of("scan", "dgx-h100", chunk_flops_per_s=np.inf)
    assert as_products[0] > times_of("scan", "dgx-h100", chunk_flops_per_s=1e20)[0]


def added_s(name, stack, micro_batch):
    """Seconds of a projection beside those of one in a stack that copies nothing, both ways."""
    problem = build_problem(
        NANO, "dgx-b200:1", seq_len=4096, global_batch=64, options=PricingOptions(framework="megatron", stack=stack)
    )
    machine = machine_of(problem)
    unit = next(u for u in problem.graph.layer_kinds if any(o.name == name for o in u.operators))
    row = settle(problem, Degrees(micro_batch=micro_batch, ep=8), None).row
    keys, _ = unique_keys(PlanBatch.stack([row]), problem.job.seq_len, 1.0)
    sizes = LocalSizes(unit.dims, keys)
    with_copies = operator_times(unit.operator(name), sizes, machine)
    bare = operator_times(unit.operator(name), sizes, replace(machine, stack=replace(machine.stack, turns_scans=False)))
    rate = machine.plain.memory_bytes_per_s * machine.fit.memory_fraction
    return [(with_copies.forward_s - bare.forward_s)[0] * rate, (with_copies.backward_s - bare.backward_s)[0] * rate]


def test_scans_of_several_sequences_are_turned_round_where_the_sequence_stands_first():
    """What the projection makes (10,304 values a token) is read and written both ways, what the scan makes (4,096) forward."""
    assert added_s("in_proj", "megatron-core-2026", 2) == pytest.approx([4 * 10_304 * 2 * 4096] * 2)
    assert added_s("out_proj", "megatron-core-2026", 2) == pytest.approx([4 * 4096 * 2 * 4096, 0.0], abs=1.0)
    assert added_s("in_proj", "megatron-core-2026", 1) == [0.0, 0.0]
    assert added_s("in_proj", "pytorch-fsdp2", 2) == [0.0, 0.0]


def test_bytes_of_a_scan_are_those_of_its_kernels():
    """Kernel by kernel: what each reads and writes of 64 heads of 64, 8 groups of 128 and chunks of 256."""
    a, d, g, n, c = 64, 64, 8, 128, 256
    x, keys, states, scores = 2 * a * d, 2 * g * n, 4 * a * d * n / c, 4 * g * c
    forward = (x + keys + states) + (states + states / 2) + (2 * keys + scores) + (scores + 2 * x + keys + states / 2)
    scalars = 2 * a + 6 * 4 * a
    local = {
        "scan_heads": np.array([a]),
        "scan_groups": np.array([g]),
        "scan_head_dim": np.array([d]),
        "scan_state": np.array([n]),
    }
    made = scan_bytes(ScanShape(method="state-space", chunk=c), local, np.array([10.0]), c)
    assert made[0] == pytest.approx(10.0 * (forward + scalars))
    again = (2 * keys + scores) + (x + keys + states) + 2 * states
    gradients = (
        (x + keys + states)  # of states
        + (2 * states + states)  # passed on, and both narrowed
        + (3 * x + scores + keys + states / 2)  # of values
        + (x + states / 2 + 3 * keys)  # of keys, in fp32
        + (x + states / 2 + 3 * keys)  # of queries, in fp32
        + (2 * x + scores)  # of scores
        + 2 * (scores + 4 * keys)  # of keys and queries by scores
        + (2 * x + scores)  # of decay
    )
    assert made[1] == pytest.approx(10.0 * (again + gradients + 2 * 2 * a + 45 * 4 * a))
