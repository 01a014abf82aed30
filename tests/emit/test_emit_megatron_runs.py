"""Megatron's own GPTModel trains by emitted argument lists on gloo, and each division of it as a single process does."""

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
from emit_plans import emitted
from test_emit_torch_runs import DENSE, GPT

from shardwright.models.catalog import model_from_dict
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs megatron-core"),
]

VERSION, STEPS = "0.16", 3
RUNNER = Path(__file__).with_name("megatron_runner.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan of one model, and the layers, from 1, of its first rank."""

    name: str
    degrees: Degrees
    layers: list[list[int]]
    model: dict[str, Any] = field(default_factory=lambda: DENSE)

    @property
    def ranks(self) -> int:
        """Processes."""
        return self.degrees.tp * self.degrees.pp


CASES = (
    Case(name="tp", degrees=Degrees(tp=2, sequence_parallel=False), layers=[[1, 2, 3, 4, 5, 6, 7, 8]]),
    Case(name="pp", degrees=Degrees(pp=2), layers=[[1, 2, 3, 4]]),
    Case(name="uneven", degrees=Degrees(pp=2, layers_per_stage=(3, 5)), layers=[[1, 2, 3]]),
    Case(name="vpp", degrees=Degrees(pp=2, vpp=2), layers=[[1, 2], [5, 6]]),
    Case(name="uneven-vpp", degrees=Degrees(pp=2, vpp=2, layers_per_stage=(1, 2, 3, 2)), layers=[[1], [4, 5, 6]]),
    Case(name="all", degrees=Degrees(tp=2, pp=2, vpp=2, sequence_parallel=False), layers=[[1, 2], [5, 6]]),
    Case(name="gpt", degrees=Degrees(tp=2, pp=2, sequence_parallel=False), layers=[[1, 2, 3, 4]], model=GPT),
)
"""Without sequence parallelism: the norms that stand in for Transformer Engine's have none."""


def bundle(folder: Path, case: Case) -> Path:
    options = PricingOptions(framework="megatron", precision="fp32", gpus=case.ranks)
    graph = model_from_dict(case.model)
    priced = estimate(graph, "dgx-h100:1", seq_len=32, global_batch=8, degrees=case.degrees, options=options).to_dict()
    emitted(folder, priced, version=VERSION)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every case, and a single process for every model, run in one go."""
    home = tmp_path_factory.mktemp("bundles")
    models = {case.model["name"]: case.model for case in CASES}
    alone = tuple(Case(name=f"alone-{name}", degrees=Degrees(), layers=[], model=model) for name, model in models.items())
    everything = (*alone, *CASES)
    jobs = [(str(bundle(home / case.name, case)), case.ranks) for case in everything]
    (home / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", str(RUNNER), str(home / "jobs.json")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=600)
    reports = json.loads(done.stdout.splitlines()[-1])
    return {case.name: report for case, report in zip(everything, reports, strict=True)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_losses_are_those_of_a_single_process(runs: dict[str, dict[str, Any]], case: Case) -> None:
    made, alone = runs[case.name], runs[f"alone-{case.model['name']}"]
    assert made["codes"] == [0] * case.ranks, made["error"]
    assert alone["report"] is not None, alone["error"]
    assert made["report"]["losses"] == pytest.approx(alone["report"]["losses"], abs=1e-4)
    assert made["report"]["layers"] == case.layers


@pytest.mark.parametrize("model", ["small", "gpt"])
def test_the_weights_do_learn(runs: dict[str, dict[str, Any]], model: str) -> None:
    """Losses that agree because nothing moves would prove nothing."""
    losses = runs[f"alone-{model}"]["report"]["losses"]
    assert len(losses) == STEPS
    assert losses[0] - losses[-1] > 0.05
