"""The map of a plan on its cluster: GPUs coloured by pipeline stage, links by the share of the step in which they are busy.

A card is a host; `rank // GPUs of a host` says which one a rank stands on, and the placement of the plan, where there is one,
which host that is. Neighbouring hosts that hold the same stages are one card with a count where there are many (`MANY`).
Loads are those of `account.links`: of the rank that determines the step, in the collectives that wait for that link most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from shardwright.hardware.cluster import Cluster
from shardwright.hardware.mesh import parse_ranks
from shardwright.hardware.network_levels import levels_of
from shardwright.planner.report import words
from shardwright.planner.report.html import svg
from shardwright.planner.report.html.picture import Legend, Picture, Table

MANY = 96
"""Hosts that are drawn one by one."""

CELL, PAD, HEAD, FOOT = 20.0, 8.0, 20.0, 22.0
COLUMNS = 8
LOADS = (0.05, 0.2, 0.4, 0.7)
"""Where the colour of a load changes."""

COLOURS = 12
"""Stage colours before they repeat; a stage has the same colour in every picture of every report."""


def topology_picture(plan: Mapping[str, Any], cluster: Cluster) -> Picture:
    """The picture of one ESTIMATE on its cluster."""
    hosts = _folded(_hosts(plan, cluster))
    links = _links(plan, cluster)
    data = {"hosts": hosts, "links": links, "levels": _levels(cluster, plan)}
    count = len(hosts)
    across = max(1, min(count, int(960 // (card_width(hosts) + 12))))
    rows = -(-count // across)
    body = svg.many(_placed(host, links, index, across) for index, host in enumerate(hosts))
    stages = len(plan["stages"])
    return Picture(
        id="topology",
        title="Where it runs",
        caption=f"{words.many(cluster.nodes, 'host')}, {words.many(cluster.gpus, 'GPU')} in all; a square is a GPU with the "
        "number of its pipeline stage. Bars below the squares: share of the step in which the links inside a host (above) and "
        "out of it (below) are busy.",
        data=data,
        body=body,
        height=rows * (card_height(hosts) + 12),
        legend=[Legend(class_=stage_class(i), label=_stages(i, stages)) for i in range(min(stages, COLOURS))],
        table=Table(
            columns=("link", "busy", "of the step", "bytes a rank sends", "axes"),
            rows=[_link_row(link) for link in links],
        ),
        note=_note(data),
    )


def stage_class(stage: int | None) -> str:
    """The CSS class that colours a stage."""
    return "s-none" if stage is None else f"s-{stage % COLOURS}"


def load_class(share: float | None) -> str:
    """The CSS class of a load."""
    return "l-none" if share is None else f"l-{sum(share >= limit for limit in LOADS)}"


def cards(picture: Picture) -> list[dict[str, Any]]:
    """One drawing a host, for a page that arranges them by its width."""
    hosts, links = picture.data["hosts"], picture.data["links"]
    return [{"host": host, "label": _said(host), "svg": _card(host, links)} for host in hosts]


def _hosts(plan: Mapping[str, Any], cluster: Cluster) -> Iterator[dict[str, Any]]:
    stage_of = np.full(cluster.gpus, -1, dtype=np.int64)
    for stage in plan["stages"]:
        ranks = parse_ranks(stage["ranks"])
        stage_of[ranks[ranks < cluster.gpus]] = stage["index"]
    named = [host for group in cluster.groups for host in group.hosts]
    placed = (plan.get("placement") or {}).get("hosts") or named
    first = index = 0
    for group in cluster.groups:
        for _ in range(group.count):
            own = stage_of[first : first + group.gpus_per_node].tolist()
            name = placed[index] if index < len(placed) else f"node {index}"
            yield {
                "index": index,
                "name": name,
                "count": 1,
                "first_rank": first,
                "node": group.node.id,
                "stages": [None if s < 0 else s for s in own],
            }
            first, index = first + group.gpus_per_node, index + 1


def _folded(hosts: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours alike as one where there are more than `MANY`."""
    every = list(hosts)
    if len(every) <= MANY:
        return every
    made: list[dict[str, Any]] = []
    for host in every:
        if made and made[-1]["stages"] == host["stages"] and made[-1]["node"] == host["node"]:
            made[-1] = made[-1] | {"count": made[-1]["count"] + 1}
        else:
            made.append(host)
    return made


def _links(plan: Mapping[str, Any], cluster: Cluster) -> list[dict[str, Any]]:
    """Loads by link, busiest first, with the axes that wait for it and where in a host it is."""
    node = cluster.groups[0].node
    where = {node.scaleup_fabric: "scale-up", node.fabric: "network"}
    found = []
    for link in plan["account"].get("links", []):
        rows = [row for row in plan["communication"] if row["bottleneck_link"] == link["link"]]
        axes = list(dict.fromkeys(row["axis"] for row in rows))
        place = where.get(link["link"], "network" if link["link"].startswith("uplinks") else "host")
        found.append({**link, "axes": axes, "place": place})
    return found


def _levels(cluster: Cluster, plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Groups of hosts below switches: name of the level, places, and the least rate out of one."""
    placed = {level["name"]: level for level in (plan.get("placement") or {}).get("levels", [])}
    made = []
    for level in levels_of(cluster):
        rates = level.bytes_per_s[np.isfinite(level.bytes_per_s)]
        crossing = placed.get(level.name, {}).get("crossing_bytes")
        least = float(rates.min()) if len(rates) else None
        made.append({"name": level.name, "places": len(level.labels), "least_bytes_per_s": least, "crossing_bytes": crossing})
    return made


def _link_row(link: Mapping[str, Any]) -> tuple[str, ...]:
    share = words.percent(link["utilisation"])
    return (link["link"], words.seconds(link["busy_s"]), share, words.message_size(link["wire_bytes"]), ", ".join(link["axes"]))


def _note(data: Mapping[str, Any]) -> str:
    loads = [f"{link['link']} ({link['place']}) {words.percent(link['utilisation'])}" for link in data["links"]]
    said = [f"Busy share of the step: {', '.join(loads)}."] if loads else []
    levels = [
        f"{level['name']}: {words.many(level['places'], 'group')} of hosts"
        + (f", at least {level['least_bytes_per_s'] / 1e9:,.0f} GB/s out of each" if level["least_bytes_per_s"] else "")
        for level in data["levels"]
    ]
    return " ".join([*said, *(["Switches: " + "; ".join(levels) + "."] if levels else [])])


def card_width(hosts: Sequence[Mapping[str, Any]]) -> float:
    """Pixels of the widest card."""
    widest = max(len(host["stages"]) for host in hosts)
    return 2 * PAD + CELL * max(min(widest, COLUMNS // 2 if widest <= COLUMNS else COLUMNS), 4)


def card_height(hosts: Sequence[Mapping[str, Any]]) -> float:
    """Pixels of the highest card."""
    across = (card_width(hosts) - 2 * PAD) // CELL
    return HEAD + CELL * max(-(-len(host["stages"]) // int(across)) for host in hosts) + FOOT


def _placed(host: Mapping[str, Any], links: Sequence[Mapping[str, Any]], index: int, across: int) -> Markup:
    card = _card(host, links)
    width, height = card_width([host]) + 12, card_height([host]) + 12
    place = {"x": svg.pixels(index % across * width), "y": svg.pixels(index // across * height)}
    return svg.element("svg", card, **place, width=svg.pixels(width), height=svg.pixels(height))


def _card(host: Mapping[str, Any], links: Sequence[Mapping[str, Any]]) -> Markup:
    width, height = card_width([host]), card_height([host])
    across = int((width - 2 * PAD) // CELL)
    name = host["name"] if host["count"] == 1 else f"{host['count']} × like {host['name']}"
    parts = [
        svg.rect("0.5", 0.5, svg.pixels(width - 1), height - 1, "card", rx=4),
        svg.text(_short(name), svg.pixels(PAD), 14, "t small"),
    ]
    for at, stage in enumerate(host["stages"]):
        x, y = PAD + at % across * CELL, HEAD + at // across * CELL
        title = svg.element("title", _gpu(host, at, stage))
        cell = svg.rect(svg.pixels(x + 1), y + 1, svg.pixels(CELL - 2), CELL - 2, f"gpu {stage_class(stage)}", title, rx=2)
        label = words.UNKNOWN if stage is None else stage
        letters = svg.text(label, svg.pixels(x + CELL / 2), y + 14, f"on-{stage_class(stage)} cell", text_anchor="middle")
        parts += [svg.element("g", cell, letters, data_rank=host["first_rank"] + at, data_stage=label)]
    foot = height - FOOT + 5
    for row, place in enumerate(("scale-up", "network")):
        parts += _load(links, place, (PAD, foot + 7 * row, width - 2 * PAD))
    return svg.element("svg", *parts, width=svg.pixels(width), height=svg.pixels(height), role="img", aria_label=_said(host))


def _load(links: Sequence[Mapping[str, Any]], place: str, box: tuple[float, float, float]) -> list[Markup]:
    """The busiest link of a place as a bar."""
    x, y, width = box
    share = max((link["utilisation"] for link in links if link["place"] == place), default=None)
    title = svg.element("title", f"{place}: {words.percent(share)} of the step busy" if share is not None else f"{place}: idle")
    filled = svg.pixels(width * min(share or 0.0, 1.0))
    return [
        svg.rect(svg.pixels(x), y, svg.pixels(width), 5, "track", title),
        svg.rect(svg.pixels(x), y, filled, 5, load_class(share), data_place=place, data_value=repr(share or 0.0)),
    ]


def _stages(first: int, stages: int) -> str:
    """The stages of one colour."""
    return "stage " + ", ".join(map(str, range(first, stages, COLOURS)))


def _short(name: str) -> str:
    return name if len(name) <= 12 else name[:11] + "…"


def _gpu(host: Mapping[str, Any], at: int, stage: int | None) -> str:
    use = "not used" if stage is None else f"stage {stage}"
    return f"{host['name']}, rank {host['first_rank'] + at}: {use}"


def _said(host: Mapping[str, Any]) -> str:
    stages = sorted({stage for stage in host["stages"] if stage is not None})
    what = f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}" if stages else "not used"
    return f"{host['name']}" + (f" and {host['count'] - 1} alike" if host["count"] > 1 else "") + f": {what}"
