"""The target `megatron-bridge`: `recipe.py`, a configuration from numbers and the call that trains on it.

Stock recipes ask a model hub for the architecture, which fails offline; here it is built from the plan's own numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwright.planner.emit.base import BUNDLE, Check, File, Program, Refusal, Request, Target, Word
from shardwright.planner.emit.bridge.fields import bridge_fields
from shardwright.planner.emit.megatron.parallel import environment
from shardwright.planner.emit.megatron.target import MEGATRON_CANNOT, megatron_refusals, megatron_settings, megatron_words
from shardwright.planner.emit.quoting import json_text
from shardwright.planner.emit.templating import template
from shardwright.planner.rules.versions import BRIDGE_CORES

_PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8-delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8-tensorwise": "bf16_with_fp8_current_scaling_mixed",
    "fp8-blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
_ACTIVATIONS = {"swiglu": "silu", "gelu": "gelu", "relu2": "squared_relu"}
_POSITIONS = ("rope", "learned")


def _core(request: Request) -> Request:
    """The same plan for the Megatron-Core that this release of Bridge carries."""
    return replace(request, version=BRIDGE_CORES[request.version])


def _program(request: Request) -> Program:
    return Program(
        command=(Word(text="recipe.py", root=BUNDLE),),
        environment=environment(_core(request)),
        files={
            "recipe.py": File(text=template("bridge_recipe.py")),
            "recipe.json": File(text=json_text(_recipe(request))),
        },
        check=Check(script=template("bridge_check.py"), needs=f"megatron-bridge {request.version} in the environment"),
        notes=("trains on mock data; for a real run set dataset and tokenizer in recipe.py",),
    )


def _recipe(request: Request) -> dict[str, Any]:
    fields = bridge_fields(megatron_words(_core(request)))
    spec = request.spec
    fields["model"] |= {
        "vocab_size": spec.vocab,
        "should_pad_vocab": True,
        "share_embeddings_and_output_weights": spec.tied_embeddings,
    }
    if request.parallel["vpp"] > 1:
        fields["model"].setdefault("overlap_p2p_comm", True)
    return {
        "provider": "mla" if spec.mla else "gpt",
        "activation": _ACTIVATIONS[spec.activation],
        "mixed_precision": _PRECISIONS.get(request.training["precision"]),
        **{name: fields.get(name, {}) for name in ("model", "train", "ddp", "optimizer", "optimizer_dtypes", "precision")},
        **{name: fields.get(name, {}) for name in ("checkpoint", "logger", "dist")},
    }


def _refusals(request: Request) -> tuple[Refusal, ...]:
    found = list(megatron_refusals(_core(request)))
    if request.spec.positions not in _POSITIONS:
        message = f"positions are {' or '.join(_POSITIONS)}, not {request.spec.positions}"
        found.append(Refusal(field="model.positions", message=message, remedy="use the target megatron"))
    return tuple(found)


_CANNOT = {**MEGATRON_CANNOT, "model.positions": f"other than {', '.join(_POSITIONS)}"}

MEGATRON_BRIDGE = Target(
    id="megatron-bridge",
    says="Megatron-Bridge, a recipe under torchrun",
    cannot=_CANNOT,
    refusals=_refusals,
    program=_program,
    settings=lambda request: megatron_settings(_core(request)),
)
