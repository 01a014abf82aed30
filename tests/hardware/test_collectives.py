import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidValueError, UnknownNameError
from shardwright.hardware.catalog import load_cluster
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.collectives import ALGORITHMS, KINDS, LINKS, CollectiveTime, GroupTable, collective_s, wire_bytes
from shardwright.hardware.fabric import Curve, Fabric, Tier, fabric_of
from shardwright.hardware.groups import group_shape

CLUSTERS = [
    "dgx-h100:16",
    "dgx-a100-80g:5x7",
    "gb200-nvl72:36",
    "l40s-pcie-4:4",
    "mi300x-8:4",
    "jean-zay-v100-32g:8",
    "p5.48xlarge:4",
    "gh200-alps:9",
]
SIZES = st.floats(1.0, 1e11)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Cluster, str, GroupTable, float]:
    cluster = load_cluster(draw(st.sampled_from(CLUSTERS)))
    size = draw(st.integers(1, min(64, cluster.gpus)))
    stride = draw(st.integers(1, cluster.gpus // size))
    return cluster, draw(st.sampled_from(KINDS)), GroupTable.of([group_shape(cluster, size, stride)]), draw(SIZES)


def price(cluster: Cluster, kind: str, table: GroupTable, message: float, fabric: Fabric | None = None) -> CollectiveTime:
    return collective_s(kind, table, np.full(len(table), message), fabric or fabric_of(cluster))


def seconds(cluster: Cluster, kind: str, table: GroupTable, message: float, fabric: Fabric | None = None) -> float:
    return float(price(cluster, kind, table, message, fabric).time_s[0])


@given(cases())
def test_times_are_finite_named_and_free_only_for_one_rank(case: tuple[Cluster, str, GroupTable, float]) -> None:
    cluster, kind, table, message = case
    found = price(cluster, kind, table, message)
    assert np.isfinite(found.time_s).all()
    alone = table.size[0] == 1
    assert (found.time_s[0] == 0) == alone
    assert (ALGORITHMS[found.algorithm[0]] == "none") == alone
    assert (LINKS[found.link[0]] == "none") == alone


@given(cases(), st.floats(1.0, 1e3))
def test_a_larger_message_is_never_faster(case: tuple[Cluster, str, GroupTable, float], factor: float) -> None:
    cluster, kind, table, message = case
    assert seconds(cluster, kind, table, message * factor) >= seconds(cluster, kind, table, message) * (1 - 1e-12)


def _changed(tier: Tier | None, **values: float) -> Tier | None:
    return None if tier is None else dataclasses.replace(tier, **values)


@given(cases(), st.sampled_from(["scaleup", "host", "network"]), st.floats(1.0, 20.0))
def test_more_bandwidth_is_never_slower(case: tuple[Cluster, str, GroupTable, float], name: str, factor: float) -> None:
    cluster, kind, table, message = case
    fabric = fabric_of(cluster)
    tier = getattr(fabric, name)
    if tier is not None:
        faster = _changed(tier, bytes_per_s=tier.bytes_per_s * factor, pair_bytes_per_s=tier.pair_bytes_per_s * factor)
        changed = dataclasses.replace(fabric, **{name: faster})
        assert seconds(cluster, kind, table, message, changed) <= seconds(cluster, kind, table, message, fabric) * (1 + 1e-12)


@given(cases(), st.floats(0.0, 1.0))
def test_less_latency_is_never_slower(case: tuple[Cluster, str, GroupTable, float], factor: float) -> None:
    cluster, kind, table, message = case
    fabric = fabric_of(cluster)

    def quicker(curve: Curve) -> Curve:
        return dataclasses.replace(curve, alpha_s=curve.alpha_s * factor, hop_s=curve.hop_s * factor)

    def of(tier: Tier | None) -> Tier | None:
        return None if tier is None else dataclasses.replace(tier, curves={k: quicker(c) for k, c in tier.curves.items()})

    changed = dataclasses.replace(fabric, scaleup=of(fabric.scaleup), host=of(fabric.host), network=of(fabric.network))
    assert seconds(cluster, kind, table, message, changed) <= seconds(cluster, kind, table, message, fabric) * (1 + 1e-12)


@given(st.lists(cases(), min_size=2, max_size=6))
def test_a_batch_is_its_rows(drawn: list[tuple[Cluster, str, GroupTable, float]]) -> None:
    cluster, kind, _, _ = drawn[0]
    shapes = [group_shape(cluster, s, t) for s, t in ((8, 1), (2, 1), (2, 8), (1, 1), (4, 4), (16, 1))]
    shapes = [s for s in shapes if s.size * s.stride <= cluster.gpus]
    messages = np.resize([c[3] for c in drawn], len(shapes))
    table, fabric = GroupTable.of(shapes), fabric_of(cluster)
    batch = collective_s(kind, table, messages, fabric)
    for i in range(len(shapes)):
        one = collective_s(kind, table.take(np.array([i])), messages[i : i + 1], fabric)
        assert (one.time_s[0], one.algorithm[0], one.link[0]) == (batch.time_s[i], batch.algorithm[i], batch.link[i])


@given(st.integers(1, 4096), SIZES)
def test_bytes_on_the_wire(size: int, message: float) -> None:
    one = (size - 1) / size * message
    assert wire_bytes("all_reduce", size, message) == pytest.approx(2 * one)
    for kind in ("all_gather", "reduce_scatter", "all_to_all"):
        assert wire_bytes(kind, size, message) == pytest.approx(one)
    assert wire_bytes("send", size, message) == (message if size > 1 else 0)


@given(cases())
def test_no_collective_beats_its_bandwidth_bound(case: tuple[Cluster, str, GroupTable, float]) -> None:
    """Across islands each island must receive what the others hold, over the NIC shares of its ranks."""
    cluster, kind, table, message = case
    fabric = fabric_of(cluster)
    if table.islands[0] > 1 and kind in ("all_gather", "reduce_scatter"):
        islands, ranks = table.islands[0], table.ranks_per_island[0]
        least = (islands - 1) / islands * message / (ranks * fabric.network.bytes_per_s)
        assert seconds(cluster, kind, table, message) >= least


def test_a_message_of_no_bytes_is_free() -> None:
    cluster = load_cluster("dgx-h100:2")
    table = GroupTable.of([group_shape(cluster, 16, 1)])
    assert seconds(cluster, "all_reduce", table, 0.0) == 0


def test_the_switch_reduces_on_whole_hopper_nodes_only() -> None:
    cluster = load_cluster("dgx-h100:1")
    table = GroupTable.of([group_shape(cluster, n, 1) for n in (2, 4, 8)])
    found = price(cluster, "all_reduce", table, 1e9)
    assert [ALGORITHMS[i] for i in found.algorithm] == ["ring", "ring", "in-switch"]
    assert ALGORITHMS[price(load_cluster("dgx-a100-80g:1"), "all_reduce", table, 1e9).algorithm[2]] == "ring"


def test_large_messages_reach_published_rates() -> None:
    """Bus bandwidth of 8 GiB: about 478 GB/s on 8 H100 in a node, 193 on 2 x 8 A100, 48 a GPU on H100 with one NIC each."""

    def busbw(name: str, size: int, stride: int) -> float:
        cluster = load_cluster(name)
        table = GroupTable.of([group_shape(cluster, size, stride)])
        return float(wire_bytes("all_reduce", size, 2.0**33)) / seconds(cluster, "all_reduce", table, 2.0**33) / 1e9

    assert busbw("dgx-h100:1", 8, 1) == pytest.approx(478, rel=0.06)
    assert busbw("dgx-a100-80g:1", 8, 1) == pytest.approx(232, rel=0.08)
    assert busbw("dgx-h100:10", 10, 8) == pytest.approx(48.8, rel=0.08)
    assert busbw("mi300x-8:1", 2, 1) == pytest.approx(47.7, rel=0.12)
    assert busbw("mi300x-8:1", 8, 1) == pytest.approx(313, rel=0.12)


def test_small_messages_prefer_trees_at_scale() -> None:
    cluster = load_cluster("dgx-h100:512")
    table = GroupTable.of([group_shape(cluster, 4096, 1)])
    found = price(cluster, "all_reduce", table, 1e5)
    assert ALGORITHMS[found.algorithm[0]] == "tree"
    assert found.time_s[0] < 2e-3


def test_siblings_share_the_nics_of_a_node() -> None:
    """One rank a node has an eighth of the NICs, so its group takes eight times as long as one of whole nodes."""
    cluster = load_cluster("dgx-h100:16")
    narrow = GroupTable.of([group_shape(cluster, 16, 8)])
    wide = GroupTable.of([group_shape(cluster, 128, 1)])
    ratio = seconds(cluster, "all_gather", narrow, 1e10) / seconds(cluster, "all_gather", wide, 1e10)
    assert 5 < ratio < 9


def test_boxes_without_scale_up_use_the_host() -> None:
    cluster = load_cluster("l40s-pcie-4:2")
    inside = price(cluster, "all_gather", GroupTable.of([group_shape(cluster, 4, 1)]), 1e9)
    across = price(cluster, "all_gather", GroupTable.of([group_shape(cluster, 2, 4)]), 1e9)
    assert LINKS[inside.link[0]] == "host"
    assert LINKS[across.link[0]] == "network"


def test_a_mixed_cluster_waits_for_its_slowest_links() -> None:
    from shardwright.hardware.cluster import NodeGroup

    groups = [NodeGroup(node=load_cluster(f"{n}:1").node, count=2, gpus_per_node=8) for n in ("dgx-h100", "dgx-a100-80g")]
    fabric = fabric_of(Cluster(name="mixed", groups=tuple(groups)))
    assert fabric.scaleup is not None
    assert fabric.network is not None
    assert (fabric.scaleup.preset, fabric.network.bytes_per_s) == ("nvlink3", 25e9)


def test_fewer_gpus_do_not_get_more_than_their_nics() -> None:
    one = fabric_of(load_cluster("dgx-h100:2x1")).network
    assert one is not None
    assert one.bytes_per_s == 50e9
    shared = fabric_of(load_cluster("jean-zay-a100-80g:2x1")).network
    assert shared is not None
    assert shared.bytes_per_s == 12.5e9


def test_unknown_kinds_and_links_are_named() -> None:
    cluster = load_cluster("rtx-4090-pcie-8:2")
    table = GroupTable.of([group_shape(cluster, 16, 1)])
    with pytest.raises(UnknownNameError, match="broadcast"):
        collective_s("broadcast", table, np.array([1.0]), fabric_of(cluster))
    with pytest.raises(InvalidValueError, match="network rate") as caught:
        collective_s("all_reduce", table, np.array([1.0]), fabric_of(cluster))
    assert "internode_bytes_per_s" in caught.value.hint


def test_sources_say_what_was_measured_and_how_well() -> None:
    sources = fabric_of(load_cluster("dgx-h100:2")).sources
    assert set(sources) == {"scale-up", "host", "network"}
    assert sources["network"].startswith("measured: ")
    assert "median error of held-out series" in sources["network"]
    assert fabric_of(load_cluster("jean-zay-a100-80g:2")).sources["network"].startswith("modelled: ")
