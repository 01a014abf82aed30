"""What is trained of a model: low-rank adapters beside frozen products, and frozen modules.

With rank r, a product of k inputs and n outputs (arXiv 2106.09685):

    low   = x A       m x r x k      A of k r parameters              `_beside`
    delta = low B     m x n x r      B of r n parameters
    y     = x W + delta               one pass over y and delta

    trained    r (k + n) a product and expert; all else frozen        `adapted`
    kept       x (for the gradient of A) and low; a frozen product keeps nothing: its input's gradient needs only W

A frozen product runs no product for the gradient of its weight (`Operator.trains`); gradients pass through everything, also
below the lowest trained parameter. Words for products (`TARGETS`): a name of one weight (``q_proj``) or of a group
(``attention``, ``mlp``, ``experts``, ``all-linear``) gives every weight an adapter of its own, as PEFT does; a fused name
(``qkv``, ``gate_up``) one adapter for the whole product, as Megatron-Bridge does for ``linear_qkv`` and ``linear_fc1``. Routers
and the head get none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from shardwright.errors import ConflictError, InvalidValueError, unknown_name
from shardwright.models.checks import mapping, sequence, whole
from shardwright.models.graph import GemmShape, LayerGraph, ModelGraph, Operator, OperatorKind, TensorSpec

MAX_RANK = 65_536
RANK = "lora_rank"
ADAPTER = "adapter"
LORA, FREEZE = "--lora", "--freeze"
_WRITE = "write --lora rank=16,targets=qkv+out_proj"

WEIGHTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "q_proj": frozenset(("query_weight", "q_proj_weight", "q_down_weight", "q_up_weight")),
        "k_proj": frozenset(("key_weight",)),
        "v_proj": frozenset(("value_weight",)),
        "o_proj": frozenset(("out_proj_weight",)),
        "gate_proj": frozenset(("gate_weight", "shared_gate_weight", "expert_gate_weight")),
        "up_proj": frozenset(("up_weight", "shared_up_weight", "expert_up_weight")),
        "down_proj": frozenset(("down_weight", "shared_down_weight", "expert_down_weight")),
    }
)
"""Weights by the names of Hugging Face modules."""

FUSED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "qkv": frozenset(("qkv", "q_proj", "q_down", "q_up", "kv_down", "kv_up")),
        "out_proj": frozenset(("out_proj",)),
        "gate_up": frozenset(("gate_up", "up", "shared_up", "expert_up")),
        "down": frozenset(("down", "shared_down", "expert_down")),
    }
)
"""Products by the names of operators; projections of latent attention count as `qkv`."""

GROUPS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "attention": frozenset(("attn", "mla_up_proj")),
        "mlp": frozenset(("mlp", "shared_experts")),
        "experts": frozenset(("moe",)),
        "scan": frozenset(("scan",)),
        "all-linear": frozenset(("attn", "mla_up_proj", "mlp", "shared_experts", "moe", "scan")),
    }
)
"""Groups of products by module; of the module of routed experts only the experts' products."""

TARGETS = (*GROUPS, *FUSED, *WEIGHTS)

FROZEN: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "embeddings": frozenset(("embedding",)),
        "attention": frozenset(("attn", "core_attn", "mla_up_proj", "scan")),
        "mlp": frozenset(("mlp", "mlp_act", "shared_experts")),
        "norms": frozenset(("layernorm",)),
        "head": frozenset(("head",)),
        "experts": frozenset(),
        "router": frozenset(),
    }
)
"""Modules of each word of `--freeze`; experts and routers are told by their parameters and kind."""

FREEZABLE = (*FROZEN, "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec:
    """Low-rank adapters.

    Attributes:
        rank: columns of A and rows of B.
        targets: words of `TARGETS`.
    """

    rank: int
    targets: tuple[str, ...]

    def __post_init__(self) -> None:
        whole(self.rank, f"{LORA} rank", 1, MAX_RANK)
        _words(self.targets, TARGETS, "target of adapters", LORA)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"rank": self.rank, "targets": list(self.targets)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSpec:
    """What is trained: everything but the frozen modules, or adapters alone.

    Attributes:
        lora: adapters; with them everything else is frozen.
        freeze: words of `FREEZABLE`.
    """

    lora: AdapterSpec | None = None
    freeze: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _words(self.freeze, FREEZABLE, "module to freeze", FREEZE, empty=True)

    def __bool__(self) -> bool:
        return self.lora is not None or bool(self.freeze)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: only what is in force."""
        lora = {"lora": self.lora.to_dict()} if self.lora is not None else {}
        return lora | ({"freeze": list(self.freeze)} if self.freeze else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FrozenSpec:
        """The record of what `to_dict` made; other keys are left alone.

        Raises:
            ShardwrightError: a value that cannot be.
        """
        freeze = sequence(data.get("freeze") or (), "freeze", len(FREEZABLE))
        if data.get("lora") is None:
            return cls(freeze=freeze)
        lora = mapping(data["lora"], "lora")
        targets = sequence(lora.get("targets"), "lora.targets", len(TARGETS))
        return cls(lora=AdapterSpec(rank=lora.get("rank", 0), targets=targets), freeze=freeze)


def parse_lora(text: str) -> AdapterSpec:
    """Adapters as a user writes them: ``rank=16,targets=qkv+out_proj`` (targets left out: all-linear).

    Raises:
        InvalidValueError: no ``KEY=VALUE``, a rank that is no whole number from 1.
        UnknownNameError: an unknown key or target.
        ConflictError: a key that is given twice.
    """
    given: dict[str, str] = {}
    for part in text.split(","):
        key, separator, value = (word.strip() for word in part.partition("="))
        if not separator or not value:
            raise InvalidValueError(f"{part.strip()[:60]!r} is no KEY=VALUE", where=LORA, hint=_WRITE)
        if key not in ("rank", "targets"):
            raise unknown_name("key of adapters", key, ("rank", "targets"), where=LORA)
        if key in given:
            raise ConflictError(f"{key} is given twice", where=LORA, hint="join targets by +")
        given[key] = value
    rank = given.get("rank", "")
    if not (rank.isascii() and rank.isdigit() and len(rank) < 10):
        said = f"the rank {rank[:40]!r} is no whole number" if rank else "rank is missing"
        raise InvalidValueError(said, where=LORA, hint=_WRITE)
    return AdapterSpec(rank=int(rank), targets=_split(given.get("targets", "all-linear")))


def parse_freeze(text: str) -> tuple[str, ...]:
    """Modules as a user writes them: ``embeddings+attention`` or ``embeddings,attention``.

    Raises:
        UnknownNameError: an unknown module.
    """
    return FrozenSpec(freeze=_split(text)).freeze or _words((), FREEZABLE, "module to freeze", FREEZE)


def adapted(graph: ModelGraph, spec: FrozenSpec) -> ModelGraph:
    """The graph with adapters beside their products, and every parameter marked as trained or not.

    Raises:
        InvalidValueError: a target or module that the model does not have, or nothing is trained.
        ConflictError: two targets adapt one product.
    """
    if not spec:
        return graph
    _refuse_absent(graph, spec)
    ends = frozenset(p.name for unit in (graph.embedding, graph.head) for p in _frozen_of(unit, spec))
    made = replace(
        graph,
        embedding=_unit(graph.embedding, spec, ends, None),
        layer_kinds=tuple(_unit(kind, spec, ends, spec.lora) for kind in graph.layer_kinds),
        head=_unit(graph.head, spec, ends, None),
        mtp=_unit(graph.mtp, spec, ends, spec.lora) if graph.mtp is not None else None,
    )
    if made.trainable_parameters == 0:
        raise InvalidValueError("nothing is trained", where=FREEZE, hint="freeze less, or add adapters by --lora")
    return made


def _unit(unit: LayerGraph, spec: FrozenSpec, ends: frozenset[str], lora: AdapterSpec | None) -> LayerGraph:
    operators: list[Operator] = []
    for operator in unit.operators:
        operators.append(_marked(operator, spec, ends))
        operators += [new for parts in _parts(operator, lora) for new in _beside(operator, parts)]
    dims = {**unit.dims, RANK: lora.rank} if lora is not None else unit.dims
    return replace(unit, dims=dims, operators=tuple(operators))


def _marked(operator: Operator, spec: FrozenSpec, ends: frozenset[str]) -> Operator:
    """The operator with its parameters marked; a product whose weights are frozen keeps nothing."""
    frozen = {p.name for p in operator.parameters if p.name in ends or _is_frozen(operator, p, spec)}
    if not frozen:
        return operator
    made = replace(operator, parameters=tuple(replace(p, trainable=p.name not in frozen) for p in operator.parameters))
    return made if made.trains or made.gemm is None else replace(made, saved=())


def _is_frozen(operator: Operator, parameter: TensorSpec, spec: FrozenSpec) -> bool:
    if spec.lora is not None or "all" in spec.freeze:
        return True
    if "experts" in parameter.dims:
        return "experts" in spec.freeze
    if operator.module == "moe":
        return "router" in spec.freeze if operator.name == "router" else "mlp" in spec.freeze
    return any(operator.module in FROZEN[word] for word in spec.freeze)


def _frozen_of(unit: LayerGraph, spec: FrozenSpec) -> list[TensorSpec]:
    return [p for operator in unit.operators for p in operator.parameters if _is_frozen(operator, p, spec)]


def _parts(operator: Operator, lora: AdapterSpec | None) -> list[tuple[int, ...]]:
    """Columns (indices into n) of each adapter of a product.

    Raises:
        ConflictError: a fused target and one of its parts.
    """
    names = _weights(operator)
    if lora is None or not names:
        return []
    fused = [word for word in lora.targets if operator.name in FUSED.get(word, ())]
    single = {i: word for word in lora.targets for i, name in enumerate(names) if _hits(word, operator, name)}
    if fused and single:
        other = next(iter(single.values()))
        message = f"targets {fused[0]} and {other} both adapt {operator.name}"
        raise ConflictError(message, where=LORA, hint="keep one of the two")
    return [tuple(range(len(names)))] if fused else [(index,) for index in sorted(single)]


def _hits(word: str, operator: Operator, weight: str) -> bool:
    return weight in WEIGHTS.get(word, ()) or operator.module in GROUPS.get(word, ())


def _weights(operator: Operator) -> list[str]:
    """Names of the weights of a product that can be adapted, one a part of its columns."""
    names = [p.name for p in operator.parameters if p.name.endswith("_weight")]
    single = operator.module == "head" or operator.name == "shared_scale"
    routed = operator.module == "moe" and operator.kind is not OperatorKind.GROUPED_GEMM
    if operator.gemm is None or single or routed or not len(names) == len(operator.gemm.n) == len(operator.outputs):
        return []
    return names


def _beside(operator: Operator, parts: tuple[int, ...]) -> tuple[Operator, ...]:
    """The products of an adapter and the addition of what it makes."""
    base = operator.gemm
    if base is None:
        return ()
    whole_product = len(parts) == len(base.n)
    stem = operator.name if whole_product else operator.outputs[parts[0]].name
    low = TensorSpec(name=f"{stem}_low", dims=(*base.m, RANK))
    outputs = tuple(operator.outputs[i] for i in parts)
    deltas = tuple(replace(output, name=f"{output.name}_delta") for output in outputs)
    columns = tuple(base.n[i] for i in parts)
    down = TensorSpec(name=f"{stem}_lora_a", dims=(*base.groups, *base.k, RANK))
    up = tuple(
        TensorSpec(name=f"{output.name}_lora_b", dims=(*base.groups, RANK, *part))
        for output, part in zip(outputs, columns, strict=True)
    )
    first = GemmShape(m=base.m, n=((RANK,),), k=base.k, groups=base.groups)
    second = GemmShape(m=base.m, n=columns, k=(RANK,), groups=base.groups)
    addition = Operator(
        name=f"{stem}_lora_add", kind=OperatorKind.ELEMENTWISE, module=ADAPTER, inputs=(*outputs, *deltas), outputs=outputs
    )
    return (
        _product(f"{stem}_lora_a", operator.kind, operator.inputs, (low,), (down,), first),
        _product(f"{stem}_lora_b", operator.kind, (low,), deltas, up, second),
        addition,
    )


def _product(
    name: str,
    kind: OperatorKind,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    parameters: tuple[TensorSpec, ...],
    gemm: GemmShape,
) -> Operator:
    """A product of an adapter: kept in 16 bits, in a module that selective recomputing leaves alone."""
    return Operator(
        name=name,
        kind=kind,
        module=ADAPTER,
        inputs=inputs,
        outputs=outputs,
        parameters=parameters,
        saved=inputs,
        gemm=gemm,
        quantizable=False,
    )


def _refuse_absent(graph: ModelGraph, spec: FrozenSpec) -> None:
    """Refuses words that name nothing in the model."""
    layers = [*graph.layer_kinds, *([graph.mtp] if graph.mtp is not None else [])]
    operators = [o for unit in layers for o in unit.operators]
    for word in spec.lora.targets if spec.lora is not None else ():
        if not _has_target(operators, word):
            able = ", ".join(w for w in TARGETS if _has_target(operators, w))
            raise InvalidValueError(f"{graph.name} has no product {word}", where=LORA, hint=f"it has {able}")
    units = [graph.embedding, graph.head, *layers]
    for word in spec.freeze if spec.lora is None else ():
        if not any(_frozen_of(unit, FrozenSpec(freeze=(word,))) for unit in units):
            raise InvalidValueError(f"{graph.name} has no {word} with parameters", where=FREEZE, hint="drop it")


def _has_target(operators: list[Operator], word: str) -> bool:
    one = AdapterSpec(rank=1, targets=(word,))
    return any(_parts(operator, one) for operator in operators)


def _split(text: str) -> tuple[str, ...]:
    words = (word.strip() for word in text.replace(",", "+").split("+"))
    return tuple(dict.fromkeys(word for word in words if word))


def _words(words: tuple[str, ...], known: tuple[str, ...], kind: str, where: str, *, empty: bool = False) -> tuple[str, ...]:
    if not words and not empty:
        raise InvalidValueError(f"no {kind} is named", where=where, hint="known: " + ", ".join(known))
    for word in words:
        if not isinstance(word, str) or word not in known:
            raise unknown_name(kind, str(word), known, where=where)
    return words
