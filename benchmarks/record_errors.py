"""Records the errors of `validate` by source group, which `tests/validation/test_drift.py` compares with what it gives.

    python benchmarks/record_errors.py RUNS.csv

Run it in the commit that changes predictions, and say in the message why errors moved.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from shardwright.planner.validation.run import validate

PLACE = Path(__file__).parents[1] / "tests" / "validation" / "recorded_errors.json"
KEYS = ("scored", "median", "p90", "bias", "memory_median", "oom_called", "ran_refused")


def errors_of(runs: Path) -> dict[str, dict[str, float | None]]:
    """The figures of each source group and of their mean, shares to four digits."""
    data = validate(runs).to_dict()
    groups = data["by_source"] | {"mean of groups": data["summary"]}
    return {name: {key: _short(summary[key]) for key in KEYS} for name, summary in groups.items()}


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    PLACE.write_text(json.dumps(errors_of(parser.parse_args().runs), indent=1) + "\n", encoding="utf-8")
