"""Measures how long topology dumps of large clusters take, from text to cluster YAML.

python benchmarks/topology_speed.py [--nodes N] [--adapters N] [--json FILE]

Two dumps are generated: a Slurm tree (leaves of 20 nodes, two tiers above) and an `ibnetdiscover` listing of a rail-optimised
fabric with eight cards a host and eight spines. Time is CPU time of the process (`time.process_time`), for reading and for
writing the YAML; the cluster read back must be equal.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardwright.hardware.catalog import read_cluster
from shardwright.hardware.readers import TopoOptions, topo
from shardwright.hardware.readers.draft import write_draft

LEAF_HOSTS, LEAVES_A_GROUP, RAILS, SPINES = 20, 25, 8, 8


def slurm_tree(nodes: int) -> str:
    leaves = -(-nodes // LEAF_HOSTS)
    groups = -(-leaves // LEAVES_A_GROUP)
    lines = [f"SwitchName=core Switches=group[0-{groups - 1}]"]
    for group in range(groups):
        first, last = group * LEAVES_A_GROUP, min((group + 1) * LEAVES_A_GROUP, leaves) - 1
        lines.append(f"SwitchName=group{group} Switches=leaf[{first}-{last}]")
    for leaf in range(leaves):
        first, last = leaf * LEAF_HOSTS, min((leaf + 1) * LEAF_HOSTS, nodes) - 1
        lines.append(f"SwitchName=leaf{leaf} Nodes=node[{first:05d}-{last:05d}]")
    return "\n".join(lines) + "\n"


def fabric(adapters: int) -> str:
    hosts = -(-adapters // RAILS)
    parts: list[str] = []
    for rail in range(RAILS):
        ports = [
            f'[{h + 1}]\t"H-{h * RAILS + rail:016x}"[1](a) \t\t# "node{h:04d} mlx5_{rail}" lid 1 4xNDR' for h in range(hosts)
        ]
        ports += [f'[{hosts + s + 1}]\t"S-{1000 + s:016x}"[{rail + 1}]\t\t# "spine{s}" lid 2 4xNDR' for s in range(SPINES)]
        parts.append(_switch(rail, f"leaf{rail}", ports))
    for spine in range(SPINES):
        ports = [f'[{r + 1}]\t"S-{r:016x}"[{hosts + spine + 1}]\t\t# "leaf{r}" lid 3 4xNDR' for r in range(RAILS)]
        parts.append(_switch(1000 + spine, f"spine{spine}", ports))
    for host in range(hosts):
        for rail in range(RAILS):
            head = f'caguid=0x1\nCa\t1 "H-{host * RAILS + rail:016x}"\t\t# "node{host:04d} mlx5_{rail}"'
            parts.append(f'{head}\n[1](a) \t"S-{rail:016x}"[{host + 1}]\t\t# lid 1 lmc 0 "leaf{rail}" lid 3 4xNDR')
    return "\n\n".join(parts) + "\n"


def _switch(number: int, name: str, ports: list[str]) -> str:
    head = f'switchguid=0x1(1)\nSwitch\t{max(64, len(ports))} "S-{number:016x}"\t\t# "{name}" enhanced port 0 lid 1 lmc 0'
    return "\n".join([head, *ports])


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    made = call()
    return made, time.process_time() - start


def measured(name: str, text: str, folder: Path) -> dict[str, Any]:
    source, target = folder / f"{name}.txt", folder / f"{name}.yaml"
    source.write_text(text, encoding="utf-8")
    draft, reading = timed(lambda: topo([str(source)], TopoOptions(node="dgx-h100")))
    _, writing = timed(lambda: write_draft(draft, str(target), [str(source)]))
    cluster, back = timed(lambda: read_cluster(target))
    sizes = {"dump_lines": text.count("\n"), "yaml_lines": target.read_text(encoding="utf-8").count("\n")}
    return {"name": name, "nodes": cluster.nodes, **sizes, "read_s": reading, "write_s": writing, "read_back_s": back}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--adapters", type=int, default=600)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        texts = {"slurm-tree": slurm_tree(given.nodes), "ibnetdiscover": fabric(given.adapters)}
        rows = [measured(name, text, Path(folder)) for name, text in texts.items()]
    for row in rows:
        total = row["read_s"] + row["write_s"]
        print(
            f"{row['name']:14} {row['nodes']:6} nodes {row['dump_lines']:6} lines -> {row['yaml_lines']:5} lines of YAML: "
            f"read {row['read_s']:.2f} s, write {row['write_s']:.2f} s, both {total:.2f} s; back {row['read_back_s']:.2f} s"
        )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
