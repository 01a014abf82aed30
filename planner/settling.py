"""From the degrees a user states to a plan that can be priced: defaults of the framework, layers, rules.

    settle = check ranges -> fill in defaults -> data-parallel degree -> rules -> layers of each chunk

Defaults: degrees 1; etp = tp for Megatron, else 1; sequence parallelism on if tp > 1; ZeRO 1 (Megatron, DeepSpeed) or 3
(torchtitan, PyTorch; 2 under schedules with input and weight gradients apart), 0 where no rank could share states; schedule
1f1b, interleaved if vpp > 1; vpp 2 for schedules that fold stages like a V. `any` behaves as Megatron with a pipeline and as
PyTorch without. Broken rules are listed, never raised; a value that no plan can have is raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwright.errors import ConflictError, InvalidValueError, unknown_name
from shardwright.hardware.host import check_hosts
from shardwright.planner.cost.stages import Split, even_chunks
from shardwright.planner.offloading import offload_of
from shardwright.planner.plans import (
    ALL_LAYERS,
    ALL_TO_ALL,
    CP_COMM_KINDS,
    MOE_DISPATCHERS,
    PRICED_CP_COMM,
    RECOMPUTE_MODES,
    RING,
    Degrees,
    default_cp_comm,
)
from shardwright.planner.problem import Problem
from shardwright.planner.rules.base import facts_of
from shardwright.planner.rules.checking import violations
from shardwright.planner.rules.settings import Value
from shardwright.planner.schedules.orders import stage_ranks
from shardwright.planner.schedules.registry import SCHEDULE_IDS, SCHEDULES, is_folded, splits_backward

MAX_DEGREE = 10_000_000

UNPRICEABLE = frozenset(
    {
        "graph-axes",
        "batch-dp",
        "batch-micro",
        "layers-stages",
        "experts-ep",
        "expert-width",
        "expert-mesh",
        "expert-replicate",
        "dp-replicate",
        "replicas",
        "schedule-chunks",
        "schedule-rounds",
    }
)
"""Rules without which a plan has no price: its ranks, layers or micro-batches do not add up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A plan with its defaults filled in.

    Attributes:
        row: columns of a `PlanBatch`, or None if the degrees do not multiply up.
        split: its layers, or None.
        violations: rules it breaks.
        warnings: what the framework changes in silence, and what is legal but not wanted.
        shown: degrees as far as they can be told.
    """

    row: dict[str, int] | None
    split: Split | None
    violations: list[dict[str, str]]
    warnings: list[str]
    shown: dict[str, Any]


def settle(problem: Problem, degrees: Degrees, settings: Mapping[str, Value] | None = None) -> Settled:
    """Fills in defaults and tests the rules.

    Args:
        problem: model, cluster and batch.
        degrees: the plan.
        settings: what a configuration of the framework sets besides; None where there is no configuration.

    Raises:
        InvalidValueError: a degree outside 1 … 10,000,000, or layers that do not sum to the model's.
        UnknownNameError: an unknown schedule or recompute mode.
    """
    _check_ranges(degrees)
    if degrees.vpp is None:
        degrees = replace(degrees, vpp=2 if is_folded(degrees.schedule) else 1)
    facts = replace(facts_of(problem), chunks=degrees.layers_per_stage)
    columns = _columns(problem, degrees)
    stage = degrees.tp * degrees.cp * degrees.pp
    dp = facts.gpus // stage if facts.gpus % stage == 0 else 0
    zero = _zero(problem, degrees, dp)
    replicas = degrees.dp_replicate or (max(dp, 1) if zero == 0 else 1)
    columns |= {"dp": dp, "zero": zero, "dp_replicate": replicas}
    candidate = columns | _choices(problem, degrees)
    found = violations(candidate, facts, settings, problem.framework, problem.target_version)
    broken = [v.to_dict() for v in found if v.severity == "error"]
    warnings = [f"{v.message}; {v.remedy}" for v in found if v.severity != "error"]
    warnings += _without_effect(problem, degrees) if settings is None else []
    shown = columns | {"schedule": SCHEDULE_IDS[columns["schedule"]]}
    if dp == 0 or any(b["rule"] in UNPRICEABLE for b in broken):
        return Settled(row=None, split=None, violations=broken, warnings=warnings, shown=shown)
    row = columns | {
        "micro_batches": facts.global_batch // (dp * degrees.micro_batch),
        "split": 0,
        "recompute": RECOMPUTE_MODES.index(degrees.recompute),
        "recompute_layers": _recomputed(problem, degrees),
    }
    split = _split(problem, degrees, columns)
    return Settled(row=row, split=split, violations=broken, warnings=warnings, shown=shown)


def _check_ranges(degrees: Degrees) -> None:
    for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp_replicate", "micro_batch", "loss_chunks"):
        value = getattr(degrees, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise InvalidValueError(f"{name} is {value!r}, not a whole number", where=f"--{name.replace('_', '-')}")
        if value is not None and not 1 <= value <= MAX_DEGREE:
            raise InvalidValueError(f"{name} {value}", where=f"--{name.replace('_', '-')}", hint=f"give 1 to {MAX_DEGREE:,}")
    if degrees.zero not in (None, 0, 1, 2, 3):
        raise InvalidValueError(f"zero {degrees.zero}", where="--zero", hint="give 0, 1, 2 or 3")
    if degrees.recompute not in RECOMPUTE_MODES:
        raise unknown_name("recompute mode", degrees.recompute, RECOMPUTE_MODES, where="--recompute")
    if degrees.recompute_layers is not None:
        if degrees.recompute != "full":
            raise ConflictError(
                f"--recompute-layers with --recompute {degrees.recompute}",
                where="--recompute-layers",
                hint="give --recompute full as well",
            )
        if not 1 <= degrees.recompute_layers <= MAX_DEGREE:
            raise InvalidValueError(f"{degrees.recompute_layers} layers", where="--recompute-layers", hint="give 1 or more")


def _columns(problem: Problem, degrees: Degrees) -> dict[str, int]:
    """Degrees with the framework's defaults, except data parallelism and ZeRO."""
    megatron = _family(problem, degrees) == "megatron"
    routed = problem.graph.spec.moe is not None
    etp = degrees.etp if degrees.etp is not None else (degrees.tp if megatron and routed else 1)
    sp = degrees.sequence_parallel if degrees.sequence_parallel is not None else degrees.tp > 1
    vpp = degrees.vpp or 1
    name = degrees.schedule if degrees.schedule is not None else "interleaved-1f1b" if vpp > 1 else "1f1b"
    if name not in SCHEDULE_IDS:
        raise unknown_name("schedule", name, SCHEDULE_IDS, where="--schedule")
    schedule = SCHEDULE_IDS.index(name)
    return {
        "tp": degrees.tp,
        "sp": int(sp and degrees.tp > 1),
        "cp": degrees.cp,
        "cp_comm": _cp_comm(problem, degrees),
        "pp": degrees.pp,
        "vpp": vpp,
        "ep": degrees.ep,
        "etp": etp,
        "moe_dispatcher": _moe_dispatcher(problem, degrees),
        "micro_batch": degrees.micro_batch,
        "schedule": schedule,
        "loss_chunks": degrees.loss_chunks,
        "offload": _offload(problem, degrees),
    }


def _offload(problem: Problem, degrees: Degrees) -> int:
    """What is offloaded, which takes a link to the host of a known rate."""
    code = offload_of(degrees.offload).code
    if code:
        check_hosts(problem.cluster)
    return code


def _cp_comm(problem: Problem, degrees: Degrees) -> int:
    """How context parallelism exchanges; the ring where there is nobody to exchange with."""
    kind, where = degrees.cp_comm, "--cp-comm"
    if kind is not None and kind not in CP_COMM_KINDS:
        raise unknown_name("exchange of context parallelism", kind, PRICED_CP_COMM, where=where)
    if kind is not None and kind not in PRICED_CP_COMM:
        raise InvalidValueError(f"{kind} has no price", where=where, hint="give " + " or ".join(PRICED_CP_COMM))
    if degrees.cp == 1:
        return RING
    return default_cp_comm(problem.framework) if kind is None else CP_COMM_KINDS.index(kind)


def _moe_dispatcher(problem: Problem, degrees: Degrees) -> int:
    """How tokens reach their experts; the all-to-all where every rank holds all of them."""
    kind = problem.stack.moe_dispatcher if degrees.moe_dispatcher is None else degrees.moe_dispatcher
    if kind not in MOE_DISPATCHERS:
        raise unknown_name("dispatcher of tokens", kind, MOE_DISPATCHERS, where="--moe-dispatcher")
    return MOE_DISPATCHERS.index(kind) if degrees.ep > 1 and problem.graph.spec.moe is not None else ALL_TO_ALL


def _without_effect(problem: Problem, degrees: Degrees) -> list[str]:
    """Switches that were stated and change nothing here; those at their neutral value are no switches."""
    routed, apart, neutral = problem.graph.spec.moe is not None, degrees.ep > 1, MOE_DISPATCHERS[ALL_TO_ALL]
    alone, idle = "with ep 1" if routed else "without experts", []
    if degrees.moe_dispatcher not in {None, neutral} and not (apart and routed):
        idle.append((f"--moe-dispatcher {degrees.moe_dispatcher}", alone))
    if degrees.cp_comm not in {None, CP_COMM_KINDS[RING]} and degrees.cp == 1:
        idle.append((f"--cp-comm {degrees.cp_comm}", "with cp 1"))
    if problem.stack.moe_load_imbalance != 1 and not (apart and routed):
        idle.append((f"--routing-skew {problem.stack.moe_load_imbalance:g}", alone))
    return [f"{option} has no effect {why}" for option, why in idle]


def _family(problem: Problem, degrees: Degrees) -> str:
    if problem.framework == "any":
        return "megatron" if degrees.pp > 1 else "pytorch"
    return problem.framework


def _zero(problem: Problem, degrees: Degrees, dp: int) -> int:
    if degrees.zero is not None:
        return degrees.zero
    if dp * degrees.cp <= 1:
        return 0
    if _family(problem, degrees) in {"megatron", "deepspeed"}:
        return 1
    return 2 if degrees.pp > 1 and splits_backward(degrees.schedule) else 3


def _choices(problem: Problem, degrees: Degrees) -> dict[str, int]:
    """The columns of the search that a user states in other words: what the layers per stage count, partial recomputing."""
    given = degrees.layers_per_stage or (1,)
    partial = _recomputed(problem, degrees) < ALL_LAYERS
    recompute = len(RECOMPUTE_MODES) if partial else RECOMPUTE_MODES.index(degrees.recompute)
    return {"split": int(given[0] == 0) + 2 * int(given[-1] == 0), "recompute": recompute}


def _recomputed(problem: Problem, degrees: Degrees) -> int:
    """Layers recomputed on each stage; `ALL_LAYERS` where that is as many as the fullest stage has."""
    given, pp, count = degrees.layers_per_stage, degrees.pp, degrees.recompute_layers
    fullest = -(-problem.graph.layers // pp)
    if given:
        ranks = stage_ranks(pp, -(-len(given) // pp), is_folded(degrees.schedule))[: len(given)]
        fullest = int(np.bincount(ranks, weights=given).max())
    return ALL_LAYERS if count is None or count >= fullest else count


def _split(problem: Problem, degrees: Degrees, columns: Mapping[str, int]) -> Split:
    layers, pp, vpp = problem.graph.layers, columns["pp"], columns["vpp"]
    folded, given = SCHEDULES[columns["schedule"]].folded, degrees.layers_per_stage
    if given is None:
        chunks = even_chunks(layers, pp, vpp, 0)
        if chunks is None:  # pragma: no cover - nothing is counted
            raise InvalidValueError(f"{layers} layers in {pp * vpp} chunks")
        return Split(chunks=chunks, pp=pp, vpp=vpp, folded=folded)
    where = "--layers-per-stage"
    if len(given) not in {pp, pp * vpp}:
        raise InvalidValueError(
            f"{len(given)} numbers of layers for pp {pp} and vpp {vpp}", where=where, hint=f"give {pp * vpp} numbers"
        )
    if min(given) < 0:
        raise InvalidValueError(f"{min(given)} layers on a stage", where=where, hint="give 0 or more layers a stage")
    if sum(given) != layers:
        raise InvalidValueError(
            f"layers per stage sum to {sum(given)}; the model has {layers}",
            where=where,
            hint=f"give numbers that sum to {layers} (a saved plan brings those of its own model)",
        )
    if len(given) == pp * vpp:
        return Split(chunks=tuple(given), pp=pp, vpp=vpp, folded=folded)
    odd = [n for n in given if n % vpp]
    if odd:
        raise InvalidValueError(
            f"{odd[0]} layers of a stage in vpp {vpp} chunks", where=where, hint=f"give {pp * vpp} numbers, one a chunk"
        )
    chunks = tuple(given[rank] // vpp for rank in stage_ranks(pp, vpp, folded).tolist())
    return Split(chunks=chunks, pp=pp, vpp=vpp, folded=folded)
