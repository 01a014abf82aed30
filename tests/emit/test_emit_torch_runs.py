"""Emitted packages run on gloo, and every way to divide the model trains as a single process does."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from emit_plans import emitted

from shardwright.models.catalog import load_model, model_from_dict
from shardwright.planner.emit.templating import template
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]

DENSE: dict[str, Any] = {
    **{"name": "small", "layers": 8, "hidden": 64, "heads": 8, "kv_heads": 4, "head_dim": 8, "vocab": 256, "ffn": 128},
}
MOE = DENSE | {"name": "experts", "layers": 4}
MOE["moe"] = {"experts": 8, "topk": 2, "expert_ffn": 64, "shared_ffn": 64, "dense_layers": [0]}
LATENT = MOE | {"name": "latent", "kv_heads": 8, "head_dim": 24}
LATENT["mla"] = {"kv_rank": 32, "nope_dim": 16, "rope_dim": 8, "v_dim": 16, "q_rank": 32}
GPT = DENSE | {
    "name": "gpt",
    "kv_heads": 8,
    "norm": "layernorm",
    "activation": "gelu",
    "positions": "learned",
    "max_positions": 64,
}
GPT |= {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
QK = DENSE | {"name": "qk", "qk_norm": "head"}
TOLERANCE = {"fp32": 1e-4, "fp16": 1e-4, "bf16": 1e-3}
"""Of a loss near 5.5; rounding of inputs to 16 bits moves it less than that."""
STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan of one model."""

    name: str
    ranks: int
    degrees: Degrees
    model: dict[str, Any] = field(default_factory=lambda: DENSE)
    change: dict[str, Any] = field(default_factory=dict)
    precision: str = "fp32"


CASES = (
    Case(name="ddp", ranks=4, degrees=Degrees(zero=0)),
    Case(name="fsdp", ranks=4, degrees=Degrees(zero=3)),
    Case(name="fsdp-no-reshard", ranks=4, degrees=Degrees(zero=2)),
    Case(name="fsdp-host", ranks=4, degrees=Degrees(zero=3, offload="optimizer,parameters")),
    Case(name="hsdp", ranks=4, degrees=Degrees(zero=3, dp_replicate=2)),
    Case(name="pieces-ddp", ranks=2, degrees=Degrees(zero=0, loss_chunks=4)),
    Case(name="pieces-fsdp", ranks=4, degrees=Degrees(zero=3, loss_chunks=8)),
    Case(name="pieces-cp", ranks=4, degrees=Degrees(cp=2, micro_batch=2, loss_chunks=3)),
    Case(name="pieces-gpt", ranks=2, degrees=Degrees(zero=2, loss_chunks=5), model=GPT),
    Case(name="pieces-bf16", ranks=2, degrees=Degrees(zero=3, loss_chunks=4), precision="bf16"),
    Case(name="tp-sp", ranks=4, degrees=Degrees(tp=4)),
    Case(name="tp-without-sp", ranks=4, degrees=Degrees(tp=2, sequence_parallel=False)),
    Case(name="cp-ring", ranks=4, degrees=Degrees(cp=4)),
    Case(name="cp-gather", ranks=4, degrees=Degrees(cp=2), change={"cp_comm": "allgather"}),
    Case(name="cp-heads", ranks=4, degrees=Degrees(cp=2), change={"cp_comm": "a2a"}),
    Case(name="gpipe", ranks=4, degrees=Degrees(pp=4, schedule="gpipe")),
    Case(name="1f1b", ranks=4, degrees=Degrees(pp=2, layers_per_stage=(3, 5))),
    Case(name="interleaved", ranks=4, degrees=Degrees(pp=2, vpp=2)),
    Case(name="tp-pp-dp", ranks=8, degrees=Degrees(tp=2, pp=2)),
    Case(name="tp-cp-dp", ranks=8, degrees=Degrees(tp=2, cp=2)),
    Case(name="pp-cp", ranks=8, degrees=Degrees(pp=4, cp=2)),
    Case(name="recompute", ranks=4, degrees=Degrees(recompute="full", recompute_layers=3)),
    Case(name="selective", ranks=4, degrees=Degrees(recompute="selective")),
    Case(name="gpt-tp-pp", ranks=4, degrees=Degrees(tp=2, pp=2), model=GPT),
    Case(name="qk-norm-tp", ranks=4, degrees=Degrees(tp=2), model=QK),
    Case(name="experts-ep", ranks=4, degrees=Degrees(ep=4), model=MOE),
    Case(name="experts-ep-tp", ranks=4, degrees=Degrees(ep=2, tp=2), model=MOE),
    Case(name="experts-ep-pp", ranks=4, degrees=Degrees(ep=2, pp=2), model=MOE),
    Case(name="experts-hsdp", ranks=8, degrees=Degrees(ep=2, dp_replicate=2, zero=3), model=MOE),
    Case(name="experts-cp-tp", ranks=8, degrees=Degrees(ep=4, cp=2, tp=2), model=MOE),
    Case(name="latent-ep", ranks=4, degrees=Degrees(ep=2, pp=2), model=LATENT),
    Case(name="v-shaped", ranks=4, degrees=Degrees(pp=2, vpp=2, zero=2), change={"schedule": "ZBVZeroBubble"}),
    Case(name="zb-h1", ranks=2, degrees=Degrees(pp=2, schedule="zb-h1")),
    Case(name="zb-h1-dp", ranks=8, degrees=Degrees(pp=4, zero=2, schedule="zb-h1")),
    Case(name="fp16-ddp", ranks=2, degrees=Degrees(zero=0), precision="fp16"),
    Case(name="fp16-fsdp", ranks=2, degrees=Degrees(zero=3), precision="fp16"),
    Case(name="fp16-fsdp-host", ranks=2, degrees=Degrees(zero=3, offload="optimizer,parameters"), precision="fp16"),
    Case(name="fp16-pipeline", ranks=2, degrees=Degrees(pp=2), precision="fp16"),
    Case(name="fp16-tp", ranks=2, degrees=Degrees(tp=2), precision="fp16"),
    Case(name="bf16-fsdp", ranks=2, degrees=Degrees(zero=3), precision="bf16"),
    Case(name="dual", ranks=4, degrees=Degrees(pp=2, vpp=2, zero=2), change={"schedule": "DualPipeV"}),
)


def bundle(folder: Path, case: Case) -> Path:
    """The emitted package of a case: plain gradient steps of a length at which an error in their scale would show."""
    graph = model_from_dict(case.model)
    options = PricingOptions(framework="pytorch", precision=case.precision, optimizer="sgd", gpus=case.ranks)
    priced = estimate(graph, "dgx-h100:1", seq_len=64, global_batch=16, degrees=case.degrees, options=options).to_dict()
    emitted(folder, priced, target="torchrun", launch={"steps": STEPS})
    config = json.loads((folder / "config.yaml").read_text(encoding="utf-8"))
    config["job"]["lr"] = 2.0
    config["plan"] |= case.change
    (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every case, and a single process for every model, run in one go."""
    home = tmp_path_factory.mktemp("bundles")
    models = {case.model["name"]: case.model for case in CASES}
    alone = tuple(Case(name=f"alone-{name}", ranks=1, degrees=Degrees(), model=model) for name, model in models.items())
    everything = (*alone, *CASES)
    jobs = [(str(bundle(home / case.name, case)), case.ranks) for case in everything]
    (home / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    command = [sys.executable, str(Path(__file__).with_name("fork_runner.py")), str(home / "jobs.json")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=900)
    reports = json.loads(done.stdout.splitlines()[-1])
    return {case.name: report for case, report in zip(everything, reports, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_losses_are_those_of_a_single_process(runs: dict[str, dict[str, Any]], case: Case) -> None:
    made, alone = runs[case.name], runs[f"alone-{case.model['name']}"]
    assert made["codes"] == [0] * case.ranks, made["error"]
    assert alone["report"] is not None, alone["error"]
    assert made["report"]["losses"] == pytest.approx(alone["report"]["losses"], abs=TOLERANCE[case.precision])
    assert made["report"]["step_time_s"] > 0


def test_the_weights_do_learn(runs: dict[str, dict[str, Any]]) -> None:
    """Losses that agree because nothing moves would prove nothing."""
    losses = runs["alone-small"]["report"]["losses"]
    assert len({round(loss, 3) for loss in losses}) == STEPS


def test_an_overflow_leaves_the_step_out_and_halves_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    import torch.distributed as dist

    monkeypatch.setattr(dist, "all_reduce", lambda *args, **named: None)
    space: dict[str, Any] = {"__name__": "scaling"}
    exec(compile(template("torchrun_scaling.py"), "scaling.py", "exec"), space)
    scale, weight = space["LossScale"]("fp16"), torch.nn.Parameter(torch.ones(2))
    update = scale.guarding(torch.optim.SGD([weight], lr=1.0), [weight])
    weight.grad = torch.tensor([float("inf"), 1.0])
    update()
    assert (weight.tolist(), scale.value, weight.grad) == ([1.0, 1.0], space["START"] / 2, None)
    weight.grad = torch.full((2,), scale.value / 2)
    update()
    assert (weight.tolist(), scale.value) == ([0.5, 0.5], space["START"] / 2)
    assert space["LossScale"]("bf16")(3.0) == 3.0


@pytest.mark.parametrize("kind", ["ScheduleGPipe", "Schedule1F1B"])
def test_a_pipeline_does_not_keep_the_logits_of_every_micro_batch(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """torch's schedules keep what the last stage makes until the step is over, to return it (pytorch/pytorch issue 159251)."""
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, schedules
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for name in ("context", "data", "losses", "parallel", "scaling"):
        monkeypatch.setitem(sys.modules, name, MagicMock())
    space: dict[str, Any] = {"__name__": "train", "__file__": "train.py"}
    exec(compile(template("torchrun_train.py"), "train.py", "exec"), space)
    monkeypatch.setitem(space, "loss_of", lambda logits, labels: (logits - labels).square().mean())
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        stage = PipelineStage(torch.nn.Linear(4, 4), 0, 1, torch.device("cpu"))
        piped = space["Piped"].__new__(space["Piped"])
        piped.scale, piped.stages, losses = (lambda loss: loss), [stage], []
        schedule = getattr(schedules, kind)(stage, n_microbatches=4, loss_fn=piped.scaled_loss)
        schedule.step(torch.ones(8, 4), target=torch.zeros(8, 4), losses=losses)
    finally:
        dist.destroy_process_group()
    assert len(losses) == 4
    assert len(stage.output_chunks) == 1


def finished(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("degrees", [Degrees(), Degrees(pp=2)], ids=["fsdp", "pipeline"])
def test_the_bundle_starts_under_torchrun(tmp_path: Path, degrees: Degrees) -> None:
    folder = bundle(tmp_path / "bundle", Case(name="real", ranks=2, degrees=degrees))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", str(folder / "launch.sh")], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert len(report["losses"]) == STEPS


def test_the_check_of_the_bundle_passes(tmp_path: Path) -> None:
    graph = load_model("llama3.1-8b")
    options = PricingOptions(framework="pytorch")
    degrees = Degrees(tp=2, pp=4, vpp=2)
    priced = estimate(graph, "dgx-h100:32", seq_len=4096, global_batch=512, degrees=degrees, options=options).to_dict()
    emitted(tmp_path / "bundle", priced, target="torchrun")
    env = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        [str(tmp_path / "bundle" / "check.sh")], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "256 ranks" in done.stdout
