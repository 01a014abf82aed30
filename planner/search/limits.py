"""What no plan of a job can beat on some cluster, known before any plan is priced.

    step  >= F / (GPUs · r) · s, of several kinds of GPU F / Σ GPUs · r / s          `least_step_s`
    bytes >= (parameters and optimiser states) / GPUs                      `holds_states`

F are the model FLOPs of a step with causal attention (the fewest that any convention counts; none of them is recomputed),
r the greatest rate of any kernel at the precision of the job, and s how much slower than alone matrix products and attention
run in training at least. Every one of these FLOPs runs in a matrix product or in attention on one of the GPUs, and a step ends
when the last of them ends. Both fall as the cluster grows: what they exclude at some size they exclude at every smaller one.
"""

from __future__ import annotations

from shardwright.hardware.device import Device
from shardwright.planner.problem import Problem
from shardwright.planner.search.near_misses import least_state_bytes


def least_step_s(problem: Problem) -> float:
    """No step of the job on this cluster takes less, s."""
    flops, areas = problem.job.flops_per_step("causal"), problem.areas
    if len(areas.kinds) == 1:
        rate, slower = _fastest(problem, areas.kinds[0].device)
        return flops / (problem.cluster.gpus * rate) * slower
    each = [(areas.gpus_of(kind), *_fastest(problem, node.device)) for kind, node in enumerate(areas.kinds)]
    return flops / sum(gpus * rate / slower for gpus, rate, slower in each)


def _fastest(problem: Problem, device: Device) -> tuple[float, float]:
    """The greatest rate of any kernel of a device, FLOP/s, and how much slower it runs in training at least."""
    precision, peaks, fit = problem.job.precision, device.peak_flops, problem.kernels_of(device)
    base = peaks.get("bf16", peaks.get("fp16", 0.0))
    rate = max(peaks[precision.compute], base * max(1.0, fit.precision_speedup.get(precision.rate_id, 1.0)), base)
    return rate, max(1.0, min(fit.sustained_factor, fit.attention_sustained_factor))


def holds_states(problem: Problem) -> bool:
    """Whether parameters and optimiser states fit into the memory of all GPUs together."""
    return least_state_bytes(problem) <= problem.memory_bytes
