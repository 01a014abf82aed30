"""What `plan` says of the placement of its first plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.report import words
from shardwright.planner.report.style import heading, paragraph

SHOWN = 8


def placement_parts(plan: Mapping[str, Any]) -> list[Any]:
    """Hosts in rank order, what that saves, and which other rank order would save more; nothing without a placement."""
    made = plan.get("placement")
    if made is None:
        return []
    parts = [heading("Placement of rank 1"), paragraph("hosts: " + _hosts(made["hosts"])), paragraph(_cost(made))]
    parts += [paragraph(_level(level)) for level in made["levels"]]
    better = [o for o in made["orders"] if o["cost_s"] < 0.99 * made["cost_s"]]
    return parts + [paragraph(_order(o)) for o in better]


def _hosts(names: list[str]) -> str:
    more = len(names) - SHOWN
    return " ".join(names[:SHOWN]) + (f" and {words.count(more)} more (hosts.txt of -o)" if more > 0 else "")


def _cost(made: Mapping[str, Any]) -> str:
    busy, naive = words.seconds(made["cost_s"]), words.seconds(made["naive_cost_s"])
    return f"busiest links: {busy} a step, {naive} in the cluster's own order; gap {words.percent(made['gap'])}"


def _level(level: Mapping[str, Any]) -> str:
    now, before = (f"{level[key] / 1e9:,.0f} GB" for key in ("crossing_bytes", "naive_crossing_bytes"))
    rates = "" if level["rates_known"] else "; rates of uplinks are not known"
    return f"between the {words.many(level['groups'], 'group')} of {level['name']}: {now} a step, {before} before{rates}"


def _order(order: Mapping[str, Any]) -> str:
    return f"rank order {order['order']} (Megatron-LM: --use-tp-pp-dp-mapping): {words.seconds(order['cost_s'])}"
