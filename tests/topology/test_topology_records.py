import json
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError, UnknownNameError
from shardwright.hardware.catalog import cluster_from_dict, load_cluster, read_cluster, write_cluster
from shardwright.planner.overrides import load_filled
from shardwright.planner.schema import json_schema

LAB = """\
name: lab
groups:
  - node:
      base: dgx-a100-80g
      nics: 4
      layout:
        islands: [[0, 1, 2, 3, 4, 5, 6, 7]]
        pcie_switches: [[0, 1], [2, 3], [4, 5], [6, 7]]
        sockets: [[0, 1, 2, 3], [4, 5, 6, 7]]
        peer_access: true
        nics:
          - {name: mlx5_0, bytes_per_s: 25e9, gpus: [0, 1], socket: 0}
          - {name: mlx5_1, gpus: [2, 3], socket: 0}
        idle_nics: [eth0]
    count: 4
    hosts: node[01-04]
network:
  switches:
    - name: leaf1
      ports:
        - {hosts: "node[01-02]", rail: 0, links: 1, bytes_per_s: 25e9}
      uplinks:
        - {to: spine1, links: 4, bytes_per_s: 50e9}
    - name: leaf2
      ports:
        - {hosts: "node[03-05]"}
      uplinks:
        - {to: spine1}
    - {name: spine1, tier: 2}
  blocks:
    - {name: rack1, hosts: "node[01-05]"}
  block_sizes: [1, 2]
excluded:
  - {host: node05, reason: drained}
  - {host: node01, gpus: [7]}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_layout_network_and_hosts_are_read(tmp_path: Path) -> None:
    cluster = read_cluster(write(tmp_path, LAB))
    layout, network = cluster.node.layout, cluster.network
    assert layout is not None
    assert network is not None
    assert layout.rails_of(3) == (1,)
    assert layout.nics[1].bytes_per_s is None
    assert cluster.groups[0].hosts == ("node01", "node02", "node03", "node04")
    assert network.hosts == ("node01", "node02", "node03", "node04", "node05")
    assert [switch.tier for switch in network.switches] == [1, 1, 2]
    assert network.switches[0].uplinks[0].links == 4
    assert (cluster.excluded[0].host, cluster.excluded[1].gpus) == ("node05", (7,))


def test_what_is_written_reads_back_equal(tmp_path: Path) -> None:
    cluster = read_cluster(write(tmp_path, LAB))
    assert read_cluster(write(tmp_path, write_cluster(cluster))) == cluster
    assert cluster_from_dict(json.loads(json.dumps(cluster.to_dict()))) == cluster


def test_presets_carry_none_of_it() -> None:
    plain = load_cluster("dgx-h100:2").to_dict()
    assert set(plain) == {"name", "groups"}
    assert "layout" not in plain["groups"][0]["node"]
    assert set(plain["groups"][0]) == {"node", "count", "gpus_per_node"}


def test_the_first_gpus_keep_names_and_network(tmp_path: Path) -> None:
    cluster = read_cluster(write(tmp_path, LAB)).truncated(20)
    assert [group.hosts for group in cluster.groups] == [("node01", "node02"), ("node03",)]
    assert cluster.network is not None


def test_the_schema_tells_of_it() -> None:
    schema = json_schema("cluster")
    assert {"network", "excluded"} <= set(schema["properties"])
    assert {"LayoutFile", "NicFile", "SwitchFile", "UplinkFile", "PortsFile"} <= set(schema["$defs"])


@pytest.mark.parametrize(
    ("old", "new", "fault", "place"),
    [
        ("islands: [[0, 1, 2, 3, 4, 5, 6, 7]]", "islands: [[0, 1]]", ConflictError, "islands"),
        ("sockets: [[0, 1, 2, 3], [4, 5, 6, 7]]", "sockets: [[0, 1, 2, 3], [3, 4, 5, 6, 7]]", ConflictError, "sockets"),
        ("gpus: [2, 3], socket: 0", "gpus: [2, 9], socket: 0", ConflictError, "nics"),
        ("gpus: [2, 3], socket: 0", "gpus: [2, 3], socket: 5", ConflictError, "nics"),
        ("bytes_per_s: 25e9, gpus", "bytes_per_s: -1, gpus", InvalidValueError, "nics"),
        ("hosts: node[01-04]", "hosts: node[01-03]", ConflictError, "hosts"),
        ("hosts: node[01-04]", "hosts: node[01-", InvalidValueError, "hosts"),
        ("hosts: node[01-04]", "hosts: node[01-03,05]", ConflictError, "excluded"),
        ("hosts: node[01-04]", "hosts: node[01-03,01]", ConflictError, "hosts"),
        ("- {to: spine1}", "- {to: spine7}", UnknownNameError, "network"),
        ("name: leaf2", "name: leaf1", ConflictError, "network"),
        ("peer_access: true", "peer_acess: true", UnknownNameError, "peer_acess"),
        ("host: node05", "host: node05+6", InvalidValueError, "excluded"),
    ],
)
def test_contradictions_are_refused_with_their_place(
    tmp_path: Path, old: str, new: str, fault: type[ShardwrightError], place: str
) -> None:
    assert old in LAB
    with pytest.raises(fault) as caught:
        read_cluster(write(tmp_path, LAB.replace(old, new, 1)))
    assert place in caught.value.where
    assert "cluster.yaml:" in caught.value.where


def unknown(node: Any) -> dict[str, Any]:
    return {"name": "read", "groups": [{"node": node, "count": 2}]}


BOX = {"id": "read-node", "device": None, "gpus": 8, "scaleup_domain_gpus": 8, "scaleup_bytes_per_s": None, "nics": 8}


def test_an_unknown_device_is_asked_for_by_name(tmp_path: Path) -> None:
    path = tmp_path / "read.json"
    path.write_text(json.dumps(unknown(BOX)), encoding="utf-8")
    with pytest.raises(InvalidValueError, match="device") as caught:
        load_cluster(str(path))
    assert "--set cluster.device=" in caught.value.hint
    filled, left = load_filled(str(path), ["cluster.device=h100-sxm5-80g", "cluster.nics=4"])
    assert filled.node.device.id == "h100-sxm5-80g"
    assert filled.node.scaleup_bytes_per_s == filled.node.device.scaleup_bytes_per_s
    assert "cluster.nics=4" in left
    same, _ = load_filled(str(path), ["cluster.node=dgx-h100"])
    assert (same.node.internode_bytes_per_s, same.node.nics, same.node.id) == (400e9, 8, "read-node")


def test_an_unknown_node_is_asked_for_by_name(tmp_path: Path) -> None:
    path = tmp_path / "read.json"
    path.write_text(json.dumps(unknown(None)), encoding="utf-8")
    with pytest.raises(InvalidValueError, match="node") as caught:
        load_cluster(str(path))
    assert "--set cluster.node=" in caught.value.hint
    assert load_filled(str(path), ["cluster.node=dgx-h100"])[0] == load_cluster(str(path), fills={"node": "dgx-h100"})


def test_an_unknown_domain_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "read.json"
    path.write_text(json.dumps(unknown(BOX | {"device": "a100-sxm4-40g", "scaleup_domain_gpus": None})), encoding="utf-8")
    with pytest.raises(InvalidValueError, match="scale-up domain") as caught:
        load_cluster(str(path))
    assert "--set cluster.scaleup_domain_gpus=" in caught.value.hint
    assert load_filled(str(path), ["cluster.scaleup_domain_gpus=4"])[0].node.scaleup_domain_gpus == 4


def test_a_node_preset_for_a_file_that_needs_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="not needed"):
        load_filled(str(write(tmp_path, LAB)), ["cluster.node=dgx-h100"])
