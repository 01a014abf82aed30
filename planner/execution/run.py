"""Runs plans on this machine, one after the other: `run`.

    run(source, …)   RESULT or PLAN -> RunResult

Each plan becomes the PyTorch package that `emit --target torchrun` writes, in a folder that is removed afterwards. It runs on
the GPUs of this machine where there are as many as the plan has ranks, else on its CPUs with gloo. The step time is the median
of the steps after two that warm up, the memory that of the fullest rank: allocated on its GPU, the whole process on a CPU.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.errors import InvalidValueError, ShardwrightError
from shardwright.planner.estimation import repriced
from shardwright.planner.execution.machine import Machine, this_machine
from shardwright.planner.execution.processes import run_ranks
from shardwright.planner.execution.trial import Prepared, prepare, trial_record
from shardwright.planner.schema import read_result

STEPS, LIMIT_S, MAX_STEPS = 6, 600.0, 10_000
INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What was measured.

    Attributes:
        data: the record `run --format json` prints.
    """

    data: Mapping[str, Any]

    @property
    def exit_code(self) -> int:
        """0 if every plan ran; 1 if one did not; 130 if the user stopped it."""
        if self.data["stopped"]:
            return INTERRUPTED
        return 0 if all(trial["status"] == "ok" for trial in self.data["trials"]) else 1

    def to_dict(self) -> dict[str, Any]:
        """The record itself."""
        return dict(self.data)


def run(
    source: str | Path | Mapping[str, Any],
    *,
    rank: int = 1,
    trials: int = 1,
    ranks: Sequence[int] | None = None,
    steps: int = STEPS,
    scale_down: bool = False,
    limit_s: float = LIMIT_S,
    on_trial: Callable[[str], None] | None = None,
    machine: Machine | None = None,
) -> RunResult:
    """Runs plans of a file and measures them.

    Args:
        source: a RESULT (file or folder) or a PLAN.
        rank: 1-based rank of the first plan.
        trials: how many plans, by rank.
        ranks: the plans to run instead, by rank.
        steps: training steps of each, of which two warm up.
        scale_down: run a miniature of each plan, small enough for the processes this machine hosts.
        limit_s: seconds after which a plan is stopped.
        on_trial: called with a line of progress before each plan.
        machine: what there is to run on; None to look.

    Raises:
        UnsupportedError: PyTorch is missing, or the package cannot express the only plan.
        InvalidValueError: a number out of range; the only plan is infeasible, or larger than the machine.
        DamagedFileError: the file is damaged.
    """
    check_asked(steps, trials, limit_s)
    document = read_result(source)
    chosen = _ranks(document, rank, trials) if ranks is None else ranks
    here, started, made, stopped = machine or this_machine(), time.monotonic(), list[dict[str, Any]](), False
    try:
        for number in chosen:
            made.append(_trial(document, number, here, steps, scale_down, limit_s, on_trial, alone=len(chosen) == 1))
    except KeyboardInterrupt:
        if not made:
            raise
        stopped = True
    return RunResult(data=_record(here, steps, scale_down, made, stopped, time.monotonic() - started))


def check_asked(steps: int, trials: int, limit_s: float) -> None:
    """That a run is asked for that can be made.

    Raises:
        InvalidValueError: a number out of range.
    """
    if not 1 <= steps <= MAX_STEPS:
        raise InvalidValueError(f"{steps} steps", where="--steps", hint=f"give 1 to {MAX_STEPS:,}")
    if trials < 1:
        raise InvalidValueError(f"{trials} trials", where="--trials", hint="give 1 or more")
    if not limit_s > 0:
        raise InvalidValueError(f"{limit_s} s", where="--time-limit", hint="give more than 0")


def _ranks(document: Mapping[str, Any], first: int, trials: int) -> range:
    """Ranks of the plans to run: those there are."""
    count = len(document["plans"]) if document["kind"] == "plan-result" else 1
    return range(first, max(min(first + trials, count + 1), first + 1))


def _trial(
    document: Mapping[str, Any],
    rank: int,
    machine: Machine,
    steps: int,
    scale_down: bool,
    limit_s: float,
    on_trial: Callable[[str], None] | None,
    *,
    alone: bool,
) -> dict[str, Any]:
    problem, record = repriced(document, rank=rank)
    try:
        prepared = prepare(problem, record, machine, scale_down=scale_down)
    except ShardwrightError as error:
        if alone:
            raise
        return _refused(rank, record, error)
    if on_trial is not None:
        on_trial(said_of(rank, prepared, steps))
    with tempfile.TemporaryDirectory(prefix="shardwright-run-") as home:
        folder = Path(home) / "package"
        prepared.write(folder, steps)
        environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
        outcome = run_ranks(folder, prepared.ranks, environment, limit_s)
    return trial_record(rank, prepared, machine, outcome)


def said_of(rank: int, prepared: Prepared, steps: int) -> str:
    """A line on what is about to run."""
    where = "GPUs" if prepared.device == "cuda" else "the CPUs of this machine, with gloo"
    model = prepared.run["model"]
    small = "" if prepared.changes is None else " in miniature"
    return f"rank {rank}{small}: {prepared.ranks} processes on {where}, {steps} steps of {model['name']}"


def _refused(rank: int, record: Mapping[str, Any], error: ShardwrightError) -> dict[str, Any]:
    """A plan among several that is not run."""
    predicted = record["predicted"] and {
        "step_time_s": record["predicted"]["step_time_s"],
        "allocated_bytes": record["memory"]["meters"]["allocated_bytes"],
    }
    training = record["inputs"]["training"]
    unknown = dict.fromkeys(("device", "ranks", "miniature", "measured", "not_comparable", "error", "memory_error", "wall_s"))
    return {
        **unknown,
        "rank": rank,
        "status": "refused",
        "reason": error.message,
        "model": {name: record["model"][name] for name in ("name", "layers", "parameters")},
        "seq_len": training["seq_len"],
        "global_batch": training["global_batch"],
        "parallel": record["parallel"],
        "predicted": predicted,
    }


def _record(
    machine: Machine, steps: int, scale_down: bool, trials: list[dict[str, Any]], stopped: bool, wall_s: float
) -> dict[str, Any]:
    import shardwright

    return {
        "schema_version": 1,
        "kind": "run-result",
        "machine": {
            "gpus": machine.gpus,
            "gpu": machine.gpu or None,
            "cores": machine.cores,
            "torch": machine.torch,
        },
        "steps": steps,
        "scale_down": scale_down,
        "trials": trials,
        "stopped": "interrupted" if stopped else None,
        "run": {"wall_s": wall_s, "version": shardwright.__version__},
    }
