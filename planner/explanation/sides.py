"""What can stand on a side of `compare`: a plan of a RESULT, a PLAN, or the Megatron arguments a user has.

    read_side(source, rank, beside)    told apart by what the file holds

A folder, `-`, and a JSON file with the key `kind` are results; everything else is read as Megatron arguments (a script, a list,
YAML or JSON), priced on the cluster that is named, else on that of the other side.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.documents import RESULT_LIMIT_BYTES, read_text, rounded
from shardwright.errors import ConflictError, DamagedFileError, InvalidValueError, ShardwrightError
from shardwright.hardware.catalog import load_cluster
from shardwright.hardware.cluster import Cluster
from shardwright.planner.explanation.saved import Record, read_saved
from shardwright.planner.plan_records import degrees_of
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, Problem, problem_from_inputs
from shardwright.planner.readers.configuration import Beside
from shardwright.planner.readers.estimating import estimate_configuration
from shardwright.planner.readers.megatron import megatron_configuration

Source = str | Path | Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What is named beside a user's arguments.

    Attributes:
        cluster: `NODE:COUNT[xG]`, a path, or a cluster; None for that of the other side.
        model: a preset or file; None for the model the arguments describe.
        defined: shell variables to take as given.
    """

    cluster: str | Cluster | None = None
    model: str | None = None
    defined: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One plan.

    Attributes:
        source: where it comes from.
        form: plan-result, estimate or megatron-arguments.
        rank: its rank; None where it has none.
        estimate: its record.
        problem: what it is made for.
        identity: model, cluster and training in short.
    """

    source: str
    form: str
    rank: int | None
    estimate: Record
    problem: Problem
    identity: Record

    @property
    def degrees(self) -> Degrees:
        """The plan."""
        return degrees_of(self.estimate)

    def to_dict(self) -> Record:
        """What a comparison says of it."""
        told = ("feasible", "violations", "parallel", "predicted", "memory")
        return {
            "source": self.source,
            "form": self.form,
            "rank": self.rank,
            **self.identity,
            **{name: self.estimate[name] for name in told},
        }


def is_result(source: Source) -> bool:
    """Whether a source holds what `plan` or `estimate` wrote.

    Raises:
        DamagedFileError: there is no such file.
    """
    if isinstance(source, Mapping) or str(source) == "-":
        return True
    place = Path(source)
    if place.is_dir():
        return True
    text = read_text(place, limit_bytes=RESULT_LIMIT_BYTES)
    if place.suffix == ".json" and not text.lstrip().startswith("["):
        try:
            return "kind" in json.loads(text)
        except (ValueError, RecursionError, TypeError):
            return True  # a damaged result: reading it says where
    return text.lstrip().startswith("{") and '"kind"' in text


def read_side(source: Source, rank: int | None, named: Named, option: str) -> Side:
    """One side of a comparison.

    Args:
        source: what stands there.
        rank: rank of the plan in a RESULT.
        named: what is named for arguments.
        option: the option that names the rank, for messages.

    Raises:
        ShardwrightError: it cannot be read, or cannot be priced.
    """
    if not is_result(source):
        if rank is not None:
            hint = f"drop {option}"
            raise ConflictError(f"{source} holds arguments, which have no ranks", where=option, hint=hint)
        return _arguments(Path(str(source)), named)
    try:
        saved = read_saved(source, rank)
    except ShardwrightError as error:
        error.where = option if error.where == "--rank" else error.where
        raise
    kind = str(saved.document["kind"])
    name = "given" if isinstance(source, Mapping) else str(source)
    identity = {key: saved.document[key] for key in ("model", "cluster", "training")}
    return Side(source=name, form=kind, rank=saved.rank, estimate=saved.estimate, problem=saved.problem, identity=identity)


def _arguments(path: Path, named: Named) -> Side:
    if named.cluster is None:
        message = f"{path} does not say where it runs"
        raise InvalidValueError(message, where="--cluster", hint="name the cluster, such as --cluster dgx-h100:8")
    machine = load_cluster(named.cluster) if isinstance(named.cluster, str) else named.cluster
    beside = Beside(gpus=machine.gpus, model=named.model, defined=named.defined or {})
    configuration = megatron_configuration(path, beside)
    made: Record = rounded(estimate_configuration(configuration, named.cluster, PricingOptions()).to_dict())
    if made["predicted"] is None:
        first = made["violations"][0]
        raise InvalidValueError(f"{path} cannot be priced: {first['message']}", where=first["rule"], hint=first["remedy"])
    return Side(
        source=str(path),
        form="megatron-arguments",
        rank=None,
        estimate=made,
        problem=problem_from_inputs(made["inputs"]),
        identity={key: made[key] for key in ("model", "cluster", "training")},
    )


def read_sides(a: Source, b: Source, ranks: tuple[int | None, int | None], named: Named) -> tuple[Side, Side]:
    """Both sides; arguments without a cluster take that of the other side.

    Raises:
        ShardwrightError: one of them cannot be read.
        DamagedFileError: both are to be read from standard input.
    """
    if str(a) == str(b) == "-":
        raise DamagedFileError("both sides are standard input", where="B", hint="name a file for one of them")
    options, sources = ("--rank-a", "--rank-b"), (a, b)
    order = sorted((0, 1), key=lambda side: not is_result(sources[side]))
    found: dict[int, Side] = {}
    for side in order:
        known = next(iter(found.values()), None)
        own = named if named.cluster is not None or known is None else _on(known, named)
        found[side] = read_side(sources[side], ranks[side], own, options[side])
    return found[0], found[1]


def _on(other: Side, named: Named) -> Named:
    return Named(cluster=other.problem.cluster, model=named.model, defined=named.defined)
