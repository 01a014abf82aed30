"""The shape of a cluster YAML, checked with the place of every mistake.

    name: my-cluster
    groups:
      - node: dgx-h100          # a preset, or a mapping: all fields, or `base: dgx-h100` and what differs
        count: 16
        gpus_per_node: 8        # usable GPUs; all of them where left out
        hosts: node[01-16]      # names of the nodes, where they have some
    network: {...}              # switches between them, as `topo` reads them, or {like: fat-tree, but: {oversubscription: 4}}
    excluded: [...]             # hosts out of use

Range checks are those of `Node` and `Device`; here only names and types are settled.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from shardwright.hardware.cluster import MAX_GPUS_PER_NODE, MAX_NODES

Rate = Annotated[float, Field(ge=1e-3, le=1e21, allow_inf_nan=False, strict=True)]
Whole = Annotated[int, Field(ge=1, le=2**60, strict=True)]
Local = Annotated[int, Field(ge=0, le=100_000, strict=True)]
Partition = list[list[Local]]
Identifier = Annotated[str, Field(min_length=1, max_length=200)]
Hosts = Annotated[str, Field(min_length=1, description="host names in short: node[001-016],login")]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _form(value: object) -> str:
    """Tells a preset name from inline fields, so that a mistake is reported for the form that was written."""
    return "Inline" if isinstance(value, (dict, BaseModel)) else "Preset"


Preset = Annotated[Identifier, Tag("Preset")]


class DeviceFile(_Record):
    """A device given inline: all its fields, or `base` and what differs."""

    base: Identifier | None = Field(default=None, description="device preset to start from")
    id: Identifier | None = None
    name: str | None = None
    vendor: str | None = None
    arch: str | None = None
    peak_flops: dict[Literal["bf16", "fp16", "fp32", "tf32", "fp8", "fp4"], Rate] | None = Field(
        default=None, description="dense FLOP/s by precision; missing = not supported"
    )
    memory_bytes: Whole | None = Field(default=None, description="capacity as the driver reports it")
    memory_bytes_source: str | None = None
    memory_bytes_per_s: Rate | None = None
    sm_count: Whole | None = None
    scaleup_bytes_per_s: Rate | None = Field(default=None, description="one way, all scale-up links")
    pcie_bytes_per_s: Rate | None = Field(default=None, description="one way to the host")
    tdp_w: Rate | None = None
    kernels: str | None = Field(default=None, description="id of the kernel fit")
    sources: list[str] | None = None
    notes: str | None = None


class NicFile(_Record):
    """A network card that carries training traffic: one rail."""

    name: Identifier
    bytes_per_s: Rate | None = Field(default=None, description="one way; null = unknown")
    gpus: list[Local] = Field(default=[], description="the GPUs it is nearest to, counted from 0")
    socket: Local | None = Field(default=None, description="index into sockets")


class LayoutFile(_Record):
    """One machine from inside, by local GPU numbers from 0. null = unknown."""

    islands: Partition | None = Field(default=None, description="GPUs that reach each other over scale-up links")
    link_counts: Partition | None = Field(default=None, description="links of each pair, a row a GPU, where pairs differ")
    pcie_switches: Partition | None = Field(default=None, description="GPUs below one PCIe switch")
    sockets: Partition | None = Field(default=None, description="GPUs of one socket or memory domain")
    peer_access: bool | None = Field(default=None, description="GPUs read each other's memory over PCIe")
    nics: list[NicFile] = Field(default=[], description="compute rails, by the GPUs they serve")
    idle_nics: list[Identifier] = Field(default=[], description="cards that carry no training traffic")


class NodeFile(_Record):
    """A node given inline: all its fields, or `base` and what differs. null = unknown."""

    base: Identifier | None = Field(default=None, description="node preset to start from")
    id: Identifier | None = None
    device: Annotated[Preset | Annotated[DeviceFile, Tag("Inline")], Discriminator(_form)] | None = Field(
        default=None, description="device preset, or its fields; null = not known, to be named by --set cluster.device=PRESET"
    )
    gpus: Whole | None = None
    scaleup_domain_gpus: Whole | None = Field(
        default=None, description="GPUs of a scale-up domain: 1 none, above `gpus` spanning nodes"
    )
    scaleup_bytes_per_s: Rate | None = Field(default=None, description="per GPU, one way")
    scaleup_pair_bytes_per_s: Rate | None = Field(default=None, description="what one pair can use, one way")
    scaleup_fabric: str | None = None
    host_bytes_per_s: Rate | None = Field(default=None, description="per GPU through PCIe and the host, one way")
    internode_bytes_per_s: Rate | None = Field(default=None, description="per node, all fabric NICs, one way")
    nics: Whole | None = None
    fabric: str | None = Field(default=None, description="class of the network: infiniband, roce, ethernet, ...")
    in_switch_reduction: bool | None = None
    power_w: Rate | None = None
    usd_per_gpu_hour: Rate | None = None
    price_source: str | None = None
    host_memory_bytes: Whole | None = None
    sources: list[str] | None = None
    notes: str | None = None
    layout: LayoutFile | None = None


class GroupFile(_Record):
    """Equal nodes."""

    node: Annotated[Preset | Annotated[NodeFile, Tag("Inline")], Discriminator(_form)] | None = Field(
        description="node preset, or its fields; null = not known, to be named by --set cluster.node=PRESET"
    )
    count: Annotated[int, Field(ge=1, le=MAX_NODES, strict=True)]
    gpus_per_node: Annotated[int, Field(ge=1, le=MAX_GPUS_PER_NODE, strict=True)] | None = Field(
        default=None, description="usable GPUs of each node"
    )
    hosts: Hosts | None = Field(default=None, description="names of the nodes in rank order")

    def node_data(self) -> str | dict[str, Any] | None:
        """The node as given: a preset name, the fields that were written, or None where it is not known."""
        return self.node.model_dump(exclude_unset=True) if isinstance(self.node, NodeFile) else self.node


class PortsFile(_Record):
    """Hosts that hang on a switch in the same way."""

    hosts: Hosts
    rail: Local | None = Field(default=None, description="index into layout.nics; null = all, or not known")
    links: Whole | None = Field(default=None, description="links of each host to this switch")
    bytes_per_s: Rate | None = Field(default=None, description="one link, one way")


class UplinkFile(_Record):
    """Cables to a switch of the next tier, listed at their lower end only."""

    to: Identifier
    links: Whole | None = Field(default=None, description="number of cables")
    bytes_per_s: Rate | None = Field(default=None, description="one cable, one way")


class SwitchFile(_Record):
    """A switch between nodes."""

    name: Identifier
    tier: Annotated[int, Field(ge=1, le=64, strict=True)] = Field(default=1, description="1: has hosts; +1 a level")
    ports: list[PortsFile] = []
    uplinks: list[UplinkFile] = []


class BlockFile(_Record):
    """Hosts that the scheduler treats as one rack or scale-up domain."""

    name: Identifier
    hosts: Hosts


class NetworkShapeFile(_Record):
    """Parameters of a network preset that differ."""

    kind: Literal["tree", "rails", "dragonfly", "torus"] | None = None
    hosts: Whole | None = Field(default=None, description="nodes on a leaf, unit or router")
    oversubscription: Rate | None = Field(default=None, description="cables down over cables up of a leaf")
    places: Whole | None = Field(default=None, description="leaves of a pod, routers of a group")
    place_oversubscription: Rate | None = Field(default=None, description="rate into a pod over the rate out of it")
    local_links: Whole | None = Field(default=None, description="cables between two routers of a group")
    global_links: Whole | None = Field(default=None, description="cables between two groups")
    dims: list[Whole] | None = Field(default=None, description="nodes along each ring of a torus")
    link_bytes_per_s: Rate | None = Field(default=None, description="one cable, one way; else a NIC of the first node")
    source: str | None = None


class NetworkFile(_Record):
    """The switches between the nodes: those listed, or those of a preset for the nodes in their order."""

    like: Identifier | None = Field(default=None, description="network preset, such as rail-optimised")
    but: NetworkShapeFile | None = Field(default=None, description="what differs from the preset")
    kind: Literal["tree", "blocks"] = Field(default="tree", description="blocks: only groups of hosts are known")
    switches: list[SwitchFile] = []
    blocks: list[BlockFile] = []
    block_sizes: list[Whole] = Field(default=[], description="sizes in nodes that the scheduler hands out")


class ExcludedFile(_Record):
    """A host out of use (not counted in groups), or some GPUs of a host."""

    host: Identifier
    gpus: list[Local] = Field(default=[], description="only these GPUs; empty: the whole host")
    reason: str = ""


class ClusterFile(_Record):
    """A cluster: groups of equal nodes, in rank order."""

    name: Annotated[str, Field(min_length=1, max_length=200)] = "cluster"
    groups: Annotated[list[GroupFile], Field(min_length=1, max_length=10_000)]
    network: NetworkFile | None = None
    excluded: list[ExcludedFile] = []
