"""Measured collectives of one machine, as corrections of what the fabric presets say.

With t(S) measured and t0(S) what `collective_s` says for the same group on the same machine, a collective of S bytes costs

    t'(S) = r(S) · t0'(S),   r(S) = t(S) / t0(S)                                                `Corrections.ratio`

r is read off the measured sizes, linear in log r over log S. t0' is the preset's time for what is planned, so that a what-if
on a link moves the time while the correction stays. Beyond the measured sizes the extra time e = t - t0 at the last, S1, is
split between latency L = t0(0) and the rest W = t0(S1) - L so that both change least (least squares of their relative
changes): the share σ = L²/(L² + W²) stays, the other goes with the bytes below and with the preset's time above,

    t'(S) = t0(S) + e·(σ + (1 - σ)·S/S1)          S < S1                                        `_smaller`
    t'(S) = t0(S) + e·(σ + (1 - σ)·t0(S)/t0(S1))  S > S1                                        `_larger`

A group of another shape takes the nearest measured shape (distance |log2| of islands and of ranks on each), and a kind that was
not measured takes the others of its link, all-gather and reduce-scatter first; of such a borrowed r only what exceeds the error
that presets have anyway counts (`BAND`): a fabric at half speed is slow for all, a few percent are the collective's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.documents import rounded
from shardwright.errors import ConflictError, InvalidValueError
from shardwright.hardware.cluster import Cluster, Node, NodeGroup
from shardwright.hardware.collectives import GroupTable, collective_s
from shardwright.hardware.fabric import fabric_of
from shardwright.hardware.groups import GroupShape, group_shape
from shardwright.hardware.site_factors import AS_MODELLED, SiteFactors

Floats = NDArray[np.float64]

BAND = float(np.log(1.2))
"""Error of fabric presets on machines they were not fitted to, in log: for series across nodes the median is near 20 %."""

LINKS = ("scale-up", "host", "network")
SLOW = 0.75
"""Share of the expected rate below which a fabric is called slow: presets are within 25 % on nine machines of ten."""

_TWIN = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}
_EDGES = (2.0**10, 2.0**36)  # corrections are constant beyond these message sizes
_MODEL = re.compile(r"(?<![A-Za-z0-9])[A-Z]{0,3}[0-9]{2,4}[A-Z]{0,2}(?![A-Za-z0-9])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Measured times of one collective over one group.

    Attributes:
        kind: as in `collectives.KINDS`.
        ranks: ranks of the group.
        ranks_per_node: ranks on each node.
        device: the device as the log names it; empty where it does not.
        message_bytes: as nccl-tests counts, ascending.
        time_s: measured, same length.
        source: file and line.
    """

    kind: str
    ranks: int
    ranks_per_node: int
    device: str
    message_bytes: tuple[float, ...]
    time_s: tuple[float, ...]
    source: str

    @property
    def nodes(self) -> int:
        """Nodes that took part."""
        return -(-self.ranks // self.ranks_per_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured, and on which machine.

    Attributes:
        name: of the calibration.
        node: the machine as its preset or description says; None: that of the cluster it is first used for.
        series: in the order of the logs; none where only steps were measured.
        site: what measured steps say; None: none were.
    """

    name: str
    node: Node | None
    series: tuple[Series, ...]
    site: SiteFactors | None = None

    def bound(self, cluster: Cluster) -> Calibration:
        """The calibration of a cluster: its machine settled, and checked to be the one that was measured.

        Raises:
            ConflictError: another machine was measured.
        """
        if self.node is not None:
            return self._of_machine(cluster)
        own = cluster.groups[0].node
        for series in self.series:
            if not _named_alike(series.device, own):
                raise self._elsewhere(series.device, own.device.id)
        return replace(self, node=own)

    def tells_of(self, cluster: Cluster) -> bool:
        """Whether it was measured on the machine of a cluster."""
        try:
            self.bound(cluster)
        except ConflictError:
            return False
        return True

    def _of_machine(self, cluster: Cluster) -> Calibration:
        for group in cluster.groups:
            if self.node is not None and not same_machine(self.node, group.node):
                raise self._elsewhere(self.node.id, group.node.id)
        return self

    def _elsewhere(self, measured: str, has: str) -> ConflictError:
        message = f"the calibration {self.name} was measured on {measured}; the cluster has {has}"
        return ConflictError(message, where="--calibration", hint="calibrate with the logs of this cluster")

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `calibration_file.calibration_from_dict` reads them back to an equal record."""
        return {
            "name": self.name,
            "node": None if self.node is None else self.node.to_dict(),
            "measured": [
                {
                    "collective": s.kind,
                    "ranks": s.ranks,
                    "ranks_per_node": s.ranks_per_node,
                    "device": s.device,
                    "message_bytes": list(s.message_bytes),
                    "time_s": rounded(s.time_s),
                    "source": s.source,
                }
                for s in self.series
            ],
            **({} if self.site is None else {"site": self.site.to_dict()}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """r of one series: where it applies, and log r at knots in log S."""

    kind: str
    link: str
    islands: float
    ranks_per_island: float
    log_bytes: Floats
    log_ratio: Floats

    def at(self, log_bytes: Floats) -> Floats:
        """Log r at log S, any shape."""
        return np.interp(log_bytes, self.log_bytes, self.log_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrections:
    """A calibration ready to correct prices."""

    calibration: Calibration
    items: tuple[Correction, ...]

    @property
    def site(self) -> SiteFactors:
        """What measured steps say; factors of 1 where none were measured."""
        return self.calibration.site or AS_MODELLED

    @staticmethod
    def of(calibration: Calibration) -> Corrections:
        """The corrections of a calibration whose machine is settled.

        Raises:
            InvalidValueError: it is not; see `Calibration.bound`.
        """
        node = calibration.node
        if node is None:
            raise InvalidValueError(f"the calibration {calibration.name} names no machine", hint="use `Calibration.bound`")
        return Corrections(calibration=calibration, items=tuple(_correction(s, node) for s in calibration.series))

    def ratio(self, kind: str, groups: GroupTable, message_bytes: Floats) -> Floats:
        """The factor r of each row.

        Args:
            kind: one of `collectives.KINDS`.
            groups: [rows].
            message_bytes: as nccl-tests counts, [rows].

        Returns:
            Factors [rows] on the preset's time: of links that were measured, and of the site.
        """
        site = self.site
        log = np.log(np.where(link_classes(groups) == LINKS.index("network"), site.scaleout, site.scaleup))
        logs = np.log(np.maximum(np.broadcast_to(message_bytes, log.shape), 1.0))
        link = link_classes(groups)
        for code, name in enumerate(LINKS):
            rows = np.flatnonzero((link == code) & (groups.size > 1))
            if len(rows):
                log[rows] += self._log_ratio(kind, name, groups.take(rows), logs[rows])
        return np.exp(log)

    def _log_ratio(self, kind: str, link: str, groups: GroupTable, logs: Floats) -> Floats:
        here = [item for item in self.items if item.link == link]
        own = [item for item in here if item.kind == kind] or [item for item in here if item.kind == _TWIN.get(kind)]
        if own:
            value, distance = _nearest(own, groups, logs)
            return np.where(distance < 1e-9, value, _excess(value))
        kinds = sorted({item.kind for item in here})
        if not kinds:
            return np.zeros_like(logs)
        values = [_nearest([item for item in here if item.kind == k], groups, logs)[0] for k in kinds]
        return _excess(np.mean(values, axis=0))

    def sources(self) -> dict[str, str]:
        """Collectives that were measured → the logs."""
        named: dict[str, list[str]] = {}
        for series in self.calibration.series:
            named.setdefault(series.kind, []).extend(s.rpartition(":")[0] or s for s in series.source.split(", "))
        return {kind: ", ".join(dict.fromkeys(found)) for kind, found in named.items()}


def link_classes(groups: GroupTable) -> NDArray[np.int64]:
    """Index into `LINKS` of the widest link each group uses, [rows]."""
    return np.where(groups.islands > 1, 2, np.where(groups.domains > 1, 1, 0))


def link_of(shape: GroupShape) -> str:
    """The widest link a group uses."""
    return LINKS[int(link_classes(GroupTable.of([shape]))[0])]


def measured_shape(series: Series, node: Node) -> GroupShape:
    """How the measured group lay on its nodes; of a send, the pair whose time counts (over nodes if there are several)."""
    cluster = _cluster(series, node)
    if series.kind == "send":
        return group_shape(cluster, 2, series.ranks_per_node if series.nodes > 1 else 1)
    return group_shape(cluster, series.ranks, 1)


def expected_s(series: Series, node: Node, message_bytes: Floats) -> Floats:
    """What the presets say for the measured group, [sizes]."""
    table = GroupTable.of([measured_shape(series, node)] * len(message_bytes))
    return collective_s(series.kind, table, message_bytes, fabric_of(_cluster(series, node))).time_s


def correction_at(series: Series, node: Node, knots: Sequence[int]) -> Correction:
    """The correction that some of the sizes of a series make, given by their places."""
    shape = measured_shape(series, node)
    sizes = np.array([series.message_bytes[k] for k in knots])
    times = np.array([series.time_s[k] for k in knots])
    below, above = _between(_EDGES[0], sizes[0])[:-1], _between(sizes[-1], _EDGES[1])[1:]
    every = np.concatenate([below, sizes, above])
    start, *rest = expected_s(series, node, np.concatenate([[1.0], every]))
    expected = np.array(rest)
    first, last = len(below), len(below) + len(sizes) - 1
    under = _smaller(below, expected[:first], start, sizes[0], times[0], expected[first])
    over = _larger(expected[last + 1 :], start, times[-1], expected[last])
    return Correction(
        kind=series.kind,
        link=link_of(shape),
        islands=float(shape.islands),
        ranks_per_island=float(shape.ranks_per_island),
        log_bytes=np.log(every),
        log_ratio=np.log(np.concatenate([under, times, over]) / expected),
    )


def _between(low: float, high: float) -> Floats:
    """Sizes from low to high, a few to each power of two; both ends, and high alone where it is not the larger."""
    if not low < high:
        return np.array([high]) if high == low else np.zeros(1)
    return np.geomspace(low, high, 2 + int(2 * np.log2(high / low)))


def _smaller(sizes: Floats, expected: Floats, start: float, at: float, time: float, expected_at: float) -> Floats:
    """Times below the smallest measured size."""
    share = _latency_share(start, expected_at)
    return _bounded(expected + (time - expected_at) * (share + (1 - share) * sizes / at), expected, time / expected_at)


def _larger(expected: Floats, start: float, time: float, expected_at: float) -> Floats:
    """Times above the largest measured size."""
    share = _latency_share(start, expected_at)
    grown = expected / expected_at
    return _bounded(expected + (time - expected_at) * (share + (1 - share) * grown), expected, time / expected_at)


def _latency_share(latency: float, whole: float) -> float:
    """The share σ of latency in what a time differs from the preset's."""
    rest = max(whole - latency, 0.0)
    return latency**2 / (latency**2 + rest**2)


def _bounded(times: Floats, expected: Floats, ratio: float) -> Floats:
    """Times with a factor between 1 and that at the end of the measured sizes."""
    return np.clip(times, min(ratio, 1.0) * expected, max(ratio, 1.0) * expected)


def same_machine(one: Node, other: Node) -> bool:
    """Whether collectives of one node tell about the other: device, GPUs and fabrics agree, whatever the rates."""
    keys = ("gpus", "scaleup_fabric", "fabric")
    return one.device.id == other.device.id and all(getattr(one, key) == getattr(other, key) for key in keys)


def _named_alike(device: str, node: Node) -> bool:
    """Whether the name that a driver prints may be that of the node's device; names without a model number always may."""
    model = _MODEL.search(device)
    return model is None or model.group().lower() in f"{node.device.id} {node.device.name}".lower()


def _cluster(series: Series, node: Node) -> Cluster:
    """The nodes of a log, with the GPUs that took part: those alone share the NICs."""
    group = NodeGroup(node=node, count=series.nodes, gpus_per_node=series.ranks_per_node)
    return Cluster(name=f"{node.id}:{series.nodes}x{series.ranks_per_node}", groups=(group,))


def _correction(series: Series, node: Node) -> Correction:
    return correction_at(series, node, range(len(series.message_bytes)))


def _nearest(items: Sequence[Correction], groups: GroupTable, logs: Floats) -> tuple[Floats, Floats]:
    """Log r of the nearest shape (the mean of equally near ones) and the distance to it, [rows]."""
    islands = np.array([[item.islands] for item in items])
    each = np.array([[item.ranks_per_island] for item in items])
    distance = np.abs(np.log2(groups.islands / islands)) + np.abs(np.log2(groups.ranks_per_island / each))
    nearest = distance.min(axis=0)
    weight = (distance <= nearest + 1e-9).astype(np.float64)
    values = np.array([item.at(logs) for item in items])
    return (weight * values).sum(axis=0) / weight.sum(axis=0), nearest


def _excess(log_ratio: Floats) -> Floats:
    """What of a borrowed correction exceeds the error that presets have anyway."""
    return np.sign(log_ratio) * np.maximum(np.abs(log_ratio) - BAND, 0.0)
