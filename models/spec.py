"""The normalised record of an architecture: what every reader makes and every graph is built from.

A `ModelSpec` is validated when made; `to_dict` and `from_dict` are inverse to each other, and the mapping is
the format of a model YAML and of ``inputs.model`` in a result. Derived once, in `from_dict`:

    head_dim  = hidden / heads where it is left out         (must divide)
    kv_heads  = heads where it is left out
    with MLA: head_dim = nope_dim + rope_dim, kv_heads = heads
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields
from types import MappingProxyType
from typing import Any, TypeVar

from shardwright.errors import ConflictError, InvalidValueError, unknown_name
from shardwright.models.checks import choice, flag, mapping, sequence, text, whole

MAX_LAYERS = 10_000
MAX_WINDOWS = 16
POSITIONS = ("rope", "learned", "none")
NORMS = ("rmsnorm", "layernorm")
GATED_ACTIVATIONS = ("swiglu", "geglu", "reglu")
PLAIN_ACTIVATIONS = ("gelu", "relu", "relu2", "silu")
ACTIVATIONS = GATED_ACTIVATIONS + PLAIN_ACTIVATIONS
QK_NORMS = ("none", "head")

RANGES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "layers": (1, MAX_LAYERS),
        "hidden": (1, 1_000_000),
        "heads": (1, 65_536),
        "kv_heads": (1, 65_536),
        "head_dim": (1, 65_536),
        "ffn": (1, 10_000_000),
        "vocab": (1, 100_000_000),
        "max_positions": (1, 1_000_000_000),
        "window": (1, 1_000_000_000),
        "mtp_layers": (0, 64),
        "q_rank": (1, 1_000_000),
        "kv_rank": (1, 1_000_000),
        "nope_dim": (1, 65_536),
        "rope_dim": (1, 65_536),
        "v_dim": (1, 65_536),
        "experts": (1, 65_536),
        "topk": (1, 65_536),
        "expert_ffn": (1, 10_000_000),
        "shared_ffn": (0, 10_000_000),
        "groups": (1, 65_536),
        "topk_groups": (1, 65_536),
        "dense_layer": (0, MAX_LAYERS - 1),
    }
)

RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec:
    """Multi-head latent attention (arXiv 2405.04434 section 2.1).

    Attributes:
        kv_rank: width of the compressed keys and values.
        nope_dim: part of a query or key head without rotary positions.
        rope_dim: part with rotary positions, shared by all key heads.
        v_dim: size of a value head.
        q_rank: width of the compressed queries; None where queries are projected directly.
    """

    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    q_rank: int | None = None

    def __post_init__(self) -> None:
        _check_ranges(self, ("kv_rank", "nope_dim", "rope_dim", "v_dim"), "mla.")
        _check_optional(self, ("q_rank",), "mla.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """Routed (and shared) experts in place of the feed-forward block.

    Attributes:
        experts: routed experts of a layer.
        topk: experts a token is sent to.
        expert_ffn: width of one routed expert.
        shared_ffn: width of all shared experts together; 0 for none.
        shared_gate: whether a learned gate scales the shared experts' output.
        dense_layers: 0-based indices of the layers that keep a dense feed-forward block.
        router_bias: trainable bias on the router's logits.
        correction_bias: router bias updated outside gradient descent (a buffer; arXiv 2412.19437 section 2.1.2).
        expert_bias: biases on the experts' projections.
        groups: expert groups for group-limited routing; 1 for none.
        topk_groups: groups a token may be sent to.
    """

    experts: int
    topk: int
    expert_ffn: int
    shared_ffn: int = 0
    shared_gate: bool = False
    dense_layers: tuple[int, ...] = ()
    router_bias: bool = False
    correction_bias: bool = False
    expert_bias: bool = False
    groups: int = 1
    topk_groups: int = 1

    def __post_init__(self) -> None:
        _check_ranges(self, ("experts", "topk", "expert_ffn", "shared_ffn", "groups", "topk_groups"), "moe.")
        _check_flags(self, ("shared_gate", "router_bias", "correction_bias", "expert_bias"), "moe.")
        self._check_topk()
        self._check_dense_layers()

    def _check_topk(self) -> None:
        if self.topk > self.experts:
            raise ConflictError(
                f"moe.topk is {self.topk}, more than the {self.experts} experts",
                where="moe.topk",
                hint=f"at most {self.experts}",
            )
        if self.experts % self.groups:
            raise ConflictError(f"{self.experts} experts cannot form {self.groups} equal groups", where="moe.groups")
        if self.topk_groups > self.groups:
            raise ConflictError(
                f"moe.topk_groups is {self.topk_groups}, more than the {self.groups} groups", where="moe.topk_groups"
            )

    def _check_dense_layers(self) -> None:
        for index in sequence(self.dense_layers, "moe.dense_layers", MAX_LAYERS):
            whole(index, "moe.dense_layers", *RANGES["dense_layer"])
        if len(set(self.dense_layers)) != len(self.dense_layers):
            raise InvalidValueError("moe.dense_layers names a layer twice", where="moe.dense_layers")
        object.__setattr__(self, "dense_layers", tuple(sorted(self.dense_layers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only language model.

    Attributes:
        name: as shown.
        layers: decoder layers, without MTP.
        hidden: width of the residual stream.
        heads: query heads.
        kv_heads: key and value heads; divides `heads`.
        head_dim: size of a query and key head (with MLA: nope_dim + rope_dim).
        vocab: rows of the word embedding.
        ffn: width of the dense feed-forward block; None where every layer has experts.
        max_positions: context length; with learned positions the rows of their table.
        positions: rope, learned or none.
        norm: rmsnorm or layernorm (with bias).
        activation: of the feed-forward block; swiglu, geglu and reglu have a gate.
        qkv_bias: biases on the query, key and value projections.
        out_bias: bias on the attention's output projection.
        mlp_bias: biases on the dense feed-forward (and shared experts') projections.
        qk_norm: ``head`` where queries and keys are normalised head by head.
        windows: attention window of layer i is windows[i % len(windows)]; None is the whole sequence. Kept as one period.
        sinks: one learned attention sink a head.
        dropout: whether dropout masks are kept (after the embedding, attention and feed-forward blocks).
        tied_embeddings: whether the head uses the word embedding.
        mla: latent attention, if any.
        moe: experts, if any.
        mtp_layers: multi-token-prediction blocks that are trained with the model.
        source: where the figures are from.
        notes: what a reader wants to be known, such as parts it left out.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    ffn: int | None = None
    max_positions: int | None = None
    positions: str = "rope"
    norm: str = "rmsnorm"
    activation: str = "swiglu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: str = "none"
    windows: tuple[int | None, ...] = (None,)
    sinks: bool = False
    dropout: bool = False
    tied_embeddings: bool = False
    mla: MlaSpec | None = None
    moe: MoeSpec | None = None
    mtp_layers: int = 0
    source: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_ranges(self, ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "mtp_layers"), "")
        _check_optional(self, ("ffn", "max_positions"), "")
        _check_flags(self, ("qkv_bias", "out_bias", "mlp_bias", "sinks", "dropout", "tied_embeddings"), "")
        self._check_words()
        self._check_windows()
        self._check_heads()
        self._check_layers()

    @property
    def gated(self) -> bool:
        """Whether the feed-forward block has a gate."""
        return self.activation in GATED_ACTIVATIONS

    def window_of(self, layer: int) -> int | None:
        """The attention window of a layer; None is the whole sequence."""
        return self.windows[layer % len(self.windows)]

    def is_moe(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return self.moe is not None and layer not in self.moe.dense_layers

    def to_dict(self) -> dict[str, Any]:
        """All fields, defaults included, as JSON knows them."""
        return _plain(asdict(self))  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelSpec:
        """The spec of a mapping as `to_dict` makes it; fields with defaults may be left out.

        Raises:
            UnknownNameError: a key that does not exist (nearest right key offered).
            InvalidValueError: a key missing, a wrong type, a value outside its range.
            ConflictError: values that cannot both hold.
        """
        given = _known(cls, mapping(data, "model"), "")
        if given.get("mla") is not None:
            given["mla"] = _record(MlaSpec, given["mla"], "mla")
        if given.get("moe") is not None:
            given["moe"] = _record(MoeSpec, given["moe"], "moe")
        _derive(given)
        for key in ("windows", "notes"):
            if key in given:
                given[key] = sequence(given[key], key, MAX_LAYERS)
        return _made(cls, given, "")

    def _check_words(self) -> None:
        text(self.name, "name", 200)
        if not self.name.strip():
            raise InvalidValueError("name is empty", where="name")
        text(self.source, "source")
        for note in sequence(self.notes, "notes", 1000):
            text(note, "notes")
        choice(self.positions, "positions", POSITIONS)
        choice(self.norm, "norm", NORMS)
        choice(self.activation, "activation", ACTIVATIONS)
        choice(self.qk_norm, "qk_norm", QK_NORMS)

    def _check_windows(self) -> None:
        entries = sequence(self.windows, "windows", MAX_LAYERS)
        if not entries:
            raise InvalidValueError("windows is empty", where="windows", hint="give one entry a layer of the repeating pattern")
        if len(entries) > self.layers:
            raise ConflictError(f"windows has {len(entries)} entries for {self.layers} layers", where="windows")
        for entry in entries:
            if entry is not None:
                whole(entry, "windows", *RANGES["window"])
        if len(set(entries)) > MAX_WINDOWS:
            raise InvalidValueError(
                f"windows names {len(set(entries))} different windows",
                where="windows",
                hint=f"at most {MAX_WINDOWS} are modelled",
            )
        repeated = tuple(entries[layer % len(entries)] for layer in range(self.layers))
        object.__setattr__(self, "windows", repeated[: _period(repeated)])

    def _check_heads(self) -> None:
        if self.heads % self.kv_heads:
            raise ConflictError(
                f"kv_heads {self.kv_heads} does not divide heads {self.heads}",
                where="kv_heads",
                hint="each key-value head serves the same number of query heads",
            )
        if self.mla is not None:
            self._check_latent(self.mla)

    def _check_latent(self, mla: MlaSpec) -> None:
        """Latent attention decides heads, positions and norms itself."""
        decided = {"kv_heads": self.heads, "head_dim": mla.nope_dim + mla.rope_dim, "positions": "rope", "qk_norm": "none"}
        for key, value in decided.items():
            if getattr(self, key) != value:
                raise ConflictError(
                    f"{key} is {getattr(self, key)}, but with latent attention it is {value}",
                    where=key,
                    hint=f"leave {key} out",
                )

    def _check_layers(self) -> None:
        if self.positions == "learned" and self.max_positions is None:
            raise InvalidValueError(
                "learned positions need max_positions", where="max_positions", hint="give the rows of the table"
            )
        if self.moe is not None and any(index >= self.layers for index in self.moe.dense_layers):
            raise ConflictError(
                f"moe.dense_layers names layer {max(self.moe.dense_layers)} of {self.layers} layers",
                where="moe.dense_layers",
                hint=f"layers are 0 to {self.layers - 1}",
            )
        dense = self.layers if self.moe is None else len(self.moe.dense_layers)
        if dense and self.ffn is None:
            raise InvalidValueError(f"ffn is missing, and {dense} layers are dense", where="ffn")


def _derive(given: dict[str, Any]) -> None:
    """Fills in head_dim and kv_heads where they are left out."""
    mla, heads, hidden = given.get("mla"), given.get("heads"), given.get("hidden")
    if given.get("kv_heads") is None:
        given["kv_heads"] = heads
    if given.get("head_dim") is not None or heads is None or hidden is None:
        return
    if isinstance(mla, MlaSpec):
        given["head_dim"] = mla.nope_dim + mla.rope_dim
        return
    heads, hidden = whole(heads, "heads", *RANGES["heads"]), whole(hidden, "hidden", *RANGES["hidden"])
    if hidden % heads:
        raise ConflictError(f"heads {heads} does not divide hidden {hidden}", where="heads", hint="give head_dim")
    given["head_dim"] = hidden // heads


def _record(record: type[RecordT], value: object, key: str) -> RecordT:
    if isinstance(value, record):
        return value
    return _made(record, _known(record, mapping(value, key), key + "."), key + ".")


def _known(record: type[Any], data: dict[str, Any], prefix: str) -> dict[str, Any]:
    names = [field.name for field in fields(record)]
    for key in data:
        if key not in names:
            raise unknown_name("key", str(key), names, where=prefix + str(key)[:60])
    return dict(data)


def _made(record: type[RecordT], given: dict[str, Any], prefix: str) -> RecordT:
    for field in fields(record):  # type: ignore[arg-type]
        if _required(field) and given.get(field.name) is None:
            raise InvalidValueError(f"{prefix}{field.name} is missing", where=prefix + field.name)
    return record(**given)


def _period(entries: tuple[int | None, ...]) -> int:
    """The least p with entries[i] = entries[i - p] for all i >= p (Knuth, Morris, Pratt: length less the longest border)."""
    borders = [0] * len(entries)
    for i in range(1, len(entries)):
        length = borders[i - 1]
        while length and entries[i] != entries[length]:
            length = borders[length - 1]
        borders[i] = length + (entries[i] == entries[length])
    return len(entries) - borders[-1]


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _check_ranges(record: object, names: tuple[str, ...], prefix: str) -> None:
    for name in names:
        whole(getattr(record, name), prefix + name, *RANGES[name])


def _check_optional(record: object, names: tuple[str, ...], prefix: str) -> None:
    _check_ranges(record, tuple(name for name in names if getattr(record, name) is not None), prefix)


def _check_flags(record: object, names: tuple[str, ...], prefix: str) -> None:
    for name in names:
        flag(getattr(record, name), prefix + name)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
