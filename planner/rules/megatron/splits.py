"""Megatron before 0.13: which divisions of layers its flags can say, without layout strings.

    even          units divide over pp · vpp chunks (units: layers, and embedding or loss where they are counted)
    uneven ends   first and last stage by number, the others equal, each stage divided by vpp

Source: Megatron-Core 0.12 TransformerConfig and get_num_layers_to_build.
"""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import BoolArray
from shardwright.planner.rules.base import Columns, Facts, Rule, closest, counted_ends, divisors
from shardwright.planner.rules.declaring import MEGATRON, degree_rule


def said_by_flags(chunks: tuple[int, ...], pp: int) -> bool:
    """Whether flags of 0.12 can say how many layers each chunk has.

    Args:
        chunks: layers of each chunk in the order they run, pp or pp · vpp numbers.
        pp: pipeline ranks.
    """
    counted = {(chunks[0] + embedding, *chunks[1:-1], chunks[-1] + loss) for embedding in (0, 1) for loss in (0, 1)}
    if len(chunks) > 1 and any(len(set(units)) == 1 for units in counted):
        return True
    whole = all(chunks[rank::pp] == (chunks[rank],) * (len(chunks) // pp) for rank in range(pp))
    return whole and len(set(chunks[1 : pp - 1])) <= 1 and min(chunks) > 0


def _unsaid(c: Columns, f: Facts) -> BoolArray:
    if f.chunks is not None:
        return np.array([not said_by_flags(f.chunks, int(pp)) for pp in c["pp"]])
    units = f.graph.layers + np.add(*counted_ends(c["split"]))
    larger = units % (c["pp"] * c["vpp"])
    ends = (c["vpp"] == 1) & ((larger <= 1) | (larger >= c["pp"] - 1))
    return np.asarray(((larger != 0) & ~ends) | (c["split"] >= 4))


SPLIT_RULES: tuple[Rule, ...] = (
    degree_rule(
        "megatron-split-flags",
        "before 0.13, which has layouts, layers divide evenly (embedding or loss counted or not) but for first and last stage",
        reads=("pp", "vpp", "split"),
        breaks=_unsaid,
        message="flags of megatron-core 0.12 cannot say how {layers} layers are divided over pp {pp} · vpp {vpp} chunks",
        mend=lambda c, f: {"pp": closest(c["pp"], divisors(f.graph.layers)), "vpp": 1},
        targets=MEGATRON,
        until="0.13",
        source="Megatron-Core 0.12 TransformerConfig",
    ),
)
