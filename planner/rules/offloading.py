"""Rules of what is offloaded to the host: what makes sense, and what each target has options for.

Parameters leave the device only where they are sharded and gathered for each pass. Megatron-Core offloads a fraction of the
optimizer and the activations of whole layers; DeepSpeed the optimizer under ZeRO, a part of it, or parameters, under ZeRO 3;
FSDP2's `CPUOffloadPolicy` parameters, gradients and optimizer together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardwright.planner.offloading import Offload, fractions, without
from shardwright.planner.plans import RECOMPUTE_MODES, BoolArray, FloatArray
from shardwright.planner.rules.base import Candidate, Changes, Columns, Facts, Rule
from shardwright.planner.rules.declaring import MEGATRON, degree_rule

_NONE = RECOMPUTE_MODES.index("none")
_TORCH = ("torchtitan", "torchrun")
_ALL = Offload(optimizer=1.0, parameters=1.0).code
_RATIO = "zero_optimization.offload_optimizer.ratio"  # a rule of settings tells of it where a JSON states it
_FINE = "fine_grained_activation_offloading"


def _of(c: Columns, part: str) -> FloatArray:
    return fractions(np.asarray(c["offload"]), part)


def _some(c: Columns, part: str) -> BoolArray:
    return np.asarray(_of(c, part) > 0)


def _kept(*parts: str) -> Callable[[Candidate, Facts], Changes]:
    return lambda c, f: {"offload": without(c["offload"], *parts)}


def whole_layers(fraction: FloatArray, layers: int) -> BoolArray:
    """Whether a fraction of the activations is that of some layers, one of them left on the device."""
    count = np.round(fraction * layers)
    return np.asarray((np.abs(count - fraction * layers) <= layers * 1e-6) & (count < layers))


def _not_by_layers(c: Columns, f: Facts) -> BoolArray:
    fraction = _of(c, "activations")
    piped = (c["pp"] > 1) | (c["recompute"] != _NONE)
    return np.asarray((fraction > 0) & (piped | ~whole_layers(fraction, f.graph.layers)) & (not f.settings.on(_FINE)))


def _by_layers(c: Candidate, f: Facts) -> Changes:
    """The nearest number of layers; none of them where there is a pipeline or recomputing."""
    kept = without(c["offload"], "activations")
    if c["pp"] > 1 or c["recompute"] != _NONE:
        return {"offload": kept}
    fraction = float(fractions(np.array(c["offload"]), "activations"))
    count = min(max(round(fraction * f.graph.layers), 1), f.graph.layers - 1)
    return {"offload": kept + Offload(activations=count / f.graph.layers).code}


def _unsaid(f: Facts) -> bool:
    """Whether no configuration states how the optimizer is offloaded: rules of settings tell of those that do."""
    return not f.settings.on("optimizer_cpu_offload")


def _partial(c: Columns) -> BoolArray:
    return np.asarray(np.any([_some(c, part) & (_of(c, part) < 1) for part in ("optimizer", "parameters")], axis=0))


OFFLOADING: tuple[Rule, ...] = (
    Rule(
        id="offload-parameters",
        says="parameters are offloaded where they are sharded: ZeRO 3",
        reads=("zero", "offload"),
        broken=lambda c, f: _some(c, "parameters") & (c["zero"] < 3),
        message=lambda c, f: f"parameters are offloaded under ZeRO {c['zero']}",
        remedy=lambda c, f: "use zero 3, or offload the optimizer alone",
        source="DeepSpeed offload_param; PyTorch CPUOffloadPolicy",
        mend=_kept("parameters"),
    ),
)

TARGET_OFFLOADING: tuple[Rule, ...] = (
    degree_rule(
        "megatron-offload-layers",
        "Megatron offloads the activations of whole layers, not of all, without a pipeline and without recomputing",
        reads=("pp", "recompute", "offload"),
        breaks=_not_by_layers,
        message="--offload {offload} with pp {pp}, recompute {recompute}, {layers} layers",
        mend=_by_layers,
        source="Megatron-Core TransformerConfig (cpu_offloading_num_layers)",
        targets=MEGATRON,
    ),
    degree_rule(
        "megatron-offload-states",
        "Megatron offloads no parameters; of optimizers the distributed one, and not planned under Megatron-FSDP",
        reads=("dp", "cp", "zero", "offload"),
        breaks=lambda c, f: (
            _some(c, "parameters")
            | (_some(c, "optimizer") & (((c["zero"] == 0) & (c["dp"] * c["cp"] > 1)) | (c["zero"] > 1)) & _unsaid(f))
        ),
        message="--offload {offload} with zero {zero}",
        mend=lambda c, f: {"offload": without(c["offload"], "parameters"), "zero": 1},
        source="Megatron-Core OptimizerConfig (optimizer_cpu_offload, use_precision_aware_optimizer)",
        targets=MEGATRON,
    ),
    degree_rule(
        "torch-offload",
        "FSDP2 offloads parameters, gradients and optimizer together, under ZeRO 3, and no activations",
        reads=("zero", "offload"),
        breaks=lambda c, f: (c["offload"] != 0) & ((c["offload"] != _ALL) | (c["zero"] < 3)),
        message="--offload {offload} with zero {zero}",
        mend={"zero": 3, "offload": _ALL},
        source="PyTorch fully_shard (CPUOffloadPolicy); torchtitan training.enable_cpu_offload",
        targets=_TORCH,
    ),
    degree_rule(
        "deepspeed-offload-activations",
        "DeepSpeed's ZeRO offloads optimizer and parameters; activations leave by its own checkpointing alone",
        reads=("offload",),
        breaks=lambda c, f: _some(c, "activations"),
        message="--offload {offload}",
        mend=_kept("activations"),
        source="DeepSpeed configuration JSON (zero_optimization)",
        targets=("deepspeed",),
    ),
    degree_rule(
        "deepspeed-offload-zero",
        "DeepSpeed offloads under ZeRO, and a part of the states under ZeRO 3",
        reads=("zero", "offload"),
        breaks=lambda c, f: (
            ((_some(c, "optimizer") & (c["zero"] == 0)) | (_partial(c) & (c["zero"] < 3))) & (f.settings[_RATIO] is None)
        ),
        message="--offload {offload} with zero {zero}",
        mend=lambda c, f: {"zero": 3 if bool(_partial({"offload": np.array(c["offload"])})) else 1},
        source="DeepSpeed runtime/zero/offload_config.py",
        targets=("deepspeed",),
    ),
)
