"""What every reader makes of a user's file, and what a user names beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwright.models.graph import ModelGraph
from shardwright.planner.plans import Degrees


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is named beside the file.

    Attributes:
        gpus: GPUs of the cluster.
        model: a preset or file; None for the model the file describes.
        version: version of the framework; None for the newest.
        defined: variables of a script, or values a document leaves open.
        world_size: ranks that are started; None for what the file says.
        seq_len: tokens a sequence, where a file does not say.
        degrees: fields of `plans.Degrees` that a file does not say.
    """

    gpus: int
    model: str | None = None
    version: str | None = None
    defined: Mapping[str, str] = field(default_factory=dict)
    world_size: int | None = None
    seq_len: int | None = None
    degrees: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What cannot be, told while reading.

    Attributes:
        rule, message, remedy: as in an estimate's `violations`.
        settings: settings it is about; where a rule of the framework on one of them is broken, that rule says it.
    """

    rule: str
    message: str
    remedy: str
    settings: frozenset[str] = frozenset()

    def to_dict(self) -> dict[str, str]:
        """One entry of an estimate's `violations`."""
        return {"rule": self.rule, "message": self.message, "remedy": self.remedy}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A user's configuration, ready to be priced.

    Attributes:
        source: the file.
        framework: one of `problem.FRAMEWORKS`.
        version: its version, where the format tells it; None for the one named beside it, else the newest.
        graph: the model it describes, or the one that was named for it.
        seq_len: tokens a sequence.
        global_batch: sequences a step.
        precision, optimizer, grad_dtype: words of `models.dtypes`; no dtype of gradients for the stack's own.
        stack: the stack profile the file chooses; None for the framework's own.
        degrees: the plan.
        settings: everything else it sets, by the framework's own names; rules read them.
        found: what cannot be, told while reading.
        waived: rules that do not hold for this file, because the framework can express what it says.
        warnings: what was not read, or is priced as something else.
    """

    source: str
    framework: str
    version: str | None = None
    graph: ModelGraph
    seq_len: int
    global_batch: int
    precision: str = "bf16"
    optimizer: str = "adam"
    grad_dtype: str | None = None
    stack: str | None = None
    degrees: Degrees
    settings: Mapping[str, Any] = field(default_factory=dict)
    found: tuple[Finding, ...] = ()
    waived: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()
