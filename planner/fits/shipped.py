"""The set of fitted factors that comes with the package, `presets/published-runs.yaml`.

The file is written by ``benchmarks/fit_end_to_end.py``; it holds for each factor the value, its prior and spread, and how the
value moves when one source of runs is left out, and for the set the runs, the sources, the day and the errors.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

from shardwright.documents import parse_yaml
from shardwright.errors import DamagedFileError
from shardwright.planner.fits.factors import FACTORS, Fits

FILE = "published-runs.yaml"
MOST_FACTORS = 25


@functools.cache
def shipped_data() -> Mapping[str, Any]:
    """What the file holds.

    Raises:
        DamagedFileError: it is no set of fitted factors.
    """
    place = resources.files("shardwright.planner.fits") / "presets" / FILE
    data = parse_yaml(place.read_text(encoding="utf-8"), FILE).data
    wanted = {"name", "runs", "sources", "date", "errors", "factors"}
    if set(data) != wanted or not set(data["factors"]) <= set(FACTORS) or len(data["factors"]) > MOST_FACTORS:
        raise DamagedFileError(
            f"{FILE} is no set of fitted factors", where=FILE, hint="write it with benchmarks/fit_end_to_end.py"
        )
    return dict(data)


@functools.cache
def shipped() -> Fits:
    """The values that prices use unless told otherwise."""
    data = shipped_data()
    source = f"step times of {data['runs']} published runs of {len(data['sources'])} sources"
    return Fits(
        name=str(data["name"]), source=source, values={name: float(row["value"]) for name, row in data["factors"].items()}
    )
