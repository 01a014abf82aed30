"""Presets by name, and what ``--cluster`` accepts: ``NODE:COUNT``, ``NODE:COUNTxG``, or the path of a cluster YAML.

A name is looked up as written, then in lower case with ``_`` and blanks as hyphens, then among the aliases that the
preset files list. Presets are read through `importlib.resources`, each once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shardwright import documents
from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError, unknown_name
from shardwright.hardware.cluster import MAX_NODES, Cluster, Node, NodeGroup
from shardwright.hardware.device import Device
from shardwright.hardware.fabric import checked_fabrics
from shardwright.hardware.hostlist import expand
from shardwright.hardware.links import fabric_of_device
from shardwright.hardware.network_presets import load_network, shape_from, with_network
from shardwright.hardware.topology_records import Excluded, Network

_FORM = (
    "write NODE:COUNT (dgx-h100:16), NODE:COUNTxG with G usable GPUs a node (dgx-a100-80g:1x7), or the path of a cluster YAML"
)
_COUNT = re.compile(r"([0-9]+)(?:[xX]([0-9]+))?")
_ALIASES = re.compile(r"(?m)^aliases:\s*\[(.*)\]\s*$")
_PCI_IDS = re.compile(r"(?m)^pci_ids:\s*\[(.*)\]\s*$")
GENERIC_SCALEUP = "generic-scaleup"
FILE_SUFFIXES = (".yaml", ".yml", ".json")


def node_ids() -> tuple[str, ...]:
    """Ids of all node presets, sorted."""
    return _ids("nodes")


def device_ids() -> tuple[str, ...]:
    """Ids of all device presets, sorted."""
    return _ids("devices")


def load_device(name: str) -> Device:
    """The device preset of a name or alias.

    Raises:
        UnknownNameError: no such preset (nearest names offered).
    """
    return _device(_resolved("devices", "device preset", name))


def load_node(name: str) -> Node:
    """The node preset of a name or alias.

    Raises:
        UnknownNameError: no such preset (nearest names offered).
    """
    return _node(_resolved("nodes", "node preset", name))


def device_of_pci_id(pci_id: str) -> str | None:
    """The device preset of a PCI ``vendor:device`` in hexadecimal (PCI ID Repository, pci-ids.ucw.cz); None without one."""
    return _listed("devices", _PCI_IDS).get(pci_id.lower())


def load_cluster(text: str, *, fills: Mapping[str, Any] | None = None) -> Cluster:
    """The cluster that a command line names.

    Args:
        text: ``NODE:COUNT``, ``NODE:COUNTxG``, or the path of a cluster YAML or JSON file.
        fills: values for what a file leaves null, see `read_cluster`.

    Raises:
        InvalidValueError: neither of these forms, or a count out of range.
        UnknownNameError: no such node preset, or an unknown key in the file.
        DamagedFileError: a file that cannot be read.
    """
    given = text.strip()
    if given.lower().endswith(FILE_SUFFIXES):
        return read_cluster(Path(given), fills=fills)
    name, colon, count = given.rpartition(":")
    if not colon:
        raise _no_count(given)
    match = _COUNT.fullmatch(count.strip())
    if not match:
        raise InvalidValueError(f"{_short(count)} in {_short(given)} is no count of nodes", where="cluster", hint=_FORM)
    found = _named_node(name.strip(), given)
    nodes = _bounded(match.group(1), MAX_NODES, f"{_short(given)} asks for {{}} nodes")
    usable = (
        _bounded(match.group(2), found.gpus, f"{_short(given)} asks for {{}} usable GPUs a node")
        if match.group(2)
        else found.gpus
    )
    shown = f"{found.id}:{nodes}" + (f"x{usable}" if match.group(2) else "")
    return Cluster(name=shown, groups=(NodeGroup(node=found, count=nodes, gpus_per_node=usable),))


def read_cluster(path: Path, *, fills: Mapping[str, Any] | None = None) -> Cluster:
    """The cluster of a YAML or JSON file.

    Args:
        path: the file.
        fills: values for what the file leaves null: ``node`` (a preset), ``device`` (a preset), or any field of a node.

    Raises:
        DamagedFileError: the file cannot be read as such.
        UnknownNameError: an unknown key or preset, with its line.
        InvalidValueError: a value out of range, or a node or device that is null and not given here, with its line.
    """
    return _from_document(documents.read_document(path), fills or {})


def cluster_from_dict(data: Mapping[str, Any]) -> Cluster:
    """The cluster of `Cluster.to_dict` or of the content of a cluster YAML.

    Raises:
        UnknownNameError: an unknown key or preset.
        InvalidValueError: a value missing or out of range.
    """
    plain = dict(data)
    return _from_document(documents.Document(data=plain, source="cluster", text=""))


def write_cluster(cluster: Cluster) -> str:
    """The YAML text of a cluster; reading it gives an equal cluster."""
    return documents.yaml_text(cluster.to_dict())


def node_from_dict(data: Mapping[str, Any]) -> Node:
    """A node given inline: all its fields, or ``base`` (a preset) and the fields that differ; the device by name or inline.

    Raises:
        UnknownNameError: an unknown key or preset.
        InvalidValueError: a value missing or out of range.
    """
    values = dict(data)
    base = values.pop("base", None)
    if base is not None:
        preset = load_node(str(base)).to_dict()
        values = {**preset, "id": f"{preset['id']}-changed" if values else preset["id"], **values}
    device = values.get("device")
    if isinstance(device, str):
        values["device"] = load_device(device)
    elif isinstance(device, Mapping):
        values["device"] = device_from_dict(device)
    values.setdefault("id", "inline")
    return checked_fabrics(Node.from_dict(_with_device_defaults(values)))


def device_from_dict(data: Mapping[str, Any]) -> Device:
    """A device given inline: all its fields, or ``base`` (a preset) and the fields that differ.

    Raises:
        UnknownNameError: an unknown key or preset.
        InvalidValueError: a value missing or out of range.
    """
    values = dict(data)
    base = values.pop("base", None)
    if base is not None:
        preset = load_device(str(base)).to_dict()
        values = {**preset, "id": f"{preset['id']}-changed" if values else preset["id"], **values}
    return Device.from_dict(values)


def _from_document(document: documents.Document, fills: Mapping[str, Any] = MappingProxyType({})) -> Cluster:
    from shardwright.hardware.schema import ClusterFile

    checked = documents.validate(ClusterFile, document)
    if "node" in fills and all(known_whole(group.node_data()) for group in checked.groups):
        message = f"{document.source} names every node; {fills['node']} is not needed"
        hint = "set the fields that differ, such as cluster.internode_bytes_per_s"
        raise InvalidValueError(message, where="cluster.node", hint=hint)
    groups = []
    for index, group in enumerate(checked.groups):
        with _placed(document, "groups", index):
            known = filled_node(group.node_data(), fills)
            groups.append(_group(known, group.count, group.gpus_per_node, group.hosts))
    with _placed(document):
        given = {} if checked.network is None else checked.network.model_dump(exclude_unset=True)
        like, changes = given.pop("like", None), given.pop("but", None)
        excluded = tuple(Excluded.from_dict(entry.model_dump()) for entry in checked.excluded)
        made = Cluster(name=checked.name, groups=tuple(groups), excluded=excluded)
        if like is not None or changes is not None:
            return _on_preset(made, like, changes or {}, given)
        return replace(made, network=Network.from_dict(given)) if checked.network is not None else made


def _on_preset(cluster: Cluster, like: str | None, changes: Mapping[str, Any], given: Mapping[str, Any]) -> Cluster:
    """The cluster on the switches of a network preset."""
    if given:
        key = next(iter(given))
        message = f"network.{key} and a preset are given together"
        raise ConflictError(
            message, where=f"network.{key}", hint="list the switches, or name a preset with what differs from it"
        )
    return with_network(cluster, shape_from(changes, None if like is None else load_network(like)))


@contextmanager
def _placed(document: documents.Document, *keys: str | int) -> Iterator[None]:
    """Adds the line of the document to errors raised inside."""
    try:
        yield
    except ShardwrightError as error:
        error.where = document.place(*keys, *(error.where.split(".") if error.where else ()))
        raise


_NEEDED = {
    "gpus": ("the number of GPUs of a node", "8", "or --set cluster.node=PRESET for all of it"),
    "device": ("the device (accelerator)", "h100-sxm5-80g", "shardwright show devices"),
    "scaleup_domain_gpus": ("the size of a scale-up domain", "8", "1: no scale-up links"),
}
"""Fields that no node can be without, though a file may leave them null: what they are, an example, where to look."""


def filled_node(given: str | Mapping[str, Any] | None, fills: Mapping[str, Any]) -> str | Mapping[str, Any]:
    """A node of a file with what it leaves null filled.

    Args:
        given: preset name, fields, or None.
        fills: values for fields that are null; ``node`` names a preset for all of them. Where the device was null, link
            rates that are null as well follow from the device that is filled in.

    Raises:
        InvalidValueError: the node, its device or the size of its domain stays unknown.
    """
    if given is None:
        if "node" not in fills:
            hint = "add --set cluster.node=dgx-h100, or write a preset for node (shardwright show nodes)"
            raise InvalidValueError("the node is not known", where="node", hint=hint)
        return str(fills["node"])
    if isinstance(given, str) or known_whole(given):
        return given
    preset = load_node(str(fills["node"])).to_dict() if "node" in fills else {}
    known = {key: value if value is not None else fills.get(key, preset.get(key)) for key, value in given.items()}
    for key, (what, example, more) in _NEEDED.items():
        if key in known and known[key] is None:
            hint = f"add --set cluster.{key}={example}, or write it for node.{key} ({more})"
            raise InvalidValueError(f"{what} is not known", where=f"node.{key}", hint=hint)
    if given.get("device") is None:
        known = {**preset, **{key: value for key, value in known.items() if value is not None}, "id": given.get("id", "read")}
        known.setdefault("scaleup_fabric", fabric_of_device(_any_device(known["device"])) or GENERIC_SCALEUP)
    return known


def _any_device(given: Any) -> Device:
    return load_device(given) if isinstance(given, str) else device_from_dict(given)


def known_whole(given: str | Mapping[str, Any] | None) -> bool:
    """Whether a node of a file leaves neither itself nor what it cannot be without null."""
    return given is not None and (isinstance(given, str) or all(given.get(key, key) is not None for key in _NEEDED))


def _group(node: str | Mapping[str, Any], count: int, usable: int | None, hosts: str | None) -> NodeGroup:
    made = load_node(node) if isinstance(node, str) else node_from_dict(node)
    names = () if hosts is None else expand(hosts)
    return NodeGroup(node=made, count=count, gpus_per_node=made.gpus if usable is None else usable, hosts=names)


def _with_device_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fills link rates that a node does not state from its device."""
    device = values.get("device")
    filled = dict(values)
    if isinstance(device, Device):
        filled.setdefault(
            "scaleup_bytes_per_s", device.scaleup_bytes_per_s if filled.get("scaleup_domain_gpus", 1) != 1 else None
        )
        filled.setdefault("host_bytes_per_s", device.pcie_bytes_per_s)
    return filled


def _no_count(given: str) -> ShardwrightError:
    if not given:
        return InvalidValueError("the cluster is empty", where="cluster", hint=_FORM)
    if _exists(given):
        return InvalidValueError(
            f"{_short(given)} is no cluster YAML", where="cluster", hint="cluster files end in .yaml, .yml or .json"
        )
    try:
        node = load_node(given)
    except ShardwrightError as error:
        error.where = "cluster"
        error.hint = f"{error.hint}; {_FORM}"
        return error
    return InvalidValueError(
        f"{_short(given)} has no count of nodes", where="cluster", hint=f"write {node.id}:1 for one node of {node.gpus} GPUs"
    )


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # too long, or a zero byte
        return False


def _named_node(name: str, given: str) -> Node:
    if not name:
        raise InvalidValueError(f"{_short(given)} names no node", where="cluster", hint=_FORM)
    try:
        return load_node(name)
    except ShardwrightError as error:
        error.where = "cluster"
        raise


def _bounded(digits: str, high: int, what: str) -> int:
    value = int(digits) if len(digits) <= 12 else high + 1
    if not 1 <= value <= high:
        raise InvalidValueError(what.format(_short(digits).strip("'")), where="cluster", hint=f"allowed are 1 to {high:,}")
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _ids(folder: str) -> tuple[str, ...]:
    presets = files("shardwright.hardware").joinpath("presets", folder)
    return tuple(sorted(p.name.removesuffix(".yaml") for p in presets.iterdir() if p.name.endswith(".yaml")))


def _resolved(folder: str, kind: str, name: str) -> str:
    known = _ids(folder)
    plain = normalised(name)
    if plain in known:
        return plain
    found = _aliases(folder).get(plain)
    if found is None:
        raise unknown_name(kind, name, known)
    return found


def normalised(name: str) -> str:
    """A name in the style of ids: lower case, blanks, slashes and underscores as hyphens."""
    return re.sub(r"[\s_/]+", "-", name.strip().lower())


def _aliases(folder: str) -> Mapping[str, str]:
    return _listed(folder, _ALIASES)


@lru_cache(maxsize=8)
def _listed(folder: str, line: re.Pattern[str]) -> Mapping[str, str]:
    """Word → id of the preset that lists it, found by looking for one line only: parsing all presets would be slow."""
    found: dict[str, str] = {}
    for name in _ids(folder):
        match = line.search(_text(folder, name))
        for word in match.group(1).split(",") if match else []:
            found[normalised(word.strip().strip("\"'"))] = name
    return found


def _text(folder: str, name: str) -> str:
    return files("shardwright.hardware").joinpath("presets", folder, f"{name}.yaml").read_text(encoding="utf-8")


def _preset(folder: str, name: str) -> dict[str, Any]:
    data = documents.parse_yaml(_text(folder, name), f"presets/{folder}/{name}.yaml").data
    data.pop("aliases", None)
    data.pop("pci_ids", None)
    return data


@lru_cache(maxsize=512)
def _device(name: str) -> Device:
    return Device.from_dict({"id": name, **_preset("devices", name)})


@lru_cache(maxsize=512)
def _node(name: str) -> Node:
    return node_from_dict({"id": name, **_preset("nodes", name)})
