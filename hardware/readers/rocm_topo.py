"""`rocm-smi --showtopo`: weights, hops and kinds of the links between AMD GPUs, and their memory domains.

    ===== Link Type between two GPUs =====          ===== Numa Nodes =====
           GPU0         GPU1                        GPU[0]  : (Topology) Numa Node: 0
    GPU0   0            XGMI                        GPU[1]  : (Topology) Numa Node: 1
    GPU1   XGMI         0

A pair linked by XGMI over one hop is wired directly; what is further away lies in the same island over others. Network
cards are not listed. Source: ROCm System Management Interface, command line documentation.

    read -> _sections -> _square (one table) -> _machine
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from shardwright.errors import DamagedFileError
from shardwright.hardware.readers.base import Machine, Reader, Reading, damaged
from shardwright.hardware.readers.links import islands_of
from shardwright.hardware.readers.rails import linked
from shardwright.hardware.readers.text import by_host
from shardwright.hardware.topology_records import Groups, NodeLayout

TOOL = "rocm-smi --showtopo"
MAX_GPUS = 256
_AGAIN = f"run `{TOOL}` again and give all of its output"
_TITLE = re.compile(r"=+\s*(.*?)\s*=+")
_GPU = re.compile(r"GPU([0-9]+)")
_NUMA = re.compile(r"GPU\[([0-9]+)\]\s*:\s*\(Topology\)\s*Numa (Node|Affinity):\s*(-?[0-9]+|N/A)")
_LINK_TYPES = {"XGMI", "PCIE", "PCIe", "0", "N/A", "X", "UNKNOWN"}


def _detect(text: str) -> bool:
    return "Link Type between two GPUs" in text or "(Topology) Numa Node" in text or "Hops between two GPUs" in text


def read(text: str, source: str) -> Reading:
    """The machines of a file.

    Raises:
        DamagedFileError: a table that is missing, not square, not symmetric, or holds an unknown word.
    """
    made = [_machine(part, source, host) for host, part in by_host(text).items()]
    return Reading(machines=tuple(made))


def _machine(text: str, source: str, host: str | None) -> Machine:
    sections = _sections(text.split("\n"))
    kinds = _square(sections, "Link Type between two GPUs", source)
    hops = _square(sections, "Hops between two GPUs", source, required=False)
    if hops is not None and kinds is not None and len(hops) != len(kinds):
        raise DamagedFileError(f"{source}: the tables are of {len(hops)} and {len(kinds)} GPUs", where=source, hint=_AGAIN)
    size = len(kinds or ())
    xgmi = [[_is_xgmi(kinds, a, b) for b in range(size)] for a in range(size)]
    links = [[int(xgmi[a][b] and (hops is None or hops[a][b] == "1")) for b in range(size)] for a in range(size)]
    found = islands_of(links)
    groups = linked(xgmi)
    sockets = _sockets(sections, size, source)
    return Machine(
        layout=NodeLayout(islands=groups, link_counts=found.counts, sockets=sockets),
        gpus=size,
        source=f"{TOOL} ({source})",
        host=host,
        link_kind="xgmi",
        links=tuple(tuple(row) for row in links),
        links_of_gpu=found.links_of_gpu,
        direct=found.links_of_gpu is not None,
    )


def _is_xgmi(kinds: Sequence[Sequence[str]] | None, a: int, b: int) -> bool:
    return kinds is not None and a != b and kinds[a][b] == "XGMI"


def _sections(lines: Sequence[str]) -> dict[str, list[tuple[int, str]]]:
    """Title → its lines, numbered from 1."""
    found: dict[str, list[tuple[int, str]]] = {}
    title = ""
    for number, line in enumerate(lines, start=1):
        match = _TITLE.fullmatch(line.strip())
        if match:
            title = match.group(1)
        elif line.strip():
            found.setdefault(title, []).append((number, line))
    return found


def _square(
    sections: Mapping[str, Sequence[tuple[int, str]]], title: str, source: str, *, required: bool = True
) -> list[list[str]] | None:
    """The cells of a table, [gpu][gpu]; None where it is not there and need not be.

    Raises:
        DamagedFileError: the table is missing, not square, not symmetric, or holds an unknown word.
    """
    lines = sections.get(title)
    if not lines:
        if required:
            raise DamagedFileError(f"{source} lacks the table {title!r}", where=source, hint=_AGAIN)
        return None
    first, header = lines[0]
    names = header.split()
    if not names or len(names) > MAX_GPUS or names != [f"GPU{index}" for index in range(len(names))]:
        raise damaged(source, first, f"the header of {title!r} does not name GPU0, GPU1, ... in order", _AGAIN)
    rows = [_cells(row, names, position, title, source) for position, row in enumerate(lines[1 : len(names) + 1])]
    if len(rows) != len(names):
        raise damaged(
            source, lines[-1][0], f"{title!r} has {len(rows)} rows for {len(names)} GPUs: the file ends early", _AGAIN
        )
    for a, row in enumerate(rows):
        for b, cell in enumerate(row):
            if cell != rows[b][a] and a != b:
                reason = f"cell GPU{a}/GPU{b} of {title!r} is {cell}, its mirror {rows[b][a]}"
                raise damaged(source, lines[a + 1][0], reason, _AGAIN)
    return rows


def _cells(line: tuple[int, str], names: Sequence[str], position: int, title: str, source: str) -> list[str]:
    number, text = line
    words = text.split()
    if words[0] != names[position]:
        raise damaged(source, number, f"{words[0][:20]!r} stands where row {names[position]} of {title!r} is due", _AGAIN)
    if len(words) - 1 != len(names):
        reason = f"row {words[0]} of {title!r} has {len(words) - 1} cells for {len(names)} GPUs"
        raise damaged(source, number, reason, _AGAIN)
    for column, word in enumerate(words[1:]):
        if not (word in _LINK_TYPES or word.isdigit()):
            raise damaged(source, number, f"cell {words[0]}/GPU{column} of {title!r} is {word[:20]!r}", _AGAIN)
    return words[1:]


def _sockets(sections: Mapping[str, Sequence[tuple[int, str]]], size: int, source: str) -> Groups | None:
    """GPUs by memory domain; None where the section is missing.

    Raises:
        DamagedFileError: the section names some GPUs only.
    """
    nodes: dict[int, str] = {}
    last = 0
    for number, line in sections.get("Numa Nodes", ()):
        match = _NUMA.fullmatch(line.strip())
        if not match:
            raise damaged(source, number, f"{line.strip()[:40]!r} is no line of `Numa Nodes`", _AGAIN)
        last = number
        if match.group(2) == "Node":
            nodes[int(match.group(1))] = match.group(3)
    if not nodes:
        return None
    if set(nodes) != set(range(size)):
        raise damaged(source, last, f"`Numa Nodes` names {len(nodes)} of {size} GPUs: the file ends early", _AGAIN)
    if any(node in ("-1", "N/A") for node in nodes.values()):
        return None
    groups: dict[str, list[int]] = {}
    for gpu in sorted(nodes):
        groups.setdefault(nodes[gpu], []).append(gpu)
    return tuple(tuple(group) for group in groups.values())


READER = Reader(id="rocm-smi-topo", title=TOOL, detect=_detect, read=read)
