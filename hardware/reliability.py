"""Failures, checkpoints and the share of time that is spent on steps that count.

n GPUs that fail independently, each at rate λ (interruptions of the job per GPU-hour), give

    M  = 3600 / (λ·n)                                     mean time to interruption, s               `mtti_s`
    τ  = √(2·δ·M)                                         Young's interval between checkpoints       `young_interval_s`
    τ  = √(2·δ·M)·(1 + ⅓·√(δ/2M) + ⅑·(δ/2M)) − δ          Daly's, for δ < 2M; else M                 `daly_interval_s`
    G  = τ / (M·e^(R/M)·(e^((τ+δ)/M) − 1))                share of wall time that is useful          `goodput`

with δ the seconds that a checkpoint stops training and R those from an interruption to training again. Sources: J. W. Young,
CACM 17 (1974); J. T. Daly, Future Generation Computer Systems 22 (2006), equations 20 and 37.

`Operation` holds what a site can measure about itself, each figure with a public one as its default:

- λ: 419 unplanned interruptions of 16,384 H100 in 54 days are 1.97e-5 (Llama 3, arXiv 2407.21783 section 3.3.4); 205 faults of
  1,600 H200 in four months 4.4e-5 (Crusoe); one in 7.5 h of 992 A100 1.34e-4 (OPT-175B logbook). Interruptions of a job grow
  with the number of its GPUs (arXiv 2410.21680), so the rate is one a GPU. `PUBLISHED` lists them; low, middle and high are
  the least, the median and the greatest.
- R: detection and tests took less than 10 minutes on average (MegaScale, arXiv 2402.15627). High: 10 % of 54 days over the 466
  interruptions of Llama 3 (more than 90 % of the time was effective) are 1,001 s each, work done twice included. Low: half of
  the middle, assumed.
- checkpoints: the model's trained weights, master copy and moments, spread evenly over all ranks, at 2 TB/s over 16,384
  GPUs (storage of the Llama 3 cluster, sustained; the same paper), and training stops for all of it (`checkpoint_exposed` 1).
- power: nodes of H100 drew 76 % of their rating in compute-bound training (arXiv 2506.14551); PUE 1.58, the average of
  data centres (Uptime Institute survey 2023; large ones reach 1.1 to 1.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from shardwright.errors import InvalidValueError, unknown_name

HOUR_S = 3600.0
NEVER = 1e-12
"""Interruptions of a job an hour that count as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """Interruptions of one published cluster or run.

    Attributes:
        name: what ran.
        gpus: on how many GPUs.
        interruptions: that many.
        hours: in so many hours.
        source: where it is published.
    """

    name: str
    gpus: int
    interruptions: float
    hours: float
    source: str

    @property
    def per_gpu_hour(self) -> float:
        """Interruptions per GPU-hour, to six digits, so that a file says it in full."""
        return float(f"{self.interruptions / (self.gpus * self.hours):.6g}")


PUBLISHED = (
    PublishedRun(
        name="Llama 3 405B", gpus=16_384, interruptions=419, hours=54 * 24, source="arXiv 2407.21783 section 3.3.4, unplanned"
    ),
    PublishedRun(name="Crusoe H200", gpus=1_600, interruptions=205, hours=2_920, source="Crusoe, all faults of four months"),
    PublishedRun(name="OPT-175B", gpus=992, interruptions=1, hours=7.5, source="OPT-175B logbook: mean time to interruption"),
)
"""What interruption rates are taken from."""

_RATES = sorted(run.per_gpu_hour for run in PUBLISHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """How a cluster is run: failures, restarts, checkpoints, power. Every figure may be stated (`--set operation.KEY=VALUE`).

    Attributes:
        interruptions_per_gpu_hour: of the job; with `_low` and `_high`.
        restart_s: from an interruption to training again, from the last checkpoint; with `_low` and `_high`.
        checkpoint_bytes_per_s_per_gpu: rate of writing checkpoints, all ranks at once.
        checkpoint_exposed: part of the writing that stops training, 0 (asynchronous) to 1.
        power_share: power drawn in training over the rated power of a node.
        pue: power of the site over the power of its machines.
    """

    interruptions_per_gpu_hour: float = median(_RATES)
    interruptions_per_gpu_hour_low: float = _RATES[0]
    interruptions_per_gpu_hour_high: float = _RATES[-1]
    restart_s: float = 600.0
    restart_s_low: float = 300.0
    restart_s_high: float = 1001.0
    checkpoint_bytes_per_s_per_gpu: float = 2e12 / 16_384
    checkpoint_exposed: float = 1.0
    power_share: float = 0.76
    pue: float = 1.58

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                hint = f"give a number from {low:g} to {high:g}"
                raise InvalidValueError(f"operation.{name} is {str(value)[:40]}", where=f"operation.{name}", hint=hint)

    def to_dict(self) -> dict[str, float]:
        """The figures as JSON values; `from_dict` reads them back."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Operation:
        """The figures of a mapping; what it leaves out has its default.

        Raises:
            UnknownNameError: a key there is none of.
            InvalidValueError: a value out of range.
        """
        known = {field.name for field in fields(Operation)}
        for key in data:
            if key not in known:
                raise unknown_name("key", str(key), known, where=f"operation.{key}")
        return Operation(**{key: float(value) if type(value) is int else value for key, value in data.items()})

    def in_force(self) -> list[tuple[str, Any]]:
        """The figures as they are listed among assumptions; intervals as low, middle, high."""
        made: list[tuple[str, Any]] = []
        for name, value in self.to_dict().items():
            if f"{name}_low" in _RANGES:
                made.append((f"operation.{name}", [getattr(self, f"{name}_low"), value, getattr(self, f"{name}_high")]))
            elif not name.endswith(("_low", "_high")):
                made.append((f"operation.{name}", value))
        return made

    def outlook(self, gpus: int, checkpoint_bytes: float) -> Outlook:
        """What failures make of a run on so many GPUs.

        Args:
            gpus: GPUs that train.
            checkpoint_bytes: size of a checkpoint, all ranks together.
        """
        write = self.checkpoint_exposed * checkpoint_bytes / (self.checkpoint_bytes_per_s_per_gpu * gpus)
        rates = (self.interruptions_per_gpu_hour_low, self.interruptions_per_gpu_hour, self.interruptions_per_gpu_hour_high)
        restarts = (self.restart_s_low, self.restart_s, self.restart_s_high)
        mean, worst, best = (mtti_s(rate, gpus) for rate in (rates[1], max(rates), min(rates)))
        return Outlook(
            mtti_s=mean,
            mtti_low_s=worst,
            mtti_high_s=best,
            checkpoint_s=write,
            interval_s=daly_interval_s(write, mean),
            fraction=goodput(daly_interval_s(write, mean), write, self.restart_s, mean),
            fraction_low=goodput(daly_interval_s(write, worst), write, max(restarts), worst),
            fraction_high=goodput(daly_interval_s(write, best), write, min(restarts), best),
        )


_RANGES: Mapping[str, tuple[float, float]] = {
    **{f"interruptions_per_gpu_hour{end}": (0.0, 1.0) for end in ("", "_low", "_high")},
    **{f"restart_s{end}": (0.0, 1e6) for end in ("", "_low", "_high")},
    "checkpoint_bytes_per_s_per_gpu": (1.0, 1e15),
    "checkpoint_exposed": (0.0, 1.0),
    "power_share": (0.01, 1.5),
    "pue": (1.0, 5.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What failures make of a run: expected, and at both ends of what is published.

    Attributes:
        mtti_s: mean time to interruption; with `_low` (most failures) and `_high`. Infinite without failures.
        checkpoint_s: training stops so long for a checkpoint.
        interval_s: training between two checkpoints (Daly); infinite where none is worth its time.
        fraction: share of wall time that is useful; with `_low` and `_high`.
    """

    mtti_s: float
    mtti_low_s: float
    mtti_high_s: float
    checkpoint_s: float
    interval_s: float
    fraction: float
    fraction_low: float
    fraction_high: float


def mtti_s(per_gpu_hour: float, gpus: int) -> float:
    """Mean time to interruption of a job, s; infinite where it is beyond a hundred million years."""
    return HOUR_S / (per_gpu_hour * gpus) if per_gpu_hour * gpus > NEVER else math.inf


def young_interval_s(checkpoint_s: float, mean_s: float) -> float:
    """Young's interval between checkpoints, s."""
    return math.sqrt(2 * checkpoint_s * mean_s) if checkpoint_s > 0 else 0.0


def daly_interval_s(checkpoint_s: float, mean_s: float) -> float:
    """Daly's interval of training between checkpoints, s; 0 where they are free, infinite where nothing fails."""
    if math.isinf(mean_s):
        return math.inf
    if checkpoint_s >= 2 * mean_s:
        return mean_s
    half = checkpoint_s / (2 * mean_s)
    return young_interval_s(checkpoint_s, mean_s) * (1 + math.sqrt(half) / 3 + half / 9) - checkpoint_s


def goodput(interval_s: float, checkpoint_s: float, restart_s: float, mean_s: float) -> float:
    """Share of wall time spent on work that is kept, 0 to 1.

    Args:
        interval_s: training between two checkpoints.
        checkpoint_s: training stops so long for one.
        restart_s: from an interruption to training again.
        mean_s: mean time to interruption.
    """
    if math.isinf(mean_s):
        return 1.0 if math.isinf(interval_s) or interval_s + checkpoint_s == 0 else interval_s / (interval_s + checkpoint_s)
    if interval_s <= 0:  # checkpoints cost nothing and nothing is done twice
        return math.exp(-restart_s / mean_s)
    exponent = (interval_s + checkpoint_s) / mean_s
    if exponent > 700 or restart_s / mean_s > 700:
        return 0.0
    return interval_s / (mean_s * math.exp(restart_s / mean_s) * math.expm1(exponent))
