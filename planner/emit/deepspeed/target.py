"""The target `deepspeed`: `ds_config.json`, and `train.py` that trains the planned model with it.

The JSON holds batch, precision, optimizer and ZeRO. The model is the one of the target `torchrun`, whole on every rank or
sharded by ZeRO; what would divide it otherwise (tensor, context, pipeline, expert parallelism) is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardwright.planner.emit.base import BUNDLE, Check, File, Program, Refusal, Request, Target, Word
from shardwright.planner.emit.deepspeed.config import LR, OPTIMIZERS, PRECISIONS, deepspeed_config, gradient_bytes
from shardwright.planner.emit.quoting import json_text
from shardwright.planner.emit.templating import template
from shardwright.planner.emit.torchrun.config import job_config, model_config
from shardwright.planner.emit.torchrun.model import UNSAID_OF_MODELS, model_refusals

_SHARED = ("model.py", "context.py", "data.py")
_DEGREES = ("tp", "cp", "pp", "ep")


def _program(request: Request) -> Program:
    shared = {name: File(text=template(f"torchrun_{name}")) for name in _SHARED}
    recompute = request.parallel["recompute"]
    config = {
        "model": model_config(request),
        "job": job_config(request, lr=LR),
        "plan": {
            "world_size": request.parallel["world_size"],
            "recompute_layers": recompute["layers"] if recompute["mode"] == "full" else 0,
        },
    }
    return Program(
        command=(Word(text="train.py", root=BUNDLE),),
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        files={
            **shared,
            "train.py": File(text=template("deepspeed_train.py")),
            "config.yaml": File(text=json_text(config)),
            "ds_config.json": File(text=json_text(deepspeed_config(request))),
        },
        check=Check(script=template("deepspeed_check.py"), needs=f"DeepSpeed {request.version} in the environment"),
        notes=_notes(request),
    )


def _notes(request: Request) -> tuple[str, ...]:
    notes = [
        "trains on synthetic tokens from random weights; runs on CPUs with gloo where there is no GPU",
        "DeepSpeed builds its fused Adam when it first runs, which needs nvcc; without it add torch_adam to the optimizer",
    ]
    if request.parallel["zero_stage"] == 0 and request.parallel["overlap"]["dp_reduce"]:
        notes.append("DeepSpeed hides no reduction under ZeRO 0; the plan was priced with it hidden in part")
    return tuple(notes)


def _refusals(request: Request) -> tuple[Refusal, ...]:
    return (*model_refusals(request.spec), *_plan_refusals(request), *_job_refusals(request))


def _plan_refusals(request: Request) -> tuple[Refusal, ...]:
    parallel, stage = request.parallel, request.parallel["zero_stage"]
    other = "plan for it with --fix {0}=1, or use the target torchrun or megatron"
    found = [
        (name, parallel[name] > 1, f"{name} {parallel[name]} is not in DeepSpeed's JSON", other.format(name))
        for name in _DEGREES
    ]
    found += [
        (
            "dp_replicate",
            stage > 0 and parallel["dp_replicate"] > 1,
            "ZeRO over a part of the ranks",
            "plan with dp_replicate 1",
        ),
        ("offload", parallel["offload"]["activations"] > 0, "ZeRO offloads no activations", "plan with --offload optimizer"),
        (
            "offload",
            bool(parallel["offload"]["optimizer"]) and (stage == 0 or request.training["optimizer"] != "adam"),
            "the optimizer on the host is Adam, under ZeRO",
            "plan with adam and zero 1",
        ),
        (
            "recompute.mode",
            parallel["recompute"]["mode"] == "selective",
            "checkpointing under ZeRO recomputes whole layers",
            "plan with recompute none or full",
        ),
        (
            "reshard_after_forward",
            stage == 3 and not parallel["reshard_after_forward"],
            "ZeRO 3 releases parameters after forward",
            "plan with zero 2",
        ),
    ]
    return tuple(
        Refusal(field=f"parallel.{name}", message=said, remedy=remedy) for name, broken, said, remedy in found if broken
    )


def _job_refusals(request: Request) -> tuple[Refusal, ...]:
    training, found = request.training, list[Refusal]()
    for key, known in (("precision", PRECISIONS), ("optimizer", tuple(OPTIMIZERS))):
        if training[key] not in known:
            message = f"no {key} {training[key]}; written are {', '.join(known)}"
            found.append(Refusal(field=f"training.{key}", message=message, remedy=f"plan with {known[0]}"))
    half = training["precision"] != "fp32"
    if half and gradient_bytes(request) == 4 and request.parallel["zero_stage"] == 0:
        message = f"without ZeRO gradients are accumulated in {training['precision']}, not in fp32"
        remedy = "plan with --set training.grad_dtype=bf16, or with zero 1"
        found.append(Refusal(field="training.grad_bytes", message=message, remedy=remedy))
    return tuple(found)


def _settings(request: Request) -> Mapping[str, Any]:
    """What the JSON and the launch line set."""
    return {"launch.world_size": request.machines.gpus, **dict(_dotted(deepspeed_config(request), ""))}


def _dotted(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


_CANNOT = UNSAID_OF_MODELS | {
    **{f"parallel.{name}": "above 1: no such degree in the JSON" for name in _DEGREES},
    "parallel.dp_replicate": "above 1 with ZeRO: shards go over all ranks",
    "parallel.offload": "activations; optimizers but adam, and without ZeRO",
    "parallel.recompute.mode": "selective",
    "parallel.reshard_after_forward": "no with ZeRO 3",
    "training.precision": f"other than {', '.join(PRECISIONS)}",
    "training.optimizer": f"other than {', '.join(OPTIMIZERS)}",
    "training.grad_bytes": "4 with 16-bit training and ZeRO 0",
}


DEEPSPEED = Target(
    id="deepspeed",
    says="DeepSpeed's JSON and a package that trains the model with it",
    cannot=_CANNOT,
    refusals=_refusals,
    program=_program,
    settings=_settings,
)
