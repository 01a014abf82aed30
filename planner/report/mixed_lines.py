"""What is said of plans on mixed nodes: which stage runs on which kind, and what each kind reaches alone.

rank 1: stage 0 on dgx-h100, 22 layers; stage 1 on dgx-a100-40g, 10 layers
the 16 GPUs of dgx-h100 alone reach 76 % of this rate at 62 % of the cost of a token
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.style import paragraph

WORTH = 1.01
"""Rate over rate from which another order is told."""


def mixed_parts(result: Mapping[str, Any]) -> list[Any]:
    """Paragraphs under the plans; none where all nodes are of one kind."""
    alone = result["search"].get("kinds_alone") or []
    plans = result["plans"]
    if not alone:
        return []
    used = plans[0]["parallel"]["world_size"] if plans else 0
    stages = [paragraph("rank 1: " + stages_in_words(plans[0]))] if plans else []
    return [*stages, *(paragraph(alone_in_words(row, used)) for row in alone), *_order(result["search"])]


def _order(search: Mapping[str, Any]) -> list[Any]:
    """That the groups would be faster last to first, where that is more than a tie."""
    other = search.get("reversed_order")
    if other is None or other["rate_fraction"] is None or other["rate_fraction"] <= WORTH:
        return []
    order = ", ".join(other["nodes"])
    gain = words.percent(other["rate_fraction"] - 1)
    return [paragraph(f"the groups in the order {order} would be {gain} faster: reorder them in the file")]


def stage_parts(estimate: Mapping[str, Any]) -> list[Any]:
    """Where the stages of one plan run; nothing where that is one kind of node."""
    kinds = {stage["node_type"] for stage in estimate["stages"]}
    mixed = len(kinds) > 1 or any(" + " in kind for kind in kinds)
    return [paragraph(stages_in_words(estimate))] if mixed else []


def stages_in_words(plan: Mapping[str, Any]) -> str:
    """Which stages run on which kind of node, with their layers."""
    told = []
    for (kind, layers), some in groupby(plan["stages"], key=lambda stage: (stage["node_type"], _layers(stage))):
        first, *rest = [stage["index"] for stage in some]
        which = f"stages {first}-{rest[-1]}" if rest else f"stage {first}"
        told.append(f"{which} on {kind}, {words.many(layers, 'layer')}" + (" each" if rest else ""))
    return "; ".join(told)


def _layers(stage: Mapping[str, Any]) -> int:
    return sum(chunk[1] - chunk[0] + 1 for chunk in stage["layers"] if chunk)


def alone_in_words(row: Mapping[str, Any], used: int) -> str:
    """What one kind reaches by itself, and what to make of it where the first plan uses so many GPUs."""
    who = f"the {words.many(row['gpus'], 'GPU')} of {row['node']} alone"
    if row["status"] != "searched":
        return f"{who}: {row['status']}"
    if row["rate_fraction"] is None:
        return f"{who} take {words.seconds(row['best_step_time_s'], 4)} a step"
    said = f"{who} reach {words.percent(row['rate_fraction'], 0)} of this rate"
    if row["cost_fraction"] is not None:
        said += f" at {words.percent(row['cost_fraction'], 0)} of the cost of a token"
    return said + ("; the others only slow them down" if row["rate_fraction"] >= 1 and row["gpus"] < used else "")
