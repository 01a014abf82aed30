"""`ibnetdiscover`: every switch and adapter of an InfiniBand fabric with what hangs on each port.

    Switch  41 "S-<guid>"     # "leaf1" enhanced port 0 lid 3 lmc 0       a switch with 41 ports
    [1]     "H-<guid>"[1](<guid>)   # "node01 HCA-1" lid 1 4xHDR          its port 1: a host
    [2]     "S-<guid>"[3]           # "spine1" lid 5 4xHDR                its port 2: a switch
    Ca      1 "H-<guid>"      # "node01 HCA-1"
    [1](<guid>)  "S-<guid>"[1]      # lid 1 lmc 0 "leaf1" lid 3 4xHDR

Each link is listed from both ends. The rate is that in use. Format: rdma-core, infiniband-diags/ibnetdiscover.c.

    read -> _nodes (paragraphs) -> _check_ends (both ends agree) -> infiniband.fabric_reading
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardwright.errors import DamagedFileError
from shardwright.hardware.readers.base import Adapter, Reader, Reading, damaged
from shardwright.hardware.readers.infiniband import fabric_reading, host_of, lane_rate, nameless_notes, switch_names
from shardwright.hardware.readers.text import counted

TOOL = "ibnetdiscover"
_AGAIN = f"run `{TOOL} > fabric.txt` again and wait until it ends"
_NODE = re.compile(r'(Switch|Ca|Rt)\s+([0-9]+)\s+"([SHR]-[0-9a-fA-F]+)"\s*#\s*"(.*)"(.*)')
_PORT = re.compile(
    r'\[([0-9]+)\](?:\[ext [0-9]+\])?(?:\([0-9a-fA-F]+\))?\s+"([SHR]-[0-9a-fA-F]+)"\[([0-9]+)\]'
    r"(?:\[ext [0-9]+\])?\s*(?:\([0-9a-fA-F]+\))?\s*#\s*(.*)"
)
_RATE = re.compile(r"([0-9]+)x([A-Z0-9?]+)(?:\s|$)")
_OTHER = re.compile(r"(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)=|#|Chassis|Hostname")
_START = re.compile(r'(?m)^(?:Switch|Ca|Rt)\s+[0-9]+\s+"[SHR]-|^(?:switch|ca|rt)guid=0x')


@dataclass(slots=True, kw_only=True)
class _Node:
    kind: str
    guid: str
    description: str
    line: int
    announced: int
    ports: dict[int, tuple[str, int, float | None, int]] = field(default_factory=dict)  # peer, its port, rate, line


def _detect(text: str) -> bool:
    return _START.search(text) is not None


def read(text: str, source: str) -> Reading:
    """The fabric of a file.

    Raises:
        DamagedFileError: a line that cannot be read, a link whose other end is missing or differs, no host.
    """
    nodes = _nodes(text.split("\n"), source)
    _check_ends(nodes, source)
    names = switch_names({n.guid: n.description for n in nodes.values() if n.kind == "Switch"})
    if not names:
        last = max((node.line for node in nodes.values()), default=1)
        raise damaged(source, last, "the file names no switch", _AGAIN)
    cables = [
        (node.guid, peer, rate)
        for node in nodes.values()
        if node.kind == "Switch"
        for port, (peer, other, rate, _) in node.ports.items()
        if nodes[peer].kind == "Switch" and (node.guid, port) < (peer, other)
    ]
    adapters, nameless = _adapters(nodes)
    if not adapters:
        raise DamagedFileError(f"{source} names no host: no adapter says which machine it is in", where=source, hint=_AGAIN)
    return fabric_reading(names, cables, adapters, _notes(nameless, nodes, source))


def _nodes(lines: Sequence[str], source: str) -> dict[str, _Node]:
    nodes: dict[str, _Node] = {}
    current: _Node | None = None
    for number, raw in enumerate(lines, start=1):
        line = raw.strip()
        if not line:
            _closed(current, source)
            current = None
        elif line.startswith("["):
            _add_port(current, line, source, number)
        elif match := _NODE.match(line):
            _closed(current, source)
            kind, announced, guid, description, _ = match.groups()
            if guid in nodes:
                raise damaged(source, number, f"{guid} is listed twice, first in line {nodes[guid].line}", _AGAIN)
            current = _Node(kind=kind, guid=guid, description=description, line=number, announced=int(announced))
            nodes[guid] = current
        elif not _OTHER.match(line):
            raise damaged(source, number, f"{line[:50]!r} is no line of {TOOL}", _AGAIN)
    _closed(current, source)
    if not nodes:
        raise DamagedFileError(f"{source} lists no switch and no adapter", where=source, hint=_AGAIN)
    return nodes


def _closed(node: _Node | None, source: str) -> None:
    """Checks a paragraph that has ended."""
    if node is not None and node.kind == "Ca" and not node.ports:
        ports = "1 port" if node.announced == 1 else f"{node.announced} ports"
        reason = f'adapter {node.guid} ("{node.description}") announces {ports}, and none follows: the file is cut short'
        raise damaged(source, node.line, reason, _AGAIN)


def _add_port(node: _Node | None, line: str, source: str, number: int) -> None:
    match = _PORT.fullmatch(line)
    if node is None or not match:
        reason = "a port without its switch or adapter" if match else f"{line[:50]!r} is no port"
        raise damaged(source, number, reason, _AGAIN)
    port, peer, other, comment = int(match.group(1)), match.group(2), int(match.group(3)), match.group(4)
    if port in node.ports or port > node.announced:
        raise damaged(
            source, number, f"port {port} of {node.guid} is listed twice, or beyond its {node.announced} ports", _AGAIN
        )
    rates = _RATE.findall(comment.rpartition('"')[2])
    if not rates:
        raise damaged(source, number, f"port {port} of {node.guid} has no rate: the line is cut short", _AGAIN)
    node.ports[port] = (peer, other, lane_rate(int(rates[-1][0]), rates[-1][1]), number)


def _check_ends(nodes: Mapping[str, _Node], source: str) -> None:
    """Every link must be listed from both ends."""
    for node in nodes.values():
        for port, (peer, other, _, line) in node.ports.items():
            if peer not in nodes:
                raise damaged(source, line, f"port {port} leads to {peer}, which is not listed", _AGAIN)
            back = nodes[peer].ports.get(other)
            if back is None or back[:2] != (node.guid, port):
                raise damaged(source, line, f"port {port} leads to port {other} of {peer}, which does not lead back", _AGAIN)


def _adapters(nodes: Mapping[str, _Node]) -> tuple[list[Adapter], list[str]]:
    """Ports of hosts, and descriptions of adapters that name none."""
    made: list[Adapter] = []
    nameless: list[str] = []
    for node in nodes.values():
        if node.kind != "Ca":
            continue
        named = host_of(node.description)
        if named is None:
            nameless.append(node.description)
            continue
        made += [
            Adapter(host=named[0], name=named[1], switch=peer, bytes_per_s=rate)
            for peer, _, rate, _ in node.ports.values()
            if nodes[peer].kind == "Switch"
        ]
    return made, nameless


def _notes(nameless: Sequence[str], nodes: Mapping[str, _Node], source: str) -> list[str]:
    notes = nameless_notes(nameless, source)
    unnamed = sum(rate is None for node in nodes.values() for _, _, rate, _ in node.ports.values())
    if unnamed:
        notes.append(f"{source}: {counted(unnamed, 'port')} at a speed that the tool could not name: rate unknown")
    return notes


READER = Reader(id="ibnetdiscover", title=TOOL, detect=_detect, read=read)
