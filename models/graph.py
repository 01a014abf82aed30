"""Layer graphs and the model graph made of them; parameter and FLOP counts.

    parameters(layer)   = sum of elements over its parameters, each name once         `LayerGraph.parameters`
    active(layer)       = parameters - routed * (1 - topk / experts)                  `LayerGraph.active_parameters`
    saved bytes(layer)  = sum over the union by name of what its operators save       `LayerGraph.saved_bytes`
    parameters(model)   = embedding + sum over layers + head - tied                   `ModelGraph.parameters`
    FLOPs per token     = (3 x forward - frozen) FLOPs / tokens                       `ModelGraph.flops_per_token`

Repeated layers are folded: `ModelGraph.layer_kinds` are distinct, `pattern` names the kind of each layer. A
tied head carries the embedding's parameter under the embedding's name, because the stage that holds the head
holds a copy; `ModelGraph.parameters` counts a name once over embedding and head. What is frozen (`models.adapters`) counts
among the parameters, not among `trainable_parameters`; its gradient is not made, so that its products count 2 x forward.

Counts follow arXiv 2205.05198 appendix A (6 x parameters in GEMMs x tokens + attention).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from shardwright.documents import digest
from shardwright.models.operators import (
    CLAMP,
    CONVOLVE,
    GATED_NORM,
    SCALE,
    AttentionShape,
    GemmShape,
    Normalised,
    Operator,
    OperatorKind,
    ScanShape,
    TensorSpec,
)

if TYPE_CHECKING:
    import networkx as nx

    from shardwright.models.spec import ModelSpec
    from shardwright.models.traced.origin import Origin

__all__ = [
    "CLAMP",
    "CONVOLVE",
    "GATED_NORM",
    "SCALE",
    "AttentionShape",
    "Convention",
    "GemmShape",
    "LayerGraph",
    "ModelGraph",
    "Normalised",
    "Operator",
    "OperatorKind",
    "ScanShape",
    "TensorSpec",
]

Convention = Literal["full", "causal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """Operators of one layer (or of the embedding, the head, the MTP block) in topological order.

    Attributes:
        kind: name of this kind of layer.
        dims: sizes of the fixed dims; ``batch``, ``seq`` and ``routed`` are free.
        operators: in an order in which each reads only what stands before it, or the layer's input.
        border: what it reads of other layers; None: the residual stream, batch x seq x hidden.
    """

    kind: str
    dims: Mapping[str, int] = field(hash=False)
    operators: tuple[Operator, ...]
    border: tuple[TensorSpec, ...] | None = None

    def sizes(self, batch: int, seq: int) -> dict[str, int]:
        """Sizes of all dims for a micro-batch of `batch` sequences of `seq` tokens, nothing divided."""
        routed = batch * seq * self.dims.get("topk", 1)
        return {**self.dims, "batch": batch, "seq": seq, "routed": routed}

    def operator(self, name: str) -> Operator:
        """The operator of that name (KeyError if there is none)."""
        for candidate in self.operators:
            if candidate.name == name:
                return candidate
        raise KeyError(name)

    @property
    def parameter_specs(self) -> tuple[TensorSpec, ...]:
        """All parameters, each name once."""
        return _once(spec for operator in self.operators for spec in operator.parameters)

    @property
    def saved(self) -> tuple[TensorSpec, ...]:
        """All tensors kept for the backward pass, each name once."""
        return _once(spec for operator in self.operators for spec in operator.saved)

    @property
    def parameters(self) -> int:
        """Number of parameters, frozen ones among them."""
        return sum(spec.elements(self.dims) for spec in self.parameter_specs)

    @property
    def expert_parameters(self) -> int:
        """Number of parameters of the routed experts."""
        return sum(spec.elements(self.dims) for spec in self.parameter_specs if "experts" in spec.dims)

    def active_parameters(self, topk: int | None = None) -> int:
        """Parameters a token meets: all outside the routed experts, and those of `topk` experts (default: the model's)."""
        routed = self.expert_parameters
        if not routed:
            return self.parameters
        chosen = self.dims["topk"] if topk is None else topk
        return self.parameters - routed + routed // self.dims["experts"] * chosen

    def saved_bytes(self, batch: int, seq: int, activation_bytes: float = 2) -> float:
        """Bytes kept for the backward pass of a micro-batch, nothing divided."""
        sizes = self.sizes(batch, seq)
        return sum(spec.bytes(sizes, activation_bytes) for spec in self.saved)

    def flops_forward(self, batch: int, seq: int, causal: bool = False) -> int:
        """FLOPs of the forward pass, attention counted full or causal."""
        sizes = self.sizes(batch, seq)
        return sum(operator.flops_forward(sizes, causal=causal) for operator in self.operators)

    def flops_backward(self, batch: int, seq: int, causal: bool = False) -> int:
        """FLOPs executed in the backward pass with a fused attention kernel (2.5 x on the core, 2 x elsewhere)."""
        sizes = self.sizes(batch, seq)
        return sum(operator.flops_backward(sizes, causal=causal) for operator in self.operators)

    def model_flops(self, batch: int, seq: int, causal: bool = False) -> int:
        """Model FLOPs of forward and backward: 3 x forward, less the gradients of frozen weights."""
        return 3 * self.flops_forward(batch, seq, causal) - self.frozen_flops(batch, seq)

    def frozen_flops(self, batch: int, seq: int) -> int:
        """FLOPs that gradients of the frozen weights of products would take."""
        sizes = self.sizes(batch, seq)
        return sum(operator.gemm.flops(sizes) for operator in self.operators if operator.gemm and not operator.trains)

    @property
    def trainable_parameters(self) -> int:
        """Number of parameters that are trained."""
        return sum(spec.elements(self.dims) for spec in self.parameter_specs if spec.trainable)

    def graph(self) -> nx.DiGraph[str]:
        """The operators as a directed graph.

        Returns:
            nodes named as the operators (attribute ``operator``); edges from producer to consumer, attribute
            ``tensor`` the name of the first tensor passed on, ``tensors`` all of them.
        """
        import networkx as nx

        made: nx.DiGraph[str] = nx.DiGraph(name=self.kind)
        producer: dict[str, str] = {}
        for operator in self.operators:
            made.add_node(operator.name, operator=operator)
            for spec in operator.inputs:
                if spec.name in producer:
                    _connect(made, producer[spec.name], operator.name, spec)
            producer.update((spec.name, operator.name) for spec in operator.outputs)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGraph:
    """A model: embedding, layers (folded), head, and the block that predicts further tokens, if any.

    Attributes:
        name: of the model.
        spec: the architecture it was built from; of a graph read from a file a bare one: its name and number of layers.
        embedding: word (and learned position) embeddings.
        layer_kinds: the distinct kinds of layers.
        pattern: index into `layer_kinds` of each layer.
        head: final norm, output GEMM, loss.
        mtp: one multi-token-prediction block, or None.
        mtp_layers: how many of them are trained.
        tied_embeddings: whether the head uses the word embedding.
        origin: of a graph read from a file: where its layers are from.
    """

    name: str
    spec: ModelSpec
    embedding: LayerGraph
    layer_kinds: tuple[LayerGraph, ...]
    pattern: tuple[int, ...]
    head: LayerGraph
    mtp: LayerGraph | None = None
    mtp_layers: int = 0
    tied_embeddings: bool = False
    origin: Origin | None = None

    @property
    def layers(self) -> int:
        """Number of decoder layers, without MTP."""
        return len(self.pattern)

    @property
    def kind_counts(self) -> tuple[int, ...]:
        """How many layers there are of each kind."""
        counts = Counter(self.pattern)
        return tuple(counts[index] for index in range(len(self.layer_kinds)))

    @property
    def parameters(self) -> int:
        """Parameters as transformers counts them: without MTP and buffers, tied weights once."""
        layers = sum(count * kind.parameters for count, kind in zip(self.kind_counts, self.layer_kinds, strict=True))
        return layers + self._ends_parameters()

    @property
    def trainable_parameters(self) -> int:
        """Those of them that are trained; in an adapted graph with the adapters."""
        counts = zip(self.kind_counts, self.layer_kinds, strict=True)
        return sum(count * kind.trainable_parameters for count, kind in counts) + self._ends_parameters(trainable=True)

    @property
    def expert_parameters(self) -> int:
        """Trainable parameters of all routed experts, without MTP."""
        return sum(count * kind.expert_parameters for count, kind in zip(self.kind_counts, self.layer_kinds, strict=True))

    @property
    def active_parameters(self) -> int:
        """Everything outside routed experts (embeddings and head included) and the experts a token is sent to."""
        layers = sum(count * kind.active_parameters() for count, kind in zip(self.kind_counts, self.layer_kinds, strict=True))
        return layers + self._ends_parameters()

    @property
    def buffers(self) -> int:
        """Persistent values that are saved but not trained by gradients: correction biases of routers."""
        moe = self.spec.moe
        if moe is None or not moe.correction_bias:
            return 0
        return moe.experts * sum(1 for index in self.pattern if "experts" in self.layer_kinds[index].dims)

    @property
    def mtp_parameters(self) -> int:
        """Trainable parameters of all MTP blocks, without the embedding and head they share with the model."""
        if self.mtp is None:
            return 0
        shared = {spec.name for spec in (*self.embedding.parameter_specs, *self.head.parameter_specs)}
        own = (spec for spec in self.mtp.parameter_specs if spec.name not in shared)
        return self.mtp_layers * sum(spec.elements(self.mtp.dims) for spec in own)

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON of the architecture (its name, source and notes do not count)."""
        full = self.to_dict()
        return digest({key: value for key, value in full.items() if key not in {"name", "source", "notes"}})

    def to_dict(self) -> dict[str, Any]:
        """The model as ``inputs.model`` of a result: its architecture, or the layers read from a file."""
        if self.origin is None:
            return self.spec.to_dict()
        from shardwright.models.traced.document import to_document

        return to_document(self)

    def flops_forward(self, batch: int, seq: int, *, causal: bool = False, mtp: bool = True) -> int:
        """Forward FLOPs of the whole model for `batch` sequences of `seq` tokens."""
        layers = sum(
            count * kind.flops_forward(batch, seq, causal)
            for count, kind in zip(self.kind_counts, self.layer_kinds, strict=True)
        )
        ends = self.embedding.flops_forward(batch, seq, causal) + self.head.flops_forward(batch, seq, causal)
        further = self.mtp_layers * self.mtp.flops_forward(batch, seq, causal) if self.mtp is not None and mtp else 0
        return layers + ends + further

    def flops_per_token(self, seq_len: int, convention: Convention = "full", *, mtp: bool = True) -> float:
        """Model FLOPs per token of forward and backward.

        Args:
            seq_len: tokens a sequence.
            convention: whether attention scores above the diagonal count.
            mtp: whether MTP blocks are trained.
        """
        forward = self.flops_forward(1, seq_len, causal=convention == "causal", mtp=mtp)
        return (3 * forward - self._frozen_flops(seq_len, mtp=mtp)) / seq_len

    def graph(self) -> nx.DiGraph[str]:
        """The model as a chain: embedding, runs of equal layers (attributes ``layer``, ``first``, ``count``), head, MTP."""
        import networkx as nx

        made: nx.DiGraph[str] = nx.DiGraph(name=self.name)
        made.add_node("embedding", layer=self.embedding, count=1)
        last = "embedding"
        for first, count, index in _runs(self.pattern):
            name = f"layers {first}-{first + count - 1}"
            made.add_node(name, layer=self.layer_kinds[index], first=first, count=count)
            made.add_edge(last, name, tensor="hidden")
            last = name
        made.add_node("head", layer=self.head, count=1)
        made.add_edge(last, "head", tensor="hidden")
        if self.mtp is not None:
            made.add_node("mtp", layer=self.mtp, count=self.mtp_layers)
            made.add_edge(last, "mtp", tensor="hidden")
        return made

    def _frozen_flops(self, seq: int, *, mtp: bool) -> int:
        layers = sum(n * kind.frozen_flops(1, seq) for n, kind in zip(self.kind_counts, self.layer_kinds, strict=True))
        further = self.mtp_layers * self.mtp.frozen_flops(1, seq) if self.mtp is not None and mtp else 0
        return layers + self.head.frozen_flops(1, seq) + further

    def _ends_parameters(self, *, trainable: bool = False) -> int:
        ends = {p.name: (p, unit.dims) for unit in (self.head, self.embedding) for p in unit.parameter_specs}
        return sum(spec.elements(dims) for spec, dims in ends.values() if spec.trainable or not trainable)


def _once(specs: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    return tuple({spec.name: spec for spec in specs}.values())


def _connect(made: nx.DiGraph[str], producer: str, consumer: str, spec: TensorSpec) -> None:
    if made.has_edge(producer, consumer):
        made.edges[producer, consumer]["tensors"] += (spec,)
    else:
        made.add_edge(producer, consumer, tensor=spec.name, tensors=(spec,))


def _runs(pattern: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(first layer, how many, kind) of each run of equal layers."""
    runs, first = [], 0
    for index, members in groupby(pattern):
        count = len(list(members))
        runs.append((first, count, index))
        first += count
    return runs
