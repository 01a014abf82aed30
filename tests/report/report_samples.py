"""Realistic results in the published JSON form, made by hand so that reports can be tested without the planner."""

from typing import Any

GIB = 2**30
CAPACITY = 85_520_809_984

TIME_SHARES = {
    "compute_s": 0.68,
    "recompute_s": 0.0,
    "exposed_tp_s": 0.09,
    "exposed_cp_s": 0.0,
    "exposed_ep_s": 0.0,
    "exposed_pp_s": 0.012,
    "exposed_dp_s": 0.03,
    "bubble_s": 0.15,
    "optimizer_s": 0.008,
    "other_s": 0.03,
}


def stage(index: int, layers: list[Any], ranks: str, *, scale: float = 1.0, holds: tuple[str, ...] = ()) -> dict[str, Any]:
    parts = {
        "parameters_bytes": int(4.1 * GIB * scale),
        "gradients_bytes": int(8.2 * GIB * scale),
        "optimizer_bytes": int(6.2 * GIB * scale),
        "activations_bytes": int(30 * GIB * scale) - index * 5 * GIB,
        "logits_bytes": GIB if "loss" in holds else 0,
        "buffers_bytes": GIB // 4,
        "reserve_bytes": 2 * GIB,
    }
    return {
        "index": index,
        "layers": layers,
        "holds": list(holds),
        "ranks": ranks,
        "node_type": "dgx-h100",
        "time": {"forward_s": 0.0432, "backward_s": 0.0891},
        "memory": {**parts, "total_bytes": sum(parts.values()), "capacity_bytes": CAPACITY},
    }


def _span(chunk: int, size: int) -> list[int]:
    return [size * chunk, size * chunk + size - 1]


def parallel(**changes: Any) -> dict[str, Any]:
    made = {
        "world_size": 128,
        "tp": 4,
        "sequence_parallel": True,
        "cp": 1,
        "cp_comm": "p2p",
        "pp": 4,
        "vpp": 1,
        "dp": 8,
        "dp_replicate": 1,
        "dp_shard": 8,
        "zero_stage": 1,
        "ep": 1,
        "etp": 1,
        "edp": 32,
        "micro_batch": 1,
        "micro_batches": 64,
        "schedule": "1f1b",
        "recompute": {"mode": "none", "modules": [], "layers": [0, 0, 0, 0]},
        "offload": {"activations": 0.0, "optimizer": 0.0, "parameters": 0.0},
        "overlap": {"tp": False, "dp_gather": True, "dp_reduce": True, "p2p": False, "ep": False, "cp": True},
        "moe_dispatcher": "alltoall",
        "loss_chunks": 1,
        "reshard_after_forward": False,
    }
    return made | changes


def communication() -> list[dict[str, Any]]:
    rows = [
        ("tp", "all_gather", 4, 67_108_864, 7680, 1.91, 0.95, "ring", "nvlink"),
        ("tp", "reduce_scatter", 4, 67_108_864, 7680, 1.02, 0.13, "in-switch", "nvlink"),
        ("pp", "send", 2, 16_777_216, 128, 0.144, 0.144, "direct", "nic"),
        ("dp", "reduce_scatter", 8, 8_816_000_000, 1, 0.44, 0.22, "ring", "nic"),
        ("dp", "all_gather", 8, 4_408_000_000, 1, 0.25, 0.14, "ring", "nic"),
    ]
    names = (
        "axis",
        "collective",
        "group_size",
        "message_bytes",
        "count_per_step",
        "time_s",
        "exposed_s",
        "algorithm",
        "bottleneck_link",
    )
    return [dict(zip(names, row, strict=True)) | {"wire_bytes": row[3] * row[4]} for row in rows]


def plan_entry(*, step_time_s: float = 12.0, feasible: bool = True, scale: float = 1.0, **degrees: Any) -> dict[str, Any]:
    chunks = int(degrees.get("vpp", 1))
    size = 20 // chunks
    stages = [
        stage(i, [_span(4 * v + i, size) for v in range(chunks)], f"{32 * i}-{32 * i + 31}", scale=scale, holds=holds)
        for i, holds in enumerate((("embedding",), (), (), ("head", "loss")))
    ]
    peak = max(stages, key=lambda s: s["memory"]["total_bytes"])
    tokens = 8192 * 512 / step_time_s
    return {
        "feasible": feasible,
        "violations": [],
        "expressible_by": ["megatron", "torchtitan"],
        "parallel": parallel(**degrees),
        "stages": stages,
        "predicted": {
            "step_time_s": step_time_s,
            "step_time_low_s": step_time_s * 0.92,
            "step_time_high_s": step_time_s * 1.09,
            "samples_per_s": 512 / step_time_s,
            "tokens_per_s": tokens,
            "tokens_per_s_per_gpu": tokens / 128,
            "model_tflops_per_gpu": 431.2,
            "mfu": 0.436,
            "flops_convention": "full",
            "peak_tflops": 989.4,
            "usd_per_1m_tokens": None,
            "joules_per_token": None,
            "goodput_fraction": None,
        },
        "time": {k: v * step_time_s for k, v in TIME_SHARES.items()},
        "memory": {
            "peak_bytes": peak["memory"]["total_bytes"],
            "capacity_bytes": CAPACITY,
            "peak_stage": peak["index"],
            "meters": {
                "allocated_bytes": peak["memory"]["total_bytes"] - 3 * GIB,
                "reserved_bytes": peak["memory"]["total_bytes"] - GIB,
                "device_bytes": peak["memory"]["total_bytes"],
            },
            "headline": {"meter": "device", "bytes": peak["memory"]["total_bytes"]},
            "host_peak_bytes": None,
        },
        "communication": communication(),
        "account": {
            "bytes_moved_hbm_per_flop": 0.0031,
            "bytes_moved_links_per_flop": 0.00021,
            "critical_collectives_per_step": 15492,
            "largest_message_bytes": 8_816_000_000,
            "smallest_message_bytes": 16_777_216,
            "overlap_covered_fraction": 0.62,
            "bottleneck_link": "nvlink",
            "bottleneck_utilisation": 0.244,
        },
        "sources": {
            "gemm": {"origin": "measured", "source": "a public table of H100", "median_error": 0.035},
            "attention": {"origin": "measured", "source": "a public table of H100", "median_error": 0.035},
            "collective.tp": {"origin": "modelled", "source": "fabric presets nvlink4, infiniband"},
        },
        "warnings": [],
    }


def inputs() -> dict[str, Any]:
    return {
        "model": {"name": "llama3.1-70b", "layers": 80},
        "cluster": {"name": "dgx-h100:16", "groups": []},
        "training": {"seq_len": 8192, "global_batch": 512, "precision": "bf16", "optimizer": "adam", "grad_bytes": 4},
        "calibration": {"name": "h100", "digest": "a" * 64, "inline": {}},
        "stack": "megatron-core",
        "search": {"framework": "any", "memory_margin_bytes": 0, "memory_meter": "device", "objective": "throughput"},
    }


def assumptions() -> list[dict[str, Any]]:
    return [
        {"key": "training.precision", "value": "bf16", "origin": "default"},
        {"key": "framework", "value": "megatron", "origin": "given"},
        {"key": "device.memory_bytes", "value": CAPACITY, "origin": "preset"},
        {"key": "moe.routing", "value": "balanced", "origin": "default"},
    ]


def identity() -> dict[str, Any]:
    return {
        "model": {
            "name": "llama3.1-70b",
            "layers": 80,
            "parameters": 70_553_706_496,
            "active_parameters": 70_553_706_496,
            "buffers": 64,
            "mtp_parameters": 0,
            "digest": "b" * 64,
        },
        "cluster": {"name": "dgx-h100:16", "gpus": 128, "nodes": 16, "digest": "c" * 64},
        "training": {"seq_len": 8192, "global_batch": 512, "precision": "bf16", "optimizer": "adam"},
    }


def search_account(**changes: Any) -> dict[str, Any]:
    made = {
        "space": {"tp": [1, 2, 4, 8], "pp": [1, 2, 4, 8], "cp": [1], "schedule": ["1f1b", "interleaved-1f1b"]},
        "candidates": 50_176,
        "rejected": {"world-divides": 20_000, "no-effect": 25_000, "heads-divide": 0},
        "pruned_by_bound": 0,
        "priced": 5_176,
        "fits": 1_432,
        "best_step_time_s": 12.0,
        "lower_bound_step_time_s": 11.7,
        "gap": 0.025,
        "proven_optimal": False,
        "stopped": None,
    }
    return made | changes


def plan_result() -> dict[str, Any]:
    best = plan_entry(step_time_s=12.0)
    second = plan_entry(step_time_s=12.05, tp=8, dp=4, dp_shard=4)
    third = plan_entry(step_time_s=13.9, scale=1.2, vpp=5, schedule="interleaved-1f1b", cp=2, dp=4, dp_replicate=2, dp_shard=2)
    third["parallel"]["recompute"] = {"mode": "full", "modules": [], "layers": [4, 4, 4, 4]}
    plans = [
        entry | {"rank": rank, "tie_group": group, "id": f"plan-{rank}"}
        for rank, group, entry in ((1, 1, best), (2, 1, second), (3, 2, third))
    ]
    return {
        "schema_version": 1,
        "kind": "plan-result",
        "inputs": inputs(),
        **identity(),
        "assumptions": assumptions(),
        "search": search_account(),
        "plans": plans,
        "near_misses": [],
        "run": {"wall_s": 1.2, "cpu_s": 1.1, "version": "0.1.0", "solver": None},
    }


def nothing_fits() -> dict[str, Any]:
    miss = plan_entry(step_time_s=14.0, feasible=False, scale=2.0)
    miss["violations"] = [{"rule": "memory", "message": "stage 0 needs 91.2 GiB of 79.6", "remedy": "recompute=selective"}]
    miss |= {
        "shortage_bytes": 12 * GIB,
        "remedies": [
            {"change": "recompute=full", "feasible": True, "step_time_s": 17.1},
            {"change": "micro_batch=1", "feasible": False, "step_time_s": 13.0},
            {"change": "twice the GPUs", "feasible": None, "step_time_s": None, "peak_bytes": None},
        ],
    }
    account = search_account(fits=0, best_step_time_s=None, lower_bound_step_time_s=None, gap=None)
    return plan_result() | {"plans": [], "near_misses": [miss], "search": account}


def estimate(**changes: Any) -> dict[str, Any]:
    entry = plan_entry() | changes
    head = {"schema_version": 1, "kind": "estimate", "inputs": inputs(), **identity(), "assumptions": assumptions()}
    return head | entry


def infeasible() -> dict[str, Any]:
    made = estimate(**plan_entry(feasible=False, scale=2.0))
    made["violations"] = [
        {"rule": "memory", "message": "stage 0 needs 111.3 GiB of 79.6 GiB", "remedy": "use pp=8, or recompute full"},
        {"rule": "heads-divide", "message": "64 heads do not divide by tp=7", "remedy": "use tp 1, 2, 4, 8"},
    ]
    made["warnings"] = ["the interval is a prior: no measured run of this device is known"]
    return made


def unpriced() -> dict[str, Any]:
    made = infeasible()
    derived = ("world_size", "dp", "dp_replicate", "dp_shard", "edp", "micro_batches")
    kept = ("tp", "sequence_parallel", "cp", "pp", "vpp", "zero_stage", "ep", "etp", "micro_batch", "schedule")
    made["parallel"] = {k: made["parallel"][k] for k in kept} | dict.fromkeys(derived)
    return made | {"stages": [], "communication": [], **dict.fromkeys(("predicted", "time", "memory", "account"))}


def validation_row(number: int, **changes: Any) -> dict[str, Any]:
    made = {
        "id": f"run-{number}",
        "source_group": "torchtitan" if number % 2 else "nemo",
        "status": "ok",
        "reason": None,
        "measured_step_time_s": 10.0,
        "predicted_step_time_s": 10.0 + 0.4 * number,
        "error": 0.04 * number,
        "interval_low_s": 9.0,
        "interval_high_s": 12.0,
        "measured_peak_gib": 60.0,
        "predicted_peak_gib": 63.0,
        "memory_error": 0.05,
        "outcome": "ok",
        "predicted_fits": True,
        "scored": True,
        "interval_kind": "dense",
        "labels": {"hardware": "hopper", "kind": "dense", "scale": "9-64 GPUs", "precision": "bf16"},
        "time_shares": {"compute": 0.7, "exposed_tp": 0.2, "bubble": 0.1},
        "stack": "megatron-core",
        "measured_from": "step_time_s",
        "defaults": [],
    }
    return made | changes


def summary(**changes: Any) -> dict[str, Any]:
    made = {
        "rows": 7,
        "scored": 5,
        "skipped": 2,
        "median": 0.08,
        "mean": 0.09,
        "p90": 0.17,
        "bias": 0.03,
        "memory_median": 0.05,
        "memory_p90": 0.09,
        "oom_called": 0.75,
        "ran_refused": 0.0,
        "tau": 0.8,
        "regret": 0.01,
        "jobs_ranked": 1,
        "interval_coverage": 0.8,
        "interval_width": 0.35,
        "groups": 2,
    }
    return made | changes


def validation() -> dict[str, Any]:
    blank = dict.fromkeys(
        (
            "predicted_step_time_s",
            "error",
            "interval_low_s",
            "interval_high_s",
            "predicted_peak_gib",
            "memory_error",
            "predicted_fits",
        )
    )
    rows = [validation_row(n) for n in range(5)]
    rows += [validation_row(n, status="skipped", reason="unknown node", **blank) for n in (5, 6)]
    return {
        "kind": "validation",
        "fit": "all",
        "anchor": "none",
        "by": "source",
        "note": "no constant was fitted to these runs",
        "unscored_groups": ["torchtitan"],
        "rows": rows,
        "by_source": {
            "nemo": summary(rows=4, scored=3, skipped=1),
            "torchtitan": summary(rows=3, scored=2, skipped=1, tau=None),
        },
        "by_hardware": {"hopper": summary()},
        "by_kind": {"dense": summary()},
        "by_scale": {"9-64 GPUs": summary()},
        "by_precision": {"bf16": summary()},
        "summary": summary(),
    }
