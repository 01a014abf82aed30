import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import ConflictError, DamagedFileError, InvalidValueError, ShardwrightError, UnknownNameError
from shardwright.hardware.catalog import cluster_from_dict, load_cluster, read_cluster, write_cluster
from shardwright.hardware.cluster import Cluster

MIXED = """\
name: two kinds
groups:
  - node: dgx-h100
    count: 2
  - node:
      base: dgx-a100-80g
      internode_bytes_per_s: 25e9
      fabric: roce
    count: 3
    gpus_per_node: 6
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_with_presets_and_changed_nodes(tmp_path: Path) -> None:
    cluster = load_cluster(str(_write(tmp_path, MIXED)))
    assert (cluster.name, cluster.nodes, cluster.gpus) == ("two kinds", 5, 34)
    changed = cluster.groups[1].node
    assert (changed.id, changed.internode_bytes_per_s, changed.fabric, changed.gpus) == (
        "dgx-a100-80g-changed",
        25e9,
        "roce",
        8,
    )
    with pytest.raises(ConflictError, match="mixes nodes"):
        _ = cluster.node
    with pytest.raises(ConflictError, match="mixes devices"):
        _ = cluster.device


@pytest.mark.parametrize("name", ["dgx-h100:4", "gb200-nvl72:20x3", "l40s-pcie-4:2", "mi300x-8:1", "nc96ads-a100-v4:1"])
def test_round_trip_through_dict_json_and_yaml(tmp_path: Path, name: str) -> None:
    cluster = load_cluster(name)
    through_json = json.loads(json.dumps(cluster.to_dict()))
    assert cluster_from_dict(through_json) == cluster
    assert cluster_from_dict(through_json).digest == cluster.digest
    assert read_cluster(_write(tmp_path, write_cluster(cluster))) == cluster


def test_round_trip_of_a_mixed_file(tmp_path: Path) -> None:
    cluster = read_cluster(_write(tmp_path, MIXED))
    assert read_cluster(_write(tmp_path, write_cluster(cluster))) == cluster
    assert read_cluster(_write(tmp_path, write_cluster(cluster))).digest == cluster.digest


def test_a_full_inline_node_takes_link_rates_from_its_device(tmp_path: Path) -> None:
    text = (
        "groups:\n  - {count: 2, node: {id: box, device: h100, gpus: 4, scaleup_domain_gpus: 4, internode_bytes_per_s: 50e9}}\n"
    )
    node = read_cluster(_write(tmp_path, text)).node
    assert (node.scaleup_bytes_per_s, node.host_bytes_per_s, node.scaleup_fabric) == (450e9, 64e9, "generic-scaleup")


def test_an_inline_device_may_start_from_a_preset(tmp_path: Path) -> None:
    text = "groups:\n  - {count: 1, node: {base: dgx-h100, device: {base: h100, memory_bytes: 64000000000}}}\n"
    device = read_cluster(_write(tmp_path, text)).device
    assert device.memory_bytes == 64_000_000_000
    assert device.peak_flops["bf16"] == 989e12


BAD = [
    (
        "groups:\n  - node: dgx-h100\n    count: 2\n    gpus_per_nod: 2\n",
        UnknownNameError,
        "gpus_per_nod",
        "gpus_per_node",
        ":4:",
    ),
    ("groups:\n  - node:\n      base: dgx-h100\n      nisc: 2\n    count: 1\n", UnknownNameError, "nisc", "nics", ":4:"),
    ("groups:\n  - node: dgx-h100\n    count: -2\n", InvalidValueError, "-2", "", ":3:"),
    ("groups:\n  - node: dgx-h100\n    count: 0\n", InvalidValueError, "0", "", ":3:"),
    ("groups:\n  - node: dgx-h100\n    count: 1.5\n", InvalidValueError, "1.5", "", ":3:"),
    ("groups:\n  - node: dgx-h100\n    count: true\n", InvalidValueError, "True", "", ":3:"),
    ("groups:\n  - node: dgx-h100\n    count: 1000001\n", InvalidValueError, "1000001", "", ":3:"),
    ("groups:\n  - node: dgx-h100\n    count: 2\n    gpus_per_node: 9\n", InvalidValueError, "9", "1 to 8", "groups"),
    ("groups:\n  - node: dgx-h10\n    count: 2\n", UnknownNameError, "dgx-h10", "dgx-h100", "groups"),
    (
        "groups:\n  - node: {base: dgx-h100, fabric: infinband}\n    count: 2\n",
        UnknownNameError,
        "infinband",
        "infiniband",
        "groups",
    ),
    ("groups:\n  - node: {base: dgx-h100, device: h1000}\n    count: 2\n", UnknownNameError, "h1000", "", "groups"),
    (
        "groups:\n  - node: {base: dgx-h100, internode_bytes_per_s: .nan}\n    count: 2\n",
        InvalidValueError,
        "nan",
        "finite",
        "",
    ),
    ("groups:\n  - node: {base: dgx-h100, internode_bytes_per_s: -1e9}\n    count: 2\n", InvalidValueError, "-1", "", ":2:"),
    ("groups:\n  - node: {base: dgx-h100, internode_bytes_per_s: 0}\n    count: 2\n", InvalidValueError, "0", "", ":2:"),
    (
        "groups:\n  - node: {base: dgx-h100, gpus: 3}\n    count: 2\n",
        ConflictError,
        "8 GPUs do not go with 3",
        "multiple",
        ":2:",
    ),
    ("groups:\n  - node: {device: h100}\n    count: 2\n", InvalidValueError, "gpus", "", "groups"),
    ("groups:\n  - node: 7\n    count: 2\n", InvalidValueError, "7", "", ":2:"),
    ("groups:\n  - count: 2\n", InvalidValueError, "node", "", ""),
    ("groups: []\n", InvalidValueError, "at least 1", "", ":1:"),
    ("name: x\n", InvalidValueError, "groups", "", ""),
    ("- a\n- b\n", DamagedFileError, "a list", "", ""),
    ("groups: [\n", DamagedFileError, "not YAML", "", ""),
    ("groups:\n  - node: dgx-h100\n    count: 2\n    count: 3\n", InvalidValueError, "twice", "keep one", ":4"),
    ("   \n", DamagedFileError, "empty", "", ""),
]


@pytest.mark.parametrize(("text", "error", "says", "hints", "where"), BAD)
def test_bad_files_are_refused_with_place_and_reason(
    tmp_path: Path, text: str, error: type[ShardwrightError], says: str, hints: str, where: str
) -> None:
    with pytest.raises(error) as caught:
        read_cluster(_write(tmp_path, text))
    assert says in caught.value.message
    assert hints in caught.value.hint
    assert where in caught.value.where
    assert "cluster.yaml" in caught.value.where


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(DamagedFileError, match="not UTF-8"):
        read_cluster(path)


def test_an_unknown_network_rate_is_read_and_named_only_when_needed(tmp_path: Path) -> None:
    from shardwright.hardware.collectives import GroupTable, collective_s, fabric_of
    from shardwright.hardware.groups import group_shape

    text = "groups:\n  - node: {base: dgx-h100, internode_bytes_per_s: null}\n    count: 2\n"
    cluster = read_cluster(_write(tmp_path, text))
    import numpy as np

    inside = GroupTable.of([group_shape(cluster, 8, 1)])
    across = GroupTable.of([group_shape(cluster, 16, 1)])
    assert collective_s("all_reduce", inside, np.array([1e6]), fabric_of(cluster)).time_s[0] > 0
    with pytest.raises(InvalidValueError, match="network rate") as caught:
        collective_s("all_reduce", across, np.array([1e6]), fabric_of(cluster))
    assert "internode_bytes_per_s" in caught.value.where


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 10**7)
    | st.floats(-1e3, 1e13)
    | st.sampled_from(["h100", "dgx-h100", "roce", "", "x"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["node", "base", "id"]), inner, max_size=2),
)


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [at] + [p for k, v in value.items() for p in _paths(v, (*at, k))]
    if isinstance(value, list):
        return [at] + [p for i, v in enumerate(value) for p in _paths(v, (*at, i))]
    return [at]


def _cluster_or_error(read: Callable[[], Cluster]) -> Cluster | ShardwrightError:
    try:
        return read()
    except ShardwrightError as error:
        return error


FULL = load_cluster("gb200-nvl72:2x3").to_dict()


@given(st.sampled_from([p for p in _paths(FULL) if p]), VALUES)
def test_any_damaged_value_gives_a_cluster_or_our_error(path: tuple[Any, ...], value: Any) -> None:
    data = copy.deepcopy(FULL)
    target = data
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    found = _cluster_or_error(lambda: cluster_from_dict(data))
    if isinstance(found, Cluster):
        assert cluster_from_dict(found.to_dict()) == found
    else:
        assert found.message


@given(st.text(max_size=60), st.integers(0, 200), st.integers(0, 20))
def test_any_damaged_text_gives_a_cluster_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, noise: str, at: int, cut: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.yaml"
    path.write_text(MIXED[:at] + noise + MIXED[at + cut :], encoding="utf-8", errors="replace")
    found = _cluster_or_error(lambda: read_cluster(path))
    assert isinstance(found, Cluster) or found.message


def test_first_gpus_of_a_cluster() -> None:
    cluster = load_cluster("dgx-h100:4")
    first = cluster.truncated(20)
    assert [(g.count, g.gpus_per_node) for g in first.groups] == [(2, 8), (1, 4)]
    assert (first.gpus, first.nodes, first.node.id) == (20, 3, "dgx-h100")
    assert cluster.truncated(32) is cluster
    assert cluster_from_dict(first.to_dict()) == first
    with pytest.raises(InvalidValueError, match="33"):
        cluster.truncated(33)


def test_a_what_if_changes_every_node() -> None:
    cluster = load_cluster("dgx-h100:4")
    changed = cluster.with_node_values({"internode_bytes_per_s": 25e9, "device.memory_bytes": 40_000_000_000})
    assert changed.node.internode_bytes_per_s == 25e9
    assert changed.device.memory_bytes == 40_000_000_000
    assert changed.digest != cluster.digest
    with pytest.raises(UnknownNameError, match="internode"):
        cluster.with_node_values({"internode_bytes": 25e9})
