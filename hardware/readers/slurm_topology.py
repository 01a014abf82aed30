"""Slurm's `topology.conf`: switches in a tree, or blocks of nodes.

    SwitchName=spine Switches=leaf[1-2]        BlockName=b1 Nodes=node[01-18]
    SwitchName=leaf1 Nodes=node[01-16]         BlockSizes=18,36

Keys may be written in any case, `#` starts a comment, a backslash at the end joins lines. A switch has nodes or switches
below it; the tier of a switch is one more than that of the highest below (`_tiers`). Cables and their rates are not in the
file. Source: Slurm documentation, topology.conf(5) and the topology guide.

    read -> _statements -> _tree (Switch) / _blocks (Block)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.errors import DamagedFileError, ShardwrightError, unknown_name
from shardwright.hardware.hostlist import MAX_NAMES, expand
from shardwright.hardware.readers.base import Reader, Reading, damaged
from shardwright.hardware.topology_records import Block, HostPorts, Network, Switch, Uplink

TITLE = "Slurm topology.conf"
MAX_TIERS = 16
_KEYS = ("SwitchName", "Switches", "Nodes", "LinkSpeed", "BlockName", "BlockSizes")
_BY_LOWER = {key.lower(): key for key in _KEYS}
_PAIR = re.compile(r"([A-Za-z]+)=(\S*)")
_START = re.compile(r"(?im)^[ \t]*(?:SwitchName|BlockName|BlockSizes)[ \t]*=")
_HINT = "write SwitchName=NAME Nodes=LIST, SwitchName=NAME Switches=LIST, or BlockName=NAME Nodes=LIST"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    line: int
    values: Mapping[str, str]


def _detect(text: str) -> bool:
    return _START.search(text) is not None


def read(text: str, source: str) -> Reading:
    """The switches or blocks of a file.

    Raises:
        DamagedFileError: a line or host list that cannot be read, a switch that is missing, named twice or above itself.
        UnknownNameError: a key that topology.conf does not have.
    """
    statements = _statements(text.split("\n"), source)
    switches = {s.values["SwitchName"]: s for s in _unique(statements, "SwitchName", source)}
    blocks = _blocks(_unique(statements, "BlockName", source), source)
    sizes = _sizes(statements, source)
    tree = _tree(switches, source)
    if not tree and not blocks:
        raise DamagedFileError(f"{source} names no switch and no block", where=source, hint=_HINT)
    network = Network(kind="tree" if tree else "blocks", switches=tree, blocks=blocks, block_sizes=sizes)
    if len(network.hosts) > MAX_NAMES:
        raise DamagedFileError(f"{source} names more than {MAX_NAMES:,} nodes", where=source)
    return Reading(network=network)


def _statements(lines: Sequence[str], source: str) -> list[_Statement]:
    made: list[_Statement] = []
    held, start = "", 0
    for number, raw in enumerate(lines, start=1):
        line = raw.split("#", 1)[0].rstrip()
        start = start if held else number
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        whole, held = (held + line).strip(), ""
        if whole:
            made.append(_Statement(line=start, values=_pairs(whole, source, start)))
    if held.strip():
        raise damaged(source, start, "the last line ends in a backslash: the file ends early", _HINT)
    return made


def _pairs(line: str, source: str, number: int) -> dict[str, str]:
    values: dict[str, str] = {}
    end = 0
    spaced = re.sub(r"\s*=\s*", "=", line)
    for match in _PAIR.finditer(spaced):
        between = spaced[end : match.start()].strip()
        if between:
            break
        key = _BY_LOWER.get(match.group(1).lower())
        if key is None:
            raise unknown_name("key", match.group(1), _KEYS, where=f"{source}:{number}")
        if key in values:
            raise damaged(source, number, f"{key} is given twice", _HINT)
        values[key], end = match.group(2), match.end()
    if spaced[end:].strip() or not values:
        raise damaged(source, number, f"{spaced[end:].strip()[:40]!r} is no KEY=VALUE", _HINT)
    if not any(key in values for key in ("SwitchName", "BlockName", "BlockSizes")):
        raise damaged(source, number, "the line names no switch and no block", _HINT)
    return values


def _unique(statements: Sequence[_Statement], key: str, source: str) -> list[_Statement]:
    seen: dict[str, int] = {}
    found = [statement for statement in statements if key in statement.values]
    for statement in found:
        name = statement.values[key]
        if not name:
            raise damaged(source, statement.line, f"{key} is empty", _HINT)
        if name in seen:
            raise damaged(source, statement.line, f"{name} is defined twice, first in line {seen[name]}", "keep one of them")
        seen[name] = statement.line
    return found


def _names(statement: _Statement, key: str, source: str) -> tuple[str, ...]:
    if key not in statement.values:
        return ()
    try:
        return expand(statement.values[key], place=f"{source}:{statement.line}")
    except ShardwrightError as error:
        raise damaged(source, statement.line, error.message, error.hint) from error


# --- blocks -------------------------------------------------------------------------------------------------------


def _blocks(statements: Sequence[_Statement], source: str) -> tuple[Block, ...]:
    owner: dict[str, str] = {}
    made = []
    for statement in statements:
        name, hosts = statement.values["BlockName"], _names(statement, "Nodes", source)
        if not hosts:
            raise damaged(source, statement.line, f"block {name} has no nodes", _HINT)
        for host in hosts:
            if owner.setdefault(host, name) != name:
                raise damaged(source, statement.line, f"{host} is in block {owner[host]} and in {name}", "keep one of them")
        made.append(Block(name=name, hosts=hosts))
    return tuple(made)


def _sizes(statements: Sequence[_Statement], source: str) -> tuple[int, ...]:
    for statement in statements:
        text = statement.values.get("BlockSizes")
        if text is not None:
            if not re.fullmatch(r"[1-9][0-9]{0,6}(?:,[1-9][0-9]{0,6})*", text):
                raise damaged(source, statement.line, f"BlockSizes={text[:40]} is no list of whole numbers", "write 18,36")
            return tuple(int(size) for size in text.split(","))
    return ()


# --- tree ---------------------------------------------------------------------------------------------------------


def _tree(statements: Mapping[str, _Statement], source: str) -> tuple[Switch, ...]:
    below = {name: _names(statement, "Switches", source) for name, statement in statements.items()}
    hosts = {name: _names(statement, "Nodes", source) for name, statement in statements.items()}
    above: dict[str, list[str]] = {name: [] for name in statements}
    for name, children in below.items():
        line = statements[name].line
        if bool(children) == bool(hosts[name]):
            both = "both nodes and switches" if children else "neither nodes nor switches"
            raise damaged(source, line, f"switch {name} has {both} below it", _HINT)
        for child in children:
            if child not in statements:
                raise damaged(source, line, f"switch {child} below {name} is not defined", "is the file complete?")
            above[child].append(name)
    _check_hosts(hosts, statements, source)
    tiers = _tiers(below, statements, source)
    order = sorted(statements, key=lambda name: tiers[name])  # stable: file order within a tier
    return tuple(
        Switch(
            name=name,
            tier=tiers[name],
            ports=(HostPorts(hosts=hosts[name]),) if hosts[name] else (),
            uplinks=tuple(Uplink(to=upper) for upper in above[name]),
        )
        for name in order
    )


def _check_hosts(hosts: Mapping[str, Sequence[str]], statements: Mapping[str, _Statement], source: str) -> None:
    owner: dict[str, str] = {}
    for name, own in hosts.items():
        for host in own:
            if host in owner:
                reason = f"{host} is on switch {owner[host]} and on {name}"
                raise damaged(source, statements[name].line, reason, "a node of a tree hangs on one switch")
            owner[host] = name


def _tiers(below: Mapping[str, Sequence[str]], statements: Mapping[str, _Statement], source: str) -> dict[str, int]:
    """Tier of every switch: 1 at the nodes, one more than the highest below otherwise."""
    tiers: dict[str, int] = {}
    waiting = list(below)
    while waiting:
        ready = [name for name in waiting if all(child in tiers for child in below[name])]
        name = waiting[0]
        if ready and max(tiers.values(), default=0) >= MAX_TIERS:
            raise damaged(source, statements[name].line, f"the tree has more than {MAX_TIERS} levels", "is it a chain?")
        if not ready:
            raise damaged(source, statements[name].line, f"switch {name} is above itself", "a tree has no circles")
        for name in ready:
            tiers[name] = 1 + max((tiers[child] for child in below[name]), default=0)
        waiting = [name for name in waiting if name not in tiers]
    return tiers


READER = Reader(id="slurm-topology", title=TITLE, detect=_detect, read=read)
