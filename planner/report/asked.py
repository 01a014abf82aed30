"""What a command line asks for, as the library takes it: the values of options made jobs, plans and pricing options.

Commands hand over all their options by name (`given`); what is missing or contradictory is named by its option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import ConflictError
from shardwright.planner.report.failures import UsageError

if TYPE_CHECKING:
    from shardwright.planner.plans import Degrees
    from shardwright.planner.problem import PricingOptions


def job(given: dict[str, Any]) -> dict[str, Any]:
    """Model, cluster, sequence length and batch.

    Raises:
        UsageError: one of them is missing.
        ConflictError: the batch is stated twice.
    """
    asked = {name: given[name] for name in ("model", "cluster", "seq_len", "global_batch")}
    if given["tokens_per_batch"] is not None:
        asked["global_batch"] = _batch_of_tokens(given)
    if given["seq_len"] is None and str(given["model"]).lower().endswith((".onnx", ".pt2")):
        del asked["seq_len"]  # a graph file knows it
    missing = ["MODEL" if name == "model" else _option(name) for name, value in asked.items() if value is None]
    if missing:
        hint = "such as: llama3.1-8b --cluster dgx-h100:1 --seq-len 8192 --global-batch 64"
        raise UsageError(f"missing {', '.join(missing)}", where=missing[0], hint=hint)
    from shardwright.planner.batches import parse_batch

    return {"seq_len": None} | asked | {"global_batch": parse_batch(str(asked["global_batch"]))}


def _batch_of_tokens(given: dict[str, Any]) -> int | None:
    from shardwright.planner.batches import batch_of_tokens

    if given["global_batch"] is not None:
        message = "--tokens-per-batch and --global-batch both state the batch"
        raise ConflictError(message, where="--tokens-per-batch", hint="keep one of the two")
    seq_len = given["seq_len"]
    return None if seq_len is None else batch_of_tokens(given["tokens_per_batch"], seq_len)


def _option(name: str) -> str:
    return "--" + {"overrides": "set", "plan_file": "plan", "form": "format", "prices": "price"}.get(name, name).replace(
        "_", "-"
    )


def pricing(given: dict[str, Any]) -> PricingOptions:
    """What every pricing command takes."""
    from shardwright.planner.problem import PricingOptions

    what = ("precision", "optimizer", "grad_dtype", "gpus", "lora", "length_histogram")
    how = ("framework", "target_version", "stack", "memory_meter", "calibration", "objective")
    chosen = {name: given[name] for name in (*what, *how) if given[name] is not None}
    if given["memory_margin"] is not None:
        chosen["memory_margin_gib"] = given["memory_margin"]
    if given.get("routing_skew") is not None:
        chosen["routing_skew"] = given["routing_skew"]
    lists = ("overrides", "freeze", "prices", "measured")
    chosen |= {name: tuple(given.get(name) or ()) for name in lists}
    chosen |= {"dims": tuple(given.get("dim") or ()), "declared": tuple(given.get("declare") or ())}
    return PricingOptions(**chosen)


def degrees(given: dict[str, Any]) -> Degrees:
    """The degrees of one plan.

    Raises:
        UsageError: the layers of the stages are no list of whole numbers.
    """
    from shardwright.planner.plans import Degrees

    chosen = {name: given[name] for name in Degrees.__dataclass_fields__ if given.get(name) is not None}
    if "layers_per_stage" in chosen:
        chosen["layers_per_stage"] = _whole_numbers(chosen["layers_per_stage"], "--layers-per-stage")
    return Degrees(**chosen)


def _whole_numbers(text: str, where: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{text!r} is no list of whole numbers", where=where, hint="write 20,20,20,20") from error


def fixed(statements: Sequence[str]) -> dict[str, str]:
    """The axes that are fixed, by name.

    Raises:
        UsageError: a statement is no `KEY=VALUE`.
        ConflictError: an axis is fixed to two values.
    """
    axes: dict[str, str] = {}
    for part in (part.strip() for text in statements for part in text.split(",")):
        key, separator, value = (word.strip() for word in part.partition("="))
        key = key.replace("-", "_")  # as the option of estimate spells it
        if not separator or not key or not value:
            raise UsageError(f"{part!r} is no KEY=VALUE", where="--fix", hint="write --fix tp=4,pp=2")
        if axes.setdefault(key, value) != value:
            raise ConflictError(f"{key} is fixed to {axes[key]} and to {value}", where="--fix", hint="keep one of the two")
    return axes


WITH_PLAN = ("plan_file", "rank", "overrides", "routing_skew", "calibration", "objective", "prices", "trace", "form")


def refuse_beside_plan(given: dict[str, Any]) -> None:
    """Refuses what a plan of a file says itself.

    Raises:
        ConflictError: model, inputs or degrees are named beside it.
    """
    named = [name for name, value in given.items() if value is not None and name not in WITH_PLAN]
    if named:
        options = ", ".join("MODEL" if name == "model" else _option(name) for name in named)
        message = f"--plan takes model, inputs and degrees from the file; given as well: {options}"
        raise ConflictError(message, where="--plan", hint=f"drop {options}, or drop --plan")


CONFIGURATIONS = {"megatron_args": "megatron", "torchtitan_toml": "torchtitan", "deepspeed_json": "deepspeed"}
"""Options that name a configuration of a framework, and whose it is."""

_BESIDE = frozenset((
    "model", "cluster", "gpus", "overrides", "world_size", "define", "objective", "prices", "form", "stack", "target_version",
    "trace", "memory_margin", "memory_meter", "routing_skew", *CONFIGURATIONS,
))  # fmt: skip


_UNSAID: Mapping[str, frozenset[str]] = {
    "deepspeed_json": frozenset(("seq_len", "tp", "pp", "cp", "ep", "recompute", "recompute_layers", "layers_per_stage")),
}
"""What a format does not say, so that it may stand beside the file."""


def configuration(given: dict[str, Any]) -> bool:
    """Whether a configuration of a framework is to be priced.

    Raises:
        ConflictError: what belongs to one is given without any.
    """
    named = any(given[name] is not None for name in CONFIGURATIONS)
    lone = [name for name in ("world_size", "define") if given[name] is not None]
    if lone and not named:
        options = ", ".join(map(_option, CONFIGURATIONS))
        raise ConflictError(f"{_option(lone[0])} goes with {options}", where=_option(lone[0]), hint=f"drop {_option(lone[0])}")
    return named


def configured(given: dict[str, Any]) -> dict[str, Any]:
    """The file of a configuration, and what is named beside it.

    Raises:
        UsageError: no cluster.
        ConflictError: two files, or values the file states itself.
    """
    files = [name for name in CONFIGURATIONS if given[name] is not None]
    allowed = _BESIDE | _UNSAID.get(files[0], frozenset())
    wrong = [name for name, value in given.items() if value is not None and name not in allowed]
    if wrong or len(files) > 1:
        options = ", ".join(map(_option, wrong or files[1:]))
        message = f"{_option(files[0])} takes job and plan from the file; given as well: {options}"
        raise ConflictError(message, where=_option(files[0]), hint=f"drop {options}, or change the file")
    if given["cluster"] is None:
        raise UsageError("missing --cluster", where="--cluster", hint="such as: --cluster dgx-h100:1")
    asked = {name: given[name] for name in ("cluster", "model", "world_size", "seq_len")}
    plan = {name: value for name, value in asdict(degrees(given)).items() if given.get(name) is not None}
    file = {"path": given[files[0]], "framework": CONFIGURATIONS[files[0]]}
    return asked | file | {"degrees": plan, "defined": defined(given["define"] or ())}


def defined(statements: Sequence[str]) -> dict[str, str]:
    """Variables of a script by name.

    Raises:
        UsageError: a statement is no `NAME=VALUE`.
    """
    made = {}
    for text in statements:
        name, separator, value = text.partition("=")
        if not separator or not name.replace("_", "a").replace(".", "a").isalnum():
            raise UsageError(f"{text[:40]!r} is no NAME=VALUE", where="--define", hint="write --define NNODES=4")
        made[name] = value
    return made


def free_folder(output: str | None) -> Path | None:
    """The folder a result is to be written to, looked at before any work is done; None where none is named.

    Raises:
        ShardwrightError: it cannot be used.
    """
    if output is None:
        return None
    from shardwright.planner.report.folder import check_folder

    if not output:
        raise UsageError("the name of the folder is empty", where="-o", hint="name a new or empty folder")
    check_folder(Path(output))
    return Path(output)


def trace_file(output: str | None) -> Path | None:
    """The file a trace is to be written to, looked at before any work is done; None where none is named.

    Raises:
        ShardwrightError: it cannot be used.
    """
    if output is None:
        return None
    from shardwright.planner.report.trace import check_place

    if not output:
        raise UsageError("the name of the file is empty", where="--trace", hint="name a file, such as trace.json")
    check_place(Path(output))
    return Path(output)
