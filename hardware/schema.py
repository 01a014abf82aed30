"""The shape of a cluster YAML, checked with the place of every mistake.

    name: my-cluster
    groups:
      - node: dgx-h100          # a preset, or a mapping: all fields, or `base: dgx-h100` and what differs
        count: 16
        gpus_per_node: 8        # usable GPUs; all of them where left out

Range checks are those of `Node` and `Device`; here only names and types are settled.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from shardwright.hardware.cluster import MAX_GPUS_PER_NODE, MAX_NODES

Rate = Annotated[float, Field(ge=1e-3, le=1e21, allow_inf_nan=False, strict=True)]
Whole = Annotated[int, Field(ge=1, le=2**60, strict=True)]
Identifier = Annotated[str, Field(min_length=1, max_length=200)]


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


class NodeFile(_Record):
    """A node given inline: all its fields, or `base` and what differs. null = unknown."""

    base: Identifier | None = Field(default=None, description="node preset to start from")
    id: Identifier | None = None
    device: Annotated[Preset | Annotated[DeviceFile, Tag("Inline")], Discriminator(_form)] | None = Field(
        default=None, description="device preset, or its fields"
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


class GroupFile(_Record):
    """Equal nodes."""

    node: Annotated[Preset | Annotated[NodeFile, Tag("Inline")], Discriminator(_form)] = Field(
        description="node preset, or its fields"
    )
    count: Annotated[int, Field(ge=1, le=MAX_NODES, strict=True)]
    gpus_per_node: Annotated[int, Field(ge=1, le=MAX_GPUS_PER_NODE, strict=True)] | None = Field(
        default=None, description="usable GPUs of each node"
    )

    def node_data(self) -> str | dict[str, Any]:
        """The node as given: a preset name, or the fields that were written."""
        return self.node if isinstance(self.node, str) else self.node.model_dump(exclude_unset=True)


class ClusterFile(_Record):
    """A cluster: groups of equal nodes, in rank order."""

    name: Annotated[str, Field(min_length=1, max_length=200)] = "cluster"
    groups: Annotated[list[GroupFile], Field(min_length=1, max_length=10_000)]
