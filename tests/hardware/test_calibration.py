"""Calibrations: what corrections say at, between and beyond measured sizes, for other groups and collectives, and as files."""

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_log_texts import log_text, straight_line

from shardwright.errors import ConflictError, DamagedFileError, InvalidValueError, ShardwrightError, UnknownNameError
from shardwright.hardware.calibration import BAND, Calibration, Corrections, Series, correction_at, expected_s
from shardwright.hardware.calibration_file import calibration_from_dict, load_calibration
from shardwright.hardware.calibration_fit import calibrate, held_out_error, slow_fabrics
from shardwright.hardware.catalog import load_cluster, load_node
from shardwright.hardware.collectives import GroupTable
from shardwright.hardware.groups import group_shape

DATA = os.environ.get("SHARDWRIGHT_REFERENCE_DATA")
NODE = load_node("dgx-h100")
SIZES = tuple(2.0**k for k in range(10, 34, 2))


def series_of(kind="all_reduce", nodes=4, per_node=8, factor=1.0, sizes=SIZES):
    """What a machine would measure that takes `factor` times what presets expect; a number, or a function of the size."""
    blank = Series(
        kind=kind,
        ranks=nodes * per_node,
        ranks_per_node=per_node,
        device="",
        message_bytes=sizes,
        time_s=(1.0,) * len(sizes),
        source="a.log:1",
    )
    times = np.array([factor(s) if callable(factor) else factor for s in sizes]) * expected_s(blank, NODE, np.array(sizes))
    return dataclasses.replace(blank, time_s=tuple(times))


def corrections(*series):
    return Corrections.of(Calibration(name="site", node=NODE, series=series))


def ratio(made, kind, nodes, per_node, sizes):
    shape = group_shape(load_cluster(f"dgx-h100:{nodes}x{per_node}"), nodes * per_node, 1)
    return made.ratio(kind, GroupTable.of([shape] * len(sizes)), np.array(sizes))


def test_what_was_measured_wins():
    made = corrections(series_of(factor=lambda s: 1.5 if s < 2**20 else 3.0))
    found = ratio(made, "all_reduce", 4, 8, [2.0**10, 2.0**16, 2.0**24, 2.0**32])
    assert found == pytest.approx([1.5, 1.5, 3.0, 3.0])


def test_between_sizes_the_factor_goes_gradually():
    made = corrections(series_of(factor=lambda s: 1.0 if s < 2**21 else 4.0))
    assert ratio(made, "all_reduce", 4, 8, [2.0**21])[0] == pytest.approx(2.0)


def test_a_machine_as_the_presets_say_stays_as_it_is():
    made = corrections(series_of(), series_of("all_gather"), series_of(nodes=1))
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"):
        assert ratio(made, kind, 2, 8, [1.0, 1e3, 1e6, 1e9]) == pytest.approx(1.0)


def test_links_that_were_not_measured_stay_as_they_are():
    made = corrections(series_of(nodes=1, factor=3.0))
    assert ratio(made, "all_reduce", 1, 8, [1e6])[0] == pytest.approx(3.0)
    assert ratio(made, "all_reduce", 2, 8, [1e6])[0] == 1.0


def test_the_nearest_shape_is_taken_and_borrowed_errors_of_presets_are_not():
    made = corrections(series_of(nodes=2, factor=4.0), series_of(nodes=16, factor=1.1))
    assert ratio(made, "all_reduce", 2, 8, [1e8])[0] == pytest.approx(4.0)
    assert ratio(made, "all_reduce", 3, 8, [1e8])[0] == pytest.approx(4.0 / np.exp(BAND))
    assert ratio(made, "all_reduce", 32, 8, [1e8])[0] == pytest.approx(1.0)


def test_equally_near_shapes_count_alike():
    made = corrections(series_of(nodes=2, factor=2.0), series_of(nodes=8, factor=8.0))
    assert ratio(made, "all_reduce", 4, 8, [1e8])[0] == pytest.approx(4.0 / np.exp(BAND))


def test_a_slow_fabric_is_slow_for_other_collectives():
    made = corrections(series_of("all_reduce", factor=4.0))
    for kind in ("all_gather", "reduce_scatter", "all_to_all", "send"):
        assert ratio(made, kind, 4, 8, [1e8])[0] == pytest.approx(4.0 / np.exp(BAND))


def test_gather_and_scatter_stand_for_each_other():
    made = corrections(series_of("all_reduce", factor=4.0), series_of("all_gather", factor=1.5))
    assert ratio(made, "reduce_scatter", 4, 8, [1e8])[0] == pytest.approx(1.5)


def test_a_log_of_large_messages_says_little_of_small_ones():
    made = corrections(series_of(factor=2.0, sizes=tuple(2.0**k for k in range(26, 34))))
    small, large = ratio(made, "all_reduce", 4, 8, [2.0**10, 2.0**35])
    assert 1.0 <= small < 1.2
    assert large == pytest.approx(2.0, rel=0.01)


def test_a_log_of_small_messages_says_little_of_large_ones():
    made = corrections(series_of(factor=3.0, sizes=(1024.0, 2048.0)))
    small, large = ratio(made, "all_reduce", 4, 8, [512.0, 2.0**33])
    assert small == pytest.approx(3.0, rel=0.02)
    assert large < 1.3


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.2, 8.0), min_size=3, max_size=12),
    st.integers(3, 24),
    st.sampled_from(["all_reduce", "all_gather", "all_to_all", "send"]),
)
def test_corrected_times_are_positive_and_continuous(factors, first, kind):
    sizes = tuple(2.0 ** (first + k) for k in range(len(factors)))
    rows = dict(zip(sizes, factors, strict=True))
    correction = correction_at(series_of(kind, factor=lambda s: rows[s], sizes=sizes), NODE, range(len(sizes)))
    assert np.all(np.isfinite(correction.log_ratio))
    assert np.all(np.diff(correction.log_bytes) > 0)
    assert np.exp(correction.at(np.log(np.array(sizes)))) == pytest.approx(factors)
    grid = np.linspace(0, 27, 4000)
    assert np.abs(np.diff(correction.at(grid))).max() < 0.1


def test_sizes_that_were_left_out_of_the_fit():
    assert held_out_error(series_of(factor=2.0), NODE) == pytest.approx(0.0, abs=1e-9)
    assert held_out_error(series_of(sizes=SIZES[:3]), NODE) is None


def test_half_speed_is_told():
    slow = Calibration(name="site", node=NODE, series=(series_of(nodes=1, factor=2.0), series_of(factor=1.1)))
    (line,) = slow_fabrics(slow)
    assert line == "all-reduce over 8 GPUs of 1 node reaches 238 of 475 GB/s: half speed"


# --- from logs ---------------------------------------------------------------------------------------


def log(tmp_path, name="run.log", **how):
    path = tmp_path / name
    path.write_text(log_text(**how))
    return str(path)


def test_logs_become_a_calibration(tmp_path):
    logs = [log(tmp_path, "a.log"), log(tmp_path, "b.log", test="all_gather")]
    result = calibrate(logs, load_cluster("dgx-h100:2"), name="site")
    assert [s.kind for s in result.calibration.series] == ["all_reduce", "all_gather"]
    assert result.calibration.node == NODE
    assert result.fits[0]["bus_bytes_per_s"] == pytest.approx(100e9 * 1.875, rel=1e-3)
    assert result.fits[0]["latency_s"] == pytest.approx(20e-6, rel=1e-2)
    assert result.fits[0]["link"] == "network"
    assert result.fits[0]["held_out_error"] < 0.06
    assert result.calibration.series[0].source.startswith("a.log:")


def test_repeated_measurements_are_merged(tmp_path):
    logs = [log(tmp_path, f"{k}.log", time_us=straight_line(20, rate)) for k, rate in enumerate((99, 100, 101))]
    (series,) = calibrate(logs, load_cluster("dgx-h100:2")).calibration.series
    assert series.time_s[-1] == pytest.approx(2**33 / 100e9, rel=1e-3)


def test_measurements_in_unlike_states_are_told(tmp_path):
    logs = [log(tmp_path, "tcp.log", time_us=straight_line(20, 10)), log(tmp_path, "tuned.log")]
    (*_, text) = calibrate(logs, load_cluster("dgx-h100:2")).warnings
    assert "tuned.log" in text
    assert "18.7 in tcp.log" in text


def test_hosts_that_a_log_does_not_list_follow_from_the_cluster(tmp_path):
    path = log(tmp_path, header=False)
    (series,) = calibrate([path], load_cluster("dgx-h100:2")).calibration.series
    assert (series.ranks, series.ranks_per_node, series.nodes) == (16, 8, 2)
    with pytest.raises(InvalidValueError, match="does not list the hosts"):
        calibrate([path])


def test_another_machine_is_refused(tmp_path):
    path = log(tmp_path)
    with pytest.raises(ConflictError, match="NVIDIA H100 80GB HBM3"):
        calibrate([path], load_cluster("dgx-h200:2"))
    of_h100 = calibrate([path], load_cluster("dgx-h100:2")).calibration
    assert of_h100.tells_of(load_cluster("dgx-h100:64"))
    assert not of_h100.tells_of(load_cluster("dgx-a100-80g:2"))
    assert not of_h100.tells_of(load_cluster("p5.48xlarge:2"))  # the same device on another network


def test_without_a_cluster_the_first_use_settles_the_machine(tmp_path):
    loose = calibrate([log(tmp_path)]).calibration
    assert loose.node is None
    assert loose.bound(load_cluster("dgx-h100:2")).node == NODE
    with pytest.raises(ConflictError, match="a100-sxm4-80g"):
        loose.bound(load_cluster("dgx-a100-80g:2"))
    with pytest.raises(InvalidValueError, match="names no machine"):
        Corrections.of(loose)


def test_more_ranks_a_host_than_the_node_has(tmp_path):
    with pytest.raises(InvalidValueError, match="do not lie on nodes of 4 GPUs"):
        calibrate([log(tmp_path)], load_cluster("hgx-h100-4:4"))


def test_no_log():
    with pytest.raises(InvalidValueError, match="no log"):
        calibrate([])


# --- as files ----------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    document = calibrate([log(tmp_path)], load_cluster("dgx-h100:2"), name="site").to_dict()
    path = tmp_path / "site.json"
    path.write_text(json.dumps(document))
    return path


def test_a_file_reads_back_as_it_was_written(saved):
    document = json.loads(saved.read_text())
    read = load_calibration(saved)
    assert read == calibration_from_dict(read.to_dict())
    assert read.to_dict() == {key: document[key] for key in ("name", "node", "measured")}


@pytest.mark.parametrize(
    ("change", "error", "where"),
    [
        (lambda d: d.update(kind="cluster"), DamagedFileError, "kind"),
        (lambda d: d.update(colour=1), UnknownNameError, "colour"),
        (lambda d: d["measured"][0].update(collective="all_reduc"), InvalidValueError, "measured.0.collective"),
        (lambda d: d["measured"][0].update(time_s=[1.0]), InvalidValueError, "measured.0"),
        (lambda d: d["measured"][0]["message_bytes"].reverse(), InvalidValueError, "measured.0"),
        (lambda d: d["measured"][0].update(ranks=15), InvalidValueError, "measured.0"),
        (lambda d: d["measured"][0]["time_s"].__setitem__(3, -1.0), InvalidValueError, "measured.0.time_s.3"),
        (lambda d: d["node"].update(gpus=0), InvalidValueError, "node"),
        (lambda d: d.update(measured=[]), InvalidValueError, "measured"),
    ],
)
def test_a_damaged_file_is_refused_with_its_place(saved, change, error, where):
    document = json.loads(saved.read_text())
    change(document)
    saved.write_text(json.dumps(document, indent=1))
    with pytest.raises(error) as told:
        load_calibration(saved)
    assert where in told.value.where
    assert "site.json" in told.value.where


# --- published logs ----------------------------------------------------------------------------------


def published(*names):
    return [str(Path(DATA or "") / "cases" / "inputs" / "nccl_tests" / name) for name in names]


@pytest.mark.skipif(DATA is None, reason="SHARDWRIGHT_REFERENCE_DATA is not set")
@pytest.mark.parametrize(
    ("names", "cluster", "warned"),
    [
        (("h100_1node_8gpu.log", "h100_1node_4gpu.log"), "dgx-h100:10", False),
        (("h100_10node_g1.log", "h100_10node_g2.log"), "dgx-h100:10", True),  # sends at half of what pairs reach
        (("a100_2node_g4_allreduce_tcp_slow.log",), "polaris:2", True),
        (("p5_2node_srun_prefixed.log",), "p5.48xlarge:2", False),
        (("p4de_2node_srun_prefixed.log",), "p4de.24xlarge:2", False),
    ],
)
def test_published_logs_are_predicted_at_sizes_left_out(names, cluster, warned):
    result = calibrate(published(*names), load_cluster(cluster))
    assert all(fit["held_out_error"] <= 0.06 for fit in result.fits)
    assert bool(result.warnings) == warned


@pytest.mark.skipif(DATA is None, reason="SHARDWRIGHT_REFERENCE_DATA is not set")
def test_settings_that_cost_a_factor_are_told():
    (text,) = calibrate(published("a100_2node_g4_allreduce_tcp_slow.log"), load_cluster("polaris:2")).warnings
    assert "all-reduce over 8 GPUs of 2 nodes reaches 9 of" in text
    unlike = calibrate(published("a100_2node_g4_allreduce_tcp_slow.log", "a100_2node_g4_allreduce_tuned.log"))
    assert "reaches 36.8 GB/s" in unlike.warnings[0]


@pytest.mark.parametrize("value", [2, -1.5, True, "x", [], [1, 2], {}, 1e308], ids=repr)
def test_a_node_of_a_damaged_calibration_is_refused_by_its_field(value):
    """Whatever stands in a field of the node, it is read or refused, and never trips the program."""
    node = load_node("dgx-h100").to_dict()
    whole = {"kind": "calibration", "name": "site", "measured": [], "site": {}}
    places = []
    for name in node:
        try:
            calibration_from_dict(whole | {"node": node | {name: value}})
        except ShardwrightError as error:
            places.append(error.where)
    assert len(places) >= len(node) // 3
    assert all(places)
