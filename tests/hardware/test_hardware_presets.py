import csv
from pathlib import Path

import pytest

from shardwright.errors import UnknownNameError
from shardwright.hardware.catalog import device_ids, load_cluster, load_device, load_node, node_ids, normalised
from shardwright.hardware.device import PEAK_KEYS, Device
from shardwright.hardware.fabric import LOCAL_CURVES, NETWORK_CURVES, fabric_ids, fabric_of


@pytest.mark.parametrize("name", device_ids())
def test_device_preset_loads_with_sources_and_survives_a_round_trip(name: str) -> None:
    device = load_device(name)
    assert device.id == name
    assert set(device.peak_flops) <= set(PEAK_KEYS)
    assert device.sources
    assert device.memory_bytes_source.startswith(("nvidia-smi", "rocm-smi", "assumed"))
    assert Device.from_dict(device.to_dict()) == device


@pytest.mark.parametrize("name", node_ids())
def test_node_preset_loads_with_sources_and_known_fabrics(name: str) -> None:
    node = load_node(name)
    assert node.id == name
    assert node.sources
    assert node.scaleup_fabric in fabric_ids()
    assert node.fabric in fabric_ids()
    assert (node.usd_per_gpu_hour is None) == (node.price_source == "")
    fabric = fabric_of(load_cluster(f"{name}:1"))
    assert (fabric.scaleup is None) == (node.scaleup_domain_gpus == 1)
    assert (fabric.host is None) == (node.host_bytes_per_s is None)


def test_volta_has_no_bf16_and_hopper_no_fp4() -> None:
    assert "bf16" not in load_device("v100-sxm2-32g").peak_flops
    assert "fp4" not in load_device("h100-sxm5-80g").peak_flops
    assert load_device("h100-sxm5-80g").peak_flops["bf16"] == 989e12


def test_memory_is_what_the_driver_reports_not_the_marketing_figure() -> None:
    assert load_device("h100-sxm5-80g").memory_bytes == 81_559 * 2**20
    assert load_device("h200-sxm5-141g").memory_bytes == 143_771 * 2**20
    assert load_device("b200-sxm-180g").memory_bytes == 183_359 * 2**20
    assert load_device("a100-sxm4-80g").memory_bytes == 81_920 * 2**20
    assert load_device("mi325x").memory_bytes == int(256 * 2**30 * 0.995)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("ND96isr_H100_v5", "nd96isr-h100-v5"),
        ("BM.GPU.H100.8", "bm.gpu.h100.8"),
        ("DGX H100", "dgx-h100"),
        ("DGX/HGX H100", "dgx-h100"),
        ("dgx-a100", "dgx-a100-80g"),
        ("P5.48XLARGE", "p5.48xlarge"),
    ],
)
def test_original_spellings_are_aliases(given: str, found: str) -> None:
    assert load_node(given).id == found


def test_an_alias_names_no_second_preset() -> None:
    for load, names in ((load_node, node_ids()), (load_device, device_ids())):
        for name in names:
            assert load(name).id == name
            assert load(name.upper()).id == name


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_node("dgx-h10")
    assert "dgx-h100" in caught.value.hint
    with pytest.raises(UnknownNameError) as caught:
        load_device("h100-sxm5-80")
    assert "h100-sxm5-80g" in caught.value.hint


def test_every_fabric_preset_has_the_curves_of_its_kind() -> None:
    from shardwright.hardware.fabric import _preset

    for name in fabric_ids():
        preset = _preset(name)
        needed = LOCAL_CURVES if preset["kind"] == "scale-up" else NETWORK_CURVES
        assert set(needed) <= set(preset["curves"]), name
        assert preset["origin"] in ("measured", "modelled")
        assert len(preset["source"]) > 20


def _reference_rows(folder: Path, *parts: str) -> list[dict[str, str]]:
    with folder.joinpath(*parts).open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_nodes_of_measured_runs_exist_and_agree(reference_data: Path) -> None:
    for row in _reference_rows(reference_data, "ground_truth", "nodes.csv"):
        node = load_node(row["node"])
        assert node.id == row["node"]
        assert node.device.id == row["gpu_preset"]
        assert node.gpus == int(row["gpus_per_node"])
        assert node.scaleup_domain_gpus == int(row["scaleup_gpus"])
        assert node.internode_bytes_per_s == float(row["internode_GBps"]) * 1e9


def test_cloud_nodes_exist_in_both_spellings(reference_data: Path) -> None:
    for row in _reference_rows(reference_data, "hardware", "nodes.csv"):
        if row["provider"] in ("AWS", "GCP", "Azure", "OCI"):
            node = load_node(row["node"])
            assert node.id == normalised(row["node"])
            assert node.gpus == int(row["gpus_per_node"])
            if row["internode_uni_GBps"]:
                assert node.internode_bytes_per_s == float(row["internode_uni_GBps"]) * 1e9


def test_every_node_of_the_table_is_a_preset(reference_data: Path) -> None:
    rows = _reference_rows(reference_data, "hardware", "nodes.csv")
    assert len(rows) == 69
    for row in rows:
        node = load_node(row["node"])
        assert str(node.gpus) == row["gpus_per_node"] or not row["gpus_per_node"]
        if row["internode_uni_GBps"]:
            assert node.internode_bytes_per_s == float(row["internode_uni_GBps"]) * 1e9


def test_datasheet_figures_agree(reference_data: Path) -> None:
    known = {normalised(r["name"].split(" (")[0]): r for r in _reference_rows(reference_data, "hardware", "gpus.csv")}
    compared = 0
    for name in device_ids():
        row = known.get(name) or known.get(f"{name}b")
        if row is None:
            continue
        compared += 1
        device = load_device(name)
        assert device.memory_bytes_per_s == float(row["mem_bw_GBps"]) * 1e9
        if row["bf16_dense_TFLOPS"]:
            assert device.peak_flops["bf16"] == pytest.approx(float(row["bf16_dense_TFLOPS"]) * 1e12, rel=0.01)
        if row["scaleup_uni_GBps"] and device.scaleup_bytes_per_s:
            assert device.scaleup_bytes_per_s == float(row["scaleup_uni_GBps"]) * 1e9
    assert compared >= 12


def test_every_device_names_a_kernel_fit_that_exists() -> None:
    from importlib.resources import files

    folder = files("shardwright.hardware").joinpath("presets", "kernels")
    known = {p.name.removesuffix(".yaml") for p in folder.iterdir()}
    assert {load_device(d).kernels for d in device_ids()} <= known


@pytest.mark.parametrize(("device", "link", "rate"), [("t4", "pcie", 16e9), ("a100", "pcie", 32e9), ("a100", "scaleup", 300e9)])
def test_rates_are_one_way(device: str, link: str, rate: float) -> None:
    """PCIe 4.0 x16 is sold as 64 GB/s and NVLink 3 as 600 GB/s: both ways together."""
    assert getattr(load_device(device), f"{link}_bytes_per_s") == rate
