"""What the links of a machine say of its GPUs, and what a GPU says of the links.

    candidates      device presets that a machine can have: by PCI id; else by maker, compute capability, the scheduler's
                    word, and a data sheet with as many links as were counted
    scaleup rates   links of a GPU · rate of one link, where all candidates agree on the rate

Twelve links mean A100 (300 GB/s); eighteen can be Hopper (450 GB/s) or Blackwell (900 GB/s), so the rate stays unknown until
the device is named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.hardware.catalog import device_ids, device_of_pci_id, load_device
from shardwright.hardware.device import Device
from shardwright.hardware.links import fabric_of_device, link_rate, links_of
from shardwright.hardware.readers.base import Machine

_MAKERS = {"nvlink": "nvidia", "xgmi": "amd"}
_CAPABILITIES = {70: "volta", 80: "ampere", 89: "ada", 90: "hopper", 100: "blackwell", 103: "blackwell-ultra", 120: "blackwell"}
"""CUDA compute capability times ten → `Device.arch` (NVIDIA CUDA programming guide, compute capabilities)."""
BRIDGE_LINKS = 12
"""Links of a pair of PCIe cards with all three bridges (NVIDIA A100 and H100 PCIe product briefs: 600 GB/s both ways)."""
BRIDGED = ("ampere", "hopper")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """Scale-up links of one GPU; None = unknown.

    Attributes:
        bytes_per_s: all links of a GPU, one way.
        pair_bytes_per_s: what a pair can use where that is less.
        fabric: id of the fabric preset.
    """

    bytes_per_s: float | None = None
    pair_bytes_per_s: float | None = None
    fabric: str | None = None


def candidates(machine: Machine | None, gpu_type: str = "") -> tuple[str, ...]:
    """Ids of the device presets that go with what was read, sorted.

    Args:
        machine: as its tools describe it; None where only the scheduler's word is known.
        gpu_type: what the scheduler calls the GPUs.
    """
    known = None if machine is None or machine.pci_id is None else device_of_pci_id(machine.pci_id)
    if known is not None:
        return (known,)
    names = _called(device_ids(), gpu_type)
    return names if machine is None else tuple(name for name in names if goes_with(load_device(name), machine))


def goes_with(device: Device, machine: Machine) -> bool:
    """Whether a device has the maker, the compute capability and the links that were read."""
    if machine.link_kind and device.vendor.lower() != _MAKERS[machine.link_kind]:
        return False
    arch = _CAPABILITIES.get(machine.compute_capability or 0)
    if arch is not None and device.arch != arch:
        return False
    if machine.layout.islands is None:
        return True
    largest = max(len(group) for group in machine.layout.islands)
    if machine.links_of_gpu is None:
        return True
    if device.scaleup_bytes_per_s is None:  # a card: two of them can be bridged
        return largest <= 2 and machine.links_of_gpu == BRIDGE_LINKS and device.arch in BRIDGED
    links = links_of(device)
    return links is not None and (
        links == machine.links_of_gpu or (machine.link_kind == "xgmi" and links >= machine.links_of_gpu)
    )


def _called(devices: Sequence[str], gpu_type: str) -> tuple[str, ...]:
    """Those devices that a scheduler's word means, such as ``h100`` or ``nvidia_h100_80gb_hbm3``; all without a word.

    The chip (the first part of an id with a digit) must be in the word; of these, the ones with most parts in it.
    """
    words = {re.sub(r"(?<=[0-9])gb$", "g", word) for word in re.split(r"[^a-z0-9]+", gpu_type.lower()) if word}
    if not words:
        return tuple(devices)
    parts = {name: re.split(r"[^a-z0-9]+", name) for name in devices}
    fits = [n for n, own in parts.items() if next((p for p in own if re.search(r"[0-9]", p)), "") in words]
    most = max((len(words.intersection(parts[name])) for name in fits), default=0)
    return tuple(name for name in fits if len(words.intersection(parts[name])) == most)


def link_rates(machine: Machine, devices: Sequence[str]) -> LinkRates:
    """Rates of the scale-up links, as far as all candidates agree.

    Args:
        machine: with its counted links.
        devices: ids of the candidates.
    """
    if machine.links_of_gpu is None:
        return LinkRates()
    found = [load_device(name) for name in devices]
    per_link = {link_rate(device) for device in found}
    fabrics = {fabric_of_device(device) for device in found}
    rate = per_link.pop() if len(per_link) == 1 else None
    fabric = fabrics.pop() if len(fabrics) == 1 else None
    if rate is None:
        return LinkRates(fabric=fabric)
    pair = _links_of_pair(machine) if machine.direct else None
    return LinkRates(
        bytes_per_s=rate * machine.links_of_gpu,
        pair_bytes_per_s=None if pair is None else rate * pair,
        fabric=fabric,
    )


def _links_of_pair(machine: Machine) -> int | None:
    """Links of every linked pair where they are equal; None where pairs differ."""
    counts = {count for row in machine.links or () for count in row if count}
    return counts.pop() if len(counts) == 1 and machine.layout.link_counts is None else None
