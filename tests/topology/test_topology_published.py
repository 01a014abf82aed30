"""Dumps from public issues and repositories, read where the reference data is at hand."""

import os
from pathlib import Path

import pytest

from shardwright.errors import DamagedFileError, UnsupportedError
from shardwright.hardware.catalog import read_cluster, write_cluster
from shardwright.hardware.readers import Draft, TopoOptions, topo
from shardwright.hardware.readers.draft import write_draft

DATA = os.environ.get("SHARDWRIGHT_REFERENCE_DATA")
pytestmark = pytest.mark.skipif(DATA is None, reason="SHARDWRIGHT_REFERENCE_DATA is not set")
INPUTS = Path(DATA or ".") / "cases" / "inputs"
FILES = sorted(p for kind in ("topo_m", "rocm", "nccl_xml", "ib", "slurm") for p in (INPUTS / kind).glob("*"))
DAMAGED = "ibnetdiscover_truncated_or_bad.out"


def read(name: str, **options: object) -> Draft:
    return topo([str(INPUTS / name)], TopoOptions(**options))  # type: ignore[arg-type]


def layout(name: str, **options: object) -> dict[str, object]:
    found: dict[str, object] = read(name, **options).data["groups"][0]["node"]["layout"]
    return found


@pytest.mark.parametrize("path", [p for p in FILES if p.name != DAMAGED], ids=lambda p: p.name)
def test_every_file_is_read_and_read_back(path: Path, tmp_path: Path) -> None:
    draft = topo([str(path)], TopoOptions(node="dgx-a100-80g"))
    written = tmp_path / "cluster.yaml"
    write_draft(draft, str(written), [])
    cluster = read_cluster(written)
    written.write_text(write_cluster(cluster), encoding="utf-8")
    assert read_cluster(written) == cluster


def test_a_damaged_fabric_names_line_and_reason() -> None:
    with pytest.raises(DamagedFileError, match="announces 1 port, and none follows") as caught:
        read(f"ib/{DAMAGED}")
    assert caught.value.where == f"{DAMAGED}:10"


def test_logs_of_measurements_belong_elsewhere() -> None:
    for path in sorted((INPUTS / "nccl_tests").glob("*")):
        with pytest.raises(UnsupportedError, match="nccl-tests"):
            topo([str(path)])


def test_eight_gpus_with_twelve_cards() -> None:
    """Twelve links of 25 GB/s to a switch; eight cards below PCIe switches of pairs, four near no GPU."""
    draft = read("topo_m/dgx_a100_8gpu_12mlx5.txt")
    node = draft.data["groups"][0]["node"]
    assert (node["scaleup_domain_gpus"], node["scaleup_bytes_per_s"], node["nics"]) == (8, 300e9, 8)
    pairs = [nic["gpus"] for nic in node["layout"]["nics"]]
    assert pairs == [[0, 1], [0, 1], [2, 3], [2, 3], [4, 5], [4, 5], [6, 7], [6, 7]]
    assert node["layout"]["idle_nics"] == ["mlx5_4", "mlx5_5", "mlx5_10", "mlx5_11"]


def test_nine_cards_in_reverse_order() -> None:
    """The rail of GPU i is card 8 - i; card 0 serves management."""
    found = layout("topo_m/h100_8gpu_9nic.txt")
    assert [(nic["name"], nic["gpus"]) for nic in found["nics"]] == [(f"NIC{8 - i}", [i]) for i in range(8)]  # type: ignore[attr-defined]
    assert found["idle_nics"] == ["NIC0"]


def test_pcie_boxes_have_no_islands() -> None:
    for name in ("pcie_8gpu_pix_node_sys", "rtx4090_8gpu_pix_sys", "two_gpu_phb_space_aligned"):
        draft = read(f"topo_m/{name}.txt")
        assert draft.data["groups"][0]["node"]["scaleup_domain_gpus"] == 1
        assert "groups.node.layout.peer_access" in {item.key for item in draft.unknown}
    assert layout("topo_m/pcie_8gpu_pix_node_sys.txt")["pcie_switches"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert layout("topo_m/rtx4090_8gpu_pix_sys.txt")["sockets"] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_links_at_half_of_what_the_switch_can_do() -> None:
    """4X 25.78125 Gb/s is 100 Gb/s; the aggregation node is no host; one host is seen from the switch only."""
    draft = read("ib/iblinkinfo_4nodes_one_switch.txt", node="dgx-a100-80g")
    group = draft.data["groups"][0]
    assert (group["count"], group["hosts"]) == (4, "gpu-node-[0-3]")
    assert group["node"]["internode_bytes_per_s"] == 12.5e9


def test_files_of_providers_count_pci_classes() -> None:
    found = read("nccl_xml/azure_ndv4-topo.xml").data["groups"][0]["node"]
    assert (found["gpus"], found["nics"], found["fabric"], found["host_bytes_per_s"]) == (8, 8, "infiniband", 32e9)
    found = read("nccl_xml/aws_p4d-24xl-topo.xml").data["groups"][0]["node"]
    assert (found["gpus"], found["nics"], found["fabric"], found["device"]) == (8, 4, "efa", "a100-sxm4-40g")
    found = read("nccl_xml/azure_ncv4-topo.xml").data["groups"][0]["node"]
    assert (found["gpus"], found["device"], found["scaleup_domain_gpus"]) == (4, "a100-pcie-80g", 1)


def test_meshes_of_accelerators() -> None:
    assert layout("rocm/showtopo_8gpu_all_xgmi.txt")["islands"] == [list(range(8))]
    assert layout("rocm/showtopo_4gpu_all_xgmi.txt")["sockets"] == [[0], [1], [2], [3]]


def test_trees_and_blocks() -> None:
    network = read("slurm/topology_tree_case3.conf").data["network"]
    assert [sum(s["tier"] == tier for s in network["switches"]) for tier in (1, 2, 3)] == [20, 2, 1]
    assert read("slurm/topology_tree_case3.conf").data["groups"][0]["count"] == 400
    assert read("slurm/topology_block.conf").data["network"]["block_sizes"] == [4, 8, 16, 32, 64]
    racks = read("slurm/topograph_model_nvl72.yaml", node="gb200-nvl72").data
    assert [block["hosts"] for block in racks["network"]["blocks"]][:1] == ["node[1101-1118]"]
    assert racks["groups"][0]["count"] == 72


def test_a_machine_and_a_tree_from_different_places() -> None:
    draft = topo(
        [str(INPUTS / "topo_m/h100_8gpu_9nic.txt"), str(INPUTS / "slurm/topology_tree_case3.conf")],
        TopoOptions(device="h100", nic_gbps=400),
    )
    group = draft.data["groups"][0]
    assert (group["count"], group["node"]["internode_bytes_per_s"]) == (400, 400e9)
