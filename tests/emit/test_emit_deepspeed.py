"""DeepSpeed's JSON says what the plan says, in keys DeepSpeed reads; what it cannot say is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from emit_plans import emitted, plan
from test_emit_torch_runs import DENSE, MOE

from shardwright.errors import UnsupportedError
from shardwright.models.catalog import model_from_dict
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.readers.estimating import estimate_file
from shardwright.planner.rules.deepspeed import TOP_LEVEL

MODEL = "llama3.2-3b"
CLUSTER = "dgx-h200:4"
RANKS = 2
STEPS = 3


def document(folder: Path, **named: Any) -> dict[str, Any]:
    source = plan(framework="deepspeed", cluster=CLUSTER, model=MODEL, **named)
    made: dict[str, Any] = json.loads(emitted(folder, source, target="deepspeed")["ds_config.json"])
    return made


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_the_batch_is_that_of_the_planned_world(tmp_path: Path, zero: int, micro_batch: int) -> None:
    made = document(tmp_path / "bundle", degrees=Degrees(zero=zero, micro_batch=micro_batch))
    micro, steps = made["train_micro_batch_size_per_gpu"], made["gradient_accumulation_steps"]
    assert (micro, micro * steps * 32) == (micro_batch, made["train_batch_size"])
    assert made["zero_optimization"]["stage"] == zero
    assert set(made) <= TOP_LEVEL
    assert "auto" not in json.dumps(made)


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_the_reader_finds_the_plan_again(tmp_path: Path, precision: str) -> None:
    document(tmp_path / "bundle", degrees=Degrees(zero=2), precision=precision)
    path = tmp_path / "bundle" / "ds_config.json"
    read = estimate_file("deepspeed", path, CLUSTER, model=MODEL, seq_len=4096).to_dict()
    kept = json.loads((tmp_path / "bundle" / "plan.json").read_text(encoding="utf-8"))
    assert read["feasible"], read["violations"]
    assert read["parallel"] == kept["parallel"]
    assert read["inputs"]["training"] == kept["inputs"]["training"]


def test_gradients_are_sent_and_added_up_in_the_planned_bytes(tmp_path: Path) -> None:
    half = document(tmp_path / "a", degrees=Degrees(zero=2))
    assert (half["communication_data_type"], half["data_types"]["grad_accum_dtype"]) == ("bf16", "bf16")
    source = plan(framework="megatron", cluster=CLUSTER, degrees=Degrees(zero=1))
    whole = json.loads(emitted(tmp_path / "b", source, target="deepspeed")["ds_config.json"])
    assert (whole["communication_data_type"], whole["data_types"]["grad_accum_dtype"]) == ("fp32", "fp32")
    assert "communication_data_type" not in document(tmp_path / "c", precision="fp32", degrees=Degrees(zero=3))


def test_only_what_a_plan_states_is_written_of_stage_3(tmp_path: Path) -> None:
    assert set(document(tmp_path / "bundle", degrees=Degrees(zero=3))["zero_optimization"]) == {
        *("stage", "overlap_comm", "reduce_bucket_size"),
    }


def test_rules_judge_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JSON whose batch does not fit the planned world is refused by the rule, whoever wrote it."""
    from shardwright.planner.emit.deepspeed import target

    right = target.deepspeed_config
    monkeypatch.setattr(target, "deepspeed_config", lambda request: right(request) | {"gradient_accumulation_steps": 3})
    with pytest.raises(UnsupportedError, match="deepspeed-batch"):
        document(tmp_path / "bundle", degrees=Degrees(zero=2))


def test_fp16_scales_its_loss_by_itself(tmp_path: Path) -> None:
    assert document(tmp_path / "bundle", precision="fp16", degrees=Degrees(zero=2))["fp16"] == {
        "enabled": True,
        "loss_scale": 0,
    }


@pytest.mark.parametrize(
    ("degrees", "field"),
    [
        (Degrees(tp=2), "deepspeed-axes"),
        (Degrees(pp=4, zero=1), "parallel.pp"),
        (Degrees(dp_replicate=2, zero=3), "parallel.dp_replicate"),
        (Degrees(zero=3, recompute="selective"), "parallel.recompute.mode"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_json_cannot_say_is_refused(tmp_path: Path, degrees: Degrees, field: str) -> None:
    with pytest.raises(UnsupportedError, match=field):
        emitted(tmp_path / "bundle", plan(cluster=CLUSTER, framework="any", degrees=degrees), target="deepspeed")
    assert not list(tmp_path.iterdir())


def test_whole_gradients_without_zero_are_refused(tmp_path: Path) -> None:
    source = plan(framework="megatron", model=MODEL, cluster=CLUSTER, degrees=Degrees(zero=0))
    with pytest.raises(UnsupportedError, match=r"training\.grad_bytes"):
        emitted(tmp_path / "bundle", source, target="deepspeed")


deepspeed = [
    pytest.mark.frameworks,
    pytest.mark.deepspeed,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs deepspeed"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The bundle of one plan of a small model."""

    name: str
    degrees: Degrees
    ranks: int = RANKS
    model: dict[str, Any] = field(default_factory=lambda: DENSE)
    precision: str = "fp32"
    tolerance: float = 1e-4

    @property
    def alone(self) -> str:
        """The run of a single process on the same model."""
        return f"alone-{self.model['name']}"


RUNS = (
    *(Run(name=f"zero-{zero}", degrees=Degrees(zero=zero)) for zero in range(4)),
    *(Run(name=f"recompute-{z}", degrees=Degrees(zero=z, recompute="full", recompute_layers=3)) for z in (1, 3)),
    *(Run(name=f"bf16-{zero}", degrees=Degrees(zero=zero), precision="bf16", tolerance=3e-2) for zero in (1, 3)),
    Run(name="experts-3", degrees=Degrees(zero=3), model=MOE),
    Run(name="four-ranks", degrees=Degrees(zero=2), ranks=4),
)
ALONE = tuple(Run(name=f"alone-{model['name']}", degrees=Degrees(zero=0), model=model, ranks=1) for model in (DENSE, MOE))


def small(folder: Path, run: Run) -> Path:
    """The bundle of a small model."""
    options = PricingOptions(framework="deepspeed", precision=run.precision, gpus=run.ranks)
    graph = model_from_dict(run.model)
    priced = estimate(graph, "dgx-h100:1", seq_len=64, global_batch=8, degrees=run.degrees, options=options).to_dict()
    emitted(folder, priced, target="deepspeed", launch={"steps": STEPS})
    return folder


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    home = tmp_path_factory.mktemp("runs")
    everything = (*ALONE, *RUNS)
    jobs = [(str(small(home / run.name, run)), run.ranks) for run in everything]
    (home / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    runner = str(Path(__file__).with_name("fork_runner.py"))
    command = [sys.executable, "-W", "ignore", runner, str(home / "jobs.json"), "deepspeed"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return {run.name: report for run, report in zip(everything, found, strict=True)}


class TestRuns:
    """Real DeepSpeed on CPU: every rank a fork of one process that has imported it."""

    pytestmark = deepspeed

    @pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
    def test_losses_are_those_of_a_single_process(self, reports: dict[str, dict[str, Any]], run: Run) -> None:
        made, alone = reports[run.name], reports[run.alone]
        assert made["codes"] == [0] * run.ranks, made["error"]
        assert made["report"]["losses"] == pytest.approx(alone["report"]["losses"], abs=run.tolerance)
        assert len({round(loss, 4) for loss in alone["report"]["losses"]}) == STEPS

    @pytest.mark.parametrize("started", [RANKS, 1], ids=["planned", "another"])
    def test_the_bundle_starts_under_torchrun(self, tmp_path: Path, started: int) -> None:
        """By its launch script; another world than the planned one is refused."""
        folder = small(tmp_path / "bundle", Run(name="launched", degrees=Degrees(zero=1)))
        launch = folder / "launch.sh"
        text = launch.read_text(encoding="utf-8")
        assert "gpus_per_node=2" in text
        launch.write_text(text.replace("gpus_per_node=2", f"gpus_per_node={started}"), encoding="utf-8")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}
        done = subprocess.run(["bash", str(launch)], env=env, capture_output=True, text=True, timeout=300, check=False)
        if started != RANKS:
            assert done.returncode != 0
            assert f"planned for {RANKS} processes, started with {started}" in done.stderr
            return
        assert done.returncode == 0, done.stderr[-3000:]
        assert len(json.loads(next(x for x in done.stdout.splitlines() if x.startswith('{"losses"')))["losses"]) == STEPS


def checked(folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run([str(folder / "check.sh")], env=env, capture_output=True, text=True, timeout=120, check=False)


class TestCheck:
    """The check script of the bundle asks the real parser."""

    pytestmark = deepspeed

    @pytest.mark.parametrize("precision", ["bf16", "fp16"])
    def test_it_accepts_the_planned_world(self, tmp_path: Path, precision: str) -> None:
        document(tmp_path / "bundle", degrees=Degrees(zero=3), precision=precision)
        done = checked(tmp_path / "bundle")
        assert done.returncode == 0, done.stderr[-2000:]
        assert "dp 32" in done.stdout

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"train_batch_size": 128}, "train_batch_size"),
            ({"zero_optimization": None, "zero_optimisation": {"stage": 3}}, "zero_stage: planned 3, DeepSpeed has 0"),
            ({"bf16": {"enabled": False}}, "precision: planned bf16"),
        ],
        ids=["batch", "misspelt", "precision"],
    )
    def test_it_refuses_what_was_changed(self, tmp_path: Path, change: dict[str, Any], said: str) -> None:
        folder = tmp_path / "bundle"
        made = document(folder, degrees=Degrees(zero=3)) | change
        text = json.dumps({key: value for key, value in made.items() if value is not None})
        (folder / "ds_config.json").write_text(text, encoding="utf-8")
        done = checked(folder)
        assert done.returncode != 0
        assert said in done.stderr
