"""How a job scales: efficiency, what each doubling adds, where degrees change, and the knee.

Over the sizes n of a series (one job on one node type) at which a plan fits, with T tokens a second,

    efficiency      (T / n) / (T0 / n0), of the smallest size n0                           `measures`
    doubling gain   (T / T') ^ (1 / log2(n / n')) - 1, from the size n' before             `scaling_of`
    knee            log2 T over log2 n as two straight lines that meet at a size:          `knee_of`
                    the size that leaves the least squares; slopes s give gains 2^s - 1

The knee is told where the second line is flatter by `CLEAR` of a doubling and there are two sizes on either side of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

DEGREES = ("tp", "cp", "pp", "vpp", "ep", "etp", "dp", "zero_stage", "micro_batch", "schedule", "recompute")
CLEAR = 0.15
"""By how much the gain of a doubling must drop at a knee; what degrees that come and go do to it is smaller."""

FEWEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What the table, the figure and the scaling need of a point with a plan.

    Attributes:
        exposed_share: exchange that no computing hides, over the step.
        headroom_bytes: what the fullest device has left.
        usd, joules: per million tokens, and per token; None where the node's price or power is not known.
        degrees: by name, of `DEGREES`.
    """

    nodes: int
    gpus: int
    step_s: float
    tokens_per_s: float
    mfu: float
    exposed_share: float
    headroom_bytes: int
    usd: float | None
    joules: float | None
    degrees: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Where growing stops paying: gains of a doubling up to there, and beyond."""

    nodes: int
    gpus: int
    before: float
    beyond: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The same job on other numbers of nodes, ascending; sizes at which nothing fits are left out."""

    key: dict[str, Any]
    sizes: tuple[Measures, ...]
    knee: Knee | None = field(default=None)

    def efficiency(self, at: int) -> float:
        """Tokens a second of a GPU over those of the smallest size."""
        first, one = self.sizes[0], self.sizes[at]
        return (one.tokens_per_s / one.gpus) / (first.tokens_per_s / first.gpus)

    def gain(self, at: int) -> float | None:
        """Throughput that a doubling adds, from the size before."""
        return doubling_gain(self.sizes[at - 1], self.sizes[at]) if at else None

    def changed(self, at: int) -> dict[str, list[Any]]:
        """Degrees that differ from the size before: old and new value."""
        if at == 0:
            return {}
        old, new = self.sizes[at - 1].degrees, self.sizes[at].degrees
        return {name: [old[name], new[name]] for name in DEGREES if old[name] != new[name]}


def measures(record: dict[str, Any]) -> Measures | None:
    """The figures of a point's best plan; None without one."""
    best = record["best"]
    if best is None:
        return None
    predicted, time, memory, parallel = best["predicted"], best["time"], best["memory"], best["parallel"]
    exposed = sum(value for name, value in time.items() if name.startswith("exposed_"))
    degrees = {name: parallel[name] for name in DEGREES if name != "recompute"}
    return Measures(
        nodes=record["key"]["nodes"],
        gpus=record["key"]["gpus"],
        step_s=predicted["step_time_s"],
        tokens_per_s=predicted["tokens_per_s"],
        mfu=predicted["mfu"],
        exposed_share=exposed / predicted["step_time_s"],
        headroom_bytes=memory["capacity_bytes"] - memory["peak_bytes"],
        usd=predicted["usd_per_1m_tokens"],
        joules=predicted["joules_per_token"],
        degrees=degrees | {"recompute": parallel["recompute"]["mode"]},
    )


def job_of(key: dict[str, Any]) -> dict[str, Any]:
    """A point's key without its size; the batch as it was stated."""
    return {name: key[name] for name in ("model", "node", "seq_len", "batch_rule", "precision", "framework")}


def series_of(records: Iterable[dict[str, Any]]) -> Iterator[Series]:
    """The series of a sweep, in the order of its points."""
    for job, points in groupby(records, key=lambda record: job_of(record["key"])):
        sizes = tuple(found for found in map(measures, points) if found is not None)
        yield Series(key=job, sizes=sizes, knee=knee_of(sizes))


def doubling_gain(before: Measures, after: Measures) -> float | None:
    """What a doubling from one size to the next adds, as a share; None between equal sizes."""
    doublings = math.log2(after.gpus / before.gpus)
    return float((after.tokens_per_s / before.tokens_per_s) ** (1 / doublings) - 1) if doublings else None


def knee_of(sizes: Sequence[Measures]) -> Knee | None:
    """The knee of a series; None where there is none, or fewer than `FEWEST` sizes."""
    if len(sizes) < FEWEST:
        return None
    size = np.log2([one.gpus for one in sizes])
    rate = np.log2([one.tokens_per_s for one in sizes])
    fits = [(*_two_lines(size, rate, at), at) for at in range(1, len(sizes) - 1)]
    _, first, second, at = min(fits, key=lambda fit: (fit[0], fit[3]))
    before, beyond = 2**first - 1, 2**second - 1
    if before - beyond < CLEAR:
        return None
    return Knee(nodes=sizes[at].nodes, gpus=sizes[at].gpus, before=before, beyond=beyond)


def _two_lines(size: Any, rate: Any, at: int) -> tuple[float, float, float]:
    """Squared residuals and both slopes of two lines that meet at a size."""
    bend = size[at]
    columns = np.stack([np.ones_like(size), np.minimum(size - bend, 0), np.maximum(size - bend, 0)], axis=1)
    solved = np.linalg.lstsq(columns, rate, rcond=None)[0]
    residual = float(((columns @ solved - rate) ** 2).sum())
    return round(residual, 12), float(solved[1]), float(solved[2])


def scaling_records(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The series with more than one size, as `sweep --format json` prints them."""
    return [_record(series) for series in series_of(records) if len(series.sizes) > 1]


def _record(series: Series) -> dict[str, Any]:
    sizes = [
        {
            "nodes": one.nodes,
            "gpus": one.gpus,
            "tokens_per_s": one.tokens_per_s,
            "efficiency": series.efficiency(at),
            "exposed_share": one.exposed_share,
            "doubling_gain": series.gain(at),
            "changed": series.changed(at),
        }
        for at, one in enumerate(series.sizes)
    ]
    knee = series.knee
    told = None
    if knee is not None:
        told = {"nodes": knee.nodes, "gpus": knee.gpus, "gain_before": knee.before, "gain_beyond": knee.beyond}
    return {"key": series.key, "sizes": sizes, "knee": told}
