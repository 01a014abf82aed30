"""Writes launch files for one plan: `emit`.

    emit(result, target="megatron", folder=…)   reads, refuses what the target cannot express, writes the bundle

The bundle: the target's files, `launch.sh` (the processes of one node), the launcher's files, `check.sh` and `check.py` (the
framework's own parser, in the user's environment), `plan.json` (the plan and its inputs) and `README.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.errors import InvalidValueError, UnsupportedError, unknown_name
from shardwright.planner.emit.base import File, Launcher, Program, Refusal, Request, Target
from shardwright.planner.emit.bundle import check_folder, write_bundle
from shardwright.planner.emit.expressing import for_version, refusals
from shardwright.planner.emit.launchers.node import LAUNCH, node_script
from shardwright.planner.emit.mixing import check_order
from shardwright.planner.emit.options import LaunchOptions
from shardwright.planner.emit.quoting import json_text
from shardwright.planner.emit.readme import readme
from shardwright.planner.emit.registry import LAUNCHERS, TARGETS
from shardwright.planner.emit.request import read_request
from shardwright.planner.estimation import repriced
from shardwright.planner.schema import read_result
from shardwright.planner.shown import Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission(Shown):
    """What was written.

    Attributes:
        data: the record `emit --format json` prints.
    """

    data: Mapping[str, Any]

    @property
    def exit_code(self) -> int:
        """Always 0: what cannot be written is an error."""
        return 0

    def to_dict(self) -> dict[str, Any]:
        """The record itself."""
        return dict(self.data)

    def __repr__(self) -> str:
        return f"Emission(target={self.data['target']!r}, folder={self.data['folder']!r}, files={len(self.data['files'])})"


def emit(
    source: str | Path | Mapping[str, Any],
    *,
    target: str,
    folder: str | Path,
    rank: int = 1,
    version: str | None = None,
    launcher: str = "torchrun",
    options: LaunchOptions | None = None,
    force: bool = False,
) -> Emission:
    """Writes a bundle.

    Args:
        source: a RESULT (file or folder) or a PLAN.
        target: one of `registry.TARGETS`.
        folder: where the bundle goes; made if need be.
        rank: 1-based rank of the plan in a RESULT.
        version: release of the target to write for; None for the one the plan was made for, else the newest.
        launcher: one of `registry.LAUNCHERS`.
        options: what the launcher is told.
        force: replace an earlier bundle.

    Raises:
        UnknownNameError: no such target, version or launcher.
        UnsupportedError: the target cannot express the plan; the message names every field.
        ShardwrightError: the file is damaged, the plan infeasible, the folder cannot be written.
    """
    chosen, starter = _target(target), _launcher(launcher)
    if not str(folder):
        raise InvalidValueError("the name of the folder is empty", where="-o", hint="name a new or empty folder")
    place = Path(folder)
    check_folder(place, force=force)
    problem, record = repriced(source, rank=rank)
    request = for_version(read_request(record, options or LaunchOptions(), problem), chosen, version)
    if found := refusals(request, chosen):
        refuse(chosen, found, _instead(source, record, chosen))
    files = bundle_files(request, chosen, starter) | {"plan.json": File(text=json_text(record))}
    written = write_bundle(place, files, force=force)
    return Emission(data=_record(request, chosen, starter, place, written))


def bundle_files(request: Request, target: Target, launcher: Launcher) -> dict[str, File]:
    """All files of a bundle but `plan.json`, by path.

    Raises:
        UnsupportedError: the target cannot express the plan, or the launcher cannot keep the order of its nodes.
    """
    refuse(target, refusals(request, target))
    check_order(request.machines, launcher.id)
    program = target.program(request)
    return {
        **program.files,
        "environment.json": File(text=json_text(dict(sorted(program.environment.items())))),
        LAUNCH: node_script(request, program),
        **launcher.files(request, program),
        **_check_files(program),
        "README.md": File(text=readme(request, program, target, launcher)),
    }


def _check_files(program: Program) -> dict[str, File]:
    lines = (
        "#!/usr/bin/env bash",
        "# Asks the framework's own parser and validators, in the environment this is run in; needs no GPU.",
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        'exec "${PYTHON:-python3}" check.py "$@"',
    )
    return {
        "check.sh": File(text="\n".join(lines) + "\n", executable=True),
        "check.py": File(text=program.check.script),
    }


def _instead(source: str | Path | Mapping[str, Any], record: Mapping[str, Any], target: Target) -> tuple[str, ...]:
    """What can be written: another plan of the same result for the target, and this plan for other targets."""
    document = {} if source == "-" else read_result(source)  # standard input has been read
    able = [plan["rank"] for plan in document.get("plans") or () if target.id in plan["expressible_by"]]
    others = [name for name in record["expressible_by"] if name != target.id]
    found = (f"take --rank {able[0]}, which {target.id} can express",) if able else ()
    return (*found, f"write this one for {' or '.join(others)}") if others else found


def refuse(target: Target, refusals: tuple[Refusal, ...], instead: tuple[str, ...] = ()) -> None:
    """Stops where a target refuses something; `instead` says what can be done otherwise.

    Raises:
        UnsupportedError: the message names every field.
    """
    if not refusals:
        return
    said = "; ".join(f"{r.field}: {r.message}" for r in refusals)
    remedies = "; ".join(dict.fromkeys((*(r.remedy for r in refusals), *instead)))
    raise UnsupportedError(f"{target.id} cannot express the plan: {said}", where=refusals[0].field, hint=remedies)


def _target(name: str) -> Target:
    if name not in TARGETS:
        raise unknown_name("target", name, TARGETS, where="--target")
    return TARGETS[name]


def _launcher(name: str) -> Launcher:
    if name not in LAUNCHERS:
        raise unknown_name("launcher", name, LAUNCHERS, where="--launcher")
    return LAUNCHERS[name]


def _record(request: Request, target: Target, launcher: Launcher, folder: Path, files: tuple[str, ...]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "kind": "emission",
        "target": target.id,
        "target_version": request.version,
        "launcher": launcher.id,
        "folder": str(folder),
        "files": list(files),
        "plan_id": request.plan_id,
        "nodes": request.machines.nodes,
        "gpus_per_node": request.machines.gpus_per_node,
        "start": launcher.command(request),
        "check": "./check.sh",
        "needs": dict(target.program(request).needs),
        "notes": list(target.program(request).notes),
    }
