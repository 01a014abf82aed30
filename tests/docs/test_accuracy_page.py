"""docs/accuracy.md shows what is recorded, and what is recorded is what the runs give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from accuracy_parts import PART, PARTS, page, width_data
from accuracy_picture import picture
from accuracy_record import FIGURES, PLACE, points, record_of, skipped, text_of, two_digits
from interval_widths import deviations, document
from record_errors import PLACE as ERRORS

from shardwright.planner.validation.run import validate

ROOT = Path(__file__).parents[2]
RENEW = "docs/accuracy.md is not current: python docs/accuracy_page.py RUNS.csv"
TOLERANCE = 0.003


def recorded() -> dict[str, Any]:
    return dict(json.loads(PLACE.read_text(encoding="utf-8")))


def test_the_page_shows_what_is_recorded() -> None:
    text = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert page(text, recorded()) == text, RENEW
    assert [found["name"] for found in PART.finditer(text)] == sorted(PARTS, key=lambda name: text.index(f"measured: {name} "))


def test_the_picture_shows_what_is_recorded() -> None:
    text = (ROOT / "docs" / "pictures" / "accuracy.svg").read_text(encoding="utf-8")
    assert picture(recorded()) == text, RENEW
    assert ElementTree.fromstring(text).tag.endswith("svg")


def test_the_page_and_the_record_of_errors_agree() -> None:
    errors, found = json.loads(ERRORS.read_text(encoding="utf-8")), recorded()
    for name, summary in errors.items():
        other = found["summary"] if name == "mean of groups" else found["by_source"][name]
        for key in ("median", "p90", "bias", "memory_median"):
            assert _near(summary[key], other[key]), f"{RENEW}: {name} {key}"


def _near(one: float | None, other: float | None) -> bool:
    return one == other if one is None or other is None else abs(one - other) <= TOLERANCE


def test_a_page_without_a_part_is_refused() -> None:
    with pytest.raises(ValueError, match="by source"):
        page("<!-- measured: in short -->\n<!-- end -->\n", recorded())


def test_a_part_is_replaced_and_nothing_else() -> None:
    text = "".join(f"before {name}\n<!-- measured: {name} -->\nold\n<!-- end -->\nafter\n" for name in PARTS)
    made = page(text, recorded())
    assert "old" not in made
    assert all(
        f"before {name}\n<!-- measured: {name} -->\n{PARTS[name](recorded())}<!-- end -->\nafter" in made for name in PARTS
    )
    assert page(made, recorded()) == made


def test_the_record_names_no_run() -> None:
    found = recorded()
    assert text_of(found) == PLACE.read_text(encoding="utf-8")
    pairs = [pair for kind in found["points"].values() for pair in kind]
    assert len(pairs) == found["summary"]["scored"]
    assert all(two_digits(value) == value for pair in pairs for value in pair)
    assert all(kind == sorted(kind) for kind in found["points"].values())
    assert "id" not in found


def row(error: float, kind: str, **more: Any) -> dict[str, Any]:
    made = {"scored": True, "error": error, "predicted_step_time_s": 1.2345, "labels": {"kind": kind}, "status": "ok"}
    return made | more


def test_points_are_two_digits_and_without_order() -> None:
    rows = [
        row(0.25, "dense", predicted_step_time_s=9.876),
        row(-0.5, "dense"),
        row(0.0, "experts"),
        row(0.0, "x", scored=False),
    ]
    assert points(rows) == {"dense": [[1.2, 2.0], [9.9, 0.8]], "experts": [[1.2, 1.0]]}


def test_reasons_are_counted() -> None:
    rows = [row(0, "x", status="skipped", reason=reason) for reason in ("b", "a", "b", "c")]
    assert skipped([*rows, row(0, "x")]) == [[2, "b"], [1, "a"], [1, "c"]]


def test_a_point_lies_where_it_was_measured() -> None:
    made = picture({"points": {"dense": [[1.0, 1.0], [1.0, 1.0], [10.0, 10.0]]}})
    circles = [e for e in ElementTree.fromstring(made).iter() if e.tag.endswith("circle")][:2]
    first, second = sorted((float(c.attrib["cx"]), float(c.attrib["cy"]), float(c.attrib["r"])) for c in circles)
    assert first[2] > second[2], "two runs in one place are a larger dot"
    assert second[0] - first[0] == pytest.approx((first[1] - second[1]) / 2, abs=0.02), "one decade right, two up"


@pytest.fixture
def runs(reference_data: Path) -> Path:
    return reference_data / "ground_truth" / "measured_runs.csv"


def test_the_record_is_what_the_runs_give(runs: Path) -> None:
    found, kept = record_of(runs, runs.parent / "vtrain_single_node.csv", "today"), recorded()
    for name in ("summary", "anchored", "single"):
        assert _far(found[name], kept[name]) == [], f"{RENEW}: {name}"
    for name in ("by_source", "by_hardware", "by_kind", "by_scale", "by_precision", "fits"):
        assert set(found[name]) == set(kept[name]), RENEW
        for label, summary in found[name].items():
            assert _far(summary, kept[name][label]) == [], f"{RENEW}: {name} {label}"
    assert found["skipped"] == kept["skipped"]
    assert found["one_share"]["median"] == pytest.approx(kept["one_share"]["median"], abs=TOLERANCE)


def _far(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Figures that differ; those of ranking and coverage, which one run may move, by more than ten tolerances."""
    loose = ("tau", "regret", "interval_coverage", "oom_called", "ran_refused")
    assert set(one) == set(other) == set(FIGURES)
    return [k for k in one if not _near(one[k], other[k]) and not (k in loose and _near_enough(one[k], other[k]))]


def _near_enough(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and abs(one - other) <= 10 * TOLERANCE


def test_widths_are_what_the_runs_give(runs: Path) -> None:
    made, kept = document(deviations(validate(runs, fit="loso").to_dict()["rows"]), "today"), width_data()
    for kind, entry in made["kinds"].items():
        for side in ("low", "high"):
            assert entry[side] == pytest.approx(kept["kinds"][kind][side], abs=0.02), f"{RENEW}: interval of {kind}"
    assert 0.72 <= kept["left_out"]["coverage"] <= 0.88
