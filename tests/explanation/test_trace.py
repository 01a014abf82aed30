"""Traces keep the format, end with the printed step, and sum to its parts; they are written whole or not at all."""

from __future__ import annotations

import json
import os

import pytest
from trace_checker import Facts, TraceError, check_trace

import shardwright
from shardwright.errors import InvalidValueError, UnsupportedError
from shardwright.planner.estimation import estimate_plan
from shardwright.planner.problem import PricingOptions
from shardwright.planner.report.trace import timeline_of, trace_text, write_trace

SMALL = {"seq_len": 4096, "global_batch": 64}
PLANS = {
    "no pipeline": ("llama3.1-8b", "dgx-h100:1", SMALL, {"tp": 2}, "any"),
    "1f1b": ("llama3.1-70b", "dgx-h100:4", SMALL, {"tp": 4, "pp": 4}, "megatron"),
    "interleaved": ("llama3.1-70b", "dgx-h100:4", SMALL, {"tp": 4, "pp": 4, "vpp": 2}, "megatron"),
    "recompute": ("llama3.1-70b", "dgx-h100:4", SMALL, {"tp": 4, "pp": 4, "recompute": "full"}, "megatron"),
    "partly": ("llama3.1-70b", "dgx-h100:4", SMALL, {"tp": 4, "pp": 4, "recompute": "full", "recompute_layers": 7}, "megatron"),
    "context": ("llama3.1-70b", "dgx-h100:4", SMALL, {"tp": 2, "cp": 4, "pp": 4}, "megatron"),
    "uneven": ("llama3.1-70b", "dgx-h100:4", SMALL, {"tp": 4, "pp": 4, "layers_per_stage": (19, 21, 22, 18)}, "megatron"),
    "experts": ("mixtral-8x7b", "dgx-h100:4", SMALL, {"tp": 2, "pp": 4, "ep": 4, "etp": 1}, "megatron"),
    "prediction": ("deepseek-v3", "dgx-h200:32", SMALL, {"tp": 4, "pp": 16, "ep": 16, "etp": 1}, "megatron"),
    "tied": ("qwen3-4b-like", "dgx-h100:2", SMALL, {"pp": 4}, "megatron"),
    "sharded": ("llama3.1-8b", "dgx-h100:2", SMALL, {"zero": 3}, "torchtitan"),
    "gpipe": ("llama3.1-8b", "dgx-h100:1", SMALL, {"pp": 4, "schedule": "gpipe"}, "pytorch"),
    "zb-h1": ("llama3.1-8b", "dgx-h100:1", SMALL, {"pp": 4, "schedule": "zb-h1"}, "pytorch"),
    "zb-v": ("llama3.1-8b", "dgx-h100:1", SMALL, {"pp": 4, "schedule": "zb-v"}, "pytorch"),
    "dualpipe-v": ("llama3.1-8b", "dgx-h100:1", SMALL, {"pp": 4, "schedule": "dualpipe-v"}, "pytorch"),
}
MODELS = {"qwen3-4b-like": "gpt2"}
AXES = ("tp", "cp", "ep", "pp", "dp")


def _estimate(name):
    model, cluster, job, degrees, framework = PLANS[name]
    job = job | ({"seq_len": 1024} if MODELS.get(model) == "gpt2" else {})
    options = PricingOptions(framework=framework)
    made = shardwright.estimate(
        MODELS.get(model, model), cluster, **job, degrees=shardwright.Degrees(**degrees), options=options
    )
    assert made.data["predicted"] is not None, made.data["violations"]
    return made.to_dict()


@pytest.fixture(scope="module", params=PLANS, ids=str)
def traced(request) -> tuple[dict, Facts]:
    estimate = _estimate(request.param)
    return estimate, check_trace(trace_text(estimate, timeline_of(estimate)))


def test_the_trace_ends_with_the_printed_step(traced):
    estimate, facts = traced
    assert facts.step_s == pytest.approx(estimate["predicted"]["step_time_s"], abs=2e-9, rel=1e-9)


def test_tracks_of_the_critical_stage_sum_to_the_parts_of_the_step(traced):
    estimate, facts = traced
    time = estimate["time"]
    busiest: dict[int, float] = {}
    for (stage, _), total in facts.track_s.items():
        busiest[stage] = busiest.get(stage, 0.0) + total
    critical = max(busiest, key=lambda stage: (round(busiest[stage], 6), -stage))
    operations = 6 * estimate["parallel"]["micro_batches"] * estimate["parallel"]["vpp"] + 8
    slack = {"rel": 1e-9, "abs": operations * 1e-9}
    computing = time["compute_s"] + time["recompute_s"] + time["other_s"] + time["optimizer_s"]
    assert facts.track_s[critical, "compute"] == pytest.approx(computing, **slack)
    for axis in AXES:
        assert facts.track_s.get((critical, f"{axis} exchange"), 0.0) == pytest.approx(time[f"exposed_{axis}_s"], **slack)
    busy = sum(total for (stage, _), total in facts.track_s.items() if stage == critical)
    assert facts.step_s - busy == pytest.approx(time["bubble_s"], **slack)


def test_counters_peak_at_the_memory_of_every_stage(traced):
    estimate, facts = traced
    assert facts.peaks == {
        stage["index"]: pytest.approx(stage["memory"]["total_bytes"] / 2**30, abs=1e-4) for stage in estimate["stages"]
    }


def test_there_is_a_flow_for_every_send(traced):
    estimate, facts = traced
    parallel = estimate["parallel"]
    crossing = parallel["pp"] * parallel["vpp"] - 1
    if parallel["schedule"] in {"zb-v", "dualpipe-v"}:
        crossing -= 1  # the fold is on one rank
    assert facts.flows == 2 * crossing * parallel["micro_batches"] * (parallel["pp"] > 1)


def test_stages_are_processes_with_their_layers(traced):
    estimate, _ = traced
    document = json.loads(trace_text(estimate, timeline_of(estimate)))
    named = {e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert sorted(named) == [stage["index"] for stage in estimate["stages"]]
    assert all(f"{stage['layers'][0][0]}-" in named[stage["index"]] for stage in estimate["stages"] if stage["layers"][0])
    assert document["otherData"]["step_time_s"] == estimate["predicted"]["step_time_s"]


def test_plans_of_a_search_are_drawn_as_ranked(routed):
    for plan in routed["plans"][:5]:
        estimate = estimate_plan(routed, rank=plan["rank"]).to_dict()
        facts = check_trace(trace_text(estimate, timeline_of(estimate)))
        assert facts.step_s == pytest.approx(plan["predicted"]["step_time_s"], abs=2e-9, rel=1e-9)


# --- the checker notices -----------------------------------------------------------------------------


def _broken(change):
    estimate = _estimate("1f1b")
    document = json.loads(trace_text(estimate, timeline_of(estimate)))
    change(document["traceEvents"])
    return json.dumps(document)


def _first(events, kind):
    return next(event for event in events if event["ph"] == kind and event.get("dur", 1) > 0)


FAULTS = {
    "overlap": lambda events: _first(events, "X").update(dur=_first(events, "X")["dur"] * 1.5),
    "lost end": lambda events: events.remove(_first(events, "f")),
    "double": lambda events: events.append(dict(_first(events, "s"))),
    "back in time": lambda events: _first(events, "f").update(ts=0),
    "counter": lambda events: events.append(dict(_first(events, "C"))),
    "no name": lambda events: events.append({"ph": "X", "name": "x", "pid": 0, "tid": 77, "ts": 0, "dur": 1}),
    "kind": lambda events: events.append({"ph": "B", "name": "x", "pid": 0, "tid": 0, "ts": 0}),
    "negative": lambda events: _first(events, "X").update(dur=-1),
}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_checker_finds_faults(fault):
    with pytest.raises(TraceError):
        check_trace(_broken(FAULTS[fault]))


# --- files -------------------------------------------------------------------------------------------


def test_a_trace_replaces_the_one_before(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("old", encoding="utf-8")
    estimate = _estimate("1f1b")
    assert write_trace(estimate, path) == path
    assert check_trace(path.read_text(encoding="ascii")).flows > 0
    first = path.read_bytes()
    write_trace(estimate, path)
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


@pytest.mark.parametrize("where", ["folder", "no folder"])
def test_a_place_that_cannot_be_written_is_refused(tmp_path, where):
    place = tmp_path if where == "folder" else tmp_path / "nowhere" / "trace.json"
    with pytest.raises(InvalidValueError, match="cannot write") as refused:
        write_trace(_estimate("1f1b"), place)
    assert refused.value.where == "--trace"
    assert list(tmp_path.iterdir()) == []


def test_a_failing_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_text("old", encoding="utf-8")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(InvalidValueError, match="No space left"):
        write_trace(_estimate("1f1b"), path)
    assert path.read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["trace.json"]  # noqa: PTH208


def test_what_has_no_order_or_no_price_is_refused(tmp_path):
    odd = shardwright.estimate(
        "llama3.1-8b", "dgx-h100:1", seq_len=4096, global_batch=6, degrees=shardwright.Degrees(tp=2, pp=4, vpp=2)
    ).to_dict()
    if odd["predicted"] is not None:
        with pytest.raises(InvalidValueError, match="order") as refused:
            write_trace(odd, tmp_path / "trace.json")
        assert refused.value.where == "--trace"
    long = _estimate("1f1b")
    long["parallel"]["micro_batches"] = 10**6
    with pytest.raises(UnsupportedError, match="too long"):
        write_trace(long, tmp_path / "trace.json")
    none = shardwright.estimate("llama3.1-8b", "dgx-h100:1", seq_len=4096, global_batch=64, degrees=shardwright.Degrees(tp=3))
    with pytest.raises(InvalidValueError, match="no price"):
        write_trace(none.to_dict(), tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []
