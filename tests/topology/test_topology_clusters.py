"""Several dumps together: the cluster YAML, what it asks for, and that plans can use it."""

from pathlib import Path

import pytest
from topology_dumps import (
    iblinkinfo,
    ibnetdiscover,
    matrix_words,
    nccl_dump,
    provider_file,
    rocm,
    scontrol,
    simple_matrix,
    topo_matrix,
    tree_conf,
)

from shardwright.documents import parse_yaml
from shardwright.errors import ConflictError, InvalidValueError, UnknownNameError
from shardwright.hardware.catalog import read_cluster, write_cluster
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.readers import Draft, TopoOptions, read_text
from shardwright.hardware.readers.combine import combine
from shardwright.hardware.readers.draft import write_draft

TREE_HOSTS = tuple(f"n{i:03d}" for i in range(1, 9))


def draft(*texts: str, **options: object) -> Draft:
    readings = [read_text(text, f"file{index}") for index, text in enumerate(texts)]
    return combine(readings, TopoOptions(**options))  # type: ignore[arg-type]


def keys(made: Draft) -> set[str]:
    return {item.key.removeprefix("groups.") for item in made.unknown}


def cluster(made: Draft, folder: Path, **fills: object) -> Cluster:
    """The cluster of a draft, read back from its file; writing and reading that again changes nothing."""
    path = folder / "cluster.yaml"
    write_draft(made, str(path), [])
    found = read_cluster(path, fills=fills)
    again = folder / "again.yaml"
    again.write_text(write_cluster(found), encoding="utf-8")
    assert read_cluster(again) == found
    return found


ALL = {
    "matrix": (simple_matrix(),),
    "mesh": (rocm(8),),
    "dump": (nccl_dump(),),
    "provider": (provider_file(),),
    "tree": (tree_conf(),),
    "blocks": ("BlockName=b1 Nodes=n[1-4]\nBlockSizes=4\n",),
    "hosts": (scontrol(TREE_HOSTS),),
    "fabric": (ibnetdiscover(TREE_HOSTS),),
    "links": (iblinkinfo(TREE_HOSTS),),
    "all": (simple_matrix(), ibnetdiscover(TREE_HOSTS, rails=4), scontrol(TREE_HOSTS, gres="gpu:a100:4")),
}


@pytest.mark.parametrize("texts", ALL.values(), ids=ALL)
def test_what_is_written_is_read_back(texts: tuple[str, ...], tmp_path: Path) -> None:
    made = draft(*texts)
    assert parse_yaml(made.text(), "written").data == made.data
    found = cluster(made, tmp_path, device="a100-sxm4-80g", gpus=8, scaleup_domain_gpus=1, **_node_where_open(made))
    assert found.nodes == sum(group["count"] for group in made.data["groups"])


def _node_where_open(made: Draft) -> dict[str, str]:
    return {"node": "dgx-a100-80g"} if "node" in keys(made) else {}


@pytest.mark.parametrize("texts", ALL.values(), ids=ALL)
def test_every_null_that_a_plan_needs_is_asked_for(texts: tuple[str, ...]) -> None:
    made = draft(*texts)
    for group in made.data["groups"]:
        node = group["node"]
        if node is None or "node" in keys(made):
            assert "node" in keys(made)
            continue
        for key in ("device", "internode_bytes_per_s", "scaleup_domain_gpus"):
            assert (node[key] is None) == (f"node.{key}" in keys(made))
    assert all(message.startswith(("note: ", "warning: ")) for message in made.messages())
    assert len([m for m in made.messages() if m.startswith("warning: ")]) == len(made.unknown)


# --- what links say -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("links", "rate", "fabric"),
    [("NV12", 300e9, "nvlink3"), ("NV18", None, None), ("NV8", 200e9, None), ("NV6", 150e9, "nvlink2")],
)
def test_the_number_of_links_gives_the_rate_where_only_one_fits(links: str, rate: float | None, fabric: str | None) -> None:
    made = draft(simple_matrix(8, 0, links=links))
    node = made.data["groups"][0]["node"]
    assert (node["scaleup_bytes_per_s"], node["scaleup_fabric"]) == (rate, fabric)
    assert ("node.scaleup_bytes_per_s" in keys(made)) == (rate is None)


@pytest.mark.parametrize(("device", "rate", "fabric"), [("h100", 450e9, "nvlink4"), ("b200", 900e9, "nvlink5")])
def test_a_named_device_gives_the_rate(device: str, rate: float, fabric: str, tmp_path: Path) -> None:
    text = simple_matrix(8, 0, links="NV18")
    node = cluster(draft(text, device=device), tmp_path).node
    assert (node.scaleup_bytes_per_s, node.scaleup_fabric) == (rate, fabric)
    later = cluster(draft(text), tmp_path, device=device).node
    assert (later.scaleup_bytes_per_s, later.scaleup_fabric) == (rate, fabric)


def test_pairs_of_a_mesh_use_one_link(tmp_path: Path) -> None:
    node = cluster(draft(rocm(8), device="mi300x"), tmp_path).node
    assert (node.scaleup_bytes_per_s, node.scaleup_pair_bytes_per_s) == (448e9, 64e9)
    assert node.scaleup_fabric == "infinity-fabric"
    half = cluster(draft(rocm(4), device="mi300x"), tmp_path).node
    assert half.scaleup_bytes_per_s == 3 * 64e9


def test_islands_smaller_than_the_node(tmp_path: Path) -> None:
    names, cells = matrix_words(8, 0, per_socket=4)
    split = [[("SYS" if (a < 4) != (b < 4) else word) for b, word in enumerate(row)] for a, row in enumerate(cells)]
    node = cluster(draft(topo_matrix(names, split), device="a100"), tmp_path).node
    assert node.scaleup_domain_gpus == 4
    assert node.layout is not None
    assert node.layout.islands == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_a_pci_id_names_the_device(tmp_path: Path) -> None:
    made = draft(nccl_dump())
    assert cluster(made, tmp_path).device.id == "a100-sxm4-80g"
    assert any("a100-sxm4-80g" in note for note in made.notes)
    assert cluster(made, tmp_path).node.internode_bytes_per_s == 100e9


def test_the_schedulers_word_narrows_the_device() -> None:
    text = scontrol(TREE_HOSTS, gres="gpu:h100:4")
    asked = next(item for item in draft(text).unknown if item.key == "groups.node.device")
    assert "h100-sxm5-80g" in asked.reason
    assert draft(text, simple_matrix(links="NV18")).data["groups"][0]["node"]["device"] is None
    made = draft(scontrol(TREE_HOSTS, gres="gpu:mi300x:8"), rocm(8))
    assert made.data["groups"][0]["node"]["device"] == "mi300x"


def test_a_box_of_pcie_cards_asks_for_peer_access(tmp_path: Path) -> None:
    made = draft(simple_matrix(8, 0, links=""), device="rtx-4090")
    assert "node.layout.peer_access" in keys(made)
    node = cluster(made, tmp_path).node
    assert (node.scaleup_domain_gpus, node.scaleup_bytes_per_s) == (1, None)


# --- networks and hosts -------------------------------------------------------------------------------------------


def test_a_machine_and_a_tree(tmp_path: Path) -> None:
    made = draft(simple_matrix(), tree_conf(), device="a100", nic_gbps=200)
    found = cluster(made, tmp_path)
    assert (found.nodes, found.gpus, found.groups[0].hosts) == (8, 32, TREE_HOSTS)
    assert found.node.internode_bytes_per_s == 100e9
    assert keys(made) == {"network.switches.uplinks"}


def test_a_fabric_gives_rates_and_rails(tmp_path: Path) -> None:
    text = simple_matrix() + "\nNIC Legend:\n\n" + "".join(f"  NIC{i}: mlx5_{3 - i}\n" for i in range(4))
    found = cluster(draft(text, ibnetdiscover(TREE_HOSTS, rails=4), device="a100"), tmp_path)
    assert (found.node.nics, found.node.internode_bytes_per_s, found.node.fabric) == (4, 200e9, "infiniband")
    assert found.network is not None
    assert found.node.layout is not None
    for switch in found.network.switches[:4]:
        (port,) = switch.ports
        assert port.rail is not None
        assert found.node.layout.nics[port.rail].name == f"mlx5_{switch.name.removeprefix('leaf')}"


def test_a_fabric_alone_knows_cards_and_rates(tmp_path: Path) -> None:
    found = cluster(draft(iblinkinfo(TREE_HOSTS, gbit="25.78125"), node="dgx-a100-80g"), tmp_path)
    assert (found.node.nics, found.node.internode_bytes_per_s, found.device.id) == (1, 12.5e9, "a100-sxm4-80g")
    later = cluster(draft(iblinkinfo(TREE_HOSTS, gbit="25.78125")), tmp_path, node="dgx-a100-80g")
    assert later.node.internode_bytes_per_s == 12.5e9
    assert later.gpus == 64


def test_hosts_out_of_use_are_excluded_with_their_reason(tmp_path: Path) -> None:
    states = scontrol(TREE_HOSTS[:6]) + "\n" + scontrol(TREE_HOSTS[6:], state="IDLE+DRAIN")
    found = cluster(draft(states, tree_conf(), node="dgx-h100"), tmp_path)
    assert found.groups[0].hosts == TREE_HOSTS[:6]
    assert [entry.host for entry in found.excluded] == list(TREE_HOSTS[6:])
    assert "bad GPU" in found.excluded[0].reason


def test_two_kinds_of_hosts_are_two_groups() -> None:
    states = scontrol(TREE_HOSTS[:4], gres="gpu:h100:8") + "\n" + scontrol(TREE_HOSTS[4:], gres="gpu:a100:4")
    groups = draft(states, tree_conf()).data["groups"]
    assert [(group["count"], group["node"]["gpus"]) for group in groups] == [(4, 8), (4, 4)]


def test_hosts_on_the_fabric_with_fewer_cards_are_no_gpu_nodes() -> None:
    text = ibnetdiscover(TREE_HOSTS, rails=2)
    made = draft(text.replace("n008 mlx5_1", "Mellanox Technologies Aggregation Node"), node="dgx-h100")
    assert made.data["groups"][0]["count"] == 7
    assert any("fewer than 2 ports" in note for note in made.notes)


def test_a_slow_host_is_named() -> None:
    parts = ibnetdiscover(TREE_HOSTS, rails=1).split("\n\n")
    text = "\n\n".join(part.replace("4xNDR", "4xEDR") if "caguid" in part and "n003" in part else part for part in parts)
    assert any("n003" in note and "less than the usual" in note for note in draft(text, node="dgx-h100").notes)


def test_the_order_of_nodes_is_that_of_the_switches() -> None:
    turned = "SwitchName=a Nodes=n[003-004]\nSwitchName=b Nodes=n[001-002]\nSwitchName=c Switches=a,b\n"
    assert draft(turned, scontrol(TREE_HOSTS[:4])).data["groups"][0]["hosts"] == "n[003-004,001-002]"


def test_blocks_are_domains_of_a_rack(tmp_path: Path) -> None:
    blocks = "BlockName=b1 Nodes=n[01-18]\nBlockName=b2 Nodes=n[19-36]\n"
    found = cluster(draft(simple_matrix(4, 4, links="NV18"), blocks, device="gb200", nic_gbps=400), tmp_path)
    assert (found.nodes, found.node.scaleup_domain_gpus) == (36, 72)
    boxes = cluster(draft(simple_matrix(8, 0, links="NV18"), blocks, device="h100"), tmp_path)
    assert boxes.node.scaleup_domain_gpus == 8


def test_two_descriptions_of_one_machine_are_joined(tmp_path: Path) -> None:
    matrix = simple_matrix(legend=False) + "\nNIC Legend:\n\n" + "".join(f"  NIC{i}: mlx5_{i}\n" for i in range(4))
    found = cluster(draft(matrix, nccl_dump()), tmp_path)
    assert found.nodes == 1
    assert found.node.layout is not None
    assert {nic.bytes_per_s for nic in found.node.layout.nics} == {25e9}
    assert found.device.id == "a100-sxm4-80g"
    assert found.node.host_bytes_per_s == 32e9


def test_descriptions_that_disagree_keep_the_first_and_say_so() -> None:
    made = draft(simple_matrix(links=""), nccl_dump())
    assert made.data["groups"][0]["node"]["layout"]["islands"] == [[0], [1], [2], [3]]
    assert any(note.startswith("islands differ") and "layout.islands" in note for note in made.notes)


def test_equal_machines_count_and_different_ones_are_groups() -> None:
    assert [group["count"] for group in draft(*[simple_matrix()] * 3).data["groups"]] == [3]
    groups = draft(simple_matrix(), simple_matrix(8, 8), device="a100").data["groups"]
    assert [group["node"]["gpus"] for group in groups] == [4, 8]


def test_a_tree_and_a_fabric_keep_the_one_with_rates() -> None:
    made = draft(tree_conf(), ibnetdiscover(TREE_HOSTS), node="dgx-h100")
    assert {switch["name"] for switch in made.data["network"]["switches"]} == {"leaf0", "leaf1", "spine0", "spine1"}
    assert "network.switches.uplinks" not in keys(made)
    assert any("taken from the file that has rates" in note for note in made.notes)


def test_a_preset_supplies_the_rest_and_that_is_said(tmp_path: Path) -> None:
    made = draft(simple_matrix(8, 8), node="dgx-a100-80g", nodes=4)
    assert made.unknown == ()
    assert any(note.startswith("taken from dgx-a100-80g") and "internode_bytes_per_s" in note for note in made.notes)
    found = cluster(made, tmp_path)
    assert (found.nodes, found.node.internode_bytes_per_s, found.node.id) == (4, 200e9, "dgx-a100-80g-read")
    assert found.node.layout is not None
    assert found.node.layout.nics[0].bytes_per_s == 25e9


@pytest.mark.parametrize(
    ("texts", "options", "fault", "word"),
    [
        ((simple_matrix(), rocm(8)), {}, ConflictError, "GPUs"),
        ((simple_matrix(), scontrol(TREE_HOSTS, gres="gpu:8")), {}, ConflictError, "the hosts have 8"),
        ((simple_matrix(), simple_matrix(8, 8), tree_conf()), {}, ConflictError, "do not say which hosts"),
        ((tree_conf(), tree_conf(2, 5)), {}, ConflictError, "differs"),
        ((tree_conf(),), {"nodes": 4}, ConflictError, "--nodes"),
        ((simple_matrix(),), {"nodes": 0}, InvalidValueError, "0 nodes"),
        ((simple_matrix(),), {"nic_gbps": -1.0}, InvalidValueError, "nic-gbps"),
        ((simple_matrix(),), {"device": "h1000"}, UnknownNameError, "h1000"),
        ((simple_matrix(),), {"node": "dgx-h1000"}, UnknownNameError, "dgx-h1000"),
        ((scontrol(TREE_HOSTS, state="DOWN"),), {}, InvalidValueError, "out of use"),
    ],
)
def test_contradictions_are_refused(
    texts: tuple[str, ...], options: dict[str, object], fault: type[Exception], word: str
) -> None:
    with pytest.raises(fault, match=word):
        draft(*texts, **options)
