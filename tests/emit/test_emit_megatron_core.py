"""megatron-core itself takes what emitted argument lists say: configuration, groups, stages, layers, schedule.

Each bundle goes the way of a run. `launch.sh` is read by the reader of users' files; what that finds becomes a
TransformerConfig, process groups of the planned world (a fake group), stages, a layer, the interleaved schedule, and the
configurations of data parallelism and of the optimizer. The reader knows nothing of emission, the framework of neither.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cases import Case
from emit_corpus import megatron_plans, write_bundles
from emit_plans import emitted, plan

from shardwright.planner.plans import Degrees
from shardwright.planner.readers.configuration import Beside, Configuration
from shardwright.planner.readers.megatron import megatron_configuration

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs megatron-core"),
]

VERSION, TRANSFORMER_ENGINE = "0.16", "2.9"
A_MODEL, LEAST_BUNDLES = 6, 60
MODELS = (
    *("llama3.1-8b", "llama3.1-70b", "qwen2.5-32b", "gpt3-175b", "megatron-22b", "qwen3-8b"),
    *("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v2-lite", "deepseek-v3", "glm-4.5-air"),
)

CHOSEN: tuple[dict[str, Any], ...] = (
    {"degrees": Degrees(pp=4, layers_per_stage=(7, 9, 9, 7))},
    {"degrees": Degrees(tp=2, pp=4, vpp=2, layers_per_stage=(3, 4, 4, 5, 4, 4, 4, 4))},
    {"degrees": Degrees(pp=2, vpp=2, recompute="full", recompute_layers=8)},
    {"degrees": Degrees(tp=4, cp=4, recompute="selective")},
    {"degrees": Degrees(tp=2, zero=3, recompute="full", recompute_layers=5)},
    {"degrees": Degrees(zero=3)},
    {"degrees": Degrees(tp=2, dp_replicate=2, zero=1)},
    {"model": "qwen3-30b-a3b", "degrees": Degrees(tp=2, pp=4, ep=4, etp=1)},
    {"model": "qwen3-30b-a3b", "degrees": Degrees(ep=8, zero=3)},
    {"model": "deepseek-v2-lite", "degrees": Degrees(tp=2, pp=2, ep=4, etp=1, layers_per_stage=(13, 14))},
    {"model": "deepseek-v3", "cluster": "dgx-h200:128", "global_batch": 1024, "degrees": Degrees(pp=16, ep=64)},
)
"""What the drawn ones hold too rarely: layouts, layers recomputed in part, replicas of shards, FSDP."""

KINDS: Mapping[str, Callable[[Configuration, Case], bool]] = {
    "experts": lambda found, case: found.graph.spec.moe is not None and case.ep > 1,
    "latent attention": lambda found, case: found.graph.spec.mla is not None,
    "virtual stages": lambda found, case: case.vpp > 1,
    "a layout": lambda found, case: "pipeline_model_parallel_layout" in found.settings,
    "context parallelism": lambda found, case: case.cp > 1,
    "full recomputing": lambda found, case: found.degrees.recompute == "full",
    "selective recomputing": lambda found, case: found.degrees.recompute == "selective",
    "FSDP": lambda found, case: "use_megatron_fsdp" in found.settings,
    "a distributed optimizer": lambda found, case: found.degrees.zero == 1,
    "fp8": lambda found, case: found.precision.startswith("fp8"),
}
"""What must be among the bundles, each with this number at least."""

LEAST_OF_A_KIND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """An emitted bundle as the reader understands it."""

    name: str
    gpus: int
    found: Configuration
    case: Case


@pytest.fixture(scope="module")
def core() -> Iterator[ModuleType]:
    import megatron.core.utils
    import megatron_oracle
    from megatron.core.extensions import transformer_engine
    from packaging.version import Version

    with pytest.MonkeyPatch.context() as patch:  # a plan in fp8 asks which Transformer Engine is there; none need be
        patch.setattr(megatron.core.utils, "get_te_version", lambda: Version(TRANSFORMER_ENGINE))
        patch.setattr(transformer_engine, "TELinear", megatron_oracle.AbsentLinear)
        yield megatron_oracle
    megatron_oracle.GROUPS.stop()


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory, core: ModuleType) -> list[Read]:
    home = tmp_path_factory.mktemp("bundles")
    made = [_read(home / name, planned) for name, planned in _written(home)]
    return sorted(made, key=lambda one: repr(core.groups_key(one.case)))


def _written(home: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, named in enumerate(CHOSEN):
        emitted(home / f"chosen-{number}", plan(**named), version=VERSION)
        yield f"chosen-{number}", plan(**named)
    for drawn in megatron_plans(MODELS, a_model=A_MODEL, seed=16):
        if write_bundles([drawn], home, "megatron", VERSION).written:
            yield drawn.name, drawn.plan


def _read(folder: Path, planned: dict[str, Any]) -> Read:
    from core_configurations import case_of

    gpus = planned["parallel"]["world_size"]
    found = megatron_configuration(folder / "launch.sh", Beside(gpus=gpus, version=VERSION))
    return Read(name=folder.name, gpus=gpus, found=found, case=case_of(found, gpus))


def test_megatron_core_takes_every_bundle(bundles: list[Read], core: ModuleType) -> None:
    import megatron.core

    assert megatron.core.__version__.startswith(VERSION)
    refused = {one.name: f"{said.link}: {said.message}" for one in bundles if not (said := core.verdict(one.case)).accepted}
    assert refused == {}, "\n".join(f"{name}: {said}" for name, said in refused.items())
    assert len(bundles) >= LEAST_BUNDLES


def test_data_parallelism_and_optimizer_are_configured(bundles: list[Read]) -> None:
    from core_configurations import build_ddp, build_optimizer

    for one in bundles:
        ddp, optimizer = build_ddp(one.found.settings), build_optimizer(one.found.settings)
        sharded = one.found.degrees.zero in (1, 3)
        assert ddp.use_distributed_optimizer == sharded, one.name
        assert optimizer is None or optimizer.use_distributed_optimizer == sharded, one.name
        assert ddp.use_megatron_fsdp == (one.found.degrees.zero == 3), one.name
        assert ddp.grad_reduce_in_fp32 == (one.found.grad_dtype == "fp32"), one.name


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_among_them(bundles: list[Read], kind: str) -> None:
    assert sum(KINDS[kind](one.found, one.case) for one in bundles) >= LEAST_OF_A_KIND


@pytest.mark.parametrize(
    "change",
    [
        {"tp": 7},
        {"global_batch": 1},
        {"settings": {"recompute_granularity": "full", "recompute_method": None, "recompute_num_layers": None}},
        {"settings": {"pipeline_model_parallel_layout": "Et|tL"}},
    ],
    ids=["degrees", "batch", "recompute", "layout"],
)
def test_the_same_with_a_fault_is_refused(bundles: list[Read], core: ModuleType, change: dict[str, Any]) -> None:
    """Otherwise what is asked would say yes to anything."""
    case = next(one.case for one in bundles if one.name == "chosen-0")
    settings = change.get("settings")
    broken = case.with_settings(**settings) if settings else replace(case, **change)
    assert not core.verdict(broken).accepted
