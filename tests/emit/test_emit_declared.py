"""Whatever a target refuses is declared in its `cannot`, which `show targets` prints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from emit_plans import plan

from shardwright.models.spec import ModelSpec
from shardwright.planner.emit.base import Request
from shardwright.planner.emit.options import LaunchOptions
from shardwright.planner.emit.registry import TARGETS
from shardwright.planner.emit.request import read_request
from shardwright.planner.plans import Degrees
from shardwright.planner.rules.versions import VERSIONS

_MODELS = ("llama3.2-1b", "gpt2", "gpt-oss-20b", "gemma2-2b")
_MACHINES = {"cluster": "dgx-h200:4", "framework": "any"}

PLANS: dict[str, dict[str, Any]] = {
    **{model: {"model": model, "seq_len": 1024} for model in _MODELS},
    "everything": {"degrees": Degrees(tp=2, cp=2, pp=2, vpp=2, zero=2, recompute="full", recompute_layers=3)},
    "experts": {"model": "qwen3-30b-a3b", "degrees": Degrees(tp=2, ep=4, etp=2, pp=4)},
    "latent": {"model": "deepseek-v2-lite", "degrees": Degrees(tp=2, pp=2)},
    "gpipe": {"degrees": Degrees(pp=2, schedule="gpipe")},
    "replicas": {"degrees": Degrees(zero=3, dp_replicate=2, recompute="selective")},
    "fp8": {"precision": "fp8-blockwise", "degrees": Degrees(zero=3)},
    "nvfp4": {"precision": "nvfp4", "cluster": "dgx-b200:4", "degrees": Degrees(zero=1)},
}

SWITCHES: dict[str, dict[str, Any]] = {
    "zero 1": {"zero_stage": 1},
    "activations": {"offload": {"activations": 0.47, "optimizer": 0.0, "parameters": 0.0}},
    "some of the optimizer": {"offload": {"activations": 0.0, "optimizer": 0.5, "parameters": 0.0}, "zero_stage": 0},
    "parameters alone": {"offload": {"activations": 0.0, "optimizer": 0.0, "parameters": 1.0}, "zero_stage": 3},
    "gather": {"cp": 2, "cp_comm": "a2a+p2p"},
    "modules": {"recompute": {"mode": "selective", "modules": ["mlp_act"], "layers": 1}},
    "no resharding": {"zero_stage": 3, "reshard_after_forward": False},
}


def undeclared(request: Request, target: str) -> list[str]:
    one = TARGETS[target]
    found = {refusal.field for v in VERSIONS[target] for refusal in one.refusals(replace(request, version=v))}
    return sorted(found - set(one.cannot))


def of(named: dict[str, Any]) -> Request:
    record = plan(**{**_MACHINES, **named})
    return read_request(record | {"feasible": True}, LaunchOptions())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PLANS)
def test_refusals_of_plans_are_declared(target: str, name: str) -> None:
    assert undeclared(of(PLANS[name]), target) == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SWITCHES)
def test_refusals_of_switches_are_declared(target: str, name: str) -> None:
    request = of({"model": "llama3.2-1b"})
    assert undeclared(replace(request, parallel={**request.parallel, **SWITCHES[name]}), target) == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("optimizer", ["adam", "adam-bf16", "sgd", "muon", "adafactor"])
def test_refusals_of_optimizers_are_declared(target: str, optimizer: str) -> None:
    request = of({"model": "llama3.2-1b"})
    assert undeclared(replace(request, training={**request.training, "optimizer": optimizer}), target) == []


@pytest.mark.parametrize("target", TARGETS)
def test_activations_of_no_whole_layers_are_offloaded_by_none(target: str) -> None:
    request = of({"model": "llama3.2-1b"})
    odd = replace(request, parallel={**request.parallel, **SWITCHES["activations"]}, version=VERSIONS[target][-1])
    assert "parallel.offload" in {refusal.field for refusal in TARGETS[target].refusals(odd)}


@pytest.mark.parametrize("target", TARGETS)
def test_declared_fields_of_models_exist(target: str) -> None:
    spec = ModelSpec.from_dict(plan(**_MACHINES, model="deepseek-v2-lite")["inputs"]["model"]).to_dict()
    for field in TARGETS[target].cannot:
        area, _, name = field.partition(".")
        held: Any = spec
        for part in name.split(".") if area == "model" and name else ():
            assert part in held, field
            held = held[part]
