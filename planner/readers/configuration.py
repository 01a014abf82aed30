"""What every reader makes of a user's file: model, job and plan, and what else the file sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwright.models.graph import ModelGraph
from shardwright.planner.plans import Degrees


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A user's configuration, ready to be priced.

    Attributes:
        source: the file.
        framework: one of `problem.FRAMEWORKS`.
        graph: the model it describes, or the one that was named for it.
        seq_len: tokens a sequence.
        global_batch: sequences a step.
        precision, optimizer, grad_dtype: words of `models.dtypes`.
        degrees: the plan.
        settings: everything else it sets, by the framework's own names; rules read them.
        violations: what cannot be, found while reading, in the form of an estimate's `violations`.
        warnings: what was not read, or is priced as something else.
    """

    source: str
    framework: str
    graph: ModelGraph
    seq_len: int
    global_batch: int
    precision: str = "bf16"
    optimizer: str = "adam"
    grad_dtype: str | None = None
    degrees: Degrees
    settings: Mapping[str, Any] = field(default_factory=dict)
    violations: tuple[dict[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
