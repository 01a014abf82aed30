"""The record of a placement: which host runs which ranks of a plan."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=0)]
Bytes = Annotated[float, Field(ge=0)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class PlacedLevel(_Record):
    """What crosses between the groups of one tier of switches in a step."""

    name: str = Field(description="tier 1 (leaves), tier 2, ..., or block")
    groups: Annotated[int, Field(ge=1)]
    rates_known: bool = Field(description="the uplinks' rates are stated; else a group is taken to lose nothing on its way up")
    crossing_bytes: Bytes
    naive_crossing_bytes: Bytes


class PlacedOrder(_Record):
    """A rank order that a target can launch, and what it costs."""

    order: str
    cost_s: Seconds
    naive_cost_s: Seconds


class Placement(_Record):
    """Where a plan runs: node i, with the ranks i·g to i·g + g - 1, on the i-th host."""

    order: str = Field(description="rank order, innermost axis first; that of the ranks under `stages`")
    hosts: list[str] = Field(description="host names in rank order")
    cost_s: Seconds = Field(description="time that the busiest link of the network needs, summed over axes")
    naive_cost_s: Seconds = Field(description="the same with hosts in the cluster's own order")
    bound_s: Seconds = Field(description="no order of hosts costs less")
    gap: Annotated[float, Field(ge=0, le=1)]
    axes_s: dict[str, Seconds]
    levels: list[PlacedLevel]
    orders: list[PlacedOrder]
    stopped: Literal["effort_limit"] | None
