"""`compare`: two plans by part, and the fewest changes that make most of the difference.

    delta = B − A        for the step, each of its ten parts, and the peak; the parts sum to the step
    changes              the smallest set of A's knobs that realises most of what B, or a neighbour, is faster (`shortest`)

Plans of two models are not compared: they do other work. Another cluster, batch or length is said (`differs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.hardware.cluster import Cluster
from shardwright.planner.explanation.alternatives import compared
from shardwright.planner.explanation.saved import Record
from shardwright.planner.explanation.shortest import shortest
from shardwright.planner.explanation.sides import Named, Side, Source, read_sides
from shardwright.planner.shown import Shown

SAME_SIZE = 0.02
"""Relative difference of parameters up to which two descriptions are of one model (padding, tied weights, positions)."""

MAX_TOLERANCE_PERCENT = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Shown):
    """Two plans by part.

    Attributes:
        data: the record `compare --format json` prints.
    """

    data: Mapping[str, Any]

    @property
    def exit_code(self) -> int:
        """1 where a tolerance was given and the steps differ by more, else 0."""
        return 1 if self.data["over_tolerance"] else 0

    def to_dict(self) -> dict[str, Any]:
        """The record itself."""
        return dict(self.data)

    def __repr__(self) -> str:
        return f"Comparison(total_s={self.data['total_s']:.6g}, over_tolerance={self.data['over_tolerance']})"


def compare(
    a: Source,
    b: Source,
    *,
    rank_a: int | None = None,
    rank_b: int | None = None,
    tolerance_percent: float | None = None,
    cluster: str | Cluster | None = None,
    model: str | None = None,
    defined: Mapping[str, str] | None = None,
) -> Comparison:
    """Compares two plans.

    Args:
        a: a RESULT, a PLAN, or Megatron arguments (script, list, YAML, JSON).
        b: the same; delta is b − a.
        rank_a: rank of a's plan, where it is a RESULT.
        rank_b: rank of b's plan, likewise.
        tolerance_percent: difference of the steps, relative to a, that is still no finding; None for no test.
        cluster: where arguments run; None for the cluster of the other side.
        model: the model of arguments; None for the one they describe.
        defined: variables of a script to take as given.

    Raises:
        ConflictError: the two plans train different models.
        ShardwrightError: one of them cannot be read or priced.

    Example:
        >>> import shardwright
        >>> result = shardwright.plan("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64).to_dict()
        >>> shardwright.compare(result, result, rank_b=2).to_dict()["kind"]
        'comparison'
    """
    if tolerance_percent is not None and not 0 <= tolerance_percent <= MAX_TOLERANCE_PERCENT:
        hint = f"give 0 to {MAX_TOLERANCE_PERCENT:g} %"
        raise InvalidValueError(f"a tolerance of {tolerance_percent:g} %", where="--tolerance", hint=hint)
    one, other = read_sides(a, b, (rank_a, rank_b), Named(cluster=cluster, model=model, defined=defined))
    _check_same_model(one, other)
    return Comparison(data=_record(one, other, tolerance_percent))


def _check_same_model(one: Side, other: Side) -> None:
    models = [side.identity["model"] for side in (one, other)]
    sizes = sorted(model["parameters"] for model in models)
    if models[0]["layers"] == models[1]["layers"] and sizes[1] <= sizes[0] * (1 + SAME_SIZE):
        return
    names = [f"{model['name']} ({model['layers']} layers, {model['parameters']:,} parameters)" for model in models]
    message = f"A trains {names[0]}, B {names[1]}"
    raise ConflictError(message, where="B", hint="compare plans of one model; their steps do the same work then")


def _record(one: Side, other: Side, tolerance: float | None) -> Record:
    parts = compared(one.estimate, other.estimate)
    return {
        "schema_version": 1,
        "kind": "comparison",
        "a": one.to_dict(),
        "b": other.to_dict(),
        "differs": differs(one, other),
        "total_s": parts["step"]["delta_s"],
        **parts,
        "tolerance_percent": tolerance,
        "over_tolerance": tolerance is not None and abs(parts["step"]["delta_fraction"]) * 100 > tolerance,
        "changes": shortest(one, other, same_job=not differs(one, other, of_job=True)),
    }


JOB = ("model", "cluster", "training.seq_len", "training.global_batch", "training.precision", "training.optimizer")


def differs(one: Side, other: Side, *, of_job: bool = False) -> list[str]:
    """What the two plans do not have in common: inputs, and the axes of the plan.

    Args:
        one: a side.
        other: the other.
        of_job: the inputs alone.
    """
    made = [name for name in JOB if _value(one, name) != _value(other, name)]
    if of_job:
        return [name for name in made if name != "model"]
    both = (one.estimate["parallel"], other.estimate["parallel"])
    made += [f"parallel.{name}" for name in both[0] if both[0][name] != both[1].get(name)]
    layers = [[stage["layers"] for stage in side.estimate["stages"]] for side in (one, other)]
    return [*made, *(["stages.layers"] if layers[0] != layers[1] else [])]


def _value(side: Side, name: str) -> Any:
    group, _, key = name.partition(".")
    known = side.identity[group]
    if group == "model":  # names and positions differ between descriptions of one model
        return known["layers"], known["parameters"]
    return known[key] if key else known["digest"]
