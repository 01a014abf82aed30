"""What a launch target is: from one plan to the files its framework accepts.

    Request --target--> Program --launcher--> files of the bundle

A target says what it cannot express (`refusals`: the plan is refused, never emitted wrong) and writes a `Program`: files of its
own, the command line that runs on every node, the environment that line needs. A launcher wraps the program in what starts
it on the nodes. Neither knows the other; adding one is a file and a line in `registry`.

Text of users (names, paths, images) reaches a file only through `quoting`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardwright.models.spec import ModelSpec
from shardwright.planner.emit.options import LaunchOptions
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import Problem
from shardwright.planner.schedules.orders import stage_ranks
from shardwright.planner.schedules.registry import is_folded


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file of the bundle.

    Attributes:
        text: all of it, ending in a newline.
        executable: whether it is meant to be run.
    """

    text: str
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of a command line.

    Attributes:
        text: literal text; with a root, a path below it.
        root: empty; `bundle` for the folder of the bundle; or the name of an environment variable that holds a folder.
    """

    text: str
    root: str = ""


def literal(*texts: object) -> tuple[Word, ...]:
    """Words that stand for themselves."""
    return tuple(Word(text=str(text)) for text in texts)


BUNDLE = "bundle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Where the plan runs.

    Attributes:
        nodes: nodes.
        gpus_per_node: processes on each.
        arch: architecture of the device, such as `hopper`.
        vendor: `nvidia` or `amd`.
        hosts: host names in rank order, empty where they are not known.
        kinds: where kinds of node are mixed, each with how many nodes of it follow one another; else empty.
    """

    nodes: int
    gpus_per_node: int
    arch: str
    vendor: str
    hosts: tuple[str, ...] = ()
    kinds: tuple[tuple[str, int], ...] = ()

    @property
    def gpus(self) -> int:
        """Processes in all."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One plan to be launched, and everything its files say.

    Attributes:
        spec: the model.
        training: `inputs.training` of the result.
        parallel: `parallel` of the plan.
        chunks: layers of every pipeline chunk in the order they run, [pp · vpp].
        stack: the stack profile's fields.
        machines: where it runs.
        version: release of the target to write for, one of `rules.versions.VERSIONS[target]`.
        launch: what the launcher is told.
        plan_id: short name of the plan.
        problem: the job, as rules read it.
        degrees: the plan, as rules read it.
    """

    spec: ModelSpec
    training: Mapping[str, Any]
    parallel: Mapping[str, Any]
    chunks: tuple[int, ...]
    stack: Mapping[str, Any]
    machines: Machines
    version: str
    launch: LaunchOptions
    plan_id: str
    problem: Problem
    degrees: Degrees

    @property
    def uneven(self) -> bool:
        """Whether pipeline chunks differ in layers."""
        return len(set(self.chunks)) > 1

    @property
    def largest_stage(self) -> int:
        """Layers of the pipeline rank that has most of them."""
        ranks = stage_ranks(self.parallel["pp"], self.parallel["vpp"], is_folded(self.parallel["schedule"]))
        return int(np.bincount(ranks, weights=self.chunks).max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A field of the plan that a target cannot express.

    Attributes:
        field: such as `parallel.zero_stage`.
        message: what was asked and why it cannot be said there.
        remedy: the nearest value that can.
    """

    field: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How the user's own installation of the framework judges the bundle.

    Attributes:
        script: Python text of `check.py`, which runs the framework's parser and validators.
        needs: what must be installed for it.
    """

    script: str
    needs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a target hands to a launcher.

    Attributes:
        command: script (or `-m module`) and its arguments, run by every process under torchrun.
        environment: variables it needs.
        files: its own files, by path within the bundle.
        check: how the framework's own parser is asked.
        needs: variables the user must set before starting: name -> what it holds.
        python_path: whether modules are imported from the folder of the bundle.
        notes: lines for the README of the bundle.
    """

    command: tuple[Word, ...]
    environment: Mapping[str, str]
    files: Mapping[str, File]
    check: Check
    needs: Mapping[str, str] = field(default_factory=dict)
    python_path: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A framework files are written for.

    Attributes:
        id: as `--target` names it; its releases are `rules.versions.VERSIONS[id]`.
        says: one line on it.
        cannot: every field that `refusals` may name, and what of it cannot be expressed.
        refusals: what of a request it cannot express.
        program: the program of a request without refusals.
        settings: what the files set, by the names rules of the target read; None where rules read degrees alone.
    """

    id: str
    says: str
    cannot: Mapping[str, str]
    refusals: Callable[[Request], tuple[Refusal, ...]]
    program: Callable[[Request], Program]
    settings: Callable[[Request], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """What starts a program on the nodes.

    Attributes:
        id: as `--launcher` names it.
        says: one line on it.
        files: (request, program) -> further files of the bundle.
        command: what a user types in the bundle to start.
    """

    id: str
    says: str
    files: Callable[[Request, Program], Mapping[str, File]]
    command: Callable[[Request], str]
