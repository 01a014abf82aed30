"""The record `emit` prints: what was written, and what to do with it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shardwright.planner.records.schema import Degree, Record


class Emission(Record):
    """What `emit --format json` prints."""

    schema_version: Literal[1] = 1
    kind: Literal["emission"]
    target: str = Field(description="the framework the files are for")
    target_version: str = Field(description="its release")
    launcher: str
    folder: str = Field(description="where the bundle was written")
    files: Annotated[list[str], Field(min_length=1)] = Field(description="paths within the folder, in alphabetical order")
    plan_id: str = Field(description="short name of the plan: equal for equal degrees and stages")
    nodes: Degree
    gpus_per_node: Degree
    start: str = Field(description="what to type in the folder")
    check: str = Field(description="asks the framework's own parser, in the folder")
    needs: dict[str, str] = Field(description="environment variables to set before: name -> what it holds")
    notes: list[str]
