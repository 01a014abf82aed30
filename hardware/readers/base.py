"""What a reader of one format gives, and what it is.

    Reader      id, a test of the content, and `read(text, source) -> Reading`
    Reading     a machine, or a network, or hosts with their state, with what the reader has to say

Readers know one format each and nothing of each other; `shardwright.hardware.readers.combine` joins what they learned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardwright.errors import DamagedFileError
from shardwright.hardware.topology_records import Groups, Network, NodeLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine as its own tools describe it.

    Attributes:
        layout: what is known from inside.
        gpus: how many.
        host: its name, where the output says it.
        link_kind: ``nvlink``, ``xgmi``, or empty where the source does not tell.
        links: links between every pair, [gpu][gpu]; None where the source does not tell.
        links_of_gpu: links of one GPU, all together; None where they cannot be counted.
        direct: GPUs are wired pair by pair (a pair has fewer links than a GPU); False behind a switch.
        pci_id: ``vendor:device`` of the GPUs.
        compute_capability: CUDA compute capability of the GPUs times ten.
        pcie_bytes_per_s: narrowest link on the way from a GPU to its CPU, one way.
        fabric: class of the network, as far as the cards give it away.
        source: file it comes from, and the tool.
    """

    layout: NodeLayout
    gpus: int
    source: str
    host: str | None = None
    link_kind: str = ""
    links: Groups | None = None
    links_of_gpu: int | None = None
    direct: bool = False
    pci_id: str | None = None
    compute_capability: int | None = None
    pcie_bytes_per_s: float | None = None
    fabric: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """What a scheduler knows of one host.

    Attributes:
        host: its name.
        gpus: accelerators it has.
        gpu_type: what the scheduler calls them; empty where it does not.
        memory_bytes: of the host.
        usable: jobs can run on it.
        reason: why not.
    """

    host: str
    gpus: int
    gpu_type: str = ""
    memory_bytes: int | None = None
    usable: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One port of a host's network card on a switch.

    Attributes:
        host: name of the host.
        name: of the card, such as ``HCA-1`` or ``mlx5_0``.
        switch: it hangs on.
        bytes_per_s: active rate, one way.
    """

    host: str
    name: str
    switch: str
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one file taught.

    Attributes:
        machines: machines described from inside.
        network: switches or blocks, with hosts.
        hosts: hosts with their state.
        adapters: ports of hosts, where the source names cards.
        fabric: class of the network.
        notes: what was repaired, left out or assumed.
    """

    machines: tuple[Machine, ...] = ()
    network: Network | None = None
    hosts: tuple[HostState, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    fabric: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One format.

    Attributes:
        id: short name of the format.
        title: the command or file it comes from.
        detect: whether a text, stripped of terminal escapes, is of this format.
        read: reads such a text; the second argument is its name for messages.
    """

    id: str
    title: str
    detect: Callable[[str], bool]
    read: Callable[[str, str], Reading]


def damaged(source: str, line: int, reason: str, hint: str) -> DamagedFileError:
    """The error for a line that cannot be read."""
    return DamagedFileError(reason, where=f"{source}:{line}", hint=hint)
