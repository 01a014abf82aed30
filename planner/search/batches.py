"""The best global batch of a range: a search for each of a few batches, and the one with the most tokens a second.

Every batch of `BatchRange.points` is searched as `plan` does; the result is that of the batch whose best plan is best in the
objective (`merit`: throughput, useful throughput, cost or energy a token; the smaller batch where two are equal), with the
range and the batches tried among its assumptions. Where nothing fits any of them, it is the result of the smallest.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from shardwright.errors import ShardwrightError
from shardwright.hardware.cluster import Cluster
from shardwright.models.graph import ModelGraph
from shardwright.planner.batches import BatchRange
from shardwright.planner.overrides import load_filled
from shardwright.planner.problem import Assumption, PricingOptions
from shardwright.planner.search import run
from shardwright.planner.search.options import Progress, SearchOptions
from shardwright.planner.search.run import PlanResult
from shardwright.planner.spending import OBJECTIVE_UNITS


def plan_range(
    model: str | ModelGraph,
    cluster: str | Cluster,
    *,
    seq_len: int | None,
    batches: BatchRange,
    options: PricingOptions | None = None,
    search: SearchOptions | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> PlanResult:
    """Searches for the best plans over a range of global batches.

    Args:
        model: as for `plan`.
        cluster: as for `plan`.
        seq_len: tokens a sequence; None: as a graph file has it.
        batches: sequences a step, a range.
        options: as for `plan`.
        search: as for `plan`, for each batch.
        on_progress: as for `plan`.

    Raises:
        ShardwrightError: an input that cannot be used, or no batch of the range has a legal plan.
    """
    machine, _ = load_filled(cluster, () if options is None else options.overrides)
    gpus = options.gpus if options is not None and options.gpus is not None else machine.gpus
    best: PlanResult | None = None
    tried: list[int] = []
    fault: ShardwrightError | None = None
    for batch in batches.points(max(gpus, 1)):
        try:
            made = run.plan(
                model, cluster, seq_len=seq_len, global_batch=batch, options=options, search=search, on_progress=on_progress
            )
        except ShardwrightError as error:  # this batch has no legal plan; another may
            fault = fault or error
            continue
        tried.append(batch)
        if best is None or merit(made) > merit(best):
            best = made
        if made.data["search"]["stopped"] is not None:
            break
    if best is None:
        raise fault or ShardwrightError(f"no batch of {batches} was tried")
    return _explained(best, batches, tried)


def merit(result: PlanResult) -> float:
    """What batches are compared by, most is best: sequences a second, useful ones, or least cost or energy a token."""
    search, batch = result.data["search"], result.data["training"]["global_batch"]
    if search["best_step_time_s"] is None:
        return -math.inf
    if search["objective"] in {"cost", "energy"}:
        return -min(float(plan["predicted"][OBJECTIVE_UNITS[search["objective"]]]) for plan in result.plans)
    return float(batch / (search.get("best_objective") or search["best_step_time_s"]))


def _explained(result: PlanResult, batches: BatchRange, tried: list[int]) -> PlanResult:
    rows = (
        Assumption(key="global_batch.range", value=str(batches), origin="given"),
        Assumption(key="global_batch.tried", value=" ".join(map(str, tried)), origin="inferred"),
        Assumption(key="global_batch", value=result.data["training"]["global_batch"], origin="inferred"),
    )
    return PlanResult(data={**result.data, "assumptions": [*result.data["assumptions"], *(row.to_dict() for row in rows)]})
