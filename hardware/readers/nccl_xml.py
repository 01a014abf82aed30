"""NCCL topology XML: what `NCCL_TOPO_DUMP_FILE` wrote, or the file a cloud provider hands to `NCCL_TOPO_FILE`.

    <system><cpu numaid><pci busid class link_speed link_width>  a bridge, a GPU or a card
        <gpu dev sm><nvlink target count tclass/></gpu>          only in dumps
        <nic><net name speed/></nic>                             only in dumps; speed in Mb/s

Provider files have `pci` elements alone: class 0x03… and 0x12… are GPUs, 0x0207… InfiniBand and 0x0200… Ethernet cards. Where
`gpu` or `net` elements stand, they are what counts. Distances follow from the tree (`_distance`), so rails are found as in
`shardwright.hardware.readers.rails`; GPUs are numbered by `dev`, else by bus id. Virtual interfaces and links of 1 Gb/s and
below are no fabric (`_carries`). Link speed times width over 8 is the rate of a PCIe link: 16 GT/s x16 = 32 GB/s, generation
4. A `graphs` file holds what NCCL's search made of a topology; only its number of GPUs is used.

Source: NVIDIA/nccl src/graph/topo.cc and xml.cc (attributes, classes), PCI class codes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from shardwright.errors import DamagedFileError
from shardwright.hardware.readers.base import Machine, Reader, Reading, damaged
from shardwright.hardware.readers.links import Islands, islands_of
from shardwright.hardware.readers.rails import groups_of, rails
from shardwright.hardware.readers.xml_tree import Element, parse_xml
from shardwright.hardware.topology_records import Groups, Nic, NodeLayout

TOOL = "NCCL topology"
MAX_GPUS = 1024
_HINT = "write one with NCCL_TOPO_DUMP_FILE=topo.xml in the environment of any NCCL program"
_GPU_CLASSES = ("0x03", "0x12")
_INFINIBAND, _ETHERNET = "0x0207", "0x0200"
_SWITCH_CLASS = "0x0680"
_SPEED = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*GT/s.*")
_VIRTUAL = re.compile(r"lo|veth.*|br-.*|br[0-9]+|virbr.*|vnet.*|docker.*|tap.*|tun.*|cni.*|flannel.*|cali.*|dummy.*|vxlan.*")
_SLOW_MBIT = 1_000
_MUCH_SLOWER = 4
MBIT = 1e6 / 8
_LANES_TO_BYTES = 1e9 / 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Card:
    """A network card: its name, where it hangs, and its rate in Mb/s."""

    name: str
    at: Element
    mbit: float | None
    pci: Element | None


def _detect(text: str) -> bool:
    head = re.sub(r"(?s)<!--.*?-->|<\?.*?\?>", "", text[:100_000]).lstrip("\ufeff \t\n")
    return head.startswith(("<system", "<graphs", "<!DOCTYPE"))


def read(text: str, source: str) -> Reading:
    """The machine of a file.

    Raises:
        DamagedFileError: not well-formed, no `system` or `graphs`, no GPU, or an attribute that is no number.
    """
    root = parse_xml(text, source)
    if root.tag == "graphs":
        return _graphs(root, source)
    if root.tag != "system":
        raise damaged(source, root.line, f"the outermost element is {root.tag[:40]!r}, not system", _HINT)
    gpus, notes = _gpus(root, source)
    cards = _cards(root, source)
    rail_cards, idle = _fabric_cards(cards)
    sockets = _sockets(gpus)
    nics, far = _rails(rail_cards, gpus, sockets)
    links, found = _islands(gpus, source, notes)
    layout = NodeLayout(
        islands=None if found is None else found.groups,
        link_counts=None if found is None else found.counts,
        pcie_switches=groups_of([[_distance(a, b) for b in gpus] for a in gpus], "PXB"),
        sockets=sockets,
        nics=nics,
        idle_nics=(*far, *idle),
    )
    machine = Machine(
        layout=layout,
        gpus=len(gpus),
        source=f"{TOOL} ({source})",
        link_kind="" if found is None else "nvlink",
        links=links,
        links_of_gpu=None if found is None else found.links_of_gpu,
        direct=found is not None and found.direct,
        pci_id=_pci_id(gpus),
        compute_capability=_compute_capability(gpus, source),
        pcie_bytes_per_s=_narrowest(gpus, source),
        fabric=_fabric(rail_cards),
    )
    return Reading(machines=(machine,), fabric=machine.fabric, notes=tuple(notes))


def _graphs(root: Element, source: str) -> Reading:
    devices = {e.attributes.get("dev") for e in root.walk() if e.tag == "gpu"}
    if not devices:
        raise damaged(source, root.line, "the search result names no GPU", _HINT)
    note = f"{source}: the result of NCCL's search, not a topology: only its {len(devices)} GPUs are counted; {_HINT}"
    machine = Machine(layout=NodeLayout(), gpus=len(devices), source=f"NCCL search result ({source})")
    return Reading(machines=(machine,), notes=(note,))


# --- GPUs ---------------------------------------------------------------------------------------------------------


def _gpus(root: Element, source: str) -> tuple[list[Element], list[str]]:
    """The `pci` elements of the GPUs in the order of their numbers."""
    named = [e for e in root.walk() if e.tag == "gpu"]
    if named:
        devices = [_whole(e, "dev", source) for e in named]
        if len(set(devices)) != len(devices):
            raise damaged(source, named[0].line, "two gpu elements have the same dev", _HINT)
        order = sorted(range(len(named)), key=lambda index: devices[index])
        found = [named[index].parent or named[index] for index in order]
        notes = [] if devices == sorted(range(len(devices))) else [f"{source}: GPUs are numbered in the order of dev"]
    else:
        found = sorted((e for e in root.walk() if _is_class(e, _GPU_CLASSES)), key=lambda e: e.attributes.get("busid", ""))
        notes = [f"{source}: GPUs are told by PCI class alone; they are numbered in the order of their bus ids"]
    if not found:
        raise DamagedFileError(f"{source} holds no GPU, neither by element nor by PCI class 0x03", where=source, hint=_HINT)
    if len(found) > MAX_GPUS:
        raise damaged(source, found[MAX_GPUS].line, f"more than {MAX_GPUS} GPUs", _HINT)
    return found, notes


def _is_class(element: Element, classes: Sequence[str]) -> bool:
    return element.tag == "pci" and element.attributes.get("class", "").lower().startswith(tuple(classes))


def _whole(element: Element, name: str, source: str) -> int:
    value = element.attributes.get(name, "")
    if not re.fullmatch(r"[0-9]{1,9}", value):
        raise damaged(source, element.line, f"{name}={value[:20]!r} of {element.tag} is no whole number", _HINT)
    return int(value)


def _pci_id(gpus: Sequence[Element]) -> str | None:
    """``vendor:device`` where all GPUs have the same, and it is no placeholder."""
    ids = {(e.attributes.get("vendor", ""), e.attributes.get("device", "")) for e in gpus}
    vendor, device = next(iter(ids)) if len(ids) == 1 else ("", "")
    real = vendor not in ("", "0xffff") and device not in ("", "0xffff")
    return f"{vendor}:{device}".replace("0x", "").lower() if real else None


def _compute_capability(gpus: Sequence[Element], source: str) -> int | None:
    found = {
        _whole(child, "sm", source) for e in gpus for child in e.children if child.tag == "gpu" and "sm" in child.attributes
    }
    return found.pop() if len(found) == 1 else None


def _sockets(gpus: Sequence[Element]) -> Groups | None:
    groups: dict[str, list[int]] = {}
    for index, gpu in enumerate(gpus):
        cpu = next((e for e in gpu.ancestors() if e.tag == "cpu"), None)
        if cpu is None:
            return None
        groups.setdefault(cpu.attributes.get("numaid", str(cpu.line)), []).append(index)
    return tuple(tuple(group) for group in groups.values())


def _distance(a: Element, b: Element) -> str:
    """In the words of `nvidia-smi topo`: by the innermost element around both."""
    if a is b:
        return "X"
    around = [a, *a.ancestors()]
    others = [b, *b.ancestors()]
    common = next((e for e in around if any(e is other for other in others)), None)
    if common is None or common.tag not in ("pci", "cpu"):
        return "SYS"
    if common.tag == "cpu":
        return "NODE"
    bridges = max(_steps(a, common), _steps(b, common))
    return "PIX" if bridges <= 1 else "PXB"


def _steps(element: Element, common: Element) -> int:
    """`pci` elements between an element and one around it."""
    steps = 0
    for outer in element.ancestors():
        if outer is common:
            break
        steps += outer.tag == "pci"
    return steps + 1


def _narrowest(gpus: Sequence[Element], source: str) -> float | None:
    """The narrowest PCIe link between any GPU and its CPU; None where some GPU's own link is not stated."""
    rates: list[float] = []
    for gpu in gpus:
        own = _link_rate(gpu, source)
        if own is None:
            return None
        outer = [_link_rate(e, source) for e in gpu.ancestors() if e.tag == "pci"]
        rates.append(min([own, *(rate for rate in outer if rate is not None)]))
    return min(rates)


def _link_rate(element: Element, source: str) -> float | None:
    """Bytes a second of a PCIe link, GT/s times lanes over 8; None where it is not stated."""
    speed, width = element.attributes.get("link_speed", ""), element.attributes.get("link_width", "")
    if not speed or width in ("", "0"):
        return None
    match = _SPEED.fullmatch(speed)
    if not match:
        if "unknown" in speed.lower():
            return None
        raise damaged(source, element.line, f"link_speed={speed[:20]!r} is no speed", "write it as 16 GT/s")
    rate = float(match.group(1)) * _whole(element, "link_width", source) * _LANES_TO_BYTES
    return rate or None


# --- NVLinks ------------------------------------------------------------------------------------------------------


def _islands(gpus: Sequence[Element], source: str, notes: list[str]) -> tuple[Groups | None, Islands | None]:
    """Links of every pair and the islands; None where the file does not speak of links."""
    if not any(child.tag == "gpu" for gpu in gpus for child in gpu.children):
        return None, None
    links, to_switch, selves = _pair_links(gpus, source)
    if selves:
        notes.append(
            f"{source}: GPU {', '.join(selves)} names itself as the end of its NVLinks, which says nothing of partners; "
            "these links are left out"
        )
    on_switch = [index for index, count in enumerate(to_switch) if count]
    for a, b in permutations(on_switch, 2):
        links[a][b] = min(to_switch[a], to_switch[b])
    found = islands_of(links)
    if on_switch:
        found = Islands(groups=found.groups, counts=found.counts, links_of_gpu=max(to_switch), direct=False)
    return tuple(tuple(row) for row in links), found


def _pair_links(gpus: Sequence[Element], source: str) -> tuple[list[list[int]], list[int], list[str]]:
    """Links between every pair, links of each GPU to a switch, and GPUs whose links lead to themselves."""
    number = {gpu.attributes.get("busid", "").lower(): index for index, gpu in enumerate(gpus)}
    links = [[0] * len(gpus) for _ in gpus]
    to_switch = [0] * len(gpus)
    selves: list[str] = []
    for index, link in ((i, e) for i, gpu in enumerate(gpus) for e in gpu.walk() if e.tag == "nvlink"):
        count = _whole(link, "count", source)
        peer = number.get(link.attributes.get("target", "").lower())
        if peer == index:
            selves.append(str(index))
        elif peer is not None:
            links[index][peer] = links[peer][index] = max(links[index][peer], count)
        elif link.attributes.get("tclass", "").startswith(_SWITCH_CLASS):
            to_switch[index] += count
    return links, to_switch, selves


# --- cards --------------------------------------------------------------------------------------------------------


def _cards(root: Element, source: str) -> list[_Card]:
    """All network cards: `net` elements where there are any, else PCI classes."""
    nets = [e for e in root.walk() if e.tag == "net"]
    if not nets:
        found = [e for e in root.walk() if _is_class(e, (_INFINIBAND, _ETHERNET))]
        return [_Card(name=e.attributes.get("busid") or f"nic{i}", at=e, mbit=None, pci=e) for i, e in enumerate(found)]
    cards: dict[str, _Card] = {}
    for net in nets:
        name = net.attributes.get("name") or f"net{net.attributes.get('dev', len(cards))}"
        speed = net.attributes.get("speed", "")
        mbit = float(_whole(net, "speed", source)) if speed else None
        pci = next((e for e in net.ancestors() if e.tag == "pci"), None)
        cards.setdefault(name, _Card(name=name, at=pci or net, mbit=mbit or None, pci=pci))
    return list(cards.values())


def _fabric_cards(cards: Sequence[_Card]) -> tuple[list[_Card], list[str]]:
    """Cards that can carry training traffic, and the names of the others."""
    fastest = max((card.mbit for card in cards if card.mbit is not None and _carries(card, 0.0)), default=0.0)
    kept = [card for card in cards if _carries(card, fastest)]
    return kept, [card.name for card in cards if not _carries(card, fastest)]


def _carries(card: _Card, fastest: float) -> bool:
    """No virtual interface, above 1 Gb/s, and not many times slower than the fastest card."""
    if _VIRTUAL.fullmatch(card.name.lower()):
        return False
    return card.mbit is None or (card.mbit > _SLOW_MBIT and card.mbit * _MUCH_SLOWER >= fastest)


def _rails(cards: Sequence[_Card], gpus: Sequence[Element], sockets: Groups | None) -> tuple[tuple[Nic, ...], tuple[str, ...]]:
    distances = [[_distance(card.at, gpu) for gpu in gpus] for card in cards]
    rates = {card.name: None if card.mbit is None else card.mbit * MBIT for card in cards}
    return rails([card.name for card in cards], distances, sockets, rates)


def _fabric(cards: Sequence[_Card]) -> str | None:
    """Class of the network by what the cards are; None where they do not say."""
    kinds = {_kind(card) for card in cards}
    return kinds.pop() if len(kinds) == 1 else None


def _kind(card: _Card) -> str | None:
    if card.pci is None:
        return "ethernet" if re.fullmatch(r"e(?:th|n).*", card.name) else None
    device = card.pci.attributes.get("device", "").lower()
    if card.pci.attributes.get("vendor", "").lower() == "0x1d0f" and device.startswith("0xefa"):
        return "efa"  # Elastic Fabric Adapter: Amazon's PCI vendor id, devices efa0 to efa3
    return "infiniband" if _is_class(card.pci, (_INFINIBAND,)) else None


READER = Reader(id="nccl-xml", title=TOOL, detect=_detect, read=read)
