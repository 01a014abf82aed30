"""All formats that can be read. A new one is a module with a `READER` and a line here."""

from __future__ import annotations

from shardwright.hardware.readers import (
    iblinkinfo,
    ibnetdiscover,
    nccl_xml,
    rocm_topo,
    slurm_nodes,
    slurm_topology,
    topo_matrix,
    topology_yaml,
)
from shardwright.hardware.readers.base import Reader

READERS: tuple[Reader, ...] = (
    nccl_xml.READER,
    rocm_topo.READER,
    topo_matrix.READER,
    iblinkinfo.READER,
    ibnetdiscover.READER,
    slurm_nodes.READER,
    slurm_topology.READER,
    topology_yaml.READER,
)
"""In the order in which they are tried."""
