"""Network topologies in YAML: Slurm's `topology.yaml`, and the cluster models of topograph.

    - topology: t1                            switches:
      tree:                                     spine1: {switches: [leaf1, leaf2]}
        switches:                             blocks:
          - {switch: spine, children: leaf[1-2]}  - switch: leaf1
          - {switch: leaf1, nodes: node[01-16]}     nodes: [node[01-18]]
                                                    annotations: {…/domain: nvl1}

Both are turned into the statements of `topology.conf` and read as those (`shardwright.hardware.readers.slurm_topology`), so
that names, circles and missing switches are checked in one place. Of several topologies the one marked as default counts,
else the first. Sources: Slurm documentation, topology.yaml(5); NVIDIA/topograph, tests/models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.documents import MAX_DEPTH, YAML_LIMIT_CHARACTERS
from shardwright.errors import DamagedFileError
from shardwright.hardware.hostlist import compress, expand
from shardwright.hardware.readers import slurm_topology
from shardwright.hardware.readers.base import Reader, Reading
from shardwright.yaml_reader import read_yaml

TITLE = "topology.yaml of Slurm, or a topograph model"
_START = re.compile(r"(?m)^(?:-\s+topology:|switches:|blocks:)")
_HINT = "give the file as Slurm or topograph reads it"


def _detect(text: str) -> bool:
    return _START.search(text) is not None and "groups:" not in text


def read(text: str, source: str) -> Reading:
    """The switches and blocks of a file.

    Raises:
        DamagedFileError: not YAML, of neither form, or with switches that do not make a tree.
    """
    if len(text) > YAML_LIMIT_CHARACTERS:
        raise DamagedFileError(f"{source} has more than {YAML_LIMIT_CHARACTERS:,} characters", where=source, hint=_HINT)
    data, _ = read_yaml(text, source, max_depth=MAX_DEPTH)
    lines = _slurm(_list(data, "topologies", source), source) if isinstance(data, list) else _topograph(data, source)
    return slurm_topology.read("\n".join(lines), source)


def _slurm(topologies: Sequence[Any], source: str) -> list[str]:
    entries = [_mapping(entry, "a topology", source) for entry in topologies]
    chosen = next((e for e in entries if e.get("cluster_default") is True), entries[0] if entries else {})
    lines: list[str] = []
    tree, block = chosen.get("tree"), chosen.get("block")
    for entry in _list(_mapping(tree or {}, "tree", source).get("switches"), "switches", source):
        values = _mapping(entry, "a switch", source)
        below = [
            f"{key}={_text(values[name], source)}"
            for name, key in (("children", "Switches"), ("nodes", "Nodes"))
            if name in values
        ]
        lines.append(" ".join([f"SwitchName={_text(values.get('switch'), source)}", *below]))
    blocks = _mapping(block or {}, "block", source)
    for entry in _list(blocks.get("blocks"), "blocks", source):
        values = _mapping(entry, "a block", source)
        lines.append(f"BlockName={_text(values.get('block'), source)} Nodes={_text(values.get('nodes'), source)}")
    sizes = _list(blocks.get("block_sizes"), "block_sizes", source)
    return [*lines, *([f"BlockSizes={','.join(str(size) for size in sizes)}"] if sizes else [])]


def _topograph(data: object, source: str) -> list[str]:
    top = _mapping(data, "the file", source)
    below: dict[str, list[str]] = {}
    for name, entry in _mapping(top.get("switches") or {}, "switches", source).items():
        below[name] = [_text(child, source) for child in _list(_mapping(entry, name, source).get("switches"), name, source)]
    leaves: dict[str, list[str]] = {}
    domains: dict[str, list[str]] = {}
    for entry in _list(top.get("blocks"), "blocks", source):
        values = _mapping(entry, "a block", source)
        nodes = [host for text in _list(values.get("nodes"), "nodes", source) for host in expand(_text(text, source))]
        if values.get("switch") is not None:
            leaves.setdefault(_text(values["switch"], source), []).extend(nodes)
        domain = _domain(_mapping(values.get("annotations") or {}, "annotations", source))
        if domain is not None:
            domains.setdefault(_text(domain, source), []).extend(nodes)
    used = _above(below, set(leaves))
    lines = [f"SwitchName={name} Switches={','.join(c for c in below[name] if c in used)}" for name in below if name in used]
    lines += [f"SwitchName={name} Nodes={compress(hosts)}" for name, hosts in leaves.items()]
    return lines + [f"BlockName={name} Nodes={compress(hosts)}" for name, hosts in domains.items()]


def _above(below: Mapping[str, Sequence[str]], leaves: set[str]) -> set[str]:
    """Leaves, and switches with a leaf somewhere below; what has none, as spines of an unused part, is left out."""
    used, size = set(leaves), -1
    while len(used) > size:
        size = len(used)
        used |= {name for name, children in below.items() if used.intersection(children)}
    return used


def _domain(annotations: Mapping[str, Any]) -> object:
    return next((value for key, value in annotations.items() if key.endswith("/domain") or key == "domain"), None)


def _mapping(value: object, what: str, source: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise DamagedFileError(f"{source}: {what} is no mapping", where=source, hint=_HINT)
    return value


def _list(value: object, what: str, source: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise DamagedFileError(f"{source}: {what} is no list", where=source, hint=_HINT)
    return value


def _text(value: object, source: str) -> str:
    if not isinstance(value, (str, int)) or isinstance(value, bool) or not re.fullmatch(r"[^\s=#\\]{1,1000000}", str(value)):
        raise DamagedFileError(f"{source}: {str(value)[:40]!r} is no name", where=source, hint=_HINT)
    return str(value)


READER = Reader(id="topology-yaml", title=TITLE, detect=_detect, read=read)
