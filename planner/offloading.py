"""What a plan keeps in the memory of the host: fractions of activations, optimizer states and parameters.

    offload_of("optimizer=1,activations=0.5")     what a user types: a part alone means all of it, `none` means nothing
    Offload.code                                  one whole number, so that plans hold it in one column
    fractions(column, part)                       and back, for many plans at once

Fractions are kept in millionths, 20 bits each: activations in the lowest, then optimizer, then parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.errors import ConflictError, InvalidValueError, unknown_name

PARTS = ("activations", "optimizer", "parameters")
WHERE = "--offload"

_BITS, _WHOLE = 20, 1_000_000
_SHIFTS = {part: _BITS * place for place, part in enumerate(PARTS)}
_HINT = "write optimizer=1,activations=0.5, or none; a part alone means all of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Fractions, 0 to 1, kept in host memory; rounded to millionths.

    Attributes:
        activations: of what layers keep for their backward pass.
        optimizer: of the optimizer's states, and so of the parameters the host updates.
        parameters: of the sharded parameters.
    """

    activations: float = 0.0
    optimizer: float = 0.0
    parameters: float = 0.0

    def __post_init__(self) -> None:
        for part in PARTS:
            _checked(part, getattr(self, part), WHERE)

    @property
    def code(self) -> int:
        """The fractions as one whole number; 0 for none."""
        return sum(round(getattr(self, part) * _WHOLE) << shift for part, shift in _SHIFTS.items())

    @property
    def text(self) -> str:
        """The fractions as a user types them."""
        held = {part: fraction for part, fraction in self.to_dict().items() if fraction}
        return ",".join(part if fraction == 1 else f"{part}={fraction:.6g}" for part, fraction in held.items()) or "none"

    def to_dict(self) -> dict[str, float]:
        """`parallel.offload` of an estimate."""
        return dict(from_code(self.code))


def from_code(code: int) -> dict[str, float]:
    """The fractions of a whole number, by part."""
    return {part: (code >> shift & (1 << _BITS) - 1) / _WHOLE for part, shift in _SHIFTS.items()}


def text_of(code: int) -> str:
    """The fractions of a whole number, as a user types them."""
    return Offload(**from_code(code)).text


def fractions(column: NDArray[np.int64], part: str) -> NDArray[np.float64]:
    """The fraction of a part that each plan keeps in host memory, of the column's shape."""
    return (column >> _SHIFTS[part] & (1 << _BITS) - 1) / _WHOLE


def without(code: int, *parts: str) -> int:
    """The same with some parts kept on the device."""
    return Offload(**(from_code(code) | dict.fromkeys(parts, 0.0))).code


def offload_of(given: Offload | str | Mapping[str, Any] | None, where: str = WHERE) -> Offload:
    """What is offloaded.

    Args:
        given: a record, what a user types, `parallel.offload` of a saved plan, or None for nothing.
        where: what errors name.

    Raises:
        UnknownNameError: a part that does not exist.
        ConflictError: a part is stated twice, or `none` beside others.
        InvalidValueError: a fraction outside 0 to 1.
    """
    if given is None or isinstance(given, Offload):
        return given or Offload()
    if not isinstance(given, str):
        return Offload(**{part: _checked(part, given[part], where) for part in PARTS})
    made: dict[str, float] = {}
    words = [word.strip() for word in given.replace("+", ",").split(",")]
    if set(words) == {"none"}:
        return Offload()
    for word in words:
        name, separator, fraction = (text.strip() for text in word.partition("="))
        if name == "none":
            raise ConflictError(f"none and something in {given[:60]!r}", where=where, hint="give none, or the parts alone")
        if name not in PARTS:
            raise unknown_name("part to offload", name, (*PARTS, "none"), where=where)
        if name in made:
            raise ConflictError(f"{name} is stated twice in {given!r}", where=where, hint="keep one of the two")
        made[name] = _number(name, fraction, where) if separator else 1.0
    return Offload(**made)


def _number(name: str, text: str, where: str) -> float:
    try:
        return _checked(name, float(text), where)
    except ValueError as error:
        raise InvalidValueError(f"{name}={text[:40]} is no number", where=where, hint=_HINT) from error


def _checked(name: str, value: object, where: str) -> float:
    """A fraction.

    Raises:
        InvalidValueError: anything else.
    """
    able = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not able or not 0 <= float(str(value)) <= 1:
        raise InvalidValueError(f"{name}={value} is no fraction", where=where, hint="give 0 to 1; " + _HINT)
    return float(str(value))
