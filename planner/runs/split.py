"""Layers of each pipeline stage of a measured run.

stated      "layers/stage [12, 14]" in the notes; where they are two more than the model has, the first and the last number
            count the embedding and the head                                                            `stated_split`
by cost     what a stack does that closes a stage with the block that takes it past its share of the cost of all layers and
            the head                                                                                    `split_by_cost`
even        else, or embedding and head counted as a layer each                                         `split_of`
"""

from __future__ import annotations

import re

from shardwright.models.graph import ModelGraph
from shardwright.planner.runs.plan import split_of
from shardwright.planner.runs.stack import blanks_of
from shardwright.planner.runs.table import RunRow
from shardwright.planner.stacks import StackProfile

STATED = re.compile(r"layers/stage \[([0-9, ]{1,2000})\]")


def stages_of(row: RunRow, graph: ModelGraph, stack: StackProfile, chunks: int) -> tuple[int, ...] | None:
    """Layers of each chunk of a run, or None where all have as many.

    Args:
        row: the run.
        graph: its model.
        stack: its stack.
        chunks: pipeline stages, or chunks of stages.
    """
    stated = stated_split(row.notes, graph.layers, chunks)
    if stated is not None or not blanks_of(stack).by_cost:
        return stated or split_of(graph.layers, chunks)
    return split_by_cost(graph, chunks) or split_of(graph.layers, chunks)


def stated_split(notes: str, layers: int, chunks: int) -> tuple[int, ...] | None:
    """The split that notes state, if it is one of so many layers into so many chunks."""
    found = STATED.search(notes)
    if found is None or chunks <= 1:
        return None
    split = [int(number) for number in re.findall(r"\d+", found[1])]
    if sum(split) == layers + 2:
        split[0], split[-1] = split[0] - 1, split[-1] - 1
    return tuple(split) if sum(split) == layers and len(split) == chunks and min(split) > 0 else None


def split_by_cost(graph: ModelGraph, chunks: int) -> tuple[int, ...] | None:
    """Layers of chunks that are closed by the block which takes them past their share of the cost; None where one has none.

    The cost of a layer is its number of parameters, that of the head those of its product, that of the embedding nothing
    (huggingface/nanotron, models/base.py and get_block_compute_costs).
    """
    if chunks <= 1:
        return None
    costs = [graph.layer_kinds[kind].parameters for kind in graph.pattern]
    total = sum(costs) + graph.spec.vocab * graph.spec.hidden
    split, done = [0] * chunks, 0.0
    chunk = 0
    for cost in costs:
        split[chunk] += 1
        done += cost
        if done > total * (chunk + 1) / chunks and chunk < chunks - 1:
            chunk += 1
    return tuple(split) if min(split) > 0 else None
