"""The points of a sweep: a job on a cluster each, and the digest of everything its result depends on.

    points_of(request)    the product of all knobs, sizes innermost, so that neighbours share model, node and job
    prepared(point, …)    the point as inputs that stand alone (`Problem.to_inputs`), with their digest

The digest covers the resolved inputs (model, cluster, training job, stack, kernel fits, calibration: presets in full), the
curves of the links, what is searched, and the program (`program_digest`). A preset that changes so touches exactly the
points that use it.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from shardwright.documents import digest
from shardwright.errors import InvalidValueError, ShardwrightError
from shardwright.hardware.catalog import load_node
from shardwright.hardware.cluster import Node
from shardwright.hardware.collectives import fabric_of
from shardwright.hardware.device import Device
from shardwright.models.catalog import load_model
from shardwright.models.graph import ModelGraph
from shardwright.planner.prices import stated_prices
from shardwright.planner.problem import Problem, build_problem
from shardwright.planner.spending import check_objective
from shardwright.planner.sweep.request import BatchRule, SweepRequest

MAX_POINTS = 100_000
AUTO_SEQ_LEN = 8192
"""Tokens a sequence left to the sweep, where the model can take as many (pre-training of Llama 3, arXiv 2407.21783)."""

AUTO_GPUS = 16_384
"""Largest cluster left to the sweep: that of Llama 3.1 405B (arXiv 2407.21783)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A job on a cluster.

    Attributes:
        node: id of the node type; nodes, gpus: how many.
        rule: how the batch was stated; global_batch: the sequences it gives here.
    """

    model: str
    node: str
    nodes: int
    gpus: int
    seq_len: int
    rule: BatchRule
    global_batch: int
    precision: str
    framework: str

    @property
    def key(self) -> dict[str, Any]:
        """What tells the point from others."""
        return {
            "model": self.model,
            "node": self.node,
            "nodes": self.nodes,
            "gpus": self.gpus,
            "seq_len": self.seq_len,
            "batch_rule": str(self.rule),
            "global_batch": self.global_batch,
            "precision": self.precision,
            "framework": self.framework,
        }

    @property
    def series(self) -> tuple[Any, ...]:
        """What it shares with the same job on other numbers of nodes."""
        return self.model, self.node, self.seq_len, str(self.rule), self.precision, self.framework


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A point ready to be evaluated anywhere.

    Attributes:
        digest: of all that its result depends on.
        payload: JSON text of `inputs` and `search`.
    """

    digest: str
    payload: str


def points_of(request: SweepRequest) -> tuple[Point, ...]:
    """All points, in the order of the output.

    Raises:
        UnknownNameError: no such model or node type.
        InvalidValueError: too many points, or a batch that is no whole number of sequences.
    """
    made: list[Point] = []
    nodes = [_node(name, request) for name in request.nodes]
    for model in request.models:
        graph = _graph(model, request)
        lengths = request.seq_lens or (min(graph.spec.max_positions or AUTO_SEQ_LEN, AUTO_SEQ_LEN),)
        for node in nodes:
            for seq_len in lengths:
                made += _of_job(request, model, node, seq_len)
                if len(made) > MAX_POINTS:
                    message = f"the sweep has more than {MAX_POINTS:,} points"
                    raise InvalidValueError(message, where="sweep", hint="narrow a knob, or split the sweep")
    return tuple(made)


def _of_job(request: SweepRequest, model: str, node: Node, seq_len: int) -> Iterator[Point]:
    for rule in request.batches:
        for precision in request.precisions or (_auto_precision(node.device),):
            for framework in request.frameworks:
                for nodes, gpus in _sizes(request, node):
                    yield Point(
                        model=model,
                        node=node.id,
                        nodes=nodes,
                        gpus=gpus,
                        seq_len=seq_len,
                        rule=rule,
                        global_batch=rule.sequences(gpus, seq_len),
                        precision=precision,
                        framework=framework,
                    )


def _sizes(request: SweepRequest, node: Node) -> Iterator[tuple[int, int]]:
    """Nodes and GPUs, ascending."""
    if request.gpus is not None:
        yield from ((-(-gpus // node.gpus), gpus) for gpus in request.gpus)
        return
    powers = (2**power for power in range(AUTO_GPUS.bit_length()))
    counts = request.counts or tuple(n for n in powers if n * node.gpus <= AUTO_GPUS) or (1,)
    yield from ((count, count * node.gpus) for count in counts)


def _node(name: str, request: SweepRequest) -> Node:
    try:
        return load_node(name)
    except ShardwrightError as error:
        error.where = request.place("node")
        raise


def _graph(model: str, request: SweepRequest) -> ModelGraph:
    try:
        return load_model(model)
    except ShardwrightError as error:
        error.where = error.where if error.where not in {"", "MODEL"} else request.place("model")
        raise


def _auto_precision(device: Device) -> str:
    return "bf16" if "bf16" in device.peak_flops else "fp16"


def problem_of(point: Point, request: SweepRequest) -> Problem:
    """The planning problem of a point: that of `plan` on the same words.

    Raises:
        ShardwrightError: the point cannot be priced.
    """
    node = load_node(point.node)
    partial = point.gpus if point.gpus != point.nodes * node.gpus else None
    prices = tuple(text for text in request.options.prices if _may_price(text, node))
    options = replace(request.options, precision=point.precision, framework=point.framework, gpus=partial, prices=prices)
    cluster = f"{point.node}:{point.nodes}"
    return build_problem(point.model, cluster, seq_len=point.seq_len, global_batch=point.global_batch, options=options)


def _may_price(statement: str, node: Node) -> bool:
    """Whether a price is that of a node type, or may be: a file lists several."""
    name, separator, _ = statement.partition("=")
    return not separator or load_node(name.strip()).id == node.id


def check_prices(points: Sequence[Point], request: SweepRequest) -> None:
    """Sees to it that stated prices are of node types of the sweep, and that the objective is known for each.

    Raises:
        ShardwrightError: a statement that cannot be used, or a price or power that is not known.
    """
    stated_prices(request.options.prices, {point.node for point in points})
    if request.options.objective in {"cost", "energy"}:
        for point in {point.node: point for point in points}.values():
            check_objective(problem_of(point, request))


def prepared(point: Point, request: SweepRequest) -> Prepared:
    """A point as inputs that stand alone, with their digest.

    Raises:
        ShardwrightError: the point cannot be priced.
    """
    problem = problem_of(point, request)
    asked = {"inputs": problem.to_inputs(), "search": request.search_record()}
    links = asdict(fabric_of(problem.cluster))
    name = digest({**asked, "links": links, "program": program_digest()})
    return Prepared(digest=name, payload=json.dumps(asked))


@functools.cache
def program_digest() -> str:
    """The version of the program and the digest of its source: results of other source are not reused."""
    import shardwright

    total = hashlib.sha256(shardwright.__version__.encode())
    for name, file in sorted(_sources(resources.files("shardwright"), "")):
        total.update(name.encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()


def _sources(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _sources(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield f"{prefix}{entry.name}", entry
