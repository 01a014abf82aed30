"""What pipeline stages stand on: the machines, the network and the memory of each area of a cluster.

On a cluster of one kind of node there is one ground, and everything is as the machine and the network have it. Where kinds are
mixed (`hardware.areas`) a stage on kinds K is priced by

    time       for every unit and pass the kind that takes longest, max over k in K of computing + launches + exposed exchange,
               with the parts of that kind; all ranks of the stage wait for it
    exchange   groups of ranks that lie on nodes of K, the slowest links of K
    memory     the least over K

and what goes from stage to stage by the slowest links of the cluster. `joined_tables` sets the tables of all grounds side by
side, so that a stage's counts of units (`cost.stages`) choose its ground.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from shardwright.hardware.cluster import Node
from shardwright.hardware.fabric import fabric_of
from shardwright.hardware.host import Host, host_of, narrowest
from shardwright.models.graph import ModelGraph
from shardwright.planner.axes.sharding import OperatorKeys
from shardwright.planner.cost.compute import Machine, machine_of
from shardwright.planner.cost.network import Network
from shardwright.planner.cost.operators import UnitTables, unit_tables
from shardwright.planner.plans import BoolArray, FloatArray
from shardwright.planner.problem import Problem

PARTS = ("compute", "host", "exposed", "hidden", "network")
WAYS = {"forward": ("again_exposed_s",), "backward": ("weight_s",)}
"""Parts of a pass and what else goes with it: taken from the kind that is slowest in that pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """One area of a cluster.

    Attributes:
        machines: of each kind of node in it.
        network: its links.
        capacity_bytes: memory of its smallest device.
        name: its nodes in words.
        nodes: of each kind in it, with the GPUs in use on one.
    """

    machines: tuple[Machine, ...]
    network: Network
    capacity_bytes: int
    name: str
    nodes: tuple[tuple[Node, int], ...] = ()

    @property
    def host(self) -> Host:
        """The host of its nodes, the slowest and smallest of several.

        Raises:
            InvalidValueError: the rate of a host link is not known.
        """
        return narrowest([host_of(node, gpus) for node, gpus in self.nodes])


def grounds_of(problem: Problem, network: Network) -> tuple[Ground, ...]:
    """The grounds of a problem, one an area; `network` is that of the whole cluster."""
    areas = problem.areas
    made = []
    for area, members in enumerate(areas.members):
        each = [areas.kinds[kind].device for kind in members]
        devices = [device for place, device in enumerate(each) if device not in each[:place]]
        own = network
        if len(areas) > 1:
            own = Network(problem.cluster, fabric_of(areas.part(area)), problem.collectives, areas.ranks(area))
        ground = Ground(
            machines=tuple(machine_of(problem, device) for device in devices),
            network=own,
            capacity_bytes=min(device.memory_bytes for device in devices),
            name=areas.name(area),
            nodes=tuple((areas.kinds[kind], areas.gpus_per_node(kind)) for kind in members),
        )
        made.append(ground)
    return tuple(made)


def joined_tables(
    graph: ModelGraph, keys: OperatorKeys, grounds: Sequence[Ground], used: BoolArray | None = None
) -> UnitTables:
    """Tables of all units on all grounds, units of one ground after those of another.

    Args:
        graph: the model.
        keys: combinations of degrees.
        grounds: of the cluster.
        used: grounds that a stage stands on, [grounds]; None for all. Tables of the others are zero.
    """
    wanted = np.ones(len(grounds), dtype=bool) if used is None else used
    each = [_slowest(graph, keys, ground) if want else None for ground, want in zip(grounds, wanted, strict=True)]
    if len(each) == 1 and each[0] is not None:
        return each[0]
    known = next(one for one in each if one is not None)
    made = {}
    for field in fields(UnitTables):
        like: FloatArray = getattr(known, field.name)
        parts = [np.zeros_like(like) if one is None else getattr(one, field.name) for one in each]
        made[field.name] = like if like.ndim == 1 else np.concatenate(parts, axis=1)
    return UnitTables(**made)


def _slowest(graph: ModelGraph, keys: OperatorKeys, ground: Ground) -> UnitTables:
    each = [unit_tables(graph, keys, machine, ground.network) for machine in ground.machines]
    if len(each) == 1:
        return each[0]
    made = {field.name: np.max([getattr(one, field.name) for one in each], axis=0) for field in fields(UnitTables)}
    for way, others in WAYS.items():
        whole = [getattr(one, f"compute_{way}_s") + getattr(one, f"host_{way}_s") + _summed(one, way) for one in each]
        slower = np.argmax(whole, axis=0)
        for name in (*(f"{part}_{way}_s" for part in PARTS), *others):
            stacked = np.array([getattr(one, name) for one in each])
            at = slower.reshape(1, *slower.shape, *(1,) * (stacked.ndim - 3))
            made[name] = np.take_along_axis(stacked, at, axis=0)[0]
    return UnitTables(**made)


def _summed(tables: UnitTables, way: str) -> FloatArray:
    return np.asarray(getattr(tables, f"exposed_{way}_s").sum(axis=2))
