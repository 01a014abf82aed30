"""What a run measured, as one step time and one peak of memory.

    T = step_time_s
      | B s / (tokens per second and GPU x GPUs)
      | F B s / (FLOP/s per GPU x GPUs),     F FLOPs per token by the convention the row names
      | F B s / (MFU x peak x GPUs)

with B sequences of s tokens. Where the note says that recompute is counted (SC21), F is arXiv 2104.04473
equation 3: 96 L h^2 (1 + s / 6 h + V / 16 L h); otherwise the model FLOPs of the graph, attention in full.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardwright.hardware.device import Device
from shardwright.models.graph import ModelGraph
from shardwright.planner.runs.table import RunRow

TERA = 1e12
PER_CENT = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """A measured step time.

    Attributes:
        seconds: of one step.
        origin: the column it is from.
    """

    seconds: float
    origin: str


def states_time(row: RunRow) -> bool:
    """Whether a row holds any measure of speed."""
    return any((row.step_time_s, row.tokens_per_s_per_gpu, row.tflops_per_gpu_reported, row.mfu_reported))


def step_time_of(row: RunRow, graph: ModelGraph, device: Device, sequences: float) -> StepTime | None:
    """The step time of a row.

    Args:
        row: the run.
        graph: its model, for rows that state FLOP/s.
        device: its device, for rows that state MFU.
        sequences: of one step.

    Returns:
        None where the row states no speed.
    """
    if row.step_time_s:
        return StepTime(seconds=row.step_time_s, origin="step_time_s")
    if row.seq_len is None or row.gpus is None:
        return None
    tokens = sequences * row.seq_len
    if row.tokens_per_s_per_gpu:
        return StepTime(seconds=tokens / (row.tokens_per_s_per_gpu * row.gpus), origin="tokens_per_s_per_gpu")
    if row.tflops_per_gpu_reported:
        flops = _flops_per_token(row, graph)
        return StepTime(
            seconds=flops * tokens / (row.tflops_per_gpu_reported * TERA * row.gpus), origin="tflops_per_gpu_reported"
        )
    if row.mfu_reported:
        rate = row.mfu_reported / PER_CENT * _peak_flops(device)
        return StepTime(seconds=graph.flops_per_token(row.seq_len) * tokens / (rate * row.gpus), origin="mfu_reported")
    return None


def counts_recompute(row: RunRow) -> bool:
    """Whether the row says that its FLOP/s include recomputed work."""
    note = row.flops_definition_note.lower()
    return bool(re.search(r"sc21|hardware flops|hfu not mfu|incl\w*\.? (full )?recompute|recompute \w*\s?counted", note))


def _flops_per_token(row: RunRow, graph: ModelGraph) -> float:
    seq_len = row.seq_len or 1
    if not counts_recompute(row) or row.recompute.lower().startswith("none"):
        return graph.flops_per_token(seq_len)
    spec = graph.spec
    inner = 1 + seq_len / (6 * spec.hidden) + spec.vocab / (16 * spec.layers * spec.hidden)
    return 96 * spec.layers * spec.hidden**2 * inner


def _peak_flops(device: Device) -> float:
    """The peak that MFU is commonly taken of: 16-bit dense."""
    return float(device.peak_flops.get("bf16") or device.peak_flops["fp16"])
