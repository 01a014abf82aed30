"""A plan as an ESTIMATE record states it, as the plan it was made from.

degrees_of(record)     the degrees        chunk_layers(stages, parallel)   layers of every chunk in the order they run
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.planner.offloading import offload_of
from shardwright.planner.plans import Degrees
from shardwright.planner.schedules.registry import is_folded


def degrees_of(saved: Mapping[str, Any]) -> Degrees:
    """The plan of an ESTIMATE record."""
    parallel = saved["parallel"]
    mode = parallel["recompute"]["mode"]
    largest = max((_stage_layers(stage) for stage in saved["stages"]), default=0)
    covered = parallel["recompute"]["layers"]
    return Degrees(
        **{name: parallel[name] for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp_replicate", "micro_batch")},
        zero=parallel["zero_stage"],
        schedule=parallel["schedule"],
        sequence_parallel=parallel["sequence_parallel"],
        recompute=mode,
        recompute_layers=covered if mode == "full" and covered < largest else None,
        cp_comm=parallel.get("cp_comm"),
        loss_chunks=parallel.get("loss_chunks") or 1,
        moe_dispatcher=parallel.get("moe_dispatcher"),
        offload=offload_of(parallel.get("offload"), "parallel.offload"),
        layers_per_stage=chunk_layers(saved["stages"], parallel) or None,
    )


def _stage_layers(stage: Mapping[str, Any]) -> int:
    return sum(span[1] - span[0] + 1 for span in stage["layers"] if span)


def chunk_layers(stages: Sequence[Mapping[str, Any]], parallel: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers of each chunk in the order they run: every second round comes back where chunks stand on ranks like a V.

    Raises:
        ValueError: a stage lists more or fewer chunks than there are.
    """
    for stage in stages:
        if len(stage["layers"]) != parallel["vpp"]:
            raise ValueError(f"stage {stage['index']} lists {len(stage['layers'])} chunks, vpp is {parallel['vpp']}")
    folded = is_folded(parallel["schedule"])
    rounds = [list(stages)[:: -1 if folded and v % 2 else 1] for v in range(parallel["vpp"])]
    spans = [stage["layers"][v] for v, ordered in enumerate(rounds) for stage in ordered]
    return tuple(span[1] - span[0] + 1 if span else 0 for span in spans)
