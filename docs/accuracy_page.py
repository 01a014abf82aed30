"""Writes the measured parts of docs/accuracy.md and its picture.

    python docs/accuracy_page.py               from what is recorded (tests/validation/recorded_accuracy.json)
    python docs/accuracy_page.py RUNS.csv      everything measured anew first: the widths of intervals (planner/intervals), then
                                               the record; plans of single nodes are read from vtrain_single_node.csv beside it

tests/docs compares page and picture with the record, and the record with the runs where they are at hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
PICTURE = ROOT / "docs" / "pictures" / "accuracy.svg"
SINGLE = "vtrain_single_node.csv"


def main() -> int:
    """Writes page and picture."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
    from accuracy_parts import page
    from accuracy_picture import picture
    from accuracy_record import PLACE, measured

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="?", type=Path)
    parser.add_argument("--single", type=Path, help=f"plans for ranking; left out: {SINGLE} beside RUNS.csv")
    given = parser.parse_args()
    if given.runs is None:
        record = json.loads(PLACE.read_text(encoding="utf-8"))
    else:
        beside = given.runs.parent / SINGLE
        record = measured(given.runs, given.single or (beside if beside.is_file() else None))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), record), encoding="utf-8")
    PICTURE.write_text(picture(record), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
