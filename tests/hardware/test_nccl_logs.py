"""Logs of nccl-tests: what is read, what follows from the figures, what is refused and where."""

import contextlib
import os
import random
from pathlib import Path

import numpy as np
import pytest
from nccl_log_texts import SIZES, curve, log_text, row, straight_line

from shardwright.errors import ConflictError, DamagedFileError, InvalidValueError, ShardwrightError, UnknownNameError
from shardwright.hardware.nccl_logs import read_log

DATA = os.environ.get("SHARDWRIGHT_REFERENCE_DATA")
TESTS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send",
}


def read(tmp_path, text, name="run.log", kind=""):
    path = tmp_path / name
    path.write_text(text)
    return read_log(f"{kind}={path}" if kind else str(path))


def only(log):
    (table,) = log.tables
    return table


@pytest.mark.parametrize("test", TESTS)
def test_a_run_is_read(tmp_path, test):
    table = only(read(tmp_path, log_text(test, nodes=3, per_node=4)))
    assert (table.kind, table.ranks, table.ranks_per_node, table.nodes) == (TESTS[test], 12, 4, 3)
    assert table.device == "NVIDIA H100 80GB HBM3"
    assert table.message_bytes == SIZES
    assert table.time_s == pytest.approx([round(straight_line()(s), 2) * 1e-6 for s in SIZES])


def test_several_collectives_in_one_file(tmp_path):
    log = read(tmp_path, "".join(log_text(test, nodes=k + 1) for k, test in enumerate(TESTS)))
    assert [(t.kind, t.nodes) for t in log.tables] == [(kind, k + 1) for k, kind in enumerate(TESTS.values())]
    assert [t.source for t in log.tables] == sorted((t.source for t in log.tables), key=lambda s: int(s.split(":")[1]))


@pytest.mark.parametrize(
    "prefix",
    [
        "0: ",
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "[0] ",
        "[rank0]: ",
        "[pod/nccl-launcher-x7k2p/nccl] ",
        "node001: ",
        "nccl-0  | ",
        "2025-03-01T10:00:00.123456789Z ",
        "[pod/nccl/nccl] 2025-03-01T10:00:00.1Z ",
        "\x1b[32m0:\x1b[0m ",
    ],
)
def test_what_launchers_put_before_lines(tmp_path, prefix):
    plain, prefixed = only(read(tmp_path, log_text())), only(read(tmp_path, log_text(prefix=prefix)))
    assert prefixed == plain


def test_lines_of_other_ranks_between(tmp_path):
    lines = log_text(prefix="0: ").splitlines()
    noise = ["3: node001:4003:4003 [3] NCCL INFO Channel 00/16 : 0 1 2 3", "", "5: 1024 done", "WARNING: open file 8 4 x"]
    mixed = [line for known in lines for line in (known, random.Random(7).choice(noise))]
    assert curve(only(read(tmp_path, "\n".join(mixed))))[1].tolist() == curve(only(read(tmp_path, log_text())))[1].tolist()


def test_the_name_of_the_command_names_the_collective(tmp_path):
    text = "+ srun /opt/nccl-tests/build/all_gather_perf -b 8 -e 8G -f 2 -g 1\n" + log_text("all_gather", named=False)
    assert only(read(tmp_path, text)).kind == "all_gather"


@pytest.mark.parametrize(
    ("test", "name", "kind"),
    [
        ("all_reduce", "a.log", "all_reduce"),
        ("reduce_scatter", "a.log", "reduce_scatter"),
        ("all_gather", "n2-allgather.log", "all_gather"),
        ("alltoall", "alltoall_tuned.txt", "all_to_all"),
    ],
)
def test_the_figures_or_the_file_name_the_collective(tmp_path, test, name, kind):
    assert only(read(tmp_path, log_text(test, named=False), name)).kind == kind


def test_gather_and_exchange_look_alike(tmp_path):
    text = log_text("alltoall", named=False)
    with pytest.raises(InvalidValueError, match="several look like this") as told:
        read(tmp_path, text)
    assert "all_gather=LOG" in told.value.hint
    assert only(read(tmp_path, text, kind="alltoall")).kind == "all_to_all"
    with pytest.raises(UnknownNameError, match="all_gathr"):
        read(tmp_path, text, kind="all_gathr")


@pytest.mark.parametrize("ranks", [2, 3, 8, 16, 60])
def test_bus_bandwidth_tells_the_number_of_ranks(tmp_path, ranks):
    table = only(read(tmp_path, log_text(nodes=1, per_node=ranks, header=False)))
    assert (table.ranks, table.ranks_per_node, table.nodes) == (ranks, None, None)


def test_bus_bandwidth_of_many_ranks_tells_nothing(tmp_path):
    with pytest.raises(InvalidValueError, match="how many ranks"):
        read(tmp_path, log_text(nodes=1, per_node=256, header=False))


def test_rates_above_the_line_are_kept(tmp_path):
    table = only(read(tmp_path, log_text(time_us=straight_line(70, 260))))
    assert 2**33 * 1.875 / table.time_s[-1] > 480e9


def test_rows_without_a_message_are_passed_over(tmp_path):
    lines = log_text().splitlines()
    at = next(k for k, line in enumerate(lines) if line.split()[0].isdigit())
    assert only(read(tmp_path, "\n".join([*lines[:at], row("all_reduce", 16, 0, 9.0), *lines[at:]]))).message_bytes == SIZES


def test_wrong_values_are_left_out_and_told(tmp_path):
    text = log_text()
    bad = next(line for line in text.splitlines() if line.split()[:1] == ["1024"])
    log = read(tmp_path, text.replace(bad, bad.replace("     0 ", "    12 ")))
    assert 1024.0 not in only(log).message_bytes
    assert "12 wrong values" in log.notes[0]


def test_in_place_alone(tmp_path):
    lines = [line for line in log_text().splitlines() if not line.strip()[:1].isdigit()]
    lines[-3:-3] = ["  1048576  262144  float  sum  -1  N/A  N/A  N/A  N/A  100.0  10.49  19.66  0"]
    assert only(read(tmp_path, "\n".join(lines))).time_s == pytest.approx((1e-4,))


def test_old_tables_without_root(tmp_path):
    rows = "# Collective test starting: all_reduce_perf\n# Rank  0 Pid 1 on a device  0 [0x1] V100\n"
    rows += (
        "# Rank  1 Pid 1 on a device  1 [0x2] V100\n#  size count type redop time algbw busbw error time algbw busbw error\n"
    )
    rows += "  1048576  262144  float  sum  104.9  10.00  10.00  2e-07  100.0  10.49  10.49  2e-07\n"
    assert only(read(tmp_path, rows)).time_s == pytest.approx((104.9e-6,))


def cut(text, start, keep):
    """The text with the row of a size cut off after some of its columns."""
    lines = text.splitlines()
    at = next(k for k, line in enumerate(lines) if line.split()[:1] == [start])
    return lines[:at], " ".join(lines[at].split()[:keep]), lines[at + 1 :]


def test_a_last_row_that_is_cut_off_is_left_out(tmp_path):
    before, stump, _ = cut(log_text(), "4194304", 7)
    log = read(tmp_path, "\n".join([*before, stump]))
    assert only(log).message_bytes == tuple(s for s in SIZES if s < 4194304)
    assert log.notes == (f"{tmp_path / 'run.log'}:{len(before) + 1}: the last row is cut off: left out",)


def test_a_row_cut_off_in_the_middle_is_damage(tmp_path):
    before, stump, after = cut(log_text(), "4194304", 7)
    with pytest.raises(DamagedFileError, match="cut off") as told:
        read(tmp_path, "\n".join([*before, stump, *after]))
    assert told.value.where == f"{tmp_path / 'run.log'}:{len(before) + 1}"


def test_a_run_after_one_that_was_killed(tmp_path):
    before, stump, _ = cut(log_text(), "4194304", 7)
    log = read(tmp_path, "\n".join([*before, stump, log_text("all_gather")]))
    assert [t.kind for t in log.tables] == ["all_reduce", "all_gather"]
    assert len(log.notes) == 1


def with_time(text, size, time):
    line = next(line for line in text.splitlines() if line.split()[:1] == [size])
    return text.replace(line, line.replace(line.split()[5], time))


def without_rows(text):
    return "\n".join(line for line in text.splitlines() if not line.strip()[:1].isdigit())


RANK = "# Using devices\n#  Rank 99 Group 0 Pid 1 on host000 device 9 [0x1] x"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda text: with_time(text, "16777216", "17.77"), "the row says"),
        (lambda text: with_time(text, "16777216", "x17.77"), "no time and bandwidths"),
        (lambda text: with_time(text, "16777216", "-5.0"), "a time of -5.0 us"),
        (lambda text: text.replace("# Using devices", RANK), "different numbers of ranks"),
        (lambda _: "", "is empty"),
        (lambda _: "hello\n", "holds no table"),
        (without_rows, "holds no table"),
    ],
)
def test_what_is_refused(tmp_path, change, match):
    with pytest.raises(ShardwrightError, match=match) as told:
        read(tmp_path, change(log_text()))
    assert "run.log" in told.value.where
    assert told.value.exit_code == 2


def test_ranks_that_do_not_go_with_the_figures(tmp_path):
    lines = log_text(per_node=8).splitlines()
    half = [line for line in lines if not any(f"Rank {rank:2d} " in line for rank in (*range(4, 8), *range(12, 16)))]
    with pytest.raises(ConflictError, match="over 8 ranks has"):
        read(tmp_path, "\n".join(half))


def test_one_rank_exchanges_nothing(tmp_path):
    with pytest.raises(InvalidValueError, match="single rank"):
        read(tmp_path, log_text(nodes=1, per_node=1))


def test_a_missing_file(tmp_path):
    with pytest.raises(DamagedFileError, match="no such file"):
        read_log(str(tmp_path / "none.log"))


def test_damage_never_ends_in_a_traceback(tmp_path):
    text, dice = log_text(nodes=1), random.Random(3)
    for _ in range(150):
        at, kind = dice.randrange(len(text)), dice.randrange(3)
        broken = text[:at] if kind == 0 else text[:at] + dice.choice("0 \n#x-.") + text[at + kind - 1 :]
        with contextlib.suppress(ShardwrightError):
            read(tmp_path, broken)


@pytest.mark.skipif(DATA is None, reason="SHARDWRIGHT_REFERENCE_DATA is not set")
@pytest.mark.parametrize(
    ("name", "kinds", "ranks", "per_node", "peak"),
    [
        ("h100_1node_8gpu.log", 5, 8, 8, {"all_reduce": 482, "all_gather": 362}),
        ("h100_1node_4gpu.log", 5, 4, 4, {"all_reduce": 367}),
        ("h100_10node_g1.log", 5, 10, 1, {"all_reduce": 48.9, "all_to_all": 44.8, "send": 24.9}),
        ("h100_10node_g2.log", 5, 20, 2, {"all_reduce": 98.3, "all_to_all": 47.8, "send": 25.2}),
        ("a100_2node_g4_allreduce_tcp_slow.log", 1, 8, 4, {"all_reduce": 9.45}),
        ("a100_2node_g4_allreduce_tuned.log", 1, 8, 4, {"all_reduce": 36.8}),
        ("a100_2node_g4_allgather_tuned.log", 1, 8, 4, {"all_gather": 36.4}),
        ("a100_2node_g4_alltoall_tuned.log", 1, 8, 4, {"all_to_all": 9.4}),
        ("p4de_2node_srun_prefixed.log", 1, 16, None, {"all_reduce": 78.3}),
        ("p5_2node_srun_prefixed.log", 1, 16, None, {"all_reduce": 487.1}),  # above the 400 GB/s of the node's NICs
    ],
)
def test_published_logs(name, kinds, ranks, per_node, peak):
    log = read_log(str(Path(DATA or "") / "cases" / "inputs" / "nccl_tests" / name))
    assert len(log.tables) == kinds
    assert {(t.ranks, t.ranks_per_node) for t in log.tables} == {(ranks, per_node)}
    factor = {"all_reduce": 2 * (ranks - 1) / ranks, "send": 1.0}
    best = {
        t.kind: max(factor.get(t.kind, (ranks - 1) / ranks) * np.divide(*curve(t))) / 1e9 for t in log.tables if t.kind in peak
    }
    assert best == pytest.approx(peak, rel=0.006)
