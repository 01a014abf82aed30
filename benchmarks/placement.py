"""What placement gains over the order in which a cluster lists its hosts, and how long it takes.

    python benchmarks/placement.py [NODES]                1024 nodes by default

Two fabrics of nodes with eight 400 Gb/s cards: rail-optimised units of 32 nodes without oversubscription, and leaves of 32
nodes with 4 : 1. Hosts are listed leaf by leaf, as a scheduler that knows its switches does, and mixed, as one that does not.
Costs are seconds a step on the busiest links, `crossing` what passes between leaves or units.
"""

from __future__ import annotations

import random
import sys
import time

from shardwright.hardware.catalog import load_node
from shardwright.hardware.cluster import Cluster, NodeGroup
from shardwright.hardware.topology_records import HostPorts, Network, Switch, Uplink
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.search.placement import placement_record

LEAF, RAILS, CARD = 32, 8, 50e9
PLANS = {
    "llama3.1-405b tp8 pp16": ("llama3.1-405b", Degrees(tp=8, pp=16)),
    "deepseek-v3 ep64 pp16": ("deepseek-v3", Degrees(ep=64, pp=16)),
}


def fabric(nodes: int, oversubscription: float, *, rails: bool, mixed: bool) -> Cluster:
    hosts = tuple(f"n{i:04d}" for i in range(nodes))
    order = list(hosts)
    if mixed:
        random.Random(1).shuffle(order)
    switches = []
    for first in range(0, nodes, LEAF):
        for rail in range(RAILS if rails else 1):
            links = 1 if rails else RAILS
            ports = HostPorts(hosts=hosts[first : first + LEAF], rail=rail if rails else None, links=links, bytes_per_s=CARD)
            up = Uplink(to="spine", links=int(LEAF * links / oversubscription), bytes_per_s=CARD)
            switches.append(Switch(name=f"leaf{first // LEAF}-{rail}", ports=(ports,), uplinks=(up,)))
    group = NodeGroup(node=load_node("dgx-h100"), count=nodes, gpus_per_node=8, hosts=tuple(order))
    network = Network(switches=(*switches, Switch(name="spine", tier=2)))
    return Cluster(name=f"{nodes} nodes", groups=(group,), network=network)


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    print(f"{f'{nodes} nodes':54}{'naive':>8}{'placed':>8}{'gap':>8}{'crossing':>19}{'wall':>9}{'cpu':>9}")
    for title, (model, degrees) in PLANS.items():
        options = PricingOptions(framework="megatron")
        job = {"seq_len": 8192, "global_batch": nodes * 2, "degrees": degrees, "options": options}
        for name, over, rails in (("rail-optimised 1:1", 1.0, True), ("leaves 4:1", 4.0, False)):
            for mixed in (False, True):
                cluster = fabric(nodes, over, rails=rails, mixed=mixed)
                record = estimate(model, cluster, **job).to_dict()
                started = time.perf_counter(), time.process_time()
                made = placement_record(record, cluster)
                wall, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
                level = made["levels"][0]
                crossing = f"{level['naive_crossing_bytes'] / 1e12:.1f} -> {level['crossing_bytes'] / 1e12:.1f} TB"
                where = f"{title:24}{name + ', ' + ('mixed' if mixed else 'by leaf'):30}"
                cost = f"{made['naive_cost_s']:>8.3f}{made['cost_s']:>8.3f}{100 * made['gap']:>6.1f} %"
                print(f"{where}{cost}{crossing:>19}{wall:>7.1f} s{cpu:>7.1f} s")


if __name__ == "__main__":
    main()
