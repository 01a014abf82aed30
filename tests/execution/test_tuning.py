"""`tune`: measured plans teach factors of the site, and the list after them counts measured times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fake_package import GOOD, package

from shardwright.cli import run as command
from shardwright.errors import ConflictError, DamagedFileError, InvalidValueError
from shardwright.planner.estimation import estimate_plan
from shardwright.planner.execution.machine import Machine
from shardwright.planner.execution.trial import Prepared
from shardwright.planner.problem import PricingOptions
from shardwright.planner.schema import json_schema
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan
from shardwright.planner.tuning.measuring import stated, to_measure
from shardwright.planner.tuning.tuning import tune

GPUS = Machine(torch="2.13.0", gpus=8, gpu="NVIDIA H100 80GB HBM3", cores=2, free_bytes=24 << 30)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    options = PricingOptions(framework="pytorch")
    search = SearchOptions(top=4, trials=3)
    found = plan("llama3.2-1b", "dgx-h100:1", seq_len=512, global_batch=32, options=options, search=search)
    return dict(found.to_dict())


@pytest.fixture
def saved(result: dict[str, Any], tmp_path: Path) -> str:
    place = tmp_path / "result.json"
    place.write_text(json.dumps(result), encoding="utf-8")
    return str(place)


def predicted(result: dict[str, Any], rank: int) -> float:
    return float(result["plans"][rank - 1]["predicted"]["step_time_s"])


def checked(data: dict[str, Any]) -> dict[str, Any]:
    made = json.loads(json.dumps(data))
    jsonschema.validate(made, json_schema("tune-result"))
    return dict(made)


def test_slow_runs_make_all_predictions_slower(result: dict[str, Any]) -> None:
    slow = {rank: 1.3 * predicted(result, rank) for rank in (1, 2)}
    done = tune(result, measured=[f"{rank}={seconds!r}" for rank, seconds in slow.items()])
    data = checked(done.to_dict())
    assert done.exit_code == 0
    assert data["site"]["device"] > 1.05
    for run in data["measured"]:
        assert run["before_step_time_s"] == pytest.approx(predicted(result, run["rank"]))
        assert abs(run["after_step_time_s"] / slow[run["rank"]] - 1) < 0.15
    for line in data["plans"]:
        assert line["step_time_s"] > 1.05 * line["before_step_time_s"]


def test_steps_far_from_their_predictions_are_warned_of(result: dict[str, Any]) -> None:
    [said] = checked(tune(result, measured=["1=0.0001"]).to_dict())["warnings"]
    assert "was it this plan" in said
    assert checked(tune(result, measured=[f"1={predicted(result, 1)!r}"]).to_dict())["warnings"] == []


def test_measured_times_decide_the_order(result: dict[str, Any]) -> None:
    data = checked(tune(result, measured=[f"3={0.5 * predicted(result, 3)!r}"]).to_dict())
    assert data["plans"][0]["rank_before"] == 3
    assert data["plans"][0]["measured_step_time_s"] == pytest.approx(0.5 * predicted(result, 3))
    counted = [line["measured_step_time_s"] or line["step_time_s"] for line in data["plans"]]
    assert counted == sorted(counted)
    assert [line["rank"] for line in data["plans"]] == list(range(1, len(counted) + 1))


def test_what_was_learned_prices_other_plans(result: dict[str, Any], saved: str, tmp_path: Path) -> None:
    place = tmp_path / "site.json"
    slow = f"1={1.2 * predicted(result, 1)!r}"
    assert command(["tune", saved, "--measured", slow, "-o", str(place)]) == 0
    plain = estimate_plan(saved, rank=2).to_dict()["predicted"]["step_time_s"]
    tuned = estimate_plan(saved, rank=2, options=PricingOptions(calibration=str(place))).to_dict()["predicted"]
    (line,) = (line for line in tune(result, measured=[slow]).data["plans"] if line["rank_before"] == 2)
    assert tuned["step_time_s"] > 1.05 * plain
    assert tuned["step_time_s"] == pytest.approx(line["step_time_s"], rel=1e-6)


def test_plans_run_here_are_measured(result: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prepared, "write", lambda self, folder, steps: package(folder, GOOD))
    done = tune(result, trials=1, machine=GPUS)
    data = checked(done.to_dict())
    assert (data["source"], done.exit_code) == ("run", 0)
    assert data["measured"][0]["measured_step_time_s"] == 0.5
    assert data["measured"][0]["rank"] == to_measure(result, 1)[0] == data["trials"][0]["rank"]


def test_nothing_is_learned_from_another_machine(
    result: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Prepared, "write", lambda self, folder, steps: package(folder, GOOD))
    done = tune(result, trials=1, machine=replace(GPUS, gpu="NVIDIA A100-SXM4-80GB"))
    data = checked(done.to_dict())
    assert done.exit_code == 1
    assert (data["site"], data["plans"], data["measured"]) == (None, [], [])
    from shardwright.planner.report.output import render
    from shardwright.planner.report.style import Style

    assert "nothing is learned" in " ".join(render(data, "table", Style(width=80, colour=False)).split())


def test_the_plans_that_tell_most_come_first(result: dict[str, Any]) -> None:
    told = [p["rank"] for p in result["trials"]["plans"] if p["rank"] is not None]
    assert to_measure(result, len(told)) == told
    assert sorted(to_measure(result, 99)) == [p["rank"] for p in result["plans"]]
    assert to_measure({"plans": result["plans"]}, 2) == [1, 2]


@pytest.mark.parametrize(
    "text", ["", "1", "1=", "=2", "x=1", "1=fast", "1=0", "1=-2", "1=nan", "1=inf", "0=1", "99=1", "1=2,1=3"]
)
def test_statements_that_cannot_be_used(
    text: str, result: dict[str, Any], saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidValueError):
        stated([text], result)
    assert command(["tune", saved, "--measured", text]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--measured" in err


def test_results_that_cannot_be_tuned(result: dict[str, Any]) -> None:
    alone = estimate_plan(result).to_dict()
    with pytest.raises(InvalidValueError, match="it holds one plan"):
        tune(alone, measured=["1=1"])
    with pytest.raises(InvalidValueError, match="nothing fits in it"):
        tune({**result, "plans": []}, measured=["1=1"])
    with pytest.raises(InvalidValueError, match="0 trials"):
        tune(result, trials=0)
    for wrong in ({"steps": 0}, {"limit_s": float("nan")}, {"limit_s": -1.0}):
        with pytest.raises(InvalidValueError):
            tune(result, measured=["1=2.0"], **wrong)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fixed", []),
        ("fixed", {"tp": 2}),
        ("fixed", {"moe_dispatcher": []}),
        ("effort", "hard"),
        ("effort", None),
        ("tie_percent", "1"),
    ],
)
def test_a_damaged_search_is_named(result: dict[str, Any], name: str, value: object) -> None:
    inputs = result["inputs"]
    damaged = {**result, "inputs": {**inputs, "search": {**inputs["search"], name: value}}}
    with pytest.raises(DamagedFileError, match="nothing a search takes") as caught:
        tune(damaged, measured=["1=1"])
    assert caught.value.where == f"inputs.search.{name}"


def test_measured_steps_are_not_counted_twice(result: dict[str, Any]) -> None:
    options = PricingOptions(framework="pytorch", measured=("dp_replicate=1,zero=3,step_time_s=0.5",))
    known = plan("llama3.2-1b", "dgx-h100:1", seq_len=512, global_batch=32, options=options).to_dict()
    with pytest.raises(ConflictError, match="made with measured steps"):
        tune(known, measured=["1=1"])
