"""Priced plans for the tests of emission, and the words of an emitted argument list."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from shardwright.planner.emit.emission import emit
from shardwright.planner.emit.options import LaunchOptions
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions


@functools.cache
def plan_text(
    model: str = "llama3.1-8b",
    cluster: str = "dgx-h100:4",
    seq_len: int = 4096,
    global_batch: int = 64,
    framework: str = "megatron",
    degrees: Degrees | None = None,
    precision: str = "bf16",
    optimizer: str = "adam",
) -> str:
    """A PLAN as `estimate --format json` prints it."""
    options = PricingOptions(framework=framework, precision=precision, optimizer=optimizer)
    priced = estimate(model, cluster, seq_len=seq_len, global_batch=global_batch, degrees=degrees, options=options)
    return json.dumps(priced.to_dict())


def plan(**named: Any) -> dict[str, Any]:
    """A PLAN of its own, to be changed at will."""
    made: dict[str, Any] = json.loads(plan_text(**named))
    return made


def emitted(folder: Path, source: dict[str, Any], target: str = "megatron", **named: Any) -> dict[str, str]:
    """The files of a bundle: path -> text."""
    options = LaunchOptions(**named.pop("launch", {}))
    emit(source, target=target, folder=folder, options=options, **named)
    return {str(p.relative_to(folder)): p.read_text(encoding="utf-8") for p in sorted(folder.rglob("*")) if p.is_file()}


def arguments(files: dict[str, str]) -> dict[str, Any]:
    """The options of an emitted Megatron argument list: a value, a list of them, or True for a flag."""
    made: dict[str, Any] = {}
    name = ""
    for word in json.loads(files["arguments.json"]):
        if word.startswith("--"):
            name = word.removeprefix("--")
            if name in made:
                raise ValueError(f"{name} is said twice")
            made[name] = True
        else:
            made[name] = word if made[name] is True else [*([made[name]] if isinstance(made[name], str) else made[name]), word]
    return made
