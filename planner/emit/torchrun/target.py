"""The target `torchrun`: `train.py` and the modules it imports, on PyTorch alone."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.models.spec import ModelSpec
from shardwright.planner.emit.base import BUNDLE, Check, File, Program, Refusal, Request, Target, Word
from shardwright.planner.emit.quoting import json_text
from shardwright.planner.emit.templating import template
from shardwright.planner.emit.torchrun.config import OPTIMIZERS, SCHEDULES, package_config

MODULES = ("train.py", "model.py", "parallel.py", "context.py")
_PRECISIONS = ("bf16", "fp16", "fp32")
_CP_COMMS = ("p2p", "allgather", "a2a")
_Test = Callable[[ModelSpec], bool]


def _program(request: Request) -> Program:
    files = {name: File(text=template(f"torchrun_{name}")) for name in MODULES}
    return Program(
        command=(Word(text="train.py", root=BUNDLE),),
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        files=files | {"config.yaml": File(text=json_text(package_config(request)))},
        check=Check(script=template("torchrun_check.py"), needs=f"PyTorch {request.version} or later"),
        notes=(
            "trains on synthetic tokens from random weights; runs on CPUs with gloo where there is no GPU",
            "experts are routed by a plain softmax of the top k; one matrix product an expert, no fused kernels",
        ),
    )


_UNSAID: tuple[tuple[str, _Test, str], ...] = (
    ("positions", lambda s: s.positions == "alibi", "ALiBi positions"),
    ("position_offset", lambda s: s.position_offset > 0, "rows before the first position"),
    ("norm_at", lambda s: s.norm_at != "before", "norms behind a block"),
    ("block", lambda s: s.block != "sequential", "parallel blocks"),
    ("embedding_norm", lambda s: s.embedding_norm, "a norm after the embedding"),
    ("qk_norm", lambda s: s.qk_norm not in ("none", "head"), "norms over all heads or without weights"),
    ("attention_gate", lambda s: s.attention_gate, "a gate on attention"),
    ("windows", lambda s: any(s.windows), "attention windows"),
    ("rotary_layers", lambda s: s.positions == "rope" and not all(s.rotary_layers), "layers without rotation"),
    ("mixers", lambda s: set(s.mixers) != {"attention"}, "layers without attention"),
    ("mlps", lambda s: set(s.mlps) != {"ffn"}, "layers without a feed-forward block"),
    ("layer_kv_heads", lambda s: any(k is not None for k in s.layer_kv_heads), "layers with heads of their own"),
    ("layer_ffn", lambda s: any(f is not None for f in s.layer_ffn), "layers with a width of their own"),
    ("sinks", lambda s: s.sinks, "attention sinks"),
    ("attention_softcap", lambda s: s.attention_softcap, "capped attention scores"),
    ("logits_softcap", lambda s: s.logits_softcap, "capped logits"),
    ("dropout", lambda s: s.dropout, "dropout"),
    ("mtp_layers", lambda s: s.mtp_layers > 0, "multi-token prediction"),
    ("moe.shared_gate", lambda s: s.moe is not None and s.moe.shared_gate, "a gate on shared experts"),
    ("moe.expert_bias", lambda s: s.moe is not None and s.moe.expert_bias, "biases in experts"),
    ("mla.index_heads", lambda s: s.mla is not None and s.mla.index_heads is not None, "an indexer of sparse attention"),
)


def _refusals(request: Request) -> tuple[Refusal, ...]:
    remedy = "use a target that has it (megatron), or leave it out by --set"
    unsaid = [
        Refusal(field=f"model.{field}", message=f"the package has no {what}", remedy=remedy)
        for field, test, what in _UNSAID
        if test(request.spec)
    ]
    return (*unsaid, *_plan_refusals(request), *_job_refusals(request))


def _plan_refusals(request: Request) -> tuple[Refusal, ...]:
    return tuple(
        Refusal(field=f"parallel.{name}", message=said, remedy=remedy)
        for name, broken, said, remedy in (*_degree_tests(request), *_model_tests(request))
        if broken
    ) + _recompute_refusals(request)


_Found = tuple[tuple[str, bool, str, str], ...]


def _degree_tests(request: Request) -> _Found:
    parallel, schedule = request.parallel, request.parallel["schedule"]
    cp, pieces = parallel["cp"], 2 * parallel["cp"]
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
        ("offload", any(parallel["offload"].values()), "offload is not written", "plan without offload"),
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


TORCH = Target(
    id="torchrun",
    says="plain PyTorch: a package that trains the model as it stands",
    refusals=_refusals,
    program=_program,
)
