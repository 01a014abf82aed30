"""`validate --fit`: what is in force, and that a source never fits itself."""

import csv
from dataclasses import fields

import pytest
from fits_problems import SET
from rows import row

from shardwright.planner.estimation import estimate_degrees, step_time_s
from shardwright.planner.fits.applying import with_fits
from shardwright.planner.fits.factors import NOTHING_FITTED, Fits
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.validation import fits as validation_fits
from shardwright.planner.validation.rows import read_run
from shardwright.planner.validation.run import validate

RUNS = [row(id=f"{source}{n}", source_group=source, step_time_s=time, micro_batch=n)
        for source, time in (("a", 2.0), ("b", 2.4), ("c", 2.2)) for n in (1, 2)]  # fmt: skip


@pytest.fixture
def shipped(monkeypatch):
    monkeypatch.setattr(validation_fits, "shipped", lambda: SET)
    monkeypatch.setitem(validation_fits.WORDS, "all", lambda: SET)


def predicted(folder, runs, fit):
    names = [f.name for f in fields(runs[0]) if f.name != "line"]
    place = folder / "runs.csv"
    with place.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows({name: "" if (cell := getattr(run, name)) is None else cell for name in names} for run in runs)
    data = validate(place, fit=fit).to_dict()
    return {r["id"]: r["predicted_step_time_s"] for r in data["rows"]}, data


def test_none_and_all_and_left_out_differ(tmp_path, shipped):
    found = {fit: predicted(tmp_path, RUNS, fit) for fit in ("all", "none", "loso")}
    times = [found[fit][0]["a1"] for fit in found]
    assert len(set(times)) == 3
    assert len({found[fit][1]["note"] for fit in found}) == 3


def test_a_group_never_fits_itself(tmp_path, shipped):
    before, _ = predicted(tmp_path, RUNS, "loso")
    faster = [
        row(**{f.name: getattr(r, f.name) for f in fields(r)} | {"step_time_s": 0.2}) if r.source_group == "a" else r
        for r in RUNS
    ]
    after, _ = predicted(tmp_path, faster, "loso")
    assert {k: v for k, v in after.items() if k[0] == "a"} == {k: v for k, v in before.items() if k[0] == "a"}
    assert all(after[k] != before[k] for k in after if k[0] != "a")


def test_one_group_alone_is_priced_without_fits(tmp_path, shipped):
    alone = [r for r in RUNS if r.source_group == "a"]
    assert predicted(tmp_path, alone, "loso")[0] == predicted(tmp_path, alone, "none")[0]


def test_slopes_agree_with_prices():
    problem, plan = read_run(RUNS[0], PricingOptions(fits=NOTHING_FITTED)).problem, Degrees(tp=2, pp=2, micro_batch=1, zero=1)
    step_s = estimate_degrees(problem, plan)["predicted"]["step_time_s"]
    assert step_time_s(problem, plan) == step_s
    run = validation_fits.Measured(source="a", problem=problem, degrees=plan, step_s=step_s, log_ratio=0.0)
    names = ("streams", "products.hopper", "products.ampere", "host")
    streams, products, other, host = validation_fits.slopes(run, names)
    assert 0 < streams < 0.5
    assert 0.3 < products < 1.0
    assert other == 0.0
    assert host >= 0.0
    slower = estimate_degrees(with_fits(problem, Fits(values={"streams": 1.1})), plan)["predicted"]["step_time_s"]
    assert slower / step_s == pytest.approx(1.1**streams, rel=1e-3)
