"""Generations of scale-up links: which fabric preset a chip generation has, and the rate of one link.

    rate of a GPU = links · rate of a link, one way

NVLink 2 to 4 carry 25 GB/s a link and direction, NVLink 5 carries 50; links of AMD's mesh follow from the device, seven a GPU.
Sources: NVIDIA V100, A100, H100 and Blackwell architecture white papers; AMD Instinct MI300 data sheets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.hardware.device import Device

AMD_MESH_LINKS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkGeneration:
    """Links of a chip generation.

    Attributes:
        fabric: id of the fabric preset.
        bytes_per_s: one link, one way; None where it follows from the device.
    """

    fabric: str
    bytes_per_s: float | None


GENERATIONS: Mapping[str, LinkGeneration] = {
    "volta": LinkGeneration(fabric="nvlink2", bytes_per_s=25e9),
    "ampere": LinkGeneration(fabric="nvlink3", bytes_per_s=25e9),
    "hopper": LinkGeneration(fabric="nvlink4", bytes_per_s=25e9),
    "blackwell": LinkGeneration(fabric="nvlink5", bytes_per_s=50e9),
    "blackwell-ultra": LinkGeneration(fabric="nvlink5", bytes_per_s=50e9),
    "cdna3": LinkGeneration(fabric="infinity-fabric", bytes_per_s=None),
    "cdna4": LinkGeneration(fabric="infinity-fabric", bytes_per_s=None),
}
"""By `Device.arch`."""


def fabric_of_device(device: Device) -> str | None:
    """Id of the fabric preset of a device's scale-up links; None for a generation without."""
    generation = GENERATIONS.get(device.arch)
    return None if generation is None else generation.fabric


def link_rate(device: Device) -> float | None:
    """Bytes a second of one scale-up link of a device, one way; None where it is not known."""
    generation = GENERATIONS.get(device.arch)
    if generation is None:
        return None
    if generation.bytes_per_s is not None:
        return generation.bytes_per_s
    return None if device.scaleup_bytes_per_s is None else device.scaleup_bytes_per_s / AMD_MESH_LINKS


def links_of(device: Device) -> int | None:
    """Scale-up links of a device as its data sheet has it; None without any."""
    rate = link_rate(device)
    return None if rate is None or device.scaleup_bytes_per_s is None else round(device.scaleup_bytes_per_s / rate)
