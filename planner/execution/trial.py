"""One plan, run and measured beside its prediction.

prepare(record, machine, scale_down)   what is run in its place, and where -> Prepared
trial_record(...)                      the entry of a run-result
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwright.hardware.catalog import cluster_from_dict
from shardwright.models.catalog import model_from_dict
from shardwright.planner.emit.emission import emit, refuse
from shardwright.planner.emit.expressing import for_version, refusals
from shardwright.planner.emit.options import LaunchOptions
from shardwright.planner.emit.registry import TARGETS
from shardwright.planner.emit.request import read_request
from shardwright.planner.estimation import estimate
from shardwright.planner.execution.machine import Device, Machine, device_for
from shardwright.planner.execution.processes import Outcome
from shardwright.planner.execution.scaling import miniature
from shardwright.planner.problem import PricingOptions, Problem

TARGET = "torchrun"
SMALLER = "run it in miniature: --scale-down"
OF_FEWER = "plan for fewer GPUs, or run it in miniature: --scale-down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is run.

    Attributes:
        planned: the ESTIMATE record of the plan, with its inputs.
        run: the record that is run: the same, or a miniature of it.
        changes: what is smaller in a miniature, name -> [before, now]; None where the plan itself is run.
        device: where.
    """

    planned: Mapping[str, Any]
    run: Mapping[str, Any]
    changes: Mapping[str, list[int]] | None
    device: Device

    @property
    def ranks(self) -> int:
        """Processes."""
        return int(self.run["parallel"]["world_size"])

    def write(self, folder: Path, steps: int) -> None:
        """Writes the package that is run."""
        emit(self.run, target=TARGET, folder=folder, options=LaunchOptions(steps=steps))


def prepare(problem: Problem, record: Mapping[str, Any], machine: Machine, *, scale_down: bool) -> Prepared:
    """What of a plan this machine runs.

    Raises:
        UnsupportedError: the PyTorch package cannot express the plan.
        InvalidValueError: it is not feasible, or larger than the machine.
    """
    target = TARGETS[TARGET]
    refuse(target, refusals(for_version(read_request(record, LaunchOptions(), problem), target), target))
    if not scale_down:
        hint = OF_FEWER if record["parallel"]["world_size"] > machine.cpu_ranks else SMALLER
        device = device_for(machine, record["parallel"]["world_size"], held_bytes(record), hint=hint)
        return Prepared(planned=record, run=record, changes=None, device=device)
    small = miniature(record, max(machine.gpus, machine.cpu_ranks))
    training, whole = record["inputs"]["training"], replace(problem.asked, name="miniature")
    options = PricingOptions(
        framework=TARGET, precision=training["precision"], optimizer=training["optimizer"], gpus=small.ranks
    )
    made = estimate(
        model_from_dict(small.model),
        cluster_from_dict(whole.to_dict()),
        seq_len=small.seq_len,
        global_batch=small.global_batch,
        degrees=small.degrees,
        options=options,
    ).to_dict()
    read_request(made, LaunchOptions())
    device = device_for(machine, small.ranks, 0.0, hint=OF_FEWER)
    return Prepared(planned=record, run=made, changes=small.changes, device=device)


def held_bytes(record: Mapping[str, Any]) -> float:
    """Memory all ranks hold together, without what a device's own libraries take."""
    each = record["parallel"]["world_size"] // record["parallel"]["pp"]
    parts = (stage["memory"] for stage in record["stages"])
    return float(sum(part["total_bytes"] - part["reserve_bytes"] for part in parts) * each)


def comparable(prepared: Prepared, machine: Machine) -> str:
    """Why a measurement says nothing of the prediction; empty where it does."""
    planned = prepared.planned["inputs"]["cluster"]["groups"][0]["node"]["device"]["id"]
    if prepared.changes is not None:
        return "a miniature was run: the prediction is of the plan itself, on the planned cluster"
    if prepared.device == "cpu":
        return f"the prediction is of the planned cluster of {planned}; this ran on CPUs"
    if planned.split("-")[0].lower() not in machine.gpu.lower():
        return f"the prediction is for {planned}; this ran on {machine.gpu}"
    return ""


def trial_record(rank: int, prepared: Prepared, machine: Machine, outcome: Outcome) -> dict[str, Any]:
    """What was measured, beside what was predicted."""
    planned, run, report = prepared.planned, prepared.run, outcome.report
    predicted = {
        "step_time_s": planned["predicted"]["step_time_s"],
        "allocated_bytes": planned["memory"]["meters"]["allocated_bytes"],
    }
    tokens = run["inputs"]["training"]["global_batch"] * run["inputs"]["training"]["seq_len"]
    measured = None if report is None else _measured(report, tokens)
    why = comparable(prepared, machine)
    both = measured is not None and not why
    return {
        "rank": rank,
        "status": outcome.status,
        "reason": outcome.reason or None,
        "device": prepared.device,
        "ranks": prepared.ranks,
        "model": {name: run["model"][name] for name in ("name", "layers", "parameters")},
        "seq_len": run["inputs"]["training"]["seq_len"],
        "global_batch": run["inputs"]["training"]["global_batch"],
        "parallel": run["parallel"],
        "miniature": prepared.changes,
        "measured": measured,
        "predicted": predicted,
        "not_comparable": why or None,
        "error": predicted["step_time_s"] / measured["step_time_s"] - 1 if both and measured else None,
        "memory_error": predicted["allocated_bytes"] / measured["peak_memory_bytes"] - 1 if both and measured else None,
        "wall_s": outcome.wall_s,
    }


def _measured(report: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    return {
        "step_time_s": report["step_time_s"],
        "step_times_s": list(report["step_times_s"]),
        "tokens_per_s": tokens / report["step_time_s"],
        "peak_memory_bytes": report["peak_memory_bytes"],
        "losses": list(report["losses"]),
    }
