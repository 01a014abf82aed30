"""Prices of nodes and the power they draw.

    price in force = `Node.usd_per_gpu_hour`: the middle of the node's on-demand offer, or what `--price` states
    power of a node = `Node.power_w` as the vendor rates it, else GPUs · TDP · overhead

`offers` reads the price table (presets/economics/prices.yaml): ranges in USD per GPU-hour with seller, term, source and date.
`priced` puts stated prices on the nodes of a cluster. Prices are dated public lists; state your own for a decision.

Overhead over the GPUs' own limit, from rated powers of whole nodes: DGX H100 and H200 10.2 kW / (8 · 700 W) = 1.82, DGX B200
14.3 / (8 · 1.0) = 1.79, DGX A100 6.5 / (8 · 0.4) = 2.03 (datasheets); racks of one scale-up domain GB200 NVL72 120 kW /
(72 · 1.2 kW) = 1.39, GB300 NVL72 135 / (72 · 1.4) = 1.34 (NVIDIA and Azure material).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from shardwright import documents
from shardwright.errors import InvalidValueError, unknown_name
from shardwright.hardware import checks
from shardwright.hardware.cluster import Cluster, Node

OVERHEAD, RACK_OVERHEAD = 1.8, 1.4
"""Power of a node over the power limits of its GPUs: machines with fans; racks that are one scale-up domain."""

ON_DEMAND = "on-demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One row of the price table.

    Attributes:
        nodes: node presets it is for; empty for a quotation by device.
        devices: device presets, where no nodes are named.
        term: on-demand, reserved-1-year or spot.
        seller: whose price it is.
        low, high: USD per GPU-hour.
        source, date: where and when it was printed.
    """

    nodes: tuple[str, ...]
    devices: tuple[str, ...]
    term: str
    seller: str
    low: float
    high: float
    source: str
    date: str

    @property
    def middle(self) -> float:
        """Middle of the range, USD per GPU-hour."""
        return (self.low + self.high) / 2

    @property
    def said(self) -> str:
        """The range in words, with source and date."""
        return f"{self.seller}, {self.term}, {self.low:.2f} to {self.high:.2f} USD ({self.source}, {self.date})"


@lru_cache(maxsize=1)
def offers() -> tuple[Offer, ...]:
    """The price table."""
    place = files("shardwright.hardware").joinpath("presets", "economics", "prices.yaml")
    rows = documents.parse_yaml(place.read_text(encoding="utf-8"), "presets/economics/prices.yaml").data["offers"]
    return tuple(_offer(row) for row in rows)


def _offer(row: Mapping[str, Any]) -> Offer:
    low, high = (checks.positive(f"offers.{name}", row[name]) for name in ("low", "high"))
    return Offer(
        nodes=tuple(row["nodes"]),
        devices=tuple(row.get("devices", ())),
        term=row["term"],
        seller=row["seller"],
        low=low,
        high=high,
        source=row["source"],
        date=row["date"],
    )


def offer_of(node_id: str, term: str) -> Offer:
    """The offer for a node preset.

    Raises:
        UnknownNameError: there is none of that term.
    """
    found = {offer.term: offer for offer in offers() if node_id in offer.nodes}
    if term not in found:
        raise unknown_name(f"price of {node_id}", term, found, where="--price")
    return found[term]


def priced(cluster: Cluster, prices: Mapping[str, tuple[float, str]]) -> Cluster:
    """The cluster with the prices of some nodes replaced.

    Args:
        cluster: the machine.
        prices: node id → USD per GPU-hour and where that comes from.
    """
    groups = tuple(
        replace(
            group, node=replace(group.node, usd_per_gpu_hour=prices[group.node.id][0], price_source=prices[group.node.id][1])
        )
        if group.node.id in prices
        else group
        for group in cluster.groups
    )
    return replace(cluster, groups=groups)


def needed_price(node: Node) -> float:
    """The price of a node that a question cannot do without, USD per GPU-hour.

    Raises:
        InvalidValueError: none is known.
    """
    if node.usd_per_gpu_hour is None:
        hint = f"give one: --price {node.id}=USD_PER_GPU_HOUR (a node of {node.gpus} GPUs costs {node.gpus} times that)"
        raise InvalidValueError(f"no price is known for {node.id}", where="--price", hint=hint)
    return node.usd_per_gpu_hour


def rated_power_w(node: Node) -> float | None:
    """Power of a whole node at its limit, W: as the vendor rates it, else by the power limits of its GPUs; None if unknown."""
    if node.power_w is not None:
        return node.power_w
    if node.device.tdp_w is None:
        return None
    overhead = RACK_OVERHEAD if node.nodes_per_domain > 1 else OVERHEAD
    return node.gpus * node.device.tdp_w * overhead
