"""What the report reads of a sweep-result; keys it does not draw are let through."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from shardwright.planner.records.schema import Degree


class _Drawn(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class DrawnParallel(_Drawn):
    """Degrees of the best plan of a point."""

    world_size: Degree
    tp: Degree
    cp: Degree
    pp: Degree
    vpp: Degree
    ep: Degree
    dp: Degree


class DrawnPrediction(_Drawn):
    """Its speed."""

    step_time_s: float = Field(gt=0)
    tokens_per_s: float = Field(gt=0)
    mfu: float = Field(ge=0)


class DrawnMemory(_Drawn):
    """Its memory."""

    peak_bytes: int = Field(ge=0)


class DrawnPlan(_Drawn):
    """The best plan of a point."""

    parallel: DrawnParallel
    predicted: DrawnPrediction
    memory: DrawnMemory


class DrawnPoint(_Drawn):
    """A point of a sweep."""

    key: dict[str, Any]
    status: Literal["ok", "infeasible", "error"]
    reason: str | None = None
    best: DrawnPlan | None


class DrawnSweep(_Drawn):
    """A sweep-result."""

    kind: Literal["sweep-result"]
    points: list[DrawnPoint] = Field(min_length=1)
