"""The shape of a calibration: what `calibrate` prints and writes and `--calibration` reads."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from shardwright.hardware.cluster import MAX_GPUS, MAX_GPUS_PER_NODE
from shardwright.hardware.schema import NodeFile

Seconds = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Bytes = Annotated[float, Field(ge=1, le=1e15, allow_inf_nan=False)]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Measured(_Record):
    """Times of one collective over one group."""

    collective: Collective
    ranks: Annotated[int, Field(ge=2, le=MAX_GPUS, strict=True)]
    ranks_per_node: Annotated[int, Field(ge=1, le=MAX_GPUS_PER_NODE, strict=True)]
    device: Annotated[str, Field(max_length=200)] = Field(default="", description="as the log names it")
    message_bytes: Annotated[list[Bytes], Field(min_length=1, max_length=10_000)] = Field(
        description="as nccl-tests counts, ascending"
    )
    time_s: Annotated[list[Seconds], Field(min_length=1)]
    source: Annotated[str, Field(max_length=2000)] = ""

    @model_validator(mode="after")
    def _pairs(self) -> Measured:
        if len(self.time_s) != len(self.message_bytes):
            raise ValueError("message_bytes and time_s have different lengths")
        if any(a >= b for a, b in zip(self.message_bytes, self.message_bytes[1:], strict=False)):
            raise ValueError("message_bytes do not ascend")
        if self.ranks % self.ranks_per_node:
            raise ValueError("ranks are no multiple of ranks_per_node")
        return self


Factor = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]


class SiteRun(_Record):
    """A measured run, modelled without and with the factors."""

    id: Annotated[str, Field(max_length=500)]
    measured_step_time_s: Seconds
    before_step_time_s: Seconds
    after_step_time_s: Seconds


class Site(_Record):
    """What measured training steps say: times there over modelled times."""

    device: Factor = Field(default=1.0, description="kernels and the optimizer's update")
    host: Factor = Field(default=1.0, description="launches and host synchronisation")
    scaleup: Factor = Field(default=1.0, description="exchange inside a node or scale-up domain")
    scaleout: Factor = Field(default=1.0, description="exchange that leaves it")
    interval_share: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="what the interval of a prediction keeps of its width"
    )
    runs: Annotated[list[SiteRun], Field(max_length=10_000)] = Field(default=[], description="they follow from; not priced")


class Fit(_Record):
    """What a series says beside the presets; null: not measured there, or no cluster was named."""

    collective: Collective
    link: str | None
    ranks: int
    nodes: int
    sizes: int
    latency_s: float | None = Field(description="of messages of up to 1 KiB")
    expected_latency_s: float | None
    bus_bytes_per_s: float = Field(description="of the largest messages, as nccl-tests counts; may exceed the line rate")
    expected_bus_bytes_per_s: float | None
    preset_error: float | None = Field(description="median error of the presets on the measured sizes")
    held_out_error: float | None = Field(description="median error on each half of the sizes after fitting the other half")


class CalibrationFile(_Record):
    """Measured collectives of one machine."""

    schema_version: Literal[1] = 1
    kind: Literal["calibration"] = "calibration"
    name: Annotated[str, Field(min_length=1, max_length=200)]
    node: NodeFile | None = Field(description="the machine; null: that of the cluster it is used for")
    site: Site | None = Field(default=None, description="null or absent: no steps were measured")
    measured: Annotated[list[Measured], Field(max_length=10_000)]
    fits: list[Fit] = Field(default=[], description="for the reader: prices use `measured`")
    warnings: list[str] = []

    @field_validator("measured")
    @classmethod
    def _something(cls, measured: list[Measured], known: ValidationInfo) -> list[Measured]:
        if not measured and known.data.get("site") is None:
            raise ValueError("neither measured collectives nor a site")
        return measured
