"""`iblinkinfo`: every link of an InfiniBand fabric with the width and signalling rate in use.

    CA: node01 HCA-1:
          0x<guid>      1    1[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>       3    2[  ] "leaf1" ( )
    Switch: 0x<guid> leaf1:
               3    2[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>       1    1[  ] "node01 HCA-1" ( )

Also the one-line form (`-l`). The rate is the one in use: 4X 25.78125 Gb/s is 100 Gb/s of data whatever the switch could do;
what a link could do better stands in the last brackets and is said. A link seen from one end only counts. Links that are
down do not. Format: rdma-core, infiniband-diags/iblinkinfo.c.

    read -> _links (lines) -> _ends (from both sides) -> infiniband.fabric_reading
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.errors import DamagedFileError
from shardwright.hardware.readers.base import Adapter, Reader, Reading, damaged
from shardwright.hardware.readers.infiniband import (
    fabric_reading,
    host_of,
    is_adapter,
    nameless_notes,
    signalling_rate,
    switch_names,
)
from shardwright.hardware.readers.text import counted

TOOL = "iblinkinfo"
_AGAIN = f"run `{TOOL} > links.txt` again and wait until it ends"
_HEADER = re.compile(r"(CA|Switch|Router):\s*(?:0x([0-9a-fA-F]+)\s+)?(.*?):?")
_LINK = re.compile(
    r'(?:(?P<guid>0x[0-9a-fA-F]+)\s+(?:"(?P<own>[^"]*)"\s+)?)?(?P<lid>[0-9]+)\s+(?P<port>[0-9]+)\[\s*[0-9]*\]\s*'
    r"==\((?P<link>[^)]*(?:\([^)]*\)[^)]*)*)\)==>\s*(?P<rest>.*)"
)
_PEER = re.compile(
    r'(?:0x[0-9a-fA-F]+\s+)?(?P<lid>[0-9]+)\s+(?P<port>[0-9]+)\[\s*[0-9]*\]\s*"(?P<name>.*)"\s*\((?P<could>.*)\)'
)
_SPEED = re.compile(r"\s*(?P<width>[0-9]+)X\s+(?P<gbit>[0-9.]+)\s*Gbps\s*(?P<fdr10>\(FDR10\))?\s*(?P<state>[A-Za-z]+)\s*/.*")
_START = re.compile(r"==\(\s*[0-9]+X |==\(.*\)==>")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    """A link from one end."""

    line: int
    kind: str  # of this end: CA, Switch, Router
    name: str
    end: tuple[int, int]  # lid, port
    peer_name: str
    peer: tuple[int, int]
    bytes_per_s: float | None
    could: str


def _detect(text: str) -> bool:
    return _START.search(text) is not None


def read(text: str, source: str) -> Reading:
    """The fabric of a file.

    Raises:
        DamagedFileError: a line that cannot be read, no switch, no host.
    """
    links = _links(text.split("\n"), source)
    switches = {link.end[0]: link.name for link in links if link.kind == "Switch"}
    switches |= {link.peer[0]: link.peer_name for link in links if link.kind == "CA" and not is_adapter(link.peer_name)}
    if not switches:
        raise DamagedFileError(f"{source} names no switch", where=source, hint=_AGAIN)
    keys = {lid: f"lid {lid}" for lid in switches}
    names = switch_names({keys[lid]: name for lid, name in switches.items()})
    cables, adapters, nameless = _ends(links, keys)
    if not adapters:
        raise DamagedFileError(f"{source} names no host: no adapter says which machine it is in", where=source, hint=_AGAIN)
    return fabric_reading(names, cables, adapters, _notes(links, nameless, source))


def _links(lines: Sequence[str], source: str) -> list[_Link]:
    made: list[_Link] = []
    kind, name, started = "", "", 0
    for number, raw in enumerate(lines, start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if "==(" not in line:
            match = _HEADER.fullmatch(line)
            if not match:
                raise damaged(source, number, f"{line[:50]!r} is no line of {TOOL}", _AGAIN)
            kind, name, started = match.group(1), match.group(3), number
            continue
        found = _link(line, kind, name, source, number)
        made += [found] if found else []
        started = 0
    if started:
        raise damaged(source, started, f"nothing follows {kind} {name[:40]}: the file ends early", _AGAIN)
    if not made:
        raise DamagedFileError(f"{source} has no link that is up", where=source, hint=_AGAIN)
    return made


def _link(line: str, kind: str, name: str, source: str, number: int) -> _Link | None:
    """A link of one line; None where it is down.

    Raises:
        DamagedFileError: the line is cut short, or stands below no header.
    """
    match = _LINK.fullmatch(line)
    if not match:
        raise damaged(source, number, f"{line[:50]!r} is no link, or cut short", _AGAIN)
    if "Down" in match["link"] or "Polling" in match["link"] or "Disabled" in match["link"]:
        return None
    speed, peer = _SPEED.fullmatch(match["link"]), _PEER.fullmatch(match["rest"])
    if not peer:
        raise damaged(source, number, "the other end of the link is cut short", _AGAIN)
    if not speed:
        raise damaged(source, number, f"{match['link'].strip()[:40]!r} is no width and speed", _AGAIN)
    own = match["own"]
    if own is None and not kind:
        raise damaged(source, number, "a link without its switch or adapter", _AGAIN)
    gbit = "10.3125" if speed["fdr10"] else speed["gbit"]
    return _Link(
        line=number,
        kind=kind if own is None else ("CA" if is_adapter(own) else "Switch"),
        name=name if own is None else own.strip(),
        end=(int(match["lid"]), int(match["port"])),
        peer_name=peer["name"].strip(),
        peer=(int(peer["lid"]), int(peer["port"])),
        bytes_per_s=signalling_rate(int(speed["width"]), gbit),
        could=peer["could"].strip(),
    )


def _ends(
    links: Sequence[_Link], keys: Mapping[int, str]
) -> tuple[list[tuple[str, str, float | None]], list[Adapter], list[str]]:
    """Cables between switches, ports of hosts, and names of adapters without host; each link once."""
    cables: dict[tuple[tuple[int, int], tuple[int, int]], tuple[str, str, float | None]] = {}
    adapters: dict[tuple[int, int], Adapter] = {}
    nameless: dict[str, None] = {}
    for link in links:
        ends = ((link.end, link.name), (link.peer, link.peer_name))
        on_switch = [place for place, _ in ends if place[0] in keys]
        others = [name for place, name in ends if place[0] not in keys]
        if len(on_switch) == 2:
            a, b = sorted(on_switch)
            cables.setdefault((a, b), (keys[a[0]], keys[b[0]], link.bytes_per_s))
        elif on_switch:
            named = host_of(others[0])
            if named is None:
                nameless[others[0]] = None
            else:
                made = Adapter(host=named[0], name=named[1], switch=keys[on_switch[0][0]], bytes_per_s=link.bytes_per_s)
                adapters.setdefault(on_switch[0], made)
    return list(cables.values()), list(adapters.values()), list(nameless)


def _notes(links: Sequence[_Link], nameless: Sequence[str], source: str) -> list[str]:
    notes = nameless_notes(nameless, source)
    slower = [link for link in links if link.could]
    if slower:
        first, example = slower[0].line, " ".join(slower[0].could.split())[:60]
        notes.append(
            f"{source}: {counted(len(slower), 'link end')} slower than they could be, line {first} the first ({example})"
        )
    return notes


READER = Reader(id="iblinkinfo", title=TOOL, detect=_detect, read=read)
