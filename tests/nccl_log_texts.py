"""Logs of nccl-tests as a launcher shows them, made for tests: header, ranks by host, one table a collective."""

import numpy as np

FACTOR = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "sendrecv": lambda _: 1.0,
}
SIZES = tuple(2.0**k for k in range(3, 34))


def straight_line(latency_us=20.0, gb_per_s=100.0):
    """Time in microseconds of a message: latency and algorithm bandwidth."""
    return lambda size: latency_us + size / gb_per_s * 1e-3


def log_text(
    test="all_reduce",
    *,
    nodes=2,
    per_node=8,
    device="NVIDIA H100 80GB HBM3",
    time_us=None,
    sizes=SIZES,
    named=True,
    header=True,
    prefix="",
):
    """One run of nccl-tests."""
    time_us = time_us or straight_line()
    ranks = nodes * per_node
    lines = [f"# Collective test starting: {test}_perf"] if named else []
    lines += ["# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor)", "#"]
    if header:
        lines += ["# Using devices"]
        lines += [
            f"#  Rank {r:2d} Group  0 Pid {4000 + r} on host{r // per_node:03d} device {r % per_node:2d} [0x{r:02x}] {device}"
            for r in range(ranks)
        ]
    lines += [
        "#",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw",
    ]
    lines += [row(test, ranks, size, time_us(size)) for size in sizes]
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 1.0", "#"]
    return "\n".join(prefix + line for line in lines) + "\n"


def row(test, ranks, size, time_us):
    """One row of a table."""
    algbw = size / time_us * 1e-3 if time_us else 0.0
    half = f"{time_us:10.2f} {algbw:7.2f} {algbw * FACTOR[test](ranks):7.2f}"
    redop = "sum" if test in {"all_reduce", "reduce_scatter"} else "none"
    return f"{size:13.0f} {size / 4:13.0f}     float {redop:>7}      -1 {half}      0 {half}    N/A"


def curve(series):
    """Sizes and times of a series or table as arrays."""
    return np.array(series.message_bytes), np.array(series.time_s)
