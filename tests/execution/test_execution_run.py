"""`run`: which plans run where, what is said of them, and real runs where PyTorch is installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fake_package import BAD, GOOD, package

from shardwright.cli import run as command
from shardwright.errors import InvalidValueError, ShardwrightError, UnsupportedError
from shardwright.planner.estimation import estimate
from shardwright.planner.execution import machine as machines
from shardwright.planner.execution.machine import Machine
from shardwright.planner.execution.run import run
from shardwright.planner.execution.trial import Prepared
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.schema import json_schema
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan

CPUS = Machine(torch="2.13.0", gpus=0, gpu="", cores=2, free_bytes=24 << 30)
GPUS = replace(CPUS, gpus=8, gpu="NVIDIA H100 80GB HBM3")


def priced(
    model: str = "llama3.2-1b", cluster: str = "dgx-h100:1", framework: str = "pytorch", **degrees: Any
) -> dict[str, Any]:
    options = PricingOptions(framework=framework)
    made = Degrees(**degrees)
    return estimate(model, cluster, seq_len=512, global_batch=32, degrees=made, options=options).to_dict()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[Prepared]:
    """A package of a few lines in place of the emitted one; what was to be written."""
    seen: list[Prepared] = []

    def write(self: Prepared, folder: Path, steps: int) -> None:
        del steps
        seen.append(self)
        package(folder, GOOD)

    monkeypatch.setattr(Prepared, "write", write)
    return seen


def checked(data: dict[str, Any]) -> dict[str, Any]:
    """The record as it is printed, held against its schema."""
    made = json.loads(json.dumps(data))
    jsonschema.validate(made, json_schema("run-result"))
    return dict(made)


def test_a_plan_on_its_own_gpus_is_compared(stand_in: list[Prepared]) -> None:
    source = priced(zero=3)
    done = run(source, machine=GPUS)
    (trial,) = checked(done.to_dict())["trials"]
    assert done.exit_code == 0
    assert (trial["device"], trial["ranks"], trial["miniature"]) == ("cuda", 8, None)
    assert trial["measured"]["step_time_s"] == 0.5
    assert trial["measured"]["tokens_per_s"] == 32 * 512 / 0.5
    assert trial["error"] == pytest.approx(source["predicted"]["step_time_s"] / 0.5 - 1)
    assert trial["memory_error"] == pytest.approx(source["memory"]["meters"]["allocated_bytes"] / 2**30 - 1)
    assert trial["not_comparable"] is None
    assert stand_in[0].run["parallel"] == source["parallel"]


def test_another_gpu_is_not_compared(stand_in: list[Prepared]) -> None:
    (trial,) = run(priced(zero=3), machine=replace(GPUS, gpu="NVIDIA A100-SXM4-80GB")).data["trials"]
    assert trial["error"] is None
    assert "this ran on NVIDIA A100" in trial["not_comparable"]


def test_cpus_are_not_compared(stand_in: list[Prepared]) -> None:
    (trial,) = checked(run(priced(zero=3), machine=replace(CPUS, free_bytes=1 << 40)).to_dict())["trials"]
    assert (trial["device"], trial["error"], trial["memory_error"]) == ("cpu", None, None)
    assert "the prediction is of the planned cluster" in trial["not_comparable"]
    assert trial["predicted"]["step_time_s"] > 0


def test_a_miniature_says_what_is_smaller(stand_in: list[Prepared]) -> None:
    (trial,) = checked(run(priced(cluster="dgx-h100:4", zero=3), machine=CPUS, scale_down=True).to_dict())["trials"]
    assert trial["ranks"] == 8
    assert trial["miniature"]["world_size"] == [32, 8]
    assert "a miniature was run" in trial["not_comparable"]
    assert trial["model"]["parameters"] < 10_000_000


@pytest.mark.parametrize(
    ("source", "machine", "said"),
    [
        ({"cluster": "dgx-h100:4", "zero": 3}, CPUS, "the plan has 32 ranks; this machine has no GPU, and 2 cores that host 8"),
        ({"cluster": "dgx-h100:4", "zero": 3}, GPUS, "the plan has 32 ranks; this machine has 8 GPUs"),
        ({"zero": 0, "model": "llama3.1-8b", "cluster": "dgx-h200:1"}, CPUS, "free"),
    ],
    ids=["cpus", "gpus", "memory"],
)
def test_what_the_machine_cannot_host_is_refused(source: dict[str, Any], machine: Machine, said: str) -> None:
    with pytest.raises(InvalidValueError, match=said) as found:
        run(priced(**source), machine=machine)
    assert "--scale-down" in found.value.hint


def test_what_the_package_cannot_express_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="torchrun cannot express the plan"):
        run(priced(framework="megatron", tp=2, zero=1), machine=GPUS)


@pytest.mark.parametrize("named", [{"steps": 0}, {"trials": 0}, {"limit_s": 0.0}, {"limit_s": -1.0}, {"rank": 2}])
def test_numbers_out_of_range_are_refused(named: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError):
        run(priced(zero=3), machine=GPUS, **named)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    options = PricingOptions(framework="pytorch")
    found = plan("llama3.2-1b", "dgx-h100:1", seq_len=512, global_batch=32, options=options, search=SearchOptions(top=4))
    return dict(found.data)


def test_trials_are_plans_by_rank(stand_in: list[Prepared], result: dict[str, Any]) -> None:
    lines: list[str] = []
    done = checked(run(result, rank=2, trials=9, machine=GPUS, on_trial=lines.append).to_dict())
    assert [trial["rank"] for trial in done["trials"]] == [2, 3, 4]
    ran = [trial for trial in done["trials"] if trial["status"] == "ok"]
    assert [line.split(":")[0] for line in lines] == [f"rank {trial['rank']}" for trial in ran]
    for trial in done["trials"]:
        listed = "torchrun" in result["plans"][trial["rank"] - 1]["expressible_by"]
        assert (trial["status"] == "ok") is listed, trial["reason"]


def test_one_that_fails_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prepared, "write", lambda self, folder, steps: package(folder, BAD))
    done = run(priced(zero=3), machine=GPUS)
    (trial,) = checked(done.to_dict())["trials"]
    assert done.exit_code == 1
    assert (trial["status"], trial["measured"]) == ("failed", None)
    assert "no such device" in trial["reason"]


def test_ctrl_c_keeps_what_is_done(stand_in: list[Prepared], result: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwright.planner.execution import run as module

    calls: list[int] = []

    def ranks(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*given)

    original = module.run_ranks
    monkeypatch.setattr(module, "run_ranks", ranks)
    done = run(result, trials=4, machine=GPUS)
    assert done.exit_code == 130
    assert done.data["stopped"] == "interrupted"
    assert sum(trial["status"] == "ok" for trial in checked(done.to_dict())["trials"]) == 1


def test_without_pytorch_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machines.importlib.util, "find_spec", lambda name: None)
    (tmp_path / "plan.json").write_text(json.dumps(priced(zero=3)), encoding="utf-8")
    assert command(["run", str(tmp_path / "plan.json"), "--format", "json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "needs PyTorch, which is not installed" in err
    assert "pip install torch" in json.loads(err.splitlines()[-1])["error"]["hint"]


def test_a_pytorch_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(machines, "PROBE", "raise SystemExit('libcudart.so.12: not found')")
    with pytest.raises(UnsupportedError, match=r"does not start here: libcudart\.so\.12"):
        machines.this_machine()


def test_the_table_says_what_it_is(
    stand_in: list[Prepared], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from shardwright.planner.execution import run as module

    monkeypatch.setattr(module, "this_machine", lambda: CPUS)
    (tmp_path / "plan.json").write_text(json.dumps(priced(cluster="dgx-h100:4", zero=3)), encoding="utf-8")
    assert command(["run", str(tmp_path / "plan.json"), "--scale-down"]) == 0
    out, err = capsys.readouterr()
    words = " ".join(out.split())
    assert "Ran on this machine (no GPU, 2 cores, PyTorch 2.13.0), in miniature" in words
    assert "not compared" in words
    assert "world_size 32 to 8" in words
    assert "rank 1 in miniature: 8 processes on the CPUs" in err


real = [
    pytest.mark.frameworks,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]


class TestRealRuns:
    """The emitted package itself, on this machine's CPUs."""

    pytestmark = real

    @pytest.mark.parametrize(
        "degrees", [{"zero": 3, "tp": 2, "pp": 2}, {"zero": 2, "pp": 2, "schedule": "zb-v"}], ids=["tp-pp", "zb-v"]
    )
    def test_a_miniature_trains(self, tmp_path: Path, degrees: dict[str, Any]) -> None:
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(priced("llama3.1-8b", "dgx-h100:4", **degrees)), encoding="utf-8")
        line = [sys.executable, "-m", "shardwright", "run", str(path), "--scale-down", "--steps", "3", "--format", "json"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        (trial,) = checked(json.loads(done.stdout))["trials"]
        assert trial["status"] == "ok"
        assert len(trial["measured"]["losses"]) == 3
        assert 50 << 20 < trial["measured"]["peak_memory_bytes"] < 8 << 30
        assert trial["error"] is None

    def test_a_plan_of_two_ranks_runs_whole(self) -> None:
        source = estimate(
            "gpt2",
            "dgx-h100:1",
            seq_len=64,
            global_batch=2,
            degrees=Degrees(zero=3),
            options=PricingOptions(framework="pytorch", gpus=2, overrides=("model.dropout=false",)),
        ).to_dict()
        try:
            (trial,) = run(source, steps=2, limit_s=300).data["trials"]
        except ShardwrightError as error:
            pytest.fail(f"{error.message}: {error.hint}")
        assert (trial["status"], trial["miniature"]) == ("ok", None), trial["reason"]
        assert trial["model"]["parameters"] > 100_000_000
