"""Prices of a few plans as the ESTIMATE records that people and programs read.

Everything here only arranges what `cost.pricing` priced: with every pipeline rank a run of its own, so that each stage has
its own entry. `describe` makes the records; `problem_summary` the parts of a result that speak of the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.hardware.calibration import Calibration
from shardwright.hardware.calibration_fit import slow_fabrics
from shardwright.hardware.mesh import DeviceMesh, format_ranks
from shardwright.planner.communication import communication_rows
from shardwright.planner.cost.context import Context
from shardwright.planner.cost.grounds import Ground
from shardwright.planner.cost.memory import PARTS, meters
from shardwright.planner.cost.pricing import TIME_PARTS, Prices
from shardwright.planner.cost.recompute import modules_of
from shardwright.planner.cost.stages import Split, intervals
from shardwright.planner.fits.applying import fits_in_force
from shardwright.planner.fits.factors import FACTORS
from shardwright.planner.hosting import add_host_violation, offload_source
from shardwright.planner.intervals import interval
from shardwright.planner.offloading import from_code
from shardwright.planner.plans import (
    ALL_LAYERS,
    CP_COMM_KINDS,
    MOE_DISPATCHERS,
    RECOMPUTE_MODES,
    FloatArray,
    IntArray,
    PlanBatch,
)
from shardwright.planner.problem import Problem
from shardwright.planner.rules.base import facts_of
from shardwright.planner.rules.registry import expressible
from shardwright.planner.schedules.registry import SCHEDULE_IDS, SCHEDULES
from shardwright.planner.spending import Spending

RISKY_SHARE = 0.95
"""Plans that fill more of a device than this fail now and then: fragmentation and peaks that no model sees."""

APART = (
    "torch runs schedules with input and weight gradients apart without torch.compile: "
    "price the plan with the kernels it will have (--stack torchtitan-eager)"
)

Record = dict[str, Any]


def describe(context: Context, batch: PlanBatch, key: IntArray, prices: Prices) -> list[Record]:
    """One ESTIMATE record a plan; `context.splits` must hold every rank as a run of its own."""
    problem = context.problem
    able = expressible(columns_of(batch), facts_of(problem), problem.framework, problem.target_version)
    readings = meters(prices.memory, problem)
    records = []
    for index in range(len(batch)):
        own = int(batch.split[index])
        split = context.splits.splits[own]
        grounds = [context.ground(own, rank) for rank in range(split.pp)]
        parallel = parallel_record(batch, index, problem, context.splits.layers[own])
        time = {name: float(prices.parts[name][index]) for name in TIME_PARTS}
        record: Record = {
            "feasible": True,
            "violations": [],
            "expressible_by": [target for target, where in able.items() if where[index]],
            "parallel": parallel,
            "stages": stage_records(problem, parallel, split, prices, index, grounds),
            "predicted": predicted_record(problem, float(prices.step_s[index]), time),
            "time": time,
            "memory": memory_record(problem, prices, readings, index),
            "communication": communication_rows(context, batch, key, prices, index),
            "sources": sources_record(problem) | ({"offload": offload_source()} if batch.offload[index] else {}),
            "warnings": warnings_of(problem, batch, prices, index),
        }
        record["account"] = account_record(context, batch, key, prices, index, record)
        add_memory_violation(record)
        add_host_violation(record, problem, float(prices.host_short_bytes[index]))
        records.append(record)
    return records


def columns_of(batch: PlanBatch) -> dict[str, IntArray]:
    """The columns that rules read."""
    partial = (batch.recompute == RECOMPUTE_MODES.index("full")) & (batch.recompute_layers < ALL_LAYERS)
    return {
        "tp": batch.tp,
        "sp": batch.sp,
        "cp": batch.cp,
        "cp_comm": batch.cp_comm,
        "pp": batch.pp,
        "vpp": batch.vpp,
        "ep": batch.ep,
        "etp": batch.etp,
        "moe_dispatcher": batch.moe_dispatcher,
        "dp": batch.dp,
        "dp_replicate": batch.shown_dp_replicate,
        "zero": batch.zero,
        "micro_batch": batch.micro_batch,
        "micro_batches": batch.micro_batches,
        "schedule": batch.schedule,
        "recompute": np.where(partial, len(RECOMPUTE_MODES), batch.recompute),
        "split": 0 * batch.split,
        "loss_chunks": batch.loss_chunks,
        "offload": batch.offload,
    }


def parallel_record(batch: PlanBatch, index: int, problem: Problem, layers: FloatArray) -> Record:
    """Degrees and switches of one plan."""
    names = (
        "world_size",
        "tp",
        "cp",
        "pp",
        "vpp",
        "dp",
        "dp_shard",
        "ep",
        "etp",
        "edp",
        "micro_batch",
        "micro_batches",
        "loss_chunks",
    )
    degrees: Record = {name: int(getattr(batch, name)[index]) for name in names}
    degrees["dp_replicate"] = int(batch.shown_dp_replicate[index])
    degrees["zero_stage"] = int(batch.zero[index])
    degrees["sequence_parallel"] = bool(batch.sp[index])
    degrees["schedule"] = SCHEDULE_IDS[int(batch.schedule[index])]
    degrees["moe_dispatcher"] = MOE_DISPATCHERS[int(batch.moe_dispatcher[index])]
    degrees["cp_comm"] = CP_COMM_KINDS[int(batch.cp_comm[index])]
    mode = RECOMPUTE_MODES[int(batch.recompute[index])]
    covered = {"none": 0, "selective": int(layers.max())}.get(mode, int(min(batch.recompute_layers[index], layers.max())))
    return degrees | switches(degrees, mode, covered, problem) | {"offload": from_code(int(batch.offload[index]))}


def switches(degrees: Record, mode: str, layers: int | None, problem: Problem) -> Record:
    """What a plan switches on, by its degrees (null where they do not multiply up), the stack and the model."""
    stack = problem.stack
    modules = list(modules_of(problem.graph, stack)) if mode == "selective" else []
    once = stack.fsdp_gathers_per_step == "step" and degrees["pp"] > 1
    paired = degrees["schedule"] == "dualpipe-v"
    return {
        "recompute": {"mode": mode, "modules": modules, "layers": layers},
        "offload": from_code(0),
        "overlap": {
            "tp": degrees["sequence_parallel"] and stack.tp_exposed < 1,
            "dp_gather": (degrees["dp_shard"] or 1) > 1,
            "dp_reduce": (degrees["dp"] or 1) > 1,
            "p2p": degrees["vpp"] > 1 and stack.p2p_exposed_interleaved < 1,
            "ep": degrees["ep"] > 1 and (stack.ep_exposed < 1 or (paired and stack.dualpipe_ep_hidden > 0)),
            "cp": degrees["cp"] > 1 and degrees["cp_comm"] == "p2p" and stack.cp_hidden > 0,
        },
        "reshard_after_forward": degrees["zero_stage"] == 3 and not once,
    }


def stage_records(
    problem: Problem, parallel: Record, split: Split, prices: Prices, index: int, grounds: Sequence[Ground]
) -> list[Record]:
    """One record a pipeline rank; `grounds` are what they stand on."""
    mesh = DeviceMesh(axes=tuple((a, parallel[a]) for a in ("pp", "dp", "cp", "tp")))
    layers, memory, last = intervals(split), prices.memory, int(split.ranks[-1])
    mtp = ["mtp"] if problem.graph.mtp is not None else []
    made = []
    for rank in range(split.pp):
        parts = {name: int(getattr(memory, name)[index, rank]) for name in PARTS}
        ground = grounds[rank]
        made.append(
            {
                "index": rank,
                "layers": layers[rank],
                "holds": ["embedding"] * (rank == 0) + (["head", "loss", *mtp] if rank == last else []),
                "ranks": format_ranks(mesh.ranks(pp=rank)),
                "node_type": ground.name,
                "time": {
                    "forward_s": float(prices.forward_s[index, rank]),
                    "backward_s": float(prices.backward_s[index, rank]),
                },
                "memory": parts | {"total_bytes": sum(parts.values()), "capacity_bytes": ground.capacity_bytes},
            }
        )
    return made


def predicted_record(problem: Problem, step_s: float, time: Mapping[str, float]) -> Record:
    """The interval of the step time, and rates: tokens a GPU asked for, FLOPs a GPU in use, cost and energy of nodes in use."""
    job, stack = problem.job, problem.stack
    tokens = job.global_batch * job.seq_len
    flops = job.flops_per_token("causal" if stack.flops_convention == "causal" else "full") * tokens
    achieved = flops / step_s / problem.cluster.gpus
    peak = problem.peak_flops
    spent = Spending.of(problem)
    return {
        "step_time_s": step_s,
        **interval(problem, step_s, time),
        "samples_per_s": job.global_batch / step_s,
        "tokens_per_s": tokens / step_s,
        "tokens_per_s_per_gpu": tokens / step_s / problem.asked.gpus,
        "model_tflops_per_gpu": achieved / 1e12,
        "mfu": achieved / peak,
        "flops_convention": stack.flops_convention,
        "peak_tflops": peak / 1e12,
        "usd_per_1m_tokens": spent.usd_per_1m_tokens(step_s),
        "joules_per_token": spent.joules_per_token(step_s),
        **spent.goodput(),
    }


def memory_record(problem: Problem, prices: Prices, readings: Mapping[str, FloatArray], index: int) -> Record:
    """The fullest stage and its three readings."""
    peak = int(prices.peak_run[index])
    read = {name: int(values[index, peak]) for name, values in readings.items()}
    return {
        "peak_bytes": int(prices.peak_bytes[index]),
        "capacity_bytes": int(prices.capacity_bytes[index]),
        "peak_stage": peak,
        "meters": read,
        "headline": {"meter": problem.memory_meter, "bytes": read[f"{problem.memory_meter}_bytes"]},
        "host_peak_bytes": int(prices.host_peak_bytes[index]) or None,
    }


def account_record(context: Context, batch: PlanBatch, key: IntArray, prices: Prices, index: int, record: Record) -> Record:
    """What the step moves and what bounds it, on the rank that determines it."""
    rows = record["communication"]
    run, split, count = int(prices.critical[index]), int(batch.split[index]), int(batch.micro_batches[index])
    step = float(prices.step_s[index])
    problem = context.problem
    hbm = float(context.splits.counts[split, run] @ context.tables.hbm_bytes[key[index]]) * count
    own_flops = record["predicted"]["model_tflops_per_gpu"] * 1e12 * step * problem.cluster.gpus / int(batch.world_size[index])
    links = link_records(rows, step)
    total = sum(row["time_s"] for row in rows)
    return {
        "bytes_moved_hbm_per_flop": hbm / own_flops,
        "bytes_moved_links_per_flop": sum(row["wire_bytes"] for row in rows) / own_flops,
        "critical_collectives_per_step": sum(row["count_per_step"] for row in rows if row["exposed_s"] > 0),
        "largest_message_bytes": max((row["message_bytes"] for row in rows), default=None),
        "smallest_message_bytes": min((row["message_bytes"] for row in rows), default=None),
        "overlap_covered_fraction": max(1 - sum(row["exposed_s"] for row in rows) / total, 0.0) if total > 0 else None,
        "bottleneck_link": links[0]["link"] if links else None,
        "bottleneck_utilisation": links[0]["utilisation"] if links else None,
        "links": links,
    }


def link_records(rows: Sequence[Record], step_s: float) -> list[Record]:
    """The links that collectives wait for most: their bytes, their time, its share of the step; busiest first."""
    found: dict[str, list[Record]] = {}
    for row in rows:
        found.setdefault(row["bottleneck_link"], []).append(row)
    made = []
    for link, some in sorted(found.items()):
        busy_s = sum(row["time_s"] for row in some)
        sent = sum(row["wire_bytes"] for row in some)
        made.append({"link": link, "wire_bytes": sent, "busy_s": busy_s, "utilisation": busy_s / step_s})
    return sorted(made, key=lambda record: -record["busy_s"])


def sources_record(problem: Problem) -> Record:
    """Where each term of the price comes from."""
    made: Record = {}
    for fit in (problem.kernels, *problem.further):
        for term, origin in fit.provenance.items():
            row = {"origin": origin.origin, "source": origin.source, "median_error": origin.median_error}
            made[term if fit is problem.kernels else f"{fit.id}.{term}"] = row
    kinds = problem.areas.kinds
    links = dict.fromkeys(fabric for node in kinds for fabric in (node.scaleup_fabric, node.fabric))
    modelled = {"origin": "modelled", "source": "fabric presets " + ", ".join(links)}
    for axis in ("tp", "cp", "ep", "pp", "dp"):
        made[f"collective.{axis}"] = _measured(problem, axis) or modelled
    if problem.collectives is not None and problem.site.runs:
        made["site"] = {"origin": "measured", "source": _runs_in_words(problem.collectives.calibration)}
    for name, value in fits_in_force(problem).items():
        made[f"fit.{name}"] = {"origin": "transferred", "source": f"{FACTORS[name].says} x {value:.3g}: {problem.fits.source}"}
    made["memory"] = {"origin": "modelled", "source": "layer graph and stack profile"}
    made["memory.capacity"] = {
        "origin": "datasheet",
        "source": "; ".join(dict.fromkeys(node.device.memory_bytes_source for node in kinds)),
    }
    return made


def _runs_in_words(calibration: Calibration) -> str:
    runs = calibration.site.runs if calibration.site else ()
    return f"{calibration.name}: " + ("one measured run" if len(runs) == 1 else f"{len(runs)} measured runs")


_KINDS_OF_AXIS = {
    "tp": ("all_gather", "reduce_scatter", "all_reduce"),
    "cp": ("all_gather", "all_to_all"),
    "ep": ("all_to_all",),
    "pp": ("send",),
    "dp": ("all_reduce", "reduce_scatter", "all_gather"),
}


def _measured(problem: Problem, axis: str) -> Record | None:
    """Where collectives of an axis come from if logs of the cluster tell; borrowed from other collectives: transferred."""
    if problem.collectives is None or not problem.collectives.items:
        return None
    logs = problem.collectives.sources()
    own = [logs[kind] for kind in _KINDS_OF_AXIS[axis] if kind in logs]
    said = ", ".join(dict.fromkeys(name for names in own or logs.values() for name in names.split(", ")))
    return {"origin": "measured" if own else "transferred", "source": f"{problem.collectives.calibration.name}: {said}"}


def warnings_of(problem: Problem, batch: PlanBatch, prices: Prices, index: int) -> list[str]:
    """What a user should know before trusting a plan."""
    made = list(problem.job.notes)
    made += [] if problem.collectives is None else slow_fabrics(problem.collectives.calibration)
    made += problem.site.warnings()
    if problem.job.frozen:
        made.append("what is trained is set up in the framework: expressible_by speaks of the degrees alone")
    if SCHEDULES[int(batch.schedule[index])].splits_backward:
        made.append(APART)
    if RISKY_SHARE * prices.capacity_bytes[index] < prices.peak_bytes[index] <= prices.capacity_bytes[index]:
        made.append("memory is above 95 % of the device: such runs fail now and then")
    return made


def add_memory_violation(record: Record) -> None:
    """Marks a plan whose fullest stage does not fit."""
    memory = record["memory"]
    short = memory["peak_bytes"] - memory["capacity_bytes"]
    if short > 0:
        record["feasible"] = False
        needs, has = memory["peak_bytes"] / 2**30, memory["capacity_bytes"] / 2**30
        text = f"stage {memory['peak_stage']} needs {needs:.1f} GiB of {has:.1f}"
        record["violations"].append(
            {"rule": "memory", "message": f"{text}, {short / 2**30:.1f} GiB too much", "remedy": largest_part(record)}
        )


def largest_part(record: Record) -> str:
    """What to shrink, by the part that dominates the fullest stage."""
    parts = record["stages"][record["memory"]["peak_stage"]]["memory"]
    name = max(PARTS, key=lambda part: parts[part])
    advice = {
        "parameters_bytes": "raise tp, pp or the ZeRO stage",
        "gradients_bytes": "raise tp, pp or the ZeRO stage, or use bf16 gradients",
        "optimizer_bytes": "shard them over more ranks (zero 1 or more, a larger dp_shard), raise tp or pp, or offload them",
        "activations_bytes": "recompute activations, lower the micro-batch, raise tp with sequence parallelism or cp",
        "logits_bytes": "cut the loss (loss_chunks), lower the micro-batch, or raise tp or cp",
        "buffers_bytes": "lower the micro-batch or the ZeRO stage, or raise tp",
        "reserve_bytes": "lower the memory margin",
    }
    what = "optimizer states" if name == "optimizer_bytes" else name.removesuffix("_bytes")
    return f"{what} dominate: {advice[name]}"


def problem_summary(problem: Problem) -> Record:
    """`model`, `cluster` and `training` of a result."""
    graph, cluster, job = problem.job.graph, problem.asked, problem.job
    trained = {"trainable_parameters": job.trained.trainable_parameters} if job.frozen else {}
    return {
        "model": {
            "name": graph.name,
            "layers": graph.layers,
            "parameters": graph.parameters,
            "active_parameters": graph.active_parameters,
            "buffers": graph.buffers,
            "mtp_parameters": graph.mtp_parameters,
            **trained,
            "digest": graph.digest,
        },
        "cluster": {"name": cluster.name, "gpus": cluster.gpus, "nodes": cluster.nodes, "digest": cluster.digest},
        "training": {
            "seq_len": job.seq_len,
            "global_batch": job.global_batch,
            "precision": job.precision.id,
            "optimizer": job.optimizer.id,
        },
    }
