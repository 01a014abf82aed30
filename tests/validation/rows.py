"""Rows and a stand-in for `estimate_degrees`, for tests of reading and scoring runs."""

from shardwright.planner.runs.table import RunRow


def row(**more):
    """A complete dense run; `more` changes cells."""
    cells = {
        "line": 2, "id": "r", "model": "Llama-2-7B", "node": "dgx-h100", "framework": "Megatron-LM (2024)", "params_b": 6.74,
        "layers": 32, "hidden": 4096, "ffn": 11008, "heads": 32, "kv_heads": 32, "head_dim": 128, "vocab": 32000,
        "seq_len": 4096, "global_batch": 64, "micro_batch": 1, "gpus": 16, "gpus_per_node": 8, "precision": "BF16", "tp": 2,
        "pp": 2, "cp": 1, "zero_or_fsdp": "dist-opt", "recompute": "none", "step_time_s": 2.0, "source_group": "g",
    }  # fmt: skip
    return RunRow(**(cells | more))


def fake_estimate(problem, degrees, *, step_s=1.0, filled=0.5, violations=()):
    """An ESTIMATE with the keys that are read, of a plan that takes `step_s` and fills a share of memory."""
    capacity = problem.device.memory_bytes
    meters = dict.fromkeys(("allocated_bytes", "reserved_bytes", "device_bytes"), filled * capacity)
    return {
        "violations": [{"rule": rule, "message": "no", "remedy": ""} for rule in violations],
        "predicted": {"step_time_s": step_s, "step_time_low_s": 0.9 * step_s, "step_time_high_s": 1.1 * step_s},
        "time": {"compute_s": 0.75 * step_s, "exposed_tp_s": 0.25 * step_s, "bubble_s": 0.0},
        "memory": {"meters": meters},
        "stages": [{"memory": {"total_bytes": filled * capacity, "capacity_bytes": capacity}}],
    }
