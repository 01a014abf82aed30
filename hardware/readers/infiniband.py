"""An InfiniBand fabric from its links: what `ibnetdiscover` and `iblinkinfo` have in common.

    rate of a link = lanes · rate of a lane            (`lane_rate`, `signalling_rate`: data, not signalling)
    host of a card = first word of its description     (`host_of`: "node01 HCA-1", "node01 mlx5_0")
    tier of a switch = 1 with hosts, else one more than its lowest neighbour   (`_tiers`)

A card whose description gives no host (a reduction node inside a switch, a card with its maker's default text) is no host.
Cards of a host are its rails, in their order of name (`fabric_reading`). Sources: InfiniBand Architecture Specification
volume 1 (data rates: 8b/10b up to QDR, 64b/66b above), rdma-core infiniband-diags (formats).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from shardwright.hardware.hostlist import NAME
from shardwright.hardware.readers.base import Adapter, Reading
from shardwright.hardware.readers.text import counted
from shardwright.hardware.topology_records import HostPorts, Network, Switch, Uplink

GBIT = 1e9 / 8
LANE_GBIT: Mapping[str, float] = {
    "SDR": 2.0,
    "DDR": 4.0,
    "QDR": 8.0,
    "FDR10": 10.0,
    "FDR": 13.64,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
"""Data rate of one lane by the name of its speed."""
SIGNALLING_GBIT: Mapping[str, str] = {
    "2.5": "SDR",
    "5.0": "DDR",
    "10.0": "QDR",
    "10.3125": "FDR10",
    "14.0625": "FDR",
    "25.78125": "EDR",
    "53.125": "HDR",
    "106.25": "NDR",
    "212.5": "XDR",
}
_NO_HOST = re.compile(r"(?i)mellanox|nvidia|aggregation|quantum|connectx|MT[0-9]{3,}|infiniscale|localhost|unknown|sharp")
_ADAPTER = re.compile(r"(?i)aggregation|HCA-[0-9]|mlx[0-9]+_|connectx|connect-x")
_CARD = re.compile(r"(?i)(?:HCA-[0-9]+|[a-z]+[0-9]*_(?:bond_)?[0-9]+|ibp?[0-9][a-z0-9]*|opa[0-9]*|hfi1_[0-9]+)(?::[0-9]+)?")


def lane_rate(width: int, speed: str) -> float | None:
    """Bytes a second of a link such as 4 lanes of ``HDR``; None for a speed that the tool could not name."""
    lane = LANE_GBIT.get(speed.upper())
    return None if lane is None else width * lane * GBIT


def signalling_rate(width: int, gbit: str) -> float | None:
    """Bytes a second of a link given by the signalling rate of a lane in Gb/s, such as 4 of ``25.78125``."""
    name = SIGNALLING_GBIT.get(gbit) or SIGNALLING_GBIT.get(gbit + ".0")
    return None if name is None else width * LANE_GBIT[name] * GBIT


def host_of(description: str) -> tuple[str, str] | None:
    """Host and card of an adapter's description; None where it names no host."""
    words = description.strip().strip("'").split()
    if not words or len(words) > 2 or _NO_HOST.search(description) or not NAME.fullmatch(words[0]):
        return None
    if len(words) == 1:
        return None if _CARD.fullmatch(words[0]) else (words[0], "HCA-1")
    return (words[0], words[1]) if _CARD.fullmatch(words[1]) else None


def is_adapter(description: str) -> bool:
    """Whether a description is that of an adapter, in a host or inside a switch, rather than of a switch."""
    return host_of(description) is not None or _ADAPTER.search(description) is not None


def nameless_notes(nameless: Sequence[str], source: str) -> list[str]:
    """What to say of adapters without host name; those inside switches show that the network can reduce."""
    if not nameless:
        return []
    notes = [f"{source}: {counted(len(nameless), 'adapter')} without a host name left out, such as {nameless[0][:60]!r}"]
    if any("aggregation" in description.lower() for description in nameless):
        notes.append(f"{source}: switches hold reduction nodes (SHARP); write in_switch_reduction: true if jobs use them")
    return notes


def switch_names(descriptions: Mapping[str, str]) -> dict[str, str]:
    """Key → a name that no other switch has: its description, with the key where several share one."""
    plain = {key: "".join(c for c in text if c.isprintable()).strip()[:150] or key for key, text in descriptions.items()}
    often = Counter(plain.values())
    return {key: name if often[name] == 1 else f"{name} {key}" for key, name in plain.items()}


def fabric_reading(
    names: Mapping[str, str],
    cables: Iterable[tuple[str, str, float | None]],
    adapters: Sequence[Adapter],
    notes: Sequence[str],
) -> Reading:
    """The reading of a fabric.

    Args:
        names: key of every switch → its name.
        cables: (switch, switch, rate) of every cable between switches, once.
        adapters: ports of hosts; `Adapter.switch` is a key.
        notes: what the reader has to say.
    """
    bundles = Counter((min(a, b), max(a, b), rate) for a, b, rate in cables if a != b)
    rails = rail_numbers(adapters)
    ports = _ports(adapters, rails)
    tiers = _tiers(names, bundles, ports)
    uplinks: dict[str, list[Uplink]] = defaultdict(list)
    for (a, b, rate), links in bundles.items():
        low, high = (a, b) if tiers[a] <= tiers[b] else (b, a)
        uplinks[low].append(Uplink(to=names[high], links=links, bytes_per_s=rate))
    switches = tuple(
        Switch(name=names[key], tier=tiers[key], ports=ports.get(key, ()), uplinks=_by_name(uplinks.get(key, [])))
        for key in sorted(names, key=lambda k: (tiers[k], _natural(names[k])))
    )
    named = tuple(Adapter(host=a.host, name=a.name, switch=names[a.switch], bytes_per_s=a.bytes_per_s) for a in adapters)
    return Reading(network=Network(switches=switches), adapters=named, fabric="infiniband", notes=tuple(notes))


def rail_numbers(adapters: Iterable[Adapter]) -> dict[str, int] | None:
    """Card → rail, in the order of the cards' names; None where all hosts have one card, or hosts have different ones."""
    cards: dict[str, set[str]] = defaultdict(set)
    for adapter in adapters:
        cards[adapter.host].add(adapter.name)
    most = max(cards.values(), key=len, default=set())
    if len(most) < 2 or any(not own <= most for own in cards.values()):
        return None
    return {name: rail for rail, name in enumerate(sorted(most, key=_natural))}


def _ports(adapters: Sequence[Adapter], rails: Mapping[str, int] | None) -> dict[str, tuple[HostPorts, ...]]:
    """Switch → its hosts, those with the same rail, rate and number of links together."""
    links = Counter((a.switch, a.host, rails[a.name] if rails else None, a.bytes_per_s) for a in adapters)
    together: dict[tuple[str, int | None, float | None, int], list[str]] = defaultdict(list)
    for (switch, host, rail, rate), count in links.items():
        together[switch, rail, rate, count].append(host)
    made: dict[str, list[HostPorts]] = defaultdict(list)
    for (switch, rail, rate, count), hosts in together.items():
        ordered = tuple(sorted(set(hosts), key=_natural))
        made[switch].append(HostPorts(hosts=ordered, rail=rail, links=count, bytes_per_s=rate))
    return {switch: tuple(sorted(own, key=_port_order)) for switch, own in made.items()}


def _port_order(port: HostPorts) -> tuple[int, list[tuple[int, int, str]], float]:
    return (-1 if port.rail is None else port.rail, _natural(port.hosts[0]), port.bytes_per_s or 0.0)


def _tiers(
    names: Mapping[str, str], bundles: Iterable[tuple[str, str, float | None]], ports: Mapping[str, object]
) -> dict[str, int]:
    near: dict[str, set[str]] = defaultdict(set)
    for a, b, _ in bundles:
        near[a].add(b)
        near[b].add(a)
    tiers = dict.fromkeys((key for key in names if key in ports), 1) or dict.fromkeys(names, 1)
    front, tier = list(tiers), 1
    while front:
        tier = min(tier + 1, 64)
        front = [key for key in dict.fromkeys(other for done in front for other in near[done]) if key not in tiers]
        tiers.update(dict.fromkeys(front, tier))
    return tiers | {key: 1 for key in names if key not in tiers}


def _by_name(uplinks: list[Uplink]) -> tuple[Uplink, ...]:
    return tuple(sorted(uplinks, key=lambda u: (_natural(u.to), u.bytes_per_s or 0.0)))


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Sorts n2 before n10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"([0-9]{1,18})", text) if part]
