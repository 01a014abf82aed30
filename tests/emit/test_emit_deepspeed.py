"""DeepSpeed's JSON says what the plan says, in keys DeepSpeed reads; what it cannot say is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
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
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs deepspeed"),
]


def small(folder: Path, degrees: Degrees, model: dict[str, Any], precision: str = "fp32", gpus: int = RANKS) -> Path:
    """The bundle of a small model."""
    options = PricingOptions(framework="deepspeed", precision=precision, gpus=gpus)
    graph = model_from_dict(model)
    priced = estimate(graph, "dgx-h100:1", seq_len=64, global_batch=8, degrees=degrees, options=options).to_dict()
    emitted(folder, priced, target="deepspeed", launch={"steps": STEPS})
    return folder


def losses(folder: Path) -> list[float]:
    """What the bundle prints under torchrun."""
    extensions = os.environ.get("TORCH_EXTENSIONS_DIR", str(folder.parents[1] / "extensions"))  # one build for all tests
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": extensions, "PATH": path}
    done = subprocess.run(
        ["bash", str(folder / "launch.sh")], env=env, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"losses"')))
    found: list[float] = report["losses"]
    return found


class TestRuns:
    """Real DeepSpeed on CPU."""

    pytestmark = deepspeed

    @pytest.fixture(scope="class")
    def alone(self, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
        return losses(small(tmp_path_factory.mktemp("alone") / "bundle", Degrees(zero=0), DENSE, gpus=1))

    @pytest.mark.parametrize("zero", [0, 1, 2, 3])
    def test_every_stage_trains_as_one_process(self, tmp_path: Path, alone: list[float], zero: int) -> None:
        assert losses(small(tmp_path / "bundle", Degrees(zero=zero), DENSE)) == pytest.approx(alone, abs=1e-4)
        assert len({round(loss, 4) for loss in alone}) == STEPS

    @pytest.mark.parametrize("zero", [1, 3])
    def test_recomputing_changes_nothing(self, tmp_path: Path, alone: list[float], zero: int) -> None:
        degrees = Degrees(zero=zero, recompute="full", recompute_layers=3)
        assert losses(small(tmp_path / "bundle", degrees, DENSE)) == pytest.approx(alone, abs=1e-4)

    @pytest.mark.parametrize("zero", [1, 3])
    def test_bf16_comes_near(self, tmp_path: Path, alone: list[float], zero: int) -> None:
        assert losses(small(tmp_path / "bundle", Degrees(zero=zero), DENSE, precision="bf16")) == pytest.approx(alone, abs=3e-2)

    def test_experts_under_zero_3(self, tmp_path: Path) -> None:
        one, two = (small(tmp_path / str(n), Degrees(zero=3 if n > 1 else 0), MOE, gpus=n) for n in (1, 2))
        assert losses(two) == pytest.approx(losses(one), abs=1e-4)

    def test_another_world_is_refused(self, tmp_path: Path) -> None:
        folder = small(tmp_path / "bundle", Degrees(zero=1), DENSE)
        launch = folder / "launch.sh"
        launch.write_text(launch.read_text(encoding="utf-8").replace("gpus_per_node=2", "gpus_per_node=1"), encoding="utf-8")
        with pytest.raises(AssertionError, match="planned for 2 processes, started with 1"):
            losses(folder)


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
