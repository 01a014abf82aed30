"""A training job: which model, how much data a step, in which precision, with which optimiser.

tokens a step = seq_len * global_batch         `TrainingJob.tokens_per_step`
FLOPs a step  = FLOPs a token * tokens         `TrainingJob.flops_per_step`

Where adapters are trained or modules frozen, `trained` is the graph that says so (`models.adapters`); `graph` stays the model.
Where sequences are packed from documents, attention stays within a document (`models.lengths`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.models.adapters import FrozenSpec, adapted
from shardwright.models.checks import whole
from shardwright.models.dtypes import GRAD_DTYPES, OPTIMIZERS, PRECISIONS, Optimizer, Precision
from shardwright.models.graph import Convention, ModelGraph
from shardwright.models.lengths import Lengths, packed_flops_per_token

MAX_SEQ_LEN = 100_000_000
MAX_GLOBAL_BATCH = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """What is trained.

    Attributes:
        graph: the model.
        seq_len: tokens a sequence.
        global_batch: sequences an optimiser step.
        precision: of GEMMs, activations and parameters.
        optimizer: its state per parameter.
        grad_bytes: bytes per element of accumulated gradients.
        frozen: adapters and frozen modules.
        lengths: documents that are packed into a sequence; None: a sequence is one document.
        trained: the graph with adapters, its parameters marked; the model's own where all of it is trained.
    """

    graph: ModelGraph
    seq_len: int
    global_batch: int
    precision: Precision = field(default_factory=lambda: PRECISIONS["bf16"])
    optimizer: Optimizer = field(default_factory=lambda: OPTIMIZERS["adam"])
    grad_bytes: int = 4
    frozen: FrozenSpec = field(default_factory=FrozenSpec)
    lengths: Lengths | None = None
    trained: ModelGraph = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        whole(self.seq_len, "seq_len", 1, MAX_SEQ_LEN)
        whole(self.global_batch, "global_batch", 1, MAX_GLOBAL_BATCH)
        if self.grad_bytes not in GRAD_DTYPES.values():
            raise InvalidValueError(f"gradients of {self.grad_bytes} bytes", where="grad_bytes", hint="allowed: 2, 4")
        self._check_graph()
        if self.lengths is not None:
            self.lengths.check_within(self.seq_len)
        object.__setattr__(self, "trained", adapted(self.graph, self.frozen))

    def _check_graph(self) -> None:
        """A graph from a file has the sequence length it was exported with, and no packed documents."""
        origin = self.graph.origin
        if origin is None:
            return
        if origin.seq is not None and origin.seq != self.seq_len:
            said = f"the graph was exported for sequences of {origin.seq}, not {self.seq_len}"
            hint = f"leave --seq-len out, or give {origin.seq}; or export with a dynamic sequence and bind it by --dim"
            raise ConflictError(said, where="--seq-len", hint=hint)
        if self.lengths is not None:
            said = "documents are not packed into the sequences of a graph from a file"
            raise ConflictError(said, where="--length-histogram", hint="drop --length-histogram")

    @property
    def tokens_per_step(self) -> int:
        """Tokens an optimiser step."""
        return self.seq_len * self.global_batch

    @property
    def state_bytes_per_parameter(self) -> float:
        """Bytes of optimiser state per parameter in this precision."""
        return self.optimizer.state_bytes(self.precision)

    def flops_per_token(self, convention: Convention = "full") -> float:
        """Model FLOPs a token: what training takes, gradients of frozen weights and other documents left out."""
        if self.lengths is not None:
            return packed_flops_per_token(self.trained, self.seq_len, convention, self.lengths)
        return self.trained.flops_per_token(self.seq_len, convention)

    def flops_per_step(self, convention: Convention = "full") -> float:
        """Model FLOPs an optimiser step."""
        return self.flops_per_token(convention) * self.tokens_per_step

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of a result should know about model and sequence length."""
        if self.graph.origin is not None:
            return self.graph.origin.notes
        rows = self.graph.spec.max_positions
        if rows is None or self.seq_len <= rows:
            return self.graph.spec.notes
        if self.graph.spec.positions == "learned":
            said = f"{self.graph.name} has learned positions for {rows} tokens; longer sequences need a larger table"
        else:
            said = f"{self.graph.name} was published for {rows} tokens; sequences here have {self.seq_len}"
        return (*self.graph.spec.notes, said)

    def to_dict(self) -> dict[str, Any]:
        """The job as ``training`` in a result."""
        return {
            "seq_len": self.seq_len,
            "global_batch": self.global_batch,
            "precision": self.precision.id,
            "optimizer": self.optimizer.id,
            "grad_dtype": next(name for name, width in GRAD_DTYPES.items() if width == self.grad_bytes),
        } | self.choices()

    def choices(self) -> dict[str, Any]:
        """What is stored of adapters, frozen modules and lengths, where there are any."""
        packed = {"length_histogram": self.lengths.to_list()} if self.lengths is not None else {}
        return self.frozen.to_dict() | packed


def choices_in_force(job: TrainingJob) -> list[tuple[str, Any]]:
    """What a job assumes of adapters, frozen modules and packed documents, where there are any: keys and values."""
    made: list[tuple[str, Any]] = []
    if job.frozen.lora is not None:
        made += [("training.lora.rank", job.frozen.lora.rank), ("training.lora.targets", "+".join(job.frozen.lora.targets))]
    if job.frozen:
        made += [("training.frozen", "all but adapters" if job.frozen.lora is not None else "+".join(job.frozen.freeze))]
        made += [("model.flops", "no gradients of frozen weights")]
    if job.lengths is not None:
        rows = {"documents": job.lengths.documents, "mean": job.lengths.mean, "longest": job.lengths.longest}
        made += [(f"training.lengths.{key}", value) for key, value in rows.items()]
        made += [("training.lengths.attended", job.lengths.attended)]
    return made
