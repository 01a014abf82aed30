"""What every record of a plan must add up to."""

import functools
import math
from operator import mul

import planner_problems as problems
import pytest

from shardwright.planner.estimation import estimate_batch
from shardwright.planner.plans import CP_COMM_KINDS, MOE_DISPATCHERS
from shardwright.planner.rules.versions import TARGETS
from shardwright.planner.schedules.registry import is_folded

NAMES = ("dense-7", "dense-8-odd", "dense-8", "moe-16", "moe-96", "mtp-64", "dense-1000")
TIME = {
    "compute_s",
    "recompute_s",
    "exposed_tp_s",
    "exposed_cp_s",
    "exposed_ep_s",
    "exposed_pp_s",
    "exposed_dp_s",
    "bubble_s",
    "optimizer_s",
    "other_s",
}
MEMORY = {
    "parameters_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "activations_bytes",
    "logits_bytes",
    "buffers_bytes",
    "reserve_bytes",
}
ALL_REDUCE, MOVED_ONCE = 2.0, 1.0
WIRE = {"all_reduce": ALL_REDUCE, "all_gather": MOVED_ONCE, "reduce_scatter": MOVED_ONCE, "all_to_all": MOVED_ONCE}


def parsed_ranks(text):
    """The ranks of `0-3,8-11` or `0-511:8`."""
    found = []
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def layers_of(stage):
    return [layer for span in stage["layers"] if span for layer in range(span[0], span[1] + 1)]


def is_partly_recomputed(record):
    recompute = record["parallel"]["recompute"]
    return recompute["mode"] == "full" and recompute["layers"] < max(len(layers_of(stage)) for stage in record["stages"])


@functools.cache
def records_of(name):
    made = problems.scan_of(name)
    return estimate_batch(problems.problem_of(name), made.batch.take(problems.some_rows(made, 60, seed=5)), made.splits)


@pytest.fixture(params=NAMES)
def case(request):
    return problems.problem_of(request.param), records_of(request.param)


def test_parts_of_the_step_sum_to_it(case):
    for record in case[1]:
        assert set(record["time"]) == TIME
        assert min(record["time"].values()) >= 0
        assert math.fsum(record["time"].values()) == pytest.approx(record["predicted"]["step_time_s"], rel=1e-9)
        assert all(math.isfinite(value) for value in record["time"].values())


def test_parts_of_memory_are_whole_and_sum_to_the_total(case):
    problem, records = case
    for record in records:
        totals = []
        for stage in record["stages"]:
            memory = stage["memory"]
            assert set(memory) == MEMORY | {"total_bytes", "capacity_bytes"}
            assert all(isinstance(memory[part], int) and memory[part] >= 0 for part in MEMORY)
            assert sum(memory[part] for part in MEMORY) == memory["total_bytes"]
            assert memory["capacity_bytes"] == problem.device.memory_bytes
            totals.append(memory["total_bytes"])
        summary = record["memory"]
        assert summary["peak_bytes"] == max(totals) == totals[summary["peak_stage"]]
        meters = summary["meters"]
        assert 0 < meters["allocated_bytes"] <= meters["reserved_bytes"] <= meters["device_bytes"] <= summary["peak_bytes"]
        fits = all(total <= problem.device.memory_bytes for total in totals)
        assert record["feasible"] == fits == (record["violations"] == [])


def test_degrees_multiply_up(case):
    problem, records = case
    for record in records:
        p = record["parallel"]
        assert p["world_size"] == p["tp"] * p["cp"] * p["pp"] * p["dp"] == problem.cluster.gpus
        assert p["dp"] == p["dp_replicate"] * p["dp_shard"]
        assert p["edp"] * p["etp"] * p["ep"] * p["pp"] == p["world_size"]
        assert p["micro_batch"] * p["micro_batches"] * p["dp"] == problem.job.global_batch
        assert p["zero_stage"] > 0 or p["dp_shard"] == 1
        assert p["cp_comm"] in CP_COMM_KINDS
        assert p["moe_dispatcher"] in MOE_DISPATCHERS
        assert set(p["offload"]) == {"activations", "optimizer", "parameters"}
        assert set(p["overlap"]) == {"tp", "dp_gather", "dp_reduce", "p2p", "ep", "cp"}
        assert all(isinstance(value, bool) for value in p["overlap"].values())
        assert set(record["expressible_by"]) <= set(TARGETS)


def test_stages_hold_all_layers_and_all_ranks_once(case):
    problem, records = case
    for record in records:
        stages, p = record["stages"], record["parallel"]
        assert [stage["index"] for stage in stages] == list(range(p["pp"]))
        assert sorted(layer for s in stages for layer in layers_of(s)) == list(range(problem.graph.layers))
        assert [r for s in stages for r in parsed_ranks(s["ranks"])] == list(range(p["world_size"]))
        assert all(len(stage["layers"]) == p["vpp"] for stage in stages)
        rounds = [stages[::-1] if is_folded(p["schedule"]) and v % 2 else stages for v in range(p["vpp"])]
        order = [stage["layers"][v] for v, ranks in enumerate(rounds) for stage in ranks if stage["layers"][v]]
        assert order == sorted(order)


def test_ends_of_the_model_sit_on_the_end_stages(case):
    problem, records = case
    last = {"head", "loss"} | ({"mtp"} if problem.graph.mtp_layers else set())
    for record in records:
        held = [set(stage["holds"]) for stage in record["stages"]]
        ends = [{"embedding"} | last] if is_folded(record["parallel"]["schedule"]) or len(held) == 1 else [{"embedding"}, last]
        assert [some for some in held if some] == ends
        assert "embedding" in held[0]
        assert held[-1] == ends[-1] or not held[-1]


def test_communication_shares_out_the_exposed_time(case):
    for record in case[1]:
        by_axis = {axis: [r for r in record["communication"] if r["axis"] == axis] for axis in ("tp", "cp", "ep", "pp", "dp")}
        assert sum(map(len, by_axis.values())) == len(record["communication"])
        for axis, rows in by_axis.items():
            exposed = math.fsum(row["exposed_s"] for row in rows)
            assert exposed == pytest.approx(record["time"][f"exposed_{axis}_s"], rel=1e-9, abs=1e-15)
            for row in rows:
                assert row["group_size"] > 1
                assert row["count_per_step"] >= 1
                assert row["time_s"] > 0
                assert 0 <= row["exposed_s"] <= row["time_s"]
        for axis in ("tp", "cp", "ep", "pp"):
            total = math.fsum(row["time_s"] for row in by_axis[axis])
            assert record["time"][f"exposed_{axis}_s"] <= total * (1 + 1e-9)


def test_rates_follow_from_the_step(case):
    problem, records = case
    tokens = problem.job.global_batch * problem.job.seq_len
    for record in records:
        got = record["predicted"]
        step = got["step_time_s"]
        assert got["step_time_low_s"] < step < got["step_time_high_s"]
        assert got["samples_per_s"] == pytest.approx(problem.job.global_batch / step, rel=1e-12)
        assert got["tokens_per_s"] == pytest.approx(tokens / step, rel=1e-12)
        assert got["tokens_per_s_per_gpu"] == pytest.approx(tokens / step / problem.cluster.gpus, rel=1e-12)
        assert got["mfu"] == pytest.approx(got["model_tflops_per_gpu"] / got["peak_tflops"], rel=1e-12)
        assert 0 < got["mfu"] < 1
        flops = problem.graph.flops_per_token(problem.job.seq_len, got["flops_convention"]) * tokens
        assert got["model_tflops_per_gpu"] == pytest.approx(flops / step / problem.cluster.gpus / 1e12, rel=1e-12)


def test_the_account_follows_from_the_rows(case):
    for record in case[1]:
        account, rows = record["account"], record["communication"]
        flops = record["predicted"]["model_tflops_per_gpu"] * 1e12 * record["predicted"]["step_time_s"]
        wire = 0.0
        for row in rows:
            n, message = row["group_size"], row["message_bytes"]
            share = 1.0 if row["collective"] == "send" else WIRE[row["collective"]] * (n - 1) / n
            wire += share * message * row["count_per_step"]
        close = 1e-2 if is_partly_recomputed(record) else 1e-6  # counts of collectives recomputed in part are rounded
        assert account["bytes_moved_links_per_flop"] == pytest.approx(wire / flops, rel=close, abs=1e-15)
        assert account["bytes_moved_hbm_per_flop"] > 0
        if rows:
            total, exposed = (math.fsum(row[key] for row in rows) for key in ("time_s", "exposed_s"))
            assert account["overlap_covered_fraction"] == pytest.approx(1 - exposed / total, abs=1e-9)
            assert account["largest_message_bytes"] == max(row["message_bytes"] for row in rows)
            assert account["bottleneck_link"] in {row["bottleneck_link"] for row in rows}
            assert account["bottleneck_utilisation"] >= 0
        else:
            assert account["overlap_covered_fraction"] is None
            assert account["bottleneck_link"] is None


def test_no_stage_is_busier_than_the_step(case):
    for record in case[1]:
        p, step = record["parallel"], record["predicted"]["step_time_s"]
        busiest = max(stage["time"]["forward_s"] + stage["time"]["backward_s"] for stage in record["stages"])
        assert busiest * p["micro_batches"] <= step * (1 + 1e-9)


@pytest.mark.parametrize("name", ["dense-7", "dense-8-odd", "dense-8", "moe-16"])
def test_without_a_pipeline_the_step_is_its_passes_exchange_and_update(name):
    alone = [r for r in records_of(name) if r["parallel"]["pp"] == 1 and r["parallel"]["zero_stage"] < 2]
    for record in alone:
        (stage,) = record["stages"]
        passes = record["parallel"]["micro_batches"] * (stage["time"]["forward_s"] + stage["time"]["backward_s"])
        step = passes + record["time"]["exposed_dp_s"] + record["time"]["optimizer_s"]
        assert record["predicted"]["step_time_s"] == pytest.approx(step, rel=1e-9)
    assert alone


def test_the_critical_stage_is_the_one_that_lasts(case):
    """No stage's own passes, with the pipeline's filling and draining around them, take longer than the step."""
    for record in case[1]:
        p, stages = record["parallel"], record["stages"]
        if p["schedule"] not in {"1f1b", "interleaved-1f1b"} or p["zero_stage"] > 1:
            continue
        both = [stage["time"]["forward_s"] + stage["time"]["backward_s"] for stage in stages]
        least = [min(span[1] - span[0] + 1 if span else 0 for span in s["layers"]) / max(len(layers_of(s)), 1) for s in stages]
        chains = [p["micro_batches"] * own + sum(map(mul, both[:rank], least)) for rank, own in enumerate(both)]
        rest = record["time"]["exposed_dp_s"] + record["time"]["optimizer_s"]
        assert max(chains) <= record["predicted"]["step_time_s"] * (1 + 1e-9)
        if p["vpp"] == 1:
            assert record["predicted"]["step_time_s"] - rest <= max(chains) + 2 * sum(both) + 1e-9
