"""A saved result or plan is priced again from the file alone, to the same numbers; and defaults of a stated plan."""

import json

import planner_problems as problems
import pytest

from shardwright.documents import rounded
from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError, UnknownNameError
from shardwright.planner.estimation import estimate, estimate_degrees, estimate_plan
from shardwright.planner.plan_records import degrees_of
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem, problem_from_inputs
from shardwright.planner.report.folder import write_result
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan


def numbers(record):
    """Everything of a plan that is a price."""
    return {name: record[name] for name in ("parallel", "stages", "predicted", "time", "memory", "communication", "account")}


def assert_same(one, other, path=""):
    if isinstance(one, dict):
        assert set(one) == set(other), path
        for key in one:
            assert_same(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{path}[{index}]")
    elif isinstance(one, float) and isinstance(other, float):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-15), path
    else:
        assert one == other, path


def saved(folder, data):
    path = folder / "saved.json"
    path.write_text(json.dumps(rounded(dict(data))), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "framework"), [("dense-7", "any"), ("dense-8", "megatron"), ("dense-8", "pytorch"), ("moe-16", "any")]
)
def test_every_rank_of_a_result_is_priced_the_same_again(name, framework, tmp_path, monkeypatch):
    model, cluster, seq_len, batch = problems.CASES[name]
    options = PricingOptions(framework=framework, memory_margin_gib=1.0)
    result = plan(model, cluster, seq_len=seq_len, global_batch=batch, options=options, search=SearchOptions(top=5))
    write_result(tmp_path / "made", result.to_dict())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved = elsewhere / "r.json"
    moved.write_bytes((tmp_path / "made" / "result.json").read_bytes())
    monkeypatch.chdir(elsewhere)
    for rank, record in enumerate(result.plans, start=1):
        again = estimate_plan("r.json", rank=rank).to_dict()
        assert_same(numbers(record), numbers(again))
        assert again["feasible"] is True
        assert again["inputs"]["model"] == result.data["inputs"]["model"]
    assert_same(numbers(estimate_plan(tmp_path / "made", rank=1).to_dict()), numbers(result.plans[0]))


SLOW_AND_ODD = ("cluster.internode_bytes_per_s=25e9", "model.layers=30", "stack.tp_exposed=0.9")
PLANS = {
    "uneven": ("llama3.1-8b", Degrees(pp=4, layers_per_stage=(9, 8, 8, 7)), {}),
    "chunks": ("llama3.1-8b", Degrees(pp=2, vpp=4, layers_per_stage=(3, 4, 4, 4, 5, 4, 4, 4)), {}),
    "empty ends": ("llama3.1-8b", Degrees(tp=1, pp=8, layers_per_stage=(0, 6, 6, 5, 5, 5, 5, 0)), {}),
    "partly recomputed": ("llama3.1-8b", Degrees(tp=2, pp=2, recompute="full", recompute_layers=5), {}),
    "selective": ("llama3.1-8b", Degrees(tp=2, recompute="selective", sequence_parallel=False), {}),
    "replicas": ("llama3.1-8b", Degrees(zero=3, dp_replicate=2, micro_batch=2), {}),
    "unsharded": ("gpt2", Degrees(zero=0, schedule="gpipe", pp=2), {}),
    "experts": ("qwen3-30b-a3b", Degrees(tp=2, ep=4, etp=2, zero=1), {}),
    "what-if": ("llama3.1-8b", Degrees(tp=4, cp=2), {"overrides": SLOW_AND_ODD, "precision": "fp8-blockwise"}),
    "too large": ("llama3.1-70b", Degrees(tp=1), {"grad_dtype": "bf16", "optimizer": "adam-8bit"}),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_stated_plan_is_priced_the_same_again(name, tmp_path):
    model, degrees, options = PLANS[name]
    made = estimate(model, "dgx-h100:2", seq_len=4096, global_batch=64, degrees=degrees, options=PricingOptions(**options))
    again = estimate_plan(saved(tmp_path, made.to_dict()))
    assert_same(numbers(made.to_dict()), numbers(again.to_dict()))
    assert_same(made.to_dict()["violations"], again.to_dict()["violations"])
    assert again.exit_code == made.exit_code
    third = estimate_plan(again.to_dict())
    assert_same(numbers(made.to_dict()), numbers(third.to_dict()))


def test_a_saved_plan_can_be_asked_what_if(tmp_path):
    made = estimate("llama3.1-8b", "dgx-h100:2", seq_len=4096, global_batch=64, degrees=Degrees(zero=3))
    slow = PricingOptions(overrides=("cluster.internode_bytes_per_s=1e9",))
    changed = estimate_plan(saved(tmp_path, made.to_dict()), options=slow).to_dict()
    assert changed["predicted"]["step_time_s"] > 1.5 * made.to_dict()["predicted"]["step_time_s"]
    direct = estimate("llama3.1-8b", "dgx-h100:2", seq_len=4096, global_batch=64, degrees=Degrees(zero=3), options=slow)
    assert_same(numbers(direct.to_dict()), numbers(changed))


def test_ranks_a_file_does_not_have_are_refused(tmp_path):
    made = estimate("gpt2", "dgx-h100:1", seq_len=1024, global_batch=8)
    path = saved(tmp_path, made.to_dict())
    for rank in (0, 2):
        with pytest.raises(InvalidValueError, match="rank"):
            estimate_plan(path, rank=rank)


def test_damaged_inputs_are_refused(tmp_path):
    data = dict(estimate("gpt2", "dgx-h100:1", seq_len=1024, global_batch=8).to_dict())
    del data["inputs"]
    with pytest.raises(ShardwrightError):
        estimate_plan(saved(tmp_path, data))


@pytest.mark.parametrize("name", ["dense-7", "moe-16", "mtp-64"])
def test_a_problem_comes_back_from_its_inputs(name):
    problem = problems.problem_of(name)
    again = problem_from_inputs(json.loads(json.dumps(problem.to_inputs())))
    assert again.to_inputs() == problem.to_inputs()
    assert again.graph.digest == problem.graph.digest
    assert again.cluster == problem.cluster


@pytest.mark.parametrize("name", ["dense-8", "torch-8", "moe-16", "mtp-64"])
def test_degrees_are_read_back_from_a_record(name):
    problem, made = problems.problem_of(name), problems.scan_of(name)
    for row in problems.some_rows(made, 4, seed=23):
        degrees = problems.degrees_at(made, row)
        again = estimate_degrees(problem, degrees_of(estimate_degrees(problem, degrees)))
        first = estimate_degrees(problem, degrees)
        assert again["predicted"]["step_time_s"] == pytest.approx(first["predicted"]["step_time_s"], rel=1e-9)
        assert again["stages"] == first["stages"]


# --- defaults


def parallel(framework, model="llama3.1-8b", **fields):
    options = PricingOptions(framework=framework)
    made = estimate(model, "dgx-h100:2", seq_len=4096, global_batch=64, degrees=Degrees(**fields), options=options)
    return made.to_dict()["parallel"]


@pytest.mark.parametrize(
    ("framework", "fields", "zero", "etp"),
    [
        ("megatron", {"tp": 2}, 1, 2),
        ("deepspeed", {}, 1, 1),
        ("torchtitan", {"tp": 2}, 3, 1),
        ("pytorch", {"tp": 2}, 3, 1),
        ("any", {"tp": 2}, 3, 1),
        ("any", {"tp": 2, "pp": 2}, 1, 2),
    ],
)
def test_defaults_of_the_frameworks(framework, fields, zero, etp):
    got = parallel(framework, model="qwen3-30b-a3b", **fields)
    assert got["zero_stage"] == zero
    assert got["etp"] == etp
    assert got["sequence_parallel"] == (fields.get("tp", 1) > 1)
    assert got["schedule"] == "1f1b"
    assert got["recompute"]["mode"] == "none"
    assert got["micro_batch"] == got["cp"] == got["vpp"] == 1


def test_virtual_stages_choose_the_interleaved_schedule():
    assert parallel("any", pp=2, vpp=2)["schedule"] == "interleaved-1f1b"
    assert parallel("any")["dp_replicate"] == 1
    assert parallel("any", zero=0)["dp_shard"] == 1
    assert parallel("any", zero=0)["dp_replicate"] == 16


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
def test_schedules_that_fold_stages_have_two_chunks_a_rank(schedule):
    assert parallel("any", pp=2, schedule=schedule)["vpp"] == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"schedule": "interleaved-1f1b"},
        {"pp": 2, "vpp": 2, "schedule": "1f1b"},
        {"pp": 2, "vpp": 1, "schedule": "zb-v"},
        {"pp": 2, "vpp": 3, "schedule": "dualpipe-v"},
        {"pp": 2, "vpp": 2, "schedule": "zb-h1"},
    ],
)
def test_chunks_that_a_schedule_cannot_have_are_a_violation(fields):
    made = estimate("llama3.1-8b", "dgx-h100:2", seq_len=4096, global_batch=64, degrees=Degrees(**fields))
    assert made.exit_code == 1
    assert made.data["predicted"] is None
    assert "schedule-chunks" in {violation["rule"] for violation in made.data["violations"]}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"tp": 0}, InvalidValueError),
        ({"zero": 4}, InvalidValueError),
        ({"recompute": "some"}, UnknownNameError),
        ({"schedule": "zigzag"}, UnknownNameError),
        ({"recompute_layers": 3}, ConflictError),
        ({"recompute": "full", "recompute_layers": 0}, InvalidValueError),
        ({"pp": 2, "layers_per_stage": (16, 15)}, InvalidValueError),
        ({"pp": 2, "layers_per_stage": (16, 8, 8)}, InvalidValueError),
        ({"pp": 2, "layers_per_stage": (40, -8)}, InvalidValueError),
        ({"pp": 2, "vpp": 2, "layers_per_stage": (15, 17)}, InvalidValueError),
    ],
)
def test_values_no_plan_can_have_are_refused(fields, error):
    problem = build_problem("llama3.1-8b", "dgx-h100:2", seq_len=4096, global_batch=64)
    with pytest.raises(error, match=r".") as caught:
        estimate_degrees(problem, Degrees(**fields))
    assert caught.value.where
    assert caught.value.hint


def damaged_plan(change):
    model, cluster, seq_len, batch = problems.CASES["dense-8"]
    priced = estimate(model, cluster, seq_len=seq_len, global_batch=batch, degrees=Degrees(pp=2))
    data = json.loads(json.dumps(rounded(priced.to_dict())))
    change(data)
    return data


def test_a_plan_with_more_chunks_than_its_stages_list_is_refused_at_once():
    with pytest.raises(ShardwrightError, match="chunks"):
        estimate_plan(damaged_plan(lambda data: data["parallel"].update(vpp=10**11)))


@pytest.mark.parametrize("margin", [1e300, -1, 2**50, "1", True])
def test_a_memory_margin_of_a_file_keeps_the_limits_of_the_option(margin):
    with pytest.raises(ShardwrightError, match="memory_margin_bytes"):
        estimate_plan(damaged_plan(lambda data: data["inputs"]["search"].update(memory_margin_bytes=margin)))


@pytest.mark.parametrize("error", ["small", [[]], {}])
def test_sources_of_a_file_are_of_their_type(error):
    with pytest.raises(InvalidValueError, match="valid number"):
        estimate_plan(damaged_plan(lambda data: data["sources"]["gemm"].update(median_error=error)))
