"""Plans drawn at random, the same ones every time: many models, clusters and ways to divide the work.

Memory is taken to be ample, so that only rules refuse a plan.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwright.errors import ShardwrightError
from shardwright.planner.emit.emission import emit
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions

AMPLE = "cluster.memory_bytes=1e13"
_CLUSTERS = ("dgx-h100:4", "dgx-h100:16", "dgx-b200:8", "dgx-a100-80g:8")
_ATTEMPTS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A feasible plan."""

    name: str
    model: str
    cluster: str
    plan: dict[str, Any]


@dataclass(slots=True)
class Tally:
    """What became of the bundles of one release."""

    written: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def megatron_plans(models: Sequence[str], a_model: int, seed: int) -> Iterator[Drawn]:
    """Feasible plans for Megatron-LM, as many of each model."""
    for model in models:
        yield from _plans(model, a_model, random.Random(f"{seed} {model}"), "megatron", _megatron_degrees)


def torchtitan_plans(models: Sequence[str], a_model: int, seed: int) -> Iterator[Drawn]:
    """Feasible plans for torchtitan, as many of each model."""
    for model in models:
        yield from _plans(model, a_model, random.Random(f"{seed} {model}"), "torchtitan", _torchtitan_degrees)


def _plans(model: str, wanted: int, rng: random.Random, framework: str, degrees: Any) -> Iterator[Drawn]:
    made = 0
    for _ in range(_ATTEMPTS * wanted):
        if made == wanted:
            return
        cluster = rng.choice(_CLUSTERS)
        priced = _priced(model, cluster, rng, framework, degrees(rng))
        if priced is not None:
            made += 1
            yield Drawn(name=f"{model}-{made}", model=model, cluster=cluster, plan=priced)


def _priced(model: str, cluster: str, rng: random.Random, framework: str, degrees: dict[str, Any]) -> dict[str, Any] | None:
    seq_len, batch = rng.choice((1024, 2048, 4096)), rng.choice((128, 256))
    precision, optimizer = _job(rng, framework)
    options = PricingOptions(framework=framework, overrides=(AMPLE,), precision=precision, optimizer=optimizer)
    try:
        found = estimate(
            model, cluster, seq_len=seq_len, global_batch=batch, degrees=Degrees(**degrees), options=options
        ).to_dict()
    except ShardwrightError:
        return None
    return found if found["feasible"] else None


def _job(rng: random.Random, framework: str) -> tuple[str, str]:
    if framework == "torchtitan":
        return rng.choice(("bf16", "bf16", "bf16", "fp32")), "adam"
    precision = rng.choice(("bf16", "bf16", "bf16", "fp16", "fp8-tensorwise", "fp8-blockwise"))
    return precision, rng.choice(("adam", "adam", "adam", "adam-bf16", "sgd"))


def _megatron_degrees(rng: random.Random) -> dict[str, Any]:
    made = _common(rng)
    if made["pp"] > 1:
        made["vpp"] = rng.choice((1, 1, 2))
    else:
        made["zero"] = rng.choice((0, 1, 1, 3))
    if made["ep"] > 1:
        made["etp"] = rng.choice((1, made["tp"]))
    return made


def _torchtitan_degrees(rng: random.Random) -> dict[str, Any]:
    made = _common(rng)
    made["zero"] = rng.choice((0, 3, 3))
    if made["pp"] > 1:
        made["schedule"] = rng.choice(("1f1b", "interleaved-1f1b", "gpipe", "zb-v", "dualpipe-v"))
        made["vpp"] = 1 if made["schedule"] in ("1f1b", "gpipe") else 2
    return made


def _common(rng: random.Random) -> dict[str, Any]:
    return {
        "tp": rng.choice((1, 1, 2, 4, 8)),
        "pp": rng.choice((1, 1, 2, 4)),
        "cp": rng.choice((1, 1, 1, 2)),
        "ep": rng.choice((1, 1, 2, 4, 8)),
        "micro_batch": rng.choice((1, 2)),
        "recompute": rng.choice(("none", "none", "none", "selective", "full", "full")),
    }


def write_bundles(plans: Sequence[Drawn], root: Path, target: str, version: str) -> Tally:
    """Bundles of one release, each in a folder of its own; those the target refuses are noted."""
    tally = Tally()
    for drawn in plans:
        try:
            emit(drawn.plan, target=target, folder=root / drawn.name, version=version)
        except ShardwrightError as error:
            tally.refused[drawn.name] = str(error)
        else:
            tally.written.append(drawn.name)
    return tally
