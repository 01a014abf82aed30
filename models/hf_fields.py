"""Reading single fields of a ``config.json``: aliases, types, ranges, and which keys were read.

A key may be spelled in several ways (``num_experts``, ``num_local_experts``, ``n_routed_experts``); two
spellings that disagree are a conflict. A value of null counts as absent, as it does in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwright.errors import ConflictError, InvalidValueError, UnsupportedError
from shardwright.models.checks import flag, mapping, sequence, shown, text, whole
from shardwright.models.spec import MAX_LAYERS, RANGES

GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh", "gelu_accurate", "quick_gelu")
WITH_GATE: Mapping[str, str] = {"silu": "swiglu", "swish": "swiglu", "relu": "reglu", **dict.fromkeys(GELU, "geglu")}
WITHOUT_GATE: Mapping[str, str] = {"silu": "silu", "relu": "relu", "relu2": "relu2", **dict.fromkeys(GELU, "gelu")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The keys of a configuration, and those that a reader has asked for.

    Attributes:
        data: the mapping.
        prefix: put before a key in messages, such as ``text_config.``.
        seen: keys that were asked for; what is left at the end was not understood.
        places: the key under which a field of the spec was found.
        remarks: what readers want to be known about the model.
    """

    data: Mapping[str, Any]
    prefix: str = ""
    seen: set[str] = field(default_factory=set)
    places: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def find(self, *names: str) -> tuple[str, Any]:
        """The first spelling that is given, and its value; the first spelling and None where none is.

        Raises:
            ConflictError: two spellings with different values.
        """
        self.seen.update(names)
        given = [(name, self.data[name]) for name in names if self.data.get(name) is not None]
        for name, value in given[1:]:
            if value != given[0][1]:
                raise ConflictError(
                    f"{given[0][0]} is {shown(given[0][1])} and {name} is {shown(value)}",
                    where=self.prefix + name,
                    hint="they mean the same; keep one",
                )
        return given[0] if given else (names[0], None)

    def given(self, *names: str) -> bool:
        """Whether any spelling is given."""
        return self.find(*names)[1] is not None

    def optional(self, limits: str, *names: str) -> int | None:
        """A whole number in the range of the field `limits` of a spec, or None where it is absent."""
        name, value = self.find(*names)
        self.places.setdefault(limits, name)
        return None if value is None else whole(value, self.prefix + name, *RANGES[limits])

    def first(self, limits: str, *names: str) -> int | None:
        """As `optional`, of the first key that is given: the keys need not agree."""
        self.seen.update(names)
        given = [name for name in names if self.data.get(name) is not None]
        return self.optional(limits, *given[:1]) if given else None

    def required(self, limits: str, *names: str) -> int:
        """A whole number that must be given.

        Raises:
            InvalidValueError: absent, of another type, or outside its range.
        """
        value = self.optional(limits, *names)
        if value is None:
            also = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
            raise InvalidValueError(f"{names[0]}{also} is missing", where=self.prefix + names[0], hint="no default is assumed")
        return value

    def count(self, default: int, low: int, high: int, *names: str) -> int:
        """A whole number in [low, high], with a default."""
        name, value = self.find(*names)
        return default if value is None else whole(value, self.prefix + name, low, high)

    def flag(self, default: bool, *names: str) -> bool:
        """True or false, with a default."""
        name, value = self.find(*names)
        return default if value is None else flag(value, self.prefix + name)

    def word(self, default: str, *names: str) -> str:
        """A text, with a default."""
        name, value = self.find(*names)
        return default if value is None else text(value, self.prefix + name)

    def numbers(self, name: str, high: int = MAX_LAYERS - 1) -> tuple[int, ...]:
        """A list of whole numbers from 0; empty where it is absent."""
        value = self.find(name)[1]
        if value is None:
            return ()
        return tuple(whole(item, self.prefix + name, 0, high) for item in sequence(value, self.prefix + name, MAX_LAYERS))

    def words(self, *names: str) -> tuple[str, ...] | None:
        """A list of texts; None where it is absent."""
        name, value = self.find(*names)
        if value is None:
            return None
        return tuple(text(item, self.prefix + name) for item in sequence(value, self.prefix + name, MAX_LAYERS))

    def rate(self, *names: str) -> float:
        """A dropout rate in [0, 1]; 0 where it is absent."""
        name, value = self.find(*names)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise InvalidValueError(f"{name} is {shown(value)}", where=self.prefix + name, hint="give a number from 0 to 1")
        return float(value)

    def number(self, default: float | None, name: str) -> float | None:
        """A number; None where it is given as null, `default` where the key is absent."""
        self.seen.add(name)
        value = self.data.get(name, default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise InvalidValueError(f"{name} is {shown(value)}", where=self.prefix + name, hint="give a number or null")
        return value

    def only(self, name: str, allowed: object) -> None:
        """A key that is modelled for one value alone; absent counts as that value.

        Raises:
            UnsupportedError: it has another.
        """
        value = self.find(name)[1]
        if value is not None and (value != allowed or isinstance(value, bool) != isinstance(allowed, bool)):
            raise self.unsupported(name, f"only {shown(allowed)} is modelled")

    def activation(self, default: str, table: Mapping[str, str], *names: str) -> str:
        """The activation of the feed-forward block in our words.

        Raises:
            UnsupportedError: one whose shape is not known.
        """
        name, word = names[0], self.word(default, *names)
        if word not in table:
            raise UnsupportedError(
                f"the activation {shown(word)} is not known",
                where=self.prefix + name,
                hint="known: " + ", ".join(sorted(table)),
            )
        return table[word]

    def inner(self, name: str) -> Fields:
        """The fields of a nested mapping."""
        return Fields(data=mapping(self.find(name)[1], self.prefix + name), prefix=f"{self.prefix}{name}.")

    def unsupported(self, name: str, why: str, hint: str = "") -> UnsupportedError:
        """An error about a key that is understood but not modelled."""
        return UnsupportedError(f"{name} is {shown(self.data.get(name))}: {why}", where=self.prefix + name, hint=hint)
