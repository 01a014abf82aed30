"""Bundles and what is wrong with them, as data: emitted configurations, changes to them, and what the frameworks said of each.

    verdicts/megatron.json     argument lists       parse_args, validate_args and the configuration of Megatron-LM releases
    verdicts/deepspeed.json    ds_config.json       DeepSpeedConfig on a fake group of the planned size
    verdicts/torchtitan.json   config.toml          ConfigManager and ParallelDims for the planned world

A file holds `bundles` (as `emit` wrote them) and `cases`: a bundle, a change, and a letter a release: `a` accepted, `r`
refused, `u` the release does not know an option, `n` no verdict without a device's library. `record_verdicts.py` writes them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emit_corpus import AMPLE

from shardwright.errors import ShardwrightError
from shardwright.planner.problem import PricingOptions
from shardwright.planner.readers.estimating import estimate_file

FOLDER = Path(__file__).with_name("verdicts")
FRAMEWORKS = ("megatron", "deepspeed", "torchtitan")
GONE = "gone"
"""In a change: what is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """An emitted configuration: Megatron's options as a mapping to lists of words, else the document."""

    name: str
    model: str
    gpus: int
    seq_len: int
    content: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A bundle with one change (none: as it was written), and verdicts by release."""

    bundle: Bundle
    change: str
    content: dict[str, Any]
    gpus: int
    verdicts: Mapping[str, str]

    @property
    def name(self) -> str:
        """Both names."""
        return f"{self.bundle.name}: {self.change or 'as emitted'}"

    @property
    def words(self) -> list[str]:
        """The argument list."""
        return [word for option, values in self.content["arguments"].items() for word in (option, *values)]


def load(framework: str) -> list[Case]:
    """All cases of a framework."""
    data = json.loads((FOLDER / f"{framework}.json").read_text(encoding="utf-8"))
    bundles = {one["name"]: Bundle(**one) for one in data["bundles"]}
    return [
        case_of(bundles[one["bundle"]], one["change"], one["set"], one.get("gpus"), one["verdicts"]) for one in data["cases"]
    ]


def case_of(
    bundle: Bundle, change: str, values: Mapping[str, Any], gpus: int | None = None, verdicts: Mapping[str, str] | None = None
) -> Case:
    """A bundle with some values set, by dotted path: `arguments.--lr`, `zero_optimization.stage`."""
    content: dict[str, Any] = json.loads(json.dumps(bundle.content))
    for path, value in values.items():
        *outer, last = path.split(".")
        at = content
        for part in outer:
            at = at.setdefault(part, {})
        if value == GONE:
            at.pop(last, None)
        else:
            at[last] = value
    return Case(bundle=bundle, change=change, content=content, gpus=gpus or bundle.gpus, verdicts=verdicts or {})


def written(framework: str, case: Case, folder: Path) -> Path:
    """The case as the file its framework reads."""
    if framework == "megatron":
        sets = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in case.content["environment"].items())
        launch = f"torchrun --nnodes {case.gpus // 8} --nproc-per-node 8 pretrain_gpt.py {shlex.join(case.words)}\n"
        path, text = folder / "run.sh", sets + launch
    elif framework == "deepspeed":
        path, text = folder / "ds_config.json", json.dumps(case.content)
    else:
        import tomli_w

        path, text = folder / "config.toml", tomli_w.dumps(case.content)
    path.write_text(text, encoding="utf-8")
    return path


def ours(framework: str, case: Case, release: str, folder: Path) -> tuple[str, ...]:
    """What refuses a case: ids of our rules, or the reader; nothing where it is accepted."""
    path = written(framework, case, folder)
    options = PricingOptions(framework=framework, target_version=release, overrides=(AMPLE,))
    named: dict[str, Any] = {} if framework == "megatron" else {"model": case.bundle.model, "world_size": case.gpus}
    if framework == "deepspeed":
        named["seq_len"] = case.bundle.seq_len
    try:
        found = estimate_file(framework, path, f"dgx-h100:{case.gpus // 8}", options=options, **named).to_dict()
    except ShardwrightError as error:
        return (f"reader: {error.message}",)
    unknown = [text for text in found["warnings"] if "Megatron-LM knows no" in text]
    return tuple([one["rule"] for one in found["violations"]] + [f"reader: {text}" for text in unknown])
