"""From logs to a calibration: `calibrate` reads them, merges what was measured twice, compares with the presets.

Tables of one collective over one group are merged; where several state a size, the median counts. Beside the measured times
stands what the presets expect of the machine, so that a fabric which is much slower than its description is noticed:

    rate      bus bandwidth c(n)·S/t of the largest message                      `_fit`
    error     median |t0/t - 1|, and the same for each half of the sizes after correcting by the other half  `held_out_error`
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwright.documents import rounded
from shardwright.errors import InvalidValueError
from shardwright.hardware.calibration import (
    SLOW,
    Calibration,
    Floats,
    Series,
    correction_at,
    expected_s,
    link_of,
    measured_shape,
)
from shardwright.hardware.cluster import Cluster, Node
from shardwright.hardware.nccl_logs import LogTable, bus_factor, read_log

SMALL_BYTES = 1024.0
"""Messages up to here take the latency alone."""

UNLIKE = 1.5
"""Two measurements of the same collective that differ by more than this factor are not of one state of the machine."""

_SHARES = ((0.45, 0.55, "half speed"), (0.3, 0.37, "a third of the speed"), (0.22, 0.28, "a quarter of the speed"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """What `calibrate` found.

    Attributes:
        calibration: to price with.
        fits: one row a series.
        warnings: what a user should look at.
    """

    calibration: Calibration
    fits: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """Always 0: a slow fabric is an answer."""
        return 0

    def to_dict(self) -> dict[str, Any]:
        """The document that is printed and written."""
        head: dict[str, Any] = {"schema_version": 1, "kind": "calibration"}
        return head | self.calibration.to_dict() | {"fits": list(self.fits), "warnings": list(self.warnings)}


def calibrate(logs: Sequence[str], cluster: Cluster | None = None, *, name: str = "nccl-tests") -> CalibrationResult:
    """A calibration from logs of nccl-tests.

    Args:
        logs: paths, or COLLECTIVE=PATH.
        cluster: the machine they were measured on; None: compared when a plan uses them.
        name: of the calibration.

    Raises:
        DamagedFileError, InvalidValueError, UnknownNameError: a log that cannot be used, with its place.
        ConflictError: the logs were measured on another device than the cluster has.
    """
    if not logs:
        raise InvalidValueError("no log is given", where="--nccl-tests", hint="give the output of all_reduce_perf and its like")
    read = [read_log(log) for log in logs]
    node = None if cluster is None else cluster.node
    series, unlike = _merged([_series(table, node) for log in read for table in log.tables])
    calibration = Calibration(name=name, node=None, series=series)
    if cluster is not None:
        calibration = calibration.bound(cluster)
    fits = tuple(_fit(one, node) for one in series)
    notes = [note for log in read for note in log.notes]
    return CalibrationResult(calibration=calibration, fits=fits, warnings=(*slow_fabrics(calibration), *unlike, *notes))


def held_out_error(series: Series, node: Node) -> float | None:
    """Median error on each half of the sizes after correcting by the other half; None below four sizes."""
    count = len(series.message_bytes)
    if count < 4:
        return None
    return float(np.median(np.concatenate([held_out_errors(series, node, range(first, count, 2)) for first in (0, 1)])))


def held_out_errors(series: Series, node: Node, knots: Sequence[int]) -> Floats:
    """|predicted / measured - 1| at the sizes that are not among the knots, corrected by those that are."""
    rest = np.array([k for k in range(len(series.message_bytes)) if k not in set(knots)])
    sizes, times = np.array(series.message_bytes)[rest], np.array(series.time_s)[rest]
    ratio = np.exp(correction_at(series, node, knots).at(np.log(sizes)))
    return np.asarray(np.abs(ratio * expected_s(series, node, sizes) / times - 1.0))


def slow_fabrics(calibration: Calibration) -> list[str]:
    """A line for each series that stays far below what its machine is expected to reach."""
    lines = (_slow(series, calibration.node) for series in calibration.series)
    return [line for line in lines if line is not None]


def _series(table: LogTable, node: Node | None) -> Series:
    per_node = table.ranks_per_node
    if per_node is None and node is None:
        hint = "name the machine: --cluster NODE:COUNT"
        raise InvalidValueError("the log does not list the hosts of the ranks", where=table.source, hint=hint)
    if per_node is None:
        per_node = min(table.ranks, node.gpus if node is not None else 1)
    if table.ranks % per_node or (node is not None and per_node > node.gpus):
        has = f"nodes of {node.gpus} GPUs" if node is not None else f"{per_node} a host"
        message = f"{table.ranks} ranks, {per_node} a host, do not lie on {has}"
        raise InvalidValueError(message, where=table.source, hint="name the machine of the log: --cluster NODE:COUNT")
    return Series(
        kind=table.kind,
        ranks=table.ranks,
        ranks_per_node=per_node,
        device=table.device[:200],
        message_bytes=table.message_bytes,
        time_s=table.time_s,
        source=table.source,
    )


def _merged(found: Sequence[Series]) -> tuple[tuple[Series, ...], list[str]]:
    """One series for each collective and group, and a warning for each that was measured in unlike states."""
    alike: dict[tuple[str, int, int], list[Series]] = {}
    for series in found:
        alike.setdefault((series.kind, series.ranks, series.ranks_per_node), []).append(series)
    warnings = [text for several in alike.values() if (text := _unlike(several)) is not None]
    return tuple(_joined(several) for several in alike.values()), warnings


def _joined(several: Sequence[Series]) -> Series:
    times: dict[float, list[float]] = {}
    for series in several:
        for size, time in zip(series.message_bytes, series.time_s, strict=True):
            times.setdefault(size, []).append(time)
    sizes = sorted(times)
    return replace(
        several[0],
        message_bytes=tuple(sizes),
        time_s=tuple(statistics.median(times[size]) for size in sizes),
        source=", ".join(dict.fromkeys(series.source for series in several))[:2000],
    )


def _unlike(several: Sequence[Series]) -> str | None:
    rates = {s.source: _rate(s) for s in several}
    fast, slow = max(rates, key=lambda k: rates[k]), min(rates, key=lambda k: rates[k])
    if len(several) < 2 or rates[fast] < UNLIKE * rates[slow]:
        return None
    what = f"{several[0].kind.replace('_', '-')} over {several[0].ranks} ranks"
    figures = f"{rates[fast] / 1e9:.1f} GB/s in {fast} and {rates[slow] / 1e9:.1f} in {slow}"
    return f"{what} reaches {figures}: give only the log of the settings that jobs run with"


def _rate(series: Series) -> float:
    return bus_factor(series.kind, series.ranks) * series.message_bytes[-1] / series.time_s[-1]


def _fit(series: Series, node: Node | None) -> dict[str, Any]:
    sizes = np.array(series.message_bytes)
    small = sizes <= SMALL_BYTES
    made: dict[str, Any] = {
        "collective": series.kind,
        "link": None,
        "ranks": series.ranks,
        "nodes": series.nodes,
        "sizes": len(sizes),
        "latency_s": float(np.median(np.array(series.time_s)[small])) if small.any() else None,
        "expected_latency_s": None,
        "bus_bytes_per_s": _rate(series),
        "expected_bus_bytes_per_s": None,
        "preset_error": None,
        "held_out_error": None,
    }
    if node is None:
        return dict(rounded(made))
    expected = expected_s(series, node, sizes)
    made["link"] = link_of(measured_shape(series, node))
    made["expected_latency_s"] = float(np.median(expected[small])) if small.any() else None
    made["expected_bus_bytes_per_s"] = _expected_rate(series, node)
    made["preset_error"] = float(np.median(np.abs(expected / np.array(series.time_s) - 1.0)))
    made["held_out_error"] = held_out_error(series, node)
    return dict(rounded(made))


def _slow(series: Series, node: Node | None) -> str | None:
    if node is None:
        return None
    rate, expected = _rate(series), _expected_rate(series, node)
    if rate >= SLOW * expected:
        return None
    share = rate / expected
    said = next((text for low, high, text in _SHARES if low <= share <= high), f"{100 * share:.0f} % of the speed")
    where = f"{series.ranks} GPUs of {series.nodes} node{'s' if series.nodes > 1 else ''}"
    named = series.kind.replace("_", "-")
    return f"{named} over {where} reaches {rate / 1e9:.0f} of {expected / 1e9:.0f} GB/s: {said}"


def _expected_rate(series: Series, node: Node) -> float:
    last = series.message_bytes[-1]
    return bus_factor(series.kind, series.ranks) * last / float(expected_s(series, node, np.array([last]))[0])
