"""Published rates that users quote, each from a public log: what a rail, a rack, a pair and a switch give."""

import numpy as np
import pytest

from shardwright.hardware.catalog import load_cluster
from shardwright.hardware.collectives import ALGORITHMS, GroupTable, collective_s, wire_bytes
from shardwright.hardware.fabric import fabric_of
from shardwright.hardware.groups import group_shape


def priced(spec, kind, size, stride=1, message=2.0**33, **changes):
    cluster = load_cluster(spec).with_node_values(changes) if changes else load_cluster(spec)
    table = GroupTable.of([group_shape(cluster, size, stride)])
    return collective_s(kind, table, np.array([message]), fabric_of(cluster))


def busbw(spec, kind, size, stride=1, message=2.0**33, **changes):
    time = priced(spec, kind, size, stride, message, **changes).time_s[0]
    return float(wire_bytes(kind, size, message)) / time / 1e9


def test_all_reduce_grows_with_rails_and_all_to_all_does_not():
    """Ten H100 nodes, 1, 2, 4, 8 GPUs of each (xxrjun/nccl-tests-cluster)."""
    for gpus, reduces, exchanges in ((1, 48.9, 44.8), (2, 98.3, 47.8), (4, 196.4, 49.7), (8, 364.1, 50.7)):
        assert busbw(f"dgx-h100:10x{gpus}", "all_reduce", 10 * gpus) == pytest.approx(reduces, rel=0.12)
        assert busbw(f"dgx-h100:10x{gpus}", "all_to_all", 10 * gpus) == pytest.approx(exchanges, rel=0.12)


def test_two_nodes_reduce_above_the_line_rate_of_their_nics():
    """Two H100 nodes on EFA: 487 GB/s at 16 GiB over 400 GB/s of NICs (aws-samples/awsome-distributed-training)."""
    assert busbw("p5.48xlarge:2", "all_reduce", 16, message=2.0**34) == pytest.approx(487, rel=0.1)


def test_many_slingshot_nodes():
    """Four A100 a node, 1 GiB: 36.8, 36.5, 30.9 GB/s on 2, 8, 256 nodes; all-to-all 9.4, 5.0, 4.4 (alcf-nccl-tests)."""
    for nodes, reduces, exchanges in ((2, 36.8, 9.4), (8, 36.5, 5.0), (256, 30.9, 4.4)):
        assert busbw(f"polaris:{nodes}", "all_reduce", 4 * nodes, message=2.0**30) == pytest.approx(reduces, rel=0.3)
        assert busbw(f"polaris:{nodes}", "all_to_all", 4 * nodes, message=2.0**30) == pytest.approx(exchanges, rel=0.2)


def test_two_gpus_of_a_nic_have_half_of_it_each():
    """Two nodes of eight GPUs with four NICs carry what four GPUs a node would."""
    rate = {"internode_bytes_per_s": 100e9, "nics": 4}
    assert busbw("dgx-h100:2", "all_to_all", 16, **rate) == pytest.approx(
        busbw("dgx-h100:2x4", "all_to_all", 8, **rate) / 2, rel=0.2
    )
    assert busbw("dgx-h100:2x4", "send", 2, 4, **rate) == pytest.approx(2 * busbw("dgx-h100:2", "send", 2, 8, **rate), rel=0.05)


def test_the_switch_reduces_from_five_gpus_on():
    """8 GiB on one H200 node: 414, 436, 460, 473 GB/s on 5 to 8 GPUs, a ring on 4; 838 on B200 (ml-engineering)."""
    used = [ALGORITHMS[priced(f"dgx-h200:1x{n}", "all_reduce", n).algorithm[0]] for n in (4, 5, 6, 8)]
    assert used == ["ring", "in-switch", "in-switch", "in-switch"]
    for gpus, rate in ((5, 414), (6, 436), (7, 460), (8, 473)):
        assert busbw(f"dgx-h200:1x{gpus}", "all_reduce", gpus) == pytest.approx(rate, rel=0.08)
    assert busbw("dgx-h200:1", "all_gather", 8) == pytest.approx(362, rel=0.1)
    assert busbw("dgx-b200:1", "all_reduce", 8) == pytest.approx(838, rel=0.08)


def test_racks_send_eight_nics_worth_to_each_other():
    """8 GiB over NVL72 racks: 2 racks 800 GB/s, 20 racks 381 (coreweave/nccl-tests)."""
    assert busbw("gb200-nvl72:36", "all_reduce", 144) == pytest.approx(800, rel=0.25)
    assert busbw("gb200-nvl72:360", "all_reduce", 1440) == pytest.approx(381, rel=0.25)


def test_latency_of_small_messages_grows_with_nodes():
    """8 bytes on 2, 8, 256, 540 nodes of four A100: 20 to 33, 37 to 73, 100 to 183, 206 to 228 us (alcf-nccl-tests)."""
    times = [float(priced(f"polaris:{n}", "all_reduce", 4 * n, message=8.0).time_s[0]) * 1e6 for n in (2, 8, 256, 540)]
    assert times == sorted(times)
    for time, low, high in zip(times, (18, 35, 95, 180), (40, 80, 200, 260), strict=True):
        assert low < time < high
