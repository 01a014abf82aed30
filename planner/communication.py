"""The collectives of a plan's critical stage, one row a kind of message.

A row counts how often a collective runs in a step, how long it takes, and how much of that is exposed. Exposed time of an
axis is shared out over its rows by time, so that rows sum to the axis' part of the step. Where more is exposed than collectives
take (buffers of sharded exchange are copied on the stream that computes), their time is what is exposed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwright.hardware.collectives import ALGORITHMS, CollectiveTime, wire_bytes
from shardwright.hardware.mesh import GroupShape
from shardwright.hardware.tails import slowdown
from shardwright.planner.axes.sharding import LocalSizes
from shardwright.planner.cost.context import Context
from shardwright.planner.cost.memory import FULL
from shardwright.planner.cost.network import Network
from shardwright.planner.cost.operators import is_layer, layer_collectives, units_of
from shardwright.planner.cost.pricing import Prices
from shardwright.planner.cost.sends import send_bytes, send_parts, stage_distance, tied_bytes, tied_distance
from shardwright.planner.cost.states import every_pass, held, state_exchanges
from shardwright.planner.plans import IntArray, PlanBatch

Row = dict[str, Any]


def communication_rows(context: Context, batch: PlanBatch, key: IntArray, prices: Prices, index: int) -> list[Row]:
    """Rows of one plan, by axis; groups of a single rank are left out."""
    run = int(prices.critical[index])
    one = batch.take(np.array([index]))
    rows = _layer_rows(context, one, int(key[index]), run)
    rows += _send_rows(context, one, int(key[index]))
    rows += _state_rows(context, one, key[[index]], run)
    for axis in ("tp", "cp", "ep", "pp", "dp"):
        _share_exposed([r for r in rows if r["axis"] == axis], float(prices.parts[f"exposed_{axis}_s"][index]))
    return rows


def _layer_rows(context: Context, one: PlanBatch, key: int, run: int) -> list[Row]:
    """Rows of exchange inside layers, equal ones of several units joined."""
    split, count = int(one.split[0]), int(one.micro_batches[0])
    ground, counts, layers = (
        context.ground(split, run),
        context.splits.units(split, run),
        max(float(context.splits.layers[split, run]), 1.0),
    )
    again = min(float(one.recompute_layers[0]), layers) / layers if one.recompute[0] == FULL else 0.0
    joined: dict[tuple[str, str, int, int, int], Row] = {}
    for unit, times in zip(units_of(context.problem.graph), counts, strict=True):
        if times == 0:
            continue
        sizes = LocalSizes(unit.dims, context.keys)
        repeat = again if is_layer(unit) else 0.0
        for c in layer_collectives(unit, sizes, context.keys, context.machine):
            runs = float(times) * count * (float(c.forward[key]) * (1.0 + repeat) + float(c.backward[key]))
            if runs == 0 or int(c.size[key]) == 1:
                continue
            time = ground.network.in_layer(c, np.array([key]))
            shape = ground.network.shape(int(c.size[key]), int(c.stride[key]))
            row = _filled(ground.network, c.axis, c.kind, shape, int(c.stride[key]), float(c.message_bytes[key]), runs, time)
            name = (c.axis, c.kind, int(c.size[key]), int(c.stride[key]), int(c.message_bytes[key]))
            joined[name] = _joined(joined[name], row) if name in joined else row
    return list(joined.values())


def _send_rows(context: Context, one: PlanBatch, key: int) -> list[Row]:
    if one.pp[0] == 1:
        return []
    distance = int(stage_distance(one)[0])
    runs = 2.0 * float(one.micro_batches[0] * one.vpp[0])
    at = np.array([key], dtype=np.int64)
    message, parts = float(send_bytes(context, at, one.split[:1])[0]), int(send_parts(context)[key])
    made = [_pair_row(context, "send", distance, message, runs)]
    if parts > 1:
        made.append(_row(context.network, "pp", "all_gather", parts, 1, message * parts, runs))
    tied, apart = float(tied_bytes(context)[key]), int(tied_distance(one)[0])
    return made + ([_pair_row(context, "all_reduce", apart, tied, 1.0)] if tied and apart else [])


def _state_rows(context: Context, one: PlanBatch, key: IntArray, run: int) -> list[Row]:
    problem, network = context.problem, context.ground(int(one.split[0]), run).network
    runs = context.splits.counts.shape[1]
    own = held(one, key, context.tables, context.splits, runs)
    repeated = bool(every_pass(one, problem.stack)[0])
    made = []
    for exchange in state_exchanges(one, own, problem):
        message = float(exchange.message_bytes[0, run])
        if not exchange.applies[0] or message == 0:
            continue
        times = 1.0
        if repeated and exchange.phase == "reduce":
            times = float(one.micro_batches[0])
        elif repeated and one.zero[0] == 3:
            times = 2.0 * float(one.micro_batches[0])
        pieces = float(exchange.pieces[0, run])
        group = int(exchange.size[0]), int(exchange.stride[0])
        made.append(_row(network, "dp", exchange.kind, *group, message / pieces, times * pieces))
    return made


def _row(network: Network, axis: str, kind: str, size: int, stride: int, message: float, runs: float) -> Row:
    time = network.collective(kind, np.array([size]), np.array([stride]), np.array([message]))
    return _filled(network, axis, kind, network.shape(size, stride), stride, message, runs, time)


def _pair_row(context: Context, kind: str, distance: int, message: float, runs: float) -> Row:
    time = context.network.between(kind, np.array([distance]), np.array([message]))
    return _filled(context.network, "pp", kind, context.network.pair(distance), distance, message, runs, time)


def _filled(
    network: Network, axis: str, kind: str, shape: GroupShape, stride: int, message: float, runs: float, time: CollectiveTime
) -> Row:
    median_s = float(time.time_s[0]) * runs
    return {
        "axis": axis,
        "collective": kind,
        "group_size": shape.size,
        "group_stride": stride,
        "message_bytes": round(message),
        "count_per_step": round(runs),
        "time_s": median_s,
        "tail_s": median_s * float(slowdown(shape.islands)),
        "exposed_s": 0.0,
        "wire_bytes": float(wire_bytes(kind, shape.size, message)) * runs,
        "algorithm": ALGORITHMS[int(time.algorithm[0])],
        "bottleneck_link": network.link_name(int(time.link[0]), shape),
    }


def _joined(one: Row, other: Row) -> Row:
    added = ("count_per_step", "time_s", "tail_s", "wire_bytes")
    return one | {name: one[name] + other[name] for name in added}


def _share_exposed(rows: list[Row], exposed_s: float) -> None:
    total = sum(row["time_s"] for row in rows)
    for row in rows:
        row["exposed_s"] = exposed_s * row["time_s"] / total if total > 0 else 0.0
        row["time_s"] = max(row["time_s"], row["exposed_s"])
