"""The normalised record of an architecture: what every reader makes and every graph is built from.

A `ModelSpec` is validated when made; `to_dict` and `from_dict` are inverse to each other, and the mapping is
the format of a model YAML and of ``inputs.model`` in a result. Derived once, in `from_dict`:

    head_dim  = hidden / heads where it is left out         (must divide)
    kv_heads  = heads where it is left out
    with MLA: head_dim = nope_dim + rope_dim, kv_heads = heads

What differs from layer to layer is a pattern: the entry of layer i is pattern[i % len(pattern)], kept as one period.
`LayerShape` is what one layer is by all of them (`ModelSpec.shape_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.models.checks import choice, flag, mapping, name_text, sequence, text, whole
from shardwright.models.records import (
    MAX_LAYERS,
    RANGES,
    check_flags,
    check_optional,
    check_ranges,
    known,
    made,
    one_period,
    record_of,
)
from shardwright.models.spec_parts import MlaSpec, MoeSpec, ScanSpec

__all__ = ["MAX_LAYERS", "RANGES", "LayerShape", "MlaSpec", "ModelSpec", "MoeSpec", "ScanSpec"]

MAX_WINDOWS = 16
MAX_SHAPES = 128
POSITIONS = ("rope", "learned", "alibi", "none")
NORMS = ("rmsnorm", "layernorm", "layernorm-no-bias", "layernorm-plain")
NORM_PLACES = ("before", "after", "both")
GATED_ACTIVATIONS = ("swiglu", "geglu", "reglu")
PLAIN_ACTIVATIONS = ("gelu", "relu", "relu2", "silu")
ACTIVATIONS = GATED_ACTIVATIONS + PLAIN_ACTIVATIONS
QK_NORMS = ("none", "head", "full", "unit")
BLOCKS = ("sequential", "parallel", "parallel-one-norm")
MIXERS = ("attention", "scan", "linear", "none")
MLPS = ("ffn", "linear", "none")
PATTERNS = ("windows", "rotary_layers", "mixers", "mlps", "layer_kv_heads", "layer_ffn")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What one layer is; layers of one shape are equal.

    Attributes:
        mixer: attention, scan, linear or none.
        window: attention window in tokens; None is the whole sequence.
        rotary: whether its queries and keys are rotated.
        kv_heads: key and value heads; None without attention.
        mlp: dense, moe, linear or none.
        ffn: width of its dense feed-forward block, None where it has none.
    """

    mixer: str
    window: int | None
    rotary: bool
    kv_heads: int | None
    mlp: str
    ffn: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only language model.

    Attributes:
        name: as shown.
        layers: decoder layers, without MTP.
        hidden: width of the residual stream.
        heads: query heads (of a model without attention: heads of its scan).
        kv_heads: key and value heads; divides `heads`.
        head_dim: size of a query and key head (with MLA: nope_dim + rope_dim).
        vocab: rows of the word embedding.
        ffn: width of the dense feed-forward block; None where every layer has experts, its own width, or no block.
        max_positions: context length; with learned positions the rows of their table, `position_offset` apart.
        positions: rope, learned, alibi or none.
        position_offset: rows of the table of learned positions beyond max_positions.
        norm: rmsnorm, layernorm (with bias), layernorm-no-bias or layernorm-plain (without parameters).
        norm_at: before each block, after it (on what it adds to the stream), or both.
        block: sequential, parallel (attention and feed-forward block read the stream, each through its norm) or
            parallel-one-norm (through one norm).
        embedding_norm: whether the embeddings are normalised.
        activation: of the feed-forward block; swiglu, geglu and reglu have a gate.
        qkv_bias: biases on the query, key and value projections.
        out_bias: bias on the attention's output projection.
        mlp_bias: biases on the dense feed-forward (and shared experts') projections.
        head_bias: bias on the output head.
        qk_norm: ``head`` where queries and keys are normalised head by head, ``full`` where over all heads, ``unit`` where head
            by head without weights (in layers that rotate).
        attention_gate: whether a projected gate scales the attention's output.
        windows: attention window by layer; None is the whole sequence.
        chunked: whether windows are chunks that begin at multiples of their length.
        rotary_layers: whether a layer rotates queries and keys, by layer (with rope).
        mixers: attention, scan, linear (one square projection) or none, by layer.
        mlps: ffn (dense or experts), linear or none, by layer.
        layer_kv_heads: key and value heads by layer; None is `kv_heads`.
        layer_ffn: width of the dense feed-forward block by layer; None is `ffn`.
        rotary_scale: whether the rotation also scales queries and keys, as that of YaRN does (arXiv 2309.00071).
        sinks: one learned attention sink a head.
        attention_softcap: whether attention scores are capped (inside the kernel; not priced).
        logits_softcap: whether logits are capped.
        dropout: whether dropout masks are kept (after the embedding, attention and feed-forward blocks).
        tied_embeddings: whether the head uses the word embedding.
        mla: latent attention, if any.
        moe: experts, if any.
        scan: what layers with the mixer ``scan`` run.
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
    position_offset: int = 0
    norm: str = "rmsnorm"
    norm_at: str = "before"
    block: str = "sequential"
    embedding_norm: bool = False
    activation: str = "swiglu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: str = "none"
    attention_gate: bool = False
    windows: tuple[int | None, ...] = (None,)
    chunked: bool = False
    rotary_layers: tuple[bool, ...] = (True,)
    mixers: tuple[str, ...] = ("attention",)
    mlps: tuple[str, ...] = ("ffn",)
    layer_kv_heads: tuple[int | None, ...] = (None,)
    layer_ffn: tuple[int | None, ...] = (None,)
    rotary_scale: bool = False
    sinks: bool = False
    attention_softcap: bool = False
    logits_softcap: bool = False
    dropout: bool = False
    tied_embeddings: bool = False
    mla: MlaSpec | None = None
    moe: MoeSpec | None = None
    scan: ScanSpec | None = None
    mtp_layers: int = 0
    source: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes = ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "mtp_layers", "position_offset")
        check_ranges(self, sizes, "")
        check_optional(self, ("ffn", "max_positions"), "")
        check_flags(self, ("qkv_bias", "out_bias", "mlp_bias", "head_bias", "rotary_scale", "sinks"), "")
        check_flags(self, ("dropout", "tied_embeddings", "embedding_norm", "attention_gate", "chunked"), "")
        check_flags(self, ("attention_softcap", "logits_softcap"), "")
        self._check_words()
        self._check_patterns()
        self._check_heads()
        self._check_layers()
        self._check_mixers()

    @property
    def gated(self) -> bool:
        """Whether the feed-forward block has a gate."""
        return self.activation in GATED_ACTIVATIONS

    def window_of(self, layer: int) -> int | None:
        """The attention window of a layer; None is the whole sequence."""
        return self.windows[layer % len(self.windows)]

    def is_moe(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return self.moe is not None and self._entry("mlps", layer) == "ffn" and layer not in self.moe.dense_layers

    def shapes(self) -> tuple[LayerShape, ...]:
        """The shape of every layer."""
        dense = frozenset(range(self.layers) if self.moe is None else self.moe.dense_layers)
        return tuple(self._shape(layer, dense) for layer in range(self.layers))

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
        given = known(cls, mapping(data, "model"), "")
        parts: dict[str, type[Any]] = {"mla": MlaSpec, "moe": MoeSpec, "scan": ScanSpec}
        given |= {key: record_of(part, given[key], key) for key, part in parts.items() if given.get(key) is not None}
        _derive(given)
        for key in (*PATTERNS, "notes"):
            if key in given:
                given[key] = sequence(given[key], key, MAX_LAYERS)
        return made(cls, given, "")

    def _entry(self, pattern: str, layer: int) -> Any:
        entries = getattr(self, pattern)
        return entries[layer % len(entries)]

    def _shape(self, layer: int, dense: frozenset[int]) -> LayerShape:
        mixer, mlp = self._entry("mixers", layer), self._entry("mlps", layer)
        attends = mixer == "attention"
        kind = mlp if mlp != "ffn" else "dense" if layer in dense else "moe"
        return LayerShape(
            mixer=mixer,
            window=self.window_of(layer) if attends else None,
            rotary=attends and self.positions == "rope" and self._entry("rotary_layers", layer),
            kv_heads=(self._entry("layer_kv_heads", layer) or self.kv_heads) if attends else None,
            mlp=kind,
            ffn=(self._entry("layer_ffn", layer) or self.ffn) if kind == "dense" else None,
        )

    def _check_words(self) -> None:
        name_text(self.name, "name")
        text(self.source, "source")
        for note in sequence(self.notes, "notes", 1000):
            text(note, "notes")
        choice(self.positions, "positions", POSITIONS)
        choice(self.norm, "norm", NORMS)
        choice(self.norm_at, "norm_at", NORM_PLACES)
        choice(self.block, "block", BLOCKS)
        choice(self.activation, "activation", ACTIVATIONS)
        choice(self.qk_norm, "qk_norm", QK_NORMS)

    def _check_patterns(self) -> None:
        self._check_pattern("windows", partial(_whole_or_none, "window"))
        self._check_pattern("rotary_layers", flag)
        self._check_pattern("mixers", partial(_word, MIXERS))
        self._check_pattern("mlps", partial(_word, MLPS))
        self._check_pattern("layer_kv_heads", partial(_whole_or_none, "kv_heads"))
        self._check_pattern("layer_ffn", partial(_whole_or_none, "ffn"))
        if len(set(self.windows)) > MAX_WINDOWS:
            raise InvalidValueError(
                f"windows names {len(set(self.windows))} different windows",
                where="windows",
                hint=f"at most {MAX_WINDOWS} are modelled",
            )

    def _check_pattern(self, key: str, check: Callable[[Any, str], Any]) -> None:
        """Every entry is right; the pattern is cut to one period."""
        entries = sequence(getattr(self, key), key, MAX_LAYERS)
        if not entries:
            raise InvalidValueError(f"{key} is empty", where=key, hint="give one entry a layer of the repeating pattern")
        if len(entries) > self.layers:
            raise ConflictError(f"{key} has {len(entries)} entries for {self.layers} layers", where=key)
        for entry in entries:
            check(entry, key)
        object.__setattr__(self, key, one_period(entries, self.layers))

    def _check_heads(self) -> None:
        for key, count in [("kv_heads", self.kv_heads), *(("layer_kv_heads", n) for n in self.layer_kv_heads if n)]:
            if self.heads % count:
                raise ConflictError(
                    f"{key} {count} does not divide heads {self.heads}",
                    where=key,
                    hint="each key-value head serves the same number of query heads",
                )
        if self.mla is not None:
            self._check_latent(self.mla)

    def _check_latent(self, mla: MlaSpec) -> None:
        """Latent attention decides heads, positions and norms itself."""
        width = mla.nope_dim + mla.rope_dim
        decided = {"kv_heads": self.heads, "head_dim": width, "positions": "rope", "qk_norm": "none"}
        decided |= {"attention_gate": False, "rotary_layers": (True,), "layer_kv_heads": (None,)}
        for key, value in decided.items():
            if getattr(self, key) != value:
                raise ConflictError(
                    f"{key} is {getattr(self, key)}, but with latent attention it is {value}",
                    where=key,
                    hint=f"leave {key} out",
                )
        if mla.index_topk is not None and any(self.windows):
            raise ConflictError("windows and an indexer cannot stand together", where="windows", hint="leave windows out")

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
        shapes = self.shapes()
        without = sum(1 for shape in shapes if shape.mlp == "dense" and shape.ffn is None)
        if without:
            raise InvalidValueError(f"ffn is missing, and {without} layers are dense", where="ffn")
        if len(set(shapes)) > MAX_SHAPES:
            raise InvalidValueError(
                f"{len(set(shapes))} different layers", where="layers", hint=f"at most {MAX_SHAPES} kinds are modelled"
            )

    def _check_mixers(self) -> None:
        if ("scan" in self.mixers) != (self.scan is not None):
            raise ConflictError(
                "scan is given but no layer has it" if self.scan else "mixers names scan, but scan is not given",
                where="mixers" if self.scan else "scan",
            )
        if self.block == "sequential":
            return
        if self.norm_at != "before":
            raise ConflictError(f"norm_at is {self.norm_at}, and the block is {self.block}", where="norm_at")
        if any(shape.mixer == "none" or shape.mlp in {"none", "moe"} for shape in self.shapes()):
            raise ConflictError(
                f"block is {self.block}, but a layer has no mixer, no dense feed-forward block, or experts", where="block"
            )


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


def _whole_or_none(limits: str, value: object, key: str) -> None:
    if value is not None:
        whole(value, key, *RANGES[limits])


def _word(allowed: tuple[str, ...], value: object, key: str) -> None:
    choice(value, key, allowed)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
