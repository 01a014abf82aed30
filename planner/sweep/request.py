"""What a sweep is asked for: the values of its knobs, and what holds for all points.

    requested(options, file)    options and a sweep.yaml, joined -> SweepRequest

An option and a key of the file may both state a thing only if they agree. Every error names its place: the option, or
the line of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shardwright.documents import Document
from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError, unknown_name
from shardwright.models.dtypes import PRECISIONS
from shardwright.planner.batches import batch_of_tokens
from shardwright.planner.problem import FRAMEWORKS, PricingOptions
from shardwright.planner.search.options import EFFORTS, SearchOptions
from shardwright.planner.search.space import held_axes
from shardwright.planner.sweep import knobs

AUTO_TOKENS = 4 * 2**20
"""Tokens a step left to the sweep: the first batch of Llama 3.1 405B (arXiv 2407.21783 section 3.4.1)."""

POINT_SECONDS = 2.0
"""Deterministic seconds in which `--effort search` divides layers at a point, unless others are stated."""

BATCHES = {"global_batch": knobs.numbers, "batch_per_gpu": knobs.shares, "tokens_per_batch": knobs.numbers}
NUMBERS = ("nodes", "gpus", "seq_len")
WORDS = ("model", "node", "precision", "framework")
KNOBS = (*WORDS, *NUMBERS, *BATCHES)
PRICING = {
    "optimizer": "optimizer",
    "grad_dtype": "grad_dtype",
    "target_version": "target_version",
    "stack": "stack",
    "routing_skew": "routing_skew",
    "memory_margin": "memory_margin_gib",
    "memory_meter": "memory_meter",
    "lora": "lora",
    "calibration": "calibration",
    "length_histogram": "length_histogram",
    "objective": "objective",
}
LISTS = {"set": "overrides", "freeze": "freeze", "price": "prices"}
"""Keys of a sweep and the fields of `PricingOptions` they fill, with one value and with several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRule:
    """How the global batch follows from a point: a number of sequences, so many a GPU, or a number of tokens."""

    kind: str
    value: float

    def __str__(self) -> str:
        words = {"global_batch": "sequences", "batch_per_gpu": "a GPU", "tokens_per_batch": "tokens"}
        return f"{self.value:.12g} {words[self.kind]}"

    def sequences(self, gpus: int, seq_len: int) -> int:
        """Sequences a step.

        Raises:
            InvalidValueError: no whole number of them.
        """
        if self.kind == "tokens_per_batch":
            return batch_of_tokens(int(self.value), seq_len)
        batch = self.value * gpus if self.kind == "batch_per_gpu" else self.value
        if batch < 1 or not float(batch).is_integer():
            message = f"{self} on {gpus} GPUs are {batch:g} sequences"
            raise InvalidValueError(message, where="--batch-per-gpu", hint="give a multiple of 1 / GPUs of every size")
        return int(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """A sweep.

    Attributes:
        models: preset ids or paths.
        nodes: node types.
        counts: numbers of nodes; None with `gpus`, or to leave them to the sweep.
        gpus: numbers of GPUs; None with `counts`.
        seq_lens, precisions: None to leave them to the sweep.
        options: pricing options of all points (precision, framework and gpus are the point's own).
        search: search options of all points.
        places: where the user stated each knob, for messages.
    """

    models: tuple[str, ...]
    nodes: tuple[str, ...]
    counts: tuple[int, ...] | None
    gpus: tuple[int, ...] | None
    seq_lens: tuple[int, ...] | None
    batches: tuple[BatchRule, ...]
    precisions: tuple[str, ...] | None
    frameworks: tuple[str, ...]
    options: PricingOptions = field(default_factory=PricingOptions)
    search: SearchOptions = field(default_factory=SearchOptions)
    places: Mapping[str, str] = field(default_factory=dict)

    def place(self, name: str) -> str:
        """Where a knob was stated."""
        return self.places.get(name, option_of(name))

    def search_record(self) -> dict[str, Any]:
        """What of the search options changes a result."""
        chosen = self.search
        names = ("top", "effort", "tie_percent", "allow_subset")
        seconds = POINT_SECONDS if chosen.effort_s is None and chosen.effort == "search" else chosen.effort_s
        return {"fix": dict(chosen.fix), **{name: getattr(chosen, name) for name in names}, "effort_s": seconds}


def option_of(name: str) -> str:
    """The option of a key."""
    return "MODEL" if name == "model" else "--" + name.replace("_", "-")


def requested(given: Mapping[str, Any], file: Document | None = None) -> SweepRequest:
    """The request of options and a file.

    Args:
        given: values by key of `SweepFile`; None or missing where nothing is stated.
        file: a sweep.yaml that `schema.read_sweep` has checked.

    Raises:
        ConflictError: two statements that cannot both hold.
        InvalidValueError: a value that cannot be, or a knob without value.
        UnknownNameError: a word that does not exist.
    """
    stated, places = _joined({name: value for name, value in given.items() if value is not None}, file)
    read = {name: _read(name, value, places[name]) for name, value in stated.items() if name in KNOBS}
    for name in ("model", "node"):
        if name not in stated:
            hint = "such as: sweep llama3.1-8b --node dgx-h100 --nodes 1..64x2"
            raise InvalidValueError(f"no {name} is named", where=option_of(name), hint=hint)
    if "nodes" in stated and "gpus" in stated:
        raise ConflictError("nodes and GPUs are both stated", where=places["gpus"], hint="keep one of the two")
    _check_words(read, places)
    return SweepRequest(
        models=read["model"] or _all_models(),
        nodes=read["node"] or _all_nodes(),
        counts=read.get("nodes"),
        gpus=read.get("gpus"),
        seq_lens=read.get("seq_len"),
        batches=_rules(read),
        precisions=read.get("precision"),
        frameworks=tuple(dict.fromkeys(map(_framework, read.get("framework") or ("any",)))),
        options=_pricing(stated),
        search=_search(stated, places),
        places=places,
    )


def _joined(options: dict[str, Any], file: Document | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Options and file as one, with the place of each statement."""
    written = {name: value for name, value in (file.data if file else {}).items() if value is not None}
    for name in options.keys() & written.keys():
        place = file.place(name) if file else ""
        if _read(name, options[name], option_of(name)) != _read(name, written[name], place):
            message = f"{option_of(name)} {_shown(options[name])} contradicts {place}: {_shown(written[name])}"
            raise ConflictError(message, where=option_of(name), hint="keep one of the two")
    places = {name: option_of(name) for name in options} | {name: file.place(name) for name in written if file}
    return options | written, places


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _read(name: str, value: Any, place: str) -> Any:
    """The values of a knob; anything else as it can be compared."""
    if name in WORDS:
        return knobs.words(value, place)
    if name in NUMBERS:
        return knobs.numbers(value, place)
    if name in BATCHES:
        return BATCHES[name](value, place)
    if name == "fix":
        return {key.replace("-", "_"): str(one) for key, one in value.items()}
    return [value] if name in LISTS and isinstance(value, str) else value


def _rules(read: Mapping[str, Any]) -> tuple[BatchRule, ...]:
    """Batch rules in the order sequences, per GPU, tokens; `auto` is a number of tokens."""
    made = [BatchRule(kind=kind, value=value) for kind in BATCHES for value in read.get(kind) or ()]
    if any(kind in read and read[kind] is None for kind in BATCHES) or not made:
        made.append(BatchRule(kind="tokens_per_batch", value=AUTO_TOKENS))
    return tuple(dict.fromkeys(made))


def _check_words(read: Mapping[str, Any], places: Mapping[str, str]) -> None:
    known = {"precision": tuple(PRECISIONS), "framework": (*FRAMEWORKS, "torchrun")}
    for name, words in known.items():
        for word in read.get(name) or ():
            if word not in words:
                raise unknown_name(name, word, words, where=places[name])


def _framework(word: str) -> str:
    return "pytorch" if word == "torchrun" else word


def _pricing(stated: Mapping[str, Any]) -> PricingOptions:
    made: dict[str, Any] = {PRICING[name]: stated[name] for name in PRICING if name in stated}
    made |= {field: tuple(_read(name, stated.get(name, []), "")) for name, field in LISTS.items()}
    options = PricingOptions(**made)
    return replace(options, calibration=_calibration(options.calibration))


def _calibration(given: Any) -> Any:
    """The calibration itself, so that it is read once."""
    if given is None:
        return None
    from pathlib import Path

    from shardwright.hardware.calibration_file import load_calibration

    return load_calibration(Path(given))


def _search(stated: Mapping[str, Any], places: Mapping[str, str]) -> SearchOptions:
    fix = _read("fix", stated.get("fix", {}), "")
    try:
        held_axes(fix)
    except ShardwrightError as error:
        error.where = error.where if places["fix"].startswith("--") else places["fix"]
        raise
    chosen = SearchOptions(fix=fix, **{"top": 1, **{_SEARCH[name]: stated[name] for name in _SEARCH if name in stated}})
    if chosen.effort not in EFFORTS:
        raise unknown_name("effort", chosen.effort, EFFORTS, where=places["effort"])
    return chosen


_SEARCH = {"top": "top", "effort": "effort", "effort_seconds": "effort_s", "tie": "tie_percent", "allow_subset": "allow_subset"}
"""Keys of a sweep and the fields of `SearchOptions` they fill."""


def _all_models() -> tuple[str, ...]:
    from shardwright.models.catalog import model_ids

    return model_ids()


def _all_nodes() -> tuple[str, ...]:
    from shardwright.hardware.catalog import node_ids

    return node_ids()
