"""The target `megatron`: `pretrain_gpt.py` of a Megatron-LM checkout, with every argument it needs to run on mock data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.planner.emit.base import File, Program, Refusal, Request, Target, Word, literal
from shardwright.planner.emit.megatron.architecture import UNSAID_OF_MODELS, architecture_refusals, architecture_words
from shardwright.planner.emit.megatron.arguments import flag, option, settings_of
from shardwright.planner.emit.megatron.check import MEGATRON_CHECK
from shardwright.planner.emit.megatron.parallel import (
    RECOMPUTED_MODULES,
    all_recomputed,
    environment,
    job_words,
    offloaded_layers,
    parallel_words,
    recomputed_modules,
)
from shardwright.planner.emit.megatron.pipeline import pipeline_refusals
from shardwright.planner.emit.megatron.versions import has
from shardwright.planner.emit.quoting import json_text

ROOT = "MEGATRON_LM"
_LATE = ("fp8-blockwise", "nvfp4", "muon", "adam-bf16")


def _program(request: Request) -> Program:
    words = megatron_words(request)
    return Program(
        command=(Word(text="pretrain_gpt.py", root=ROOT), *words),
        environment=environment(request),
        files={"arguments.json": File(text=json_text([word.text for word in words]))},
        check=MEGATRON_CHECK,
        needs={ROOT: f"the folder of a Megatron-LM checkout, release {request.version}"},
        notes=_notes(request),
    )


def megatron_words(request: Request) -> tuple[Word, ...]:
    """The whole argument list, in groups: model, plan, job, run."""
    return (*architecture_words(request), *parallel_words(request), *job_words(request), *_run_words(request))


def _run_words(request: Request) -> tuple[Word, ...]:
    return (
        *flag("mock-data", True),
        *option("train-iters", request.launch.steps),
        *option("lr", "1e-4"),
        *option("eval-iters", 0),
        *option("log-interval", 1),
        *flag("log-throughput", True),
        *literal("--distributed-timeout-minutes", 60),
    )


def _notes(request: Request) -> tuple[str, ...]:
    notes = ["trains on mock data; for a real run replace --mock-data and the tokenizer by your own and set a learning rate"]
    if request.parallel["overlap"]["tp"]:
        notes.append(
            "--tp-comm-overlap needs Transformer Engine built with user buffers; without them drop it, and expect slower steps"
        )
    return tuple(notes)


def megatron_refusals(request: Request) -> tuple[Refusal, ...]:
    """What of a request Megatron-LM arguments cannot say."""
    return (*architecture_refusals(request), *pipeline_refusals(request), *_plan_refusals(request), *_job_refusals(request))


def megatron_settings(request: Request) -> Mapping[str, Any]:
    """What the emitted arguments and environment set."""
    return settings_of(megatron_words(request), environment(request), request.machines.gpus)


def _plan_refusals(request: Request) -> tuple[Refusal, ...]:
    parallel, found = request.parallel, list[Refusal]()
    zero = parallel["zero_stage"]
    if zero == 2 or (zero == 3 and parallel["pp"] > 1):
        found.append(
            Refusal(field="parallel.zero_stage", message=f"no ZeRO {zero} with pp {parallel['pp']}", remedy="plan with zero 1")
        )
    if parallel["schedule"] not in ("1f1b", "interleaved-1f1b"):
        message = f"Megatron runs 1F1B and interleaved 1F1B, not {parallel['schedule']}"
        found.append(Refusal(field="parallel.schedule", message=message, remedy="plan with --fix schedule=1f1b"))
    return (*found, *_recompute_refusals(request), *_offload_refusals(request))


def _offload_refusals(request: Request) -> tuple[Refusal, ...]:
    parallel = request.parallel
    held = parallel["offload"]
    piped = parallel["pp"] > 1 or parallel["recompute"]["mode"] != "none"
    tests = (
        (held["parameters"] > 0, "Megatron offloads no parameters", "plan with --offload optimizer"),
        (held["optimizer"] > 0 and parallel["zero_stage"] == 3, "Megatron-FSDP with states on the host", "plan with zero 1"),
        (
            held["activations"] > 0 and (piped or offloaded_layers(request) is None),
            "activations leave by whole layers, without a pipeline and without recomputing",
            f"plan with a number of {request.spec.layers} layers below all, pp 1 and recompute none",
        ),
    )
    return tuple(Refusal(field="parallel.offload", message=said, remedy=remedy) for broken, said, remedy in tests if broken)


def _recompute_refusals(request: Request) -> tuple[Refusal, ...]:
    recompute, vpp = request.parallel["recompute"], request.parallel["vpp"]
    unknown = [module for module in recomputed_modules(request) if module not in RECOMPUTED_MODULES]
    if recompute["mode"] == "selective" and unknown:
        message = f"--recompute-modules has no {', '.join(unknown)}"
        return (Refusal(field="parallel.recompute.modules", message=message, remedy="plan with recompute none or full"),)
    if recompute["mode"] == "full" and not all_recomputed(request) and recompute["layers"] % vpp:
        message = f"{recompute['layers']} layers a stage are no whole number a virtual stage, of which there are {vpp}"
        return (Refusal(field="parallel.recompute.layers", message=message, remedy="recompute all layers"),)
    return ()


def _job_refusals(request: Request) -> tuple[Refusal, ...]:
    precision, optimizer, version = request.training["precision"], request.training["optimizer"], request.version
    late = [name for name in (precision, optimizer) if name in _LATE and not has(version, name)]
    found = [
        Refusal(field="training", message=f"Megatron {version} has no {name}", remedy="write for a later release")
        for name in late
    ]
    if precision == "fp16" and request.parallel["ep"] > 1 and not has(version, "experts-in-fp16"):
        message = f"Megatron {version} takes no expert parallelism in fp16"
        found.append(Refusal(field="training.precision", message=message, remedy="plan in bf16, or write for a later release"))
    return (*found, *_position_refusals(request))


def _position_refusals(request: Request) -> tuple[Refusal, ...]:
    """Learned positions are a table of the model: longer sequences would need another model."""
    length, rows = request.training["seq_len"], request.spec.max_positions
    if request.spec.positions != "learned" or rows is None or length <= rows:
        return ()
    message = f"the model has {rows} learned positions, the sequences {length} tokens"
    remedy = f"plan with --seq-len {rows}, or set model.max_positions={length}"
    return (Refusal(field="training.seq_len", message=message, remedy=remedy),)


MEGATRON_CANNOT = UNSAID_OF_MODELS | {
    "stages.layers": "before 0.13: stages that differ elsewhere than at the first and the last",
    "parallel.zero_stage": "2, and 3 with a pipeline",
    "parallel.schedule": "other than 1f1b, interleaved-1f1b",
    "parallel.offload": "parameters; the optimizer with zero 3; activations with pp or recompute, or of no whole layers",
    "parallel.recompute.modules": f"other than {', '.join(RECOMPUTED_MODULES)}",
    "parallel.recompute.layers": "no whole number a virtual stage",
    "training.seq_len": "longer than a model's learned positions",
    "training": "fp8-blockwise before 0.13, nvfp4 before 0.15, muon before 0.16",
}

MEGATRON = Target(
    id="megatron",
    says="Megatron-LM, pretrain_gpt.py under torchrun",
    cannot=MEGATRON_CANNOT,
    refusals=megatron_refusals,
    program=_program,
    settings=megatron_settings,
)
