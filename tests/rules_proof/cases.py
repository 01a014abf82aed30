"""Configurations the proof tries: a model, a job, degrees, and settings in the framework's own words."""

from dataclasses import dataclass, field, replace
from functools import cache

from shardwright.errors import ShardwrightError
from shardwright.models.catalog import model_from_dict
from shardwright.models.graph import ModelGraph

AXES = ("tp", "cp", "pp", "vpp", "ep", "etp", "sp", "micro_batch")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration.

    `model` holds fields of a model file, the fields of `moe` and `mla` as `moe.experts`; `settings` the framework's options.
    """

    model: tuple[tuple[str, object], ...]
    gpus: int
    seq_len: int
    global_batch: int
    tp: int = 1
    cp: int = 1
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int = 1
    sp: int = 0
    micro_batch: int = 1
    settings: tuple[tuple[str, object], ...] = field(default=())

    def with_model(self, **changes: object) -> "Case":
        """The same with other fields of the model; None leaves one out."""
        return replace(self, model=_changed(self.model, changes))

    def with_settings(self, **changes: object) -> "Case":
        """The same with other settings; None leaves one out."""
        return replace(self, settings=_changed(self.settings, changes))

    @property
    def graph(self) -> ModelGraph:
        """The model."""
        return graph_of(self.model)

    @property
    def dp(self) -> int:
        """Data-parallel degree; 0 where the degrees do not divide the GPUs."""
        model_parallel = self.tp * self.cp * self.pp
        return self.gpus // model_parallel if self.gpus % model_parallel == 0 else 0

    @property
    def possible(self) -> bool:
        """Whether the model itself makes sense: its fields are no matter of the plan."""
        try:
            return self.graph is not None
        except ShardwrightError:
            return False


def _changed(pairs: tuple[tuple[str, object], ...], changes: dict[str, object]) -> tuple[tuple[str, object], ...]:
    merged = {**dict(pairs), **changes}
    return tuple(sorted((key, value) for key, value in merged.items() if value is not None))


@cache
def graph_of(model: tuple[tuple[str, object], ...]) -> ModelGraph:
    """The graph of a model written flat."""
    fields: dict[str, object] = {}
    for key, value in model:
        outer, _, inner = key.partition(".")
        if inner:
            fields.setdefault(outer, {})[inner] = value
        else:
            fields[key] = value
    return model_from_dict(fields)
