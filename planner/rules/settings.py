"""What a configuration sets: given values, and the framework's defaults for the rest.

Keys are the framework's own names: argument destinations of Megatron-LM (`tp_comm_overlap`, `recompute_granularity`), dotted
keys of torchtitan's and DeepSpeed's documents (`parallelism.tensor_parallel_degree`, `zero_optimization.stage`), environment
variables as `env.NAME`, and what the launch line starts as `launch.world_size`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Value = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Given values over defaults.

    Attributes:
        given: what a configuration states.
        defaults: what holds otherwise.
        version: the framework's version; None for the newest.
    """

    given: Mapping[str, Value] = field(default_factory=dict)
    defaults: Mapping[str, Value] = field(default_factory=dict)
    version: str | None = None

    def __getitem__(self, key: str) -> Value:
        return self.given.get(key, self.defaults.get(key))

    def __contains__(self, key: str) -> bool:
        return self[key] is not None

    def on(self, key: str) -> bool:
        """Whether a switch is on."""
        return bool(self[key])

    def number(self, key: str) -> int:
        """A whole number; 0 where it is unset or none."""
        value = self[key]
        return value if isinstance(value, int) else 0

    def said(self, key: str) -> str:
        """A value as messages name it; none where nothing is given."""
        return "none" if self[key] is None else self.text(key)

    def text(self, key: str) -> str:
        """A word; empty where it is unset."""
        value = self[key]
        return "" if value is None else str(value)

    def words(self, key: str) -> tuple[str, ...]:
        """A list of words, written as a list or as one word."""
        value = self[key]
        if value is None:
            return ()
        return tuple(map(str, value)) if isinstance(value, (list, tuple)) else (str(value),)
