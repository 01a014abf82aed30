"""The target `torchtitan`."""

from __future__ import annotations

from shardwright.planner.emit.base import BUNDLE, Check, File, Program, Refusal, Request, Target, Word, literal
from shardwright.planner.emit.templating import template
from shardwright.planner.emit.torch_offload import all_states_on_host
from shardwright.planner.emit.torch_schedules import TITAN_SCHEDULES
from shardwright.planner.emit.torchtitan.flavors import Flavor, flavor_names, flavor_of
from shardwright.planner.emit.torchtitan.module_file import FUNCTION, MODULE, module_config
from shardwright.planner.emit.torchtitan.settings import FLOAT8_RECIPES, ROTATE_METHODS, is_toml
from shardwright.planner.emit.torchtitan.toml_file import toml_config

_EAGER = "torchtitan-eager"
_BY_ROWS = ("fp8-rowwise", "fp8-rowwise-gw-hp")
"""What torchao quantises by rows, all that 0.3 and later know (pytorch/torchtitan, components/quantization/float8.py)."""


def _program(request: Request) -> Program:
    flavor = _flavor(request)
    compiled = request.stack["id"] != _EAGER
    start = literal("-m", "torchtitan.train")
    if is_toml(request.version):
        files = {"config.toml": File(text=toml_config(request, flavor, compiled=compiled))}
        words = (*start, *literal("--job.config_file"), Word(text="config.toml", root=BUNDLE))
    else:
        files = {f"{MODULE}.py": File(text=module_config(request, flavor, compiled=compiled))}
        words = (*start, *literal("--module", MODULE, "--config", FUNCTION))
    return Program(
        command=words,
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        files=files,
        check=Check(script=template("torchtitan_check.py"), needs=f"torchtitan {request.version} in the environment"),
        python_path=not is_toml(request.version),
        notes=_notes(request),
    )


def _flavor(request: Request) -> Flavor:
    flavor = flavor_of(request.spec)
    if flavor is None:
        raise KeyError(request.spec.name)  # refused before
    return flavor


def _notes(request: Request) -> tuple[str, ...]:
    notes = ["run it where torchtitan finds its tokenizer and dataset (the folder of its checkout), or set them to your own"]
    if request.parallel["cp"] > 1 and not is_toml(request.version):
        notes.append("torchtitan chooses the exchange of context parallelism itself; the plan was priced for p2p")
    return tuple(notes)


def _refusals(request: Request) -> tuple[Refusal, ...]:
    return (*_model_refusals(request), *_plan_refusals(request), *_job_refusals(request))


def _model_refusals(request: Request) -> tuple[Refusal, ...]:
    version, flavor = request.version, flavor_of(request.spec)
    if version == "0.1":
        return (Refusal(field="target_version", message="files for 0.1 are not written", remedy="write for 0.2 or later"),)
    if flavor is None:
        message = f"torchtitan holds no flavor with the shape of {request.spec.name}"
        return (Refusal(field="model", message=message, remedy=f"use the target torchrun; flavors: {flavor_names()}"),)
    if request.spec.mtp_layers:
        message = f"the flavor {flavor.name} has no multi-token prediction"
        return (Refusal(field="model.mtp_layers", message=message, remedy="plan with --set model.mtp_layers=0"),)
    return ()


def _plan_refusals(request: Request) -> tuple[Refusal, ...]:
    parallel, found = request.parallel, list[Refusal]()
    if parallel["schedule"] not in TITAN_SCHEDULES:
        message = f"no schedule {parallel['schedule']}; there are {', '.join(TITAN_SCHEDULES)}"
        found.append(Refusal(field="parallel.schedule", message=message, remedy="plan with --fix schedule=1f1b"))
    if parallel["cp"] > 1 and parallel["cp_comm"] not in ROTATE_METHODS:
        message = f"context parallelism by {parallel['cp_comm']}; there are {', '.join(ROTATE_METHODS)}"
        found.append(Refusal(field="parallel.cp_comm", message=message, remedy="plan with cp_comm p2p"))
    if parallel["tp"] > 1 and not parallel["sequence_parallel"]:
        message = "tensor parallelism without sequence parallelism"
        found.append(Refusal(field="parallel.sequence_parallel", message=message, remedy="switch it on"))
    if any(parallel["offload"].values()) and not all_states_on_host(request):
        message = "training.enable_cpu_offload moves parameters, gradients and optimizer together, under ZeRO 3"
        remedy = "plan with --offload optimizer,parameters and zero 3"
        found.append(Refusal(field="parallel.offload", message=message, remedy=remedy))
    if parallel["recompute"]["mode"] == "full" and parallel["recompute"]["layers"] < request.largest_stage:
        message = "activation checkpointing of some layers only"
        found.append(Refusal(field="parallel.recompute.layers", message=message, remedy="recompute all layers"))
    return tuple(found)


def _job_refusals(request: Request) -> tuple[Refusal, ...]:
    precision, optimizer = request.training["precision"], request.training["optimizer"]
    known = ("bf16", "fp32", *FLOAT8_RECIPES, "mxfp8") if is_toml(request.version) else ("bf16", "fp32", *_BY_ROWS)
    found = []
    if precision not in known:
        message = f"precision {precision} for {request.version}; written are {', '.join(known)}"
        found.append(Refusal(field="training.precision", message=message, remedy="plan in bf16"))
    elif precision in _BY_ROWS and request.spec.moe and not is_toml(request.version):
        message = f"experts in 16 bits beside linear layers in {precision}, which are priced alike"
        found.append(Refusal(field="training.precision", message=message, remedy="plan in bf16"))
    if optimizer != "adam":
        found.append(Refusal(field="training.optimizer", message=f"no optimizer {optimizer}", remedy="plan with adam"))
    return tuple(found)


_CANNOT = {
    "target_version": "0.1",
    "model": "shapes that torchtitan holds no flavor of",
    "model.mtp_layers": "multi-token prediction",
    "parallel.schedule": f"other than {', '.join(TITAN_SCHEDULES)}",
    "parallel.cp_comm": f"other than {', '.join(ROTATE_METHODS)}",
    "parallel.sequence_parallel": "off with tp above 1",
    "parallel.offload": "other than optimizer and parameters, whole, with zero 3",
    "parallel.recompute.layers": "some of a stage's",
    "training.precision": "other than bf16, fp32 and, without experts, fp8 by rows; in 0.2 also fp8-tensorwise, mxfp8",
    "training.optimizer": "other than adam",
}

TORCHTITAN = Target(
    id="torchtitan",
    says="torchtitan.train under torchrun, on one of its stock models",
    cannot=_CANNOT,
    refusals=_refusals,
    program=_program,
)
