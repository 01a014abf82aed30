"""What measured training steps of a site say of its parts: times there over modelled times.

Presets describe a kind of machine and a release of a framework; a site has its own clocks, cooling, switches, images and host
processors. Four factors, each a ratio of times, carry that over to every other plan:

    device     kernels and the optimizer's update
    host       launches and host synchronisation
    scaleup    exchange inside a node or scale-up domain
    scaleout   exchange that leaves it

All of them equal multiplies every step time by that number, since a step is made of sums and maxima of such times. How they
are found: `planner.site`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shardwright.documents import rounded

PARTS = ("device", "host", "scaleup", "scaleout")

ODD_RATIO = 2.0
"""A run this many times slower or faster than modelled was probably another plan, or stated in another unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRun:
    """A measured run; seconds a step, modelled without and with the factors of its site."""

    id: str
    measured_step_time_s: float
    before_step_time_s: float
    after_step_time_s: float

    @property
    def odd(self) -> bool:
        """Whether it is further from the model than sites are."""
        ratio = self.measured_step_time_s / self.before_step_time_s
        return max(ratio, 1.0 / ratio) > ODD_RATIO

    def __str__(self) -> str:
        modelled = f"{self.before_step_time_s:.4g} s modelled, {self.after_step_time_s:.4g} s with the site's factors"
        return f"{self.id}: {self.measured_step_time_s:.4g} s measured, {modelled}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFactors:
    """Times of a site over modelled times.

    Attributes:
        device, host, scaleup, scaleout: factors; see the module.
        interval_share: what the interval of a prediction keeps of its width.
        runs: the measured runs they follow from.
    """

    device: float = 1.0
    host: float = 1.0
    scaleup: float = 1.0
    scaleout: float = 1.0
    interval_share: float = 1.0
    runs: tuple[SiteRun, ...] = ()

    @staticmethod
    def uniform(factor: float) -> SiteFactors:
        """One factor on everything."""
        return SiteFactors(device=factor, host=factor, scaleup=factor, scaleout=factor)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> SiteFactors:
        """The factors that `to_dict` wrote."""
        return SiteFactors(**{**data, "runs": tuple(SiteRun(**run) for run in data["runs"])})

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return dict(rounded(asdict(self)))

    def warnings(self) -> list[str]:
        """A line for each run that is odd."""
        return [f"a measured run is far from the model, was it this plan? {run}" for run in self.runs if run.odd]


AS_MODELLED = SiteFactors()
