"""The target `torchrun`: `train.py` and the modules it imports, on PyTorch alone."""

from __future__ import annotations

from shardwright.planner.emit.base import BUNDLE, Check, File, Program, Refusal, Request, Target, Word
from shardwright.planner.emit.quoting import json_text
from shardwright.planner.emit.templating import template
from shardwright.planner.emit.torch_offload import all_states_on_host
from shardwright.planner.emit.torch_schedules import SCHEDULES
from shardwright.planner.emit.torchrun.config import OPTIMIZERS, bucket_mb, package_config, replicated
from shardwright.planner.emit.torchrun.model import UNSAID_OF_MODELS, model_refusals

MODULES = ("train.py", "model.py", "parallel.py", "context.py", "data.py", "losses.py", "scaling.py")
_PRECISIONS = ("bf16", "fp16", "fp32")
_CP_COMMS = ("p2p", "allgather", "a2a")


def _program(request: Request) -> Program:
    files = {name: File(text=template(f"torchrun_{name}")) for name in MODULES}
    return Program(
        command=(Word(text="train.py", root=BUNDLE),),
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        files=files | {"config.yaml": File(text=json_text(package_config(request)))},
        check=Check(script=template("torchrun_check.py"), needs=f"PyTorch {request.version} or later"),
        notes=_notes(request),
    )


_HIDDEN = (
    ("tp", "of tensor parallelism"),
    ("cp", "of context parallelism"),
    ("ep", "of experts"),
)


def _notes(request: Request) -> tuple[str, ...]:
    parallel, training = request.parallel, request.training
    notes = ["trains on synthetic tokens from random weights; runs on CPUs with gloo where there is no GPU"]
    if request.spec.moe is not None:
        notes.append("experts are routed by a plain softmax of the top k; one matrix product an expert, no fused kernels")
    waited = [what for axis, what in _HIDDEN if parallel["overlap"][axis]]
    if waited:
        notes.append(f"the package waits for the exchange {', '.join(waited)}; the plan was priced with a part of it hidden")
    if replicated(parallel):
        notes.append(f"DDP reduces in buckets of {bucket_mb(request)} MiB (bucket_mb of config.yaml)")
        if training["grad_bytes"] == 2 and training["precision"] != "fp32":
            notes.append(f"DDP compresses gradients to {training['precision']} on NCCL alone; on gloo they are sent whole")
    if training["precision"] == "fp16":
        notes.append("fp16 trains with a loss scale that halves when gradients overflow, and doubles after 2000 steps without")
    return tuple(notes)


def _refusals(request: Request) -> tuple[Refusal, ...]:
    return (*model_refusals(request.spec), *_plan_refusals(request), *_job_refusals(request))


def _plan_refusals(request: Request) -> tuple[Refusal, ...]:
    return tuple(
        Refusal(field=f"parallel.{name}", message=said, remedy=remedy)
        for name, broken, said, remedy in (*_degree_tests(request), *_model_tests(request))
        if broken
    ) + _recompute_refusals(request)


_Found = tuple[tuple[str, bool, str, str], ...]


def _degree_tests(request: Request) -> _Found:
    parallel, schedule = request.parallel, request.parallel["schedule"]
    cp, pieces, fp16 = parallel["cp"], 2 * parallel["cp"], request.training["precision"] == "fp16"
    shared = parallel["dp"] * cp * parallel["ep"] > 1
    return (
        ("schedule", schedule not in SCHEDULES, f"no schedule {schedule}", "plan with 1f1b"),
        ("zero_stage", parallel["zero_stage"] == 1, "FSDP2 has no ZeRO 1", "plan with zero 3 or 0"),
        (
            "cp",
            cp > 1 and request.training["seq_len"] % pieces != 0,
            f"no {pieces} equal pieces of a sequence",
            "plan with cp 1",
        ),
        ("cp_comm", cp > 1 and parallel["cp_comm"] not in _CP_COMMS, f"no cp_comm {parallel['cp_comm']}", "plan with p2p"),
        ("loss_chunks", parallel["loss_chunks"] > 1 and fp16, "loss in pieces is not scaled for fp16", "plan in bf16"),
        (
            "offload",
            any(parallel["offload"].values()) and not (all_states_on_host(request) and shared),
            "FSDP2 moves parameters, gradients and optimizer together to the host, of states that several ranks share",
            "plan with --offload optimizer,parameters and zero 3",
        ),
    )


def _model_tests(request: Request) -> _Found:
    parallel, spec, tp = request.parallel, request.spec, request.parallel["tp"]
    sequence, ends = parallel["sequence_parallel"], parallel["pp"] > 1
    heads = f"{spec.kv_heads} key and value heads over tp {tp}"
    return (
        ("tp", tp > 1 and spec.mla is not None, "latent attention is not divided over tp", "plan with tp 1"),
        ("tp", tp > 1 and spec.kv_heads % tp != 0, heads, "plan with a tp that divides them"),
        ("tp", tp > 1 and spec.tied_embeddings, "tied embeddings are not divided over tp", "plan with tp 1"),
        ("pp", ends and spec.tied_embeddings, "tied embeddings at both ends of a pipeline", "plan with pp 1"),
        ("etp", parallel["etp"] > 1 and spec.moe is not None, "experts are not divided over tp", "plan with etp 1"),
        ("tp", tp > 1 and spec.moe is not None and not sequence, "experts with tp need sequence parallelism", "switch it on"),
    )


def _recompute_refusals(request: Request) -> tuple[Refusal, ...]:
    recompute, vpp = request.parallel["recompute"], request.parallel["vpp"]
    if recompute["mode"] == "full" and recompute["layers"] < request.largest_stage and recompute["layers"] % vpp:
        message = f"{recompute['layers']} layers a stage are no whole number a virtual stage, of which there are {vpp}"
        return (Refusal(field="parallel.recompute.layers", message=message, remedy="recompute all layers"),)
    return ()


def _job_refusals(request: Request) -> tuple[Refusal, ...]:
    found = []
    for key, known in (("precision", _PRECISIONS), ("optimizer", OPTIMIZERS)):
        given = request.training[key]
        if given not in known:
            message = f"no {key} {given}; there are {', '.join(known)}"
            found.append(Refusal(field=f"training.{key}", message=message, remedy=f"plan with {known[0]}"))
    return tuple(found)


_CANNOT = UNSAID_OF_MODELS | {
    "parallel.schedule": f"other than {', '.join(SCHEDULES)}",
    "parallel.zero_stage": "1",
    "parallel.cp": "where a sequence has not 2·cp equal pieces",
    "parallel.cp_comm": f"other than {', '.join(_CP_COMMS)}",
    "parallel.tp": "latent attention, tied embeddings, key and value heads that tp does not divide, experts without "
    "sequence parallelism",
    "parallel.pp": "tied embeddings",
    "parallel.etp": "above 1",
    "parallel.loss_chunks": "above 1 in fp16",
    "parallel.offload": "other than optimizer and parameters, whole, with zero 3 over several ranks",
    "parallel.recompute.layers": "no whole number a virtual stage",
    "training.precision": f"other than {', '.join(_PRECISIONS)}",
    "training.optimizer": f"other than {', '.join(OPTIMIZERS)}",
}

TORCH = Target(
    id="torchrun",
    says="plain PyTorch: a package that trains the model as it stands",
    cannot=_CANNOT,
    refusals=_refusals,
    program=_program,
)
