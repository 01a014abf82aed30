"""What `size` is asked: a job, node types, numbers of nodes, a target; and the problem at each size.

Sizes without `--nodes` are powers of two and three times those, up to `AUTO_GPUS` GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from shardwright.errors import InvalidValueError, UnknownNameError
from shardwright.hardware.catalog import load_node
from shardwright.hardware.cluster import Node
from shardwright.models.catalog import load_model
from shardwright.models.graph import ModelGraph
from shardwright.planner.prices import prices_for, stated_prices
from shardwright.planner.problem import PricingOptions, Problem, build_problem
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.sizing.target import Target

DEFAULT_NODES = ("dgx-a100-80g", "dgx-h100", "dgx-h200")
"""Node types without `--node`: those of one class of sellers that have a price."""

AUTO_GPUS = 4096
MOST_SIZES = 512
MOST_SPARE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequest:
    """A question of size.

    Attributes:
        model: preset id, path, or a graph.
        target: what is to be met.
        seq_len: tokens a sequence.
        global_batch: sequences a step.
        node_types: node presets to choose from.
        counts: numbers of nodes, ascending; empty for those of `auto_counts`.
        spare: nodes that may be lost: the best plan on so many fewer is shown; 0 for none.
        options: as for `plan`; prices may be of any of the node types.
        search: how each size is searched.
    """

    model: str | ModelGraph
    target: Target
    seq_len: int
    global_batch: int
    node_types: tuple[str, ...] = DEFAULT_NODES
    counts: tuple[int, ...] = ()
    spare: int = 1
    options: PricingOptions = field(default_factory=PricingOptions)
    search: SearchOptions = field(default_factory=lambda: SearchOptions(effort="scan"))

    def __post_init__(self) -> None:
        if not self.node_types:
            raise InvalidValueError("no node types", where="--node", hint="give one, such as --node dgx-h100")
        if not 0 <= self.spare <= MOST_SPARE:
            raise InvalidValueError(f"{self.spare} spare nodes", where="--spare", hint=f"give 0 to {MOST_SPARE}")
        if len(self.counts) > MOST_SIZES:
            raise InvalidValueError(f"{len(self.counts)} sizes", where="--nodes", hint=f"give at most {MOST_SIZES}")

    def loaded(self) -> SizeRequest:
        """The request with its model read once and node types as ids of presets.

        Raises:
            ShardwrightError: an unknown model or node type, or a price of a node that is not asked for.
        """
        graph = load_model(self.model) if isinstance(self.model, str) else self.model
        try:
            types = tuple(dict.fromkeys(load_node(name).id for name in self.node_types))
        except UnknownNameError as error:
            error.where = error.where or "--node"
            raise
        stated_prices(self.options.prices, set(types))
        return replace(self, model=graph, node_types=types)

    def problem(self, node_id: str, nodes: int) -> Problem:
        """The job on so many nodes of a type.

        Raises:
            ShardwrightError: the job cannot be priced there.
        """
        options = replace(self.options, prices=prices_for(self.options.prices, node_id))
        batch = {"seq_len": self.seq_len, "global_batch": self.global_batch}
        return build_problem(self.model, f"{node_id}:{nodes}", **batch, options=options)

    def sizes(self, node_id: str) -> tuple[int, ...]:
        """Numbers of nodes of a type, ascending."""
        return self.counts or auto_counts(load_node(node_id))


def auto_counts(node: Node) -> tuple[int, ...]:
    """Powers of two and three times those, up to `AUTO_GPUS` GPUs."""
    most = max(AUTO_GPUS // node.gpus, 1)
    return tuple(sorted({n for n in _steps(most) if n <= most}))


def _steps(most: int) -> Iterator[int]:
    for power in range(most.bit_length()):
        yield from (2**power, 3 * 2**power)


def counts_of(given: Sequence[int]) -> tuple[int, ...]:
    """Numbers of nodes, ascending and each once."""
    return tuple(sorted(set(given)))
