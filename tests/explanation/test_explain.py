"""What `explain` says adds up, is priced by the same function as everything else, and holds when it is checked again."""

from __future__ import annotations

import copy
import json
import math

import jsonschema
import pytest

import shardwright
from shardwright.documents import rounded
from shardwright.errors import ConflictError, DamagedFileError, InvalidValueError, UnknownNameError
from shardwright.planner.estimation import estimate_degrees, estimate_plan
from shardwright.planner.explanation.explain import explain
from shardwright.planner.explanation.knobs import change_text, degrees_at, point_of, turned
from shardwright.planner.explanation.roofline import loads
from shardwright.planner.explanation.saved import priced, read_saved
from shardwright.planner.explanation.switching import LIMIT, NEAR
from shardwright.planner.plan_records import degrees_of
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, problem_from_inputs
from shardwright.planner.schema import json_schema

RESULTS = ("dense", "routed", "one_plan")


def plain(record):
    """A record as it is read back from JSON."""
    return json.loads(json.dumps(rounded(record)))


@pytest.fixture(params=RESULTS)
def source(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def explained(dense, routed, one_plan):
    return {name: explain(data).to_dict() for name, data in (("dense", dense), ("routed", routed), ("one_plan", one_plan))}


@pytest.mark.parametrize("name", RESULTS)
def test_the_record_keeps_its_schema(explained, name):
    jsonschema.validate(explained[name], json_schema("explanation"))


@pytest.mark.parametrize("name", RESULTS)
def test_the_waterfall_is_the_step(explained, name):
    data = explained[name]
    assert sum(part["time_s"] for part in data["waterfall"]) == pytest.approx(data["predicted"]["step_time_s"], rel=1e-9)
    assert sum(part["share"] for part in data["waterfall"]) == pytest.approx(1)
    assert all(part["figures"] for part in data["waterfall"] if part["time_s"] > 0)


@pytest.mark.parametrize("name", RESULTS)
def test_memory_is_that_of_the_peak(explained, name):
    memory = explained[name]["memory"]
    assert sum(part["bytes"] for part in memory["parts"]) == memory["total_bytes"]
    assert memory["free_bytes"] == memory["capacity_bytes"] - memory["total_bytes"]


def test_all_operators_sum_to_computing(source):
    saved = read_saved(source)
    total = sum(load.runs * load.time_s for load in loads(priced(saved.problem, [saved.degrees]), 0))
    assert total == pytest.approx(saved.estimate["time"]["compute_s"], rel=1e-9)


def test_flops_of_operators_are_those_of_the_model(one_plan):
    saved = read_saved(one_plan)
    found = loads(priced(saved.problem, [saved.degrees]), 0)
    job, parallel = saved.problem.job, saved.estimate["parallel"]
    products = sum(load.runs * load.flops for load in found if load.flops is not None and load.name != "attention")
    attention = sum(load.runs * load.flops for load in found if load.name == "attention")
    model = job.flops_per_step("causal") / parallel["world_size"]
    # the fused backward pass runs 2.5 times the forward products, of which the model counts 2
    assert products + attention * 3 / 3.5 == pytest.approx(model, rel=0.01)


@pytest.mark.parametrize("name", RESULTS)
def test_no_operator_beats_its_ceiling(explained, name):
    for row in explained[name]["roofline"]:
        assert 0 < row["attained_fraction"] <= 1
        assert row["achieved_per_s"] == pytest.approx(row["ceiling_per_s"] * row["attained_fraction"])


@pytest.mark.parametrize("name", ["dense", "routed"])
def test_links_are_those_of_the_collectives(explained, request, name):
    plan = request.getfixturevalue(name)["plans"][0]
    for row in explained[name]["links"]:
        own = [c for c in plan["communication"] if c["axis"] == row["axis"] and c["bottleneck_link"] == row["link"]]
        assert row["time_s"] == pytest.approx(sum(c["time_s"] for c in own))
        others = [c for c in plan["communication"] if c["axis"] == row["axis"] and c["bottleneck_link"] != row["link"]]
        assert row["time_s"] >= max((c["time_s"] for c in others), default=0)
    assert {row["axis"] for row in explained[name]["links"]} == {c["axis"] for c in plan["communication"]}


@pytest.mark.parametrize("name", RESULTS)
def test_the_binding_constraint_is_the_greatest(explained, name):
    data = explained[name]
    shares = [one["share"] for one in data["constraints"][:-1]]
    assert data["binding"] == data["constraints"][0]
    assert shares == sorted(shares, reverse=True)
    assert data["constraints"][-1]["constraint"] == "compute"


def test_recomputing_binds_as_memory():
    options = PricingOptions(framework="megatron")
    degrees = shardwright.Degrees(tp=8, pp=4, recompute="full")
    made = shardwright.estimate("llama3.1-70b", "dgx-h100:4", seq_len=8192, global_batch=128, degrees=degrees, options=options)
    found = explain(made.to_dict()).to_dict()["constraints"]
    memory = next(one for one in found if one["constraint"] == "memory")
    assert memory["share"] >= made.data["time"]["recompute_s"] / made.data["predicted"]["step_time_s"]


# --- changes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RESULTS)
def test_changes_turn_one_or_two_knobs_and_are_sorted(explained, name):
    data = explained[name]
    found = data["changes"]
    fitting = [change["step_time_s"] for change in found if change["fits"]]
    assert fitting == sorted(fitting)
    for change in found:
        assert 1 <= len(change["turned"]) <= 2
        assert change["delta_s"] == pytest.approx(change["step_time_s"] - data["predicted"]["step_time_s"])
        assert change["fits"] == (change["shortage_bytes"] == 0)
        if not change["fits"]:
            assert change["delta_s"] < 0


def test_a_change_is_priced_as_estimate_prices_it(dense, explained):
    saved = read_saved(dense)
    base = point_of(saved.estimate)
    change = next(c for c in explained["dense"]["changes"] if c["turned"] == ["split"] or c["turned"] == ["vpp"])
    words = dict(zip(change["turned"], [part.split(" ")[1] for part in change["change"].split(", ")], strict=True))
    kinds = ("even", "embedding-counted", "head-counted", "both-counted")
    point = base | {k: kinds.index(v) if k == "split" else int(v) for k, v in words.items()}
    record = estimate_degrees(saved.problem, degrees_at(saved.problem, point))
    assert record["predicted"]["step_time_s"] == pytest.approx(change["step_time_s"], rel=1e-9)
    assert record["memory"]["peak_bytes"] == change["peak_bytes"]


def test_points_lead_back_to_the_plan(dense, routed):
    for result in (dense, routed):
        problem = problem_from_inputs(result["inputs"])
        for plan in result["plans"]:
            again = estimate_degrees(problem, degrees_at(problem, point_of(plan)))
            assert again["parallel"] == plan["parallel"]
            assert again["predicted"]["step_time_s"] == pytest.approx(plan["predicted"]["step_time_s"], rel=1e-9)
            assert turned(point_of(plan), point_of(again)) == ()


def test_what_follows_is_no_knob(dense):
    base = point_of(dense["plans"][0]) | {"pp": 4, "vpp": 1, "schedule": 0, "split": 0, "tp": 2, "sp": 1}
    assert turned(base, base | {"vpp": 2, "schedule": 1}) == ("vpp",)
    assert turned(base, base | {"tp": 1, "sp": 0}) == ("tp",)
    assert turned(base, base | {"sp": 0}) == ("sp",)
    assert turned(base, base | {"pp": 1}) == ("pp",)
    assert change_text(base, base | {"tp": 4, "micro_batch": 2 * base["micro_batch"]}).startswith(
        "tp 4 instead of 2, micro-batch"
    )


# --- inputs ------------------------------------------------------------------------------------------


def _steps(result, key, value):
    """Step times of a ranking's plans under `--set`, infinite where they do not fit."""
    text = f"{key}={round(value)}" if key.endswith("memory_bytes") else f"{key}={value!r}"
    options = PricingOptions(overrides=(text,))
    made = [estimate_plan(result, rank=plan["rank"], options=options).data for plan in result["plans"]]
    return [one["predicted"]["step_time_s"] if one["feasible"] else math.inf for one in made]


@pytest.mark.parametrize("name", ["dense", "routed"])
def test_switching_points_hold_when_priced_again(explained, request, name):
    result, found = request.getfixturevalue(name), explained[name]
    tie = 1 + found["winner"]["tie_percent"] / 100
    switches = [row for row in found["inputs"] if row["switch"]]
    assert switches
    for row in switches:
        switch = row["switch"]
        assert 1 / LIMIT * 0.999 <= switch["value"] / row["value"] <= LIMIT * 1.001
        beyond = _steps(result, row["key"], switch["value"])
        assert beyond[0] > min(beyond[1:]) * tie
        assert min(beyond[1:]) == pytest.approx(switch["step_time_s"], rel=1e-9)
        assert result["plans"][switch["rank"] - 1]["id"] == switch["id"]
        nearer = switch["value"] * (row["value"] / switch["value"]) ** min(
            1.0, 1.05 * NEAR / abs(math.log(row["value"] / switch["value"]))
        )
        before = _steps(result, row["key"], nearer)
        assert before[0] <= min(before[1:]) * tie


def test_elasticity_is_the_slope(dense, explained):
    row = next(r for r in explained["dense"]["inputs"] if r["key"].startswith("cluster.peak_flops"))
    slope = math.log(
        _steps(dense, row["key"], 1.1 * row["value"])[0] / dense["plans"][0]["predicted"]["step_time_s"]
    ) / math.log(1.1)
    assert row["elasticity"] == pytest.approx(slope, rel=1e-6)
    assert -1 <= row["elasticity"] < 0


def test_a_plan_alone_has_no_winner(explained):
    assert explained["one_plan"]["winner"] is None
    assert explained["one_plan"]["rank"] is None
    assert all(row["switch"] is None for row in explained["one_plan"]["inputs"])
    assert all(row["elasticity"] is not None for row in explained["one_plan"]["inputs"])


# --- why not -----------------------------------------------------------------------------------------


def test_another_plan_is_priced_and_compared(dense):
    found = explain(dense, rank=2, why_not="tp=8,pp=2,vpp=1").to_dict()["why_not"]
    assert found["asked"] == {"tp": "8", "pp": "2", "vpp": "1"}
    assert found["legal"]
    compared, parallel = found["comparison"], found["parallel"]
    assert (parallel["tp"], parallel["pp"], parallel["vpp"], parallel["schedule"]) == (8, 2, 1, "1f1b")
    assert sum(p["delta_s"] for p in compared["parts"]) == pytest.approx(compared["step"]["delta_s"], abs=1e-9)
    assert compared["step"]["a_s"] == dense["plans"][1]["predicted"]["step_time_s"]
    assert found["best"]["plan"]["tp"] == "8"
    if found["feasible"]:
        assert found["best"]["step_time_s"] <= compared["step"]["b_s"] * (1 + 1e-9)


def test_the_best_plan_with_them_is_that_of_a_search(dense):
    found = explain(dense, why_not=["tp=8", "pp=2"]).to_dict()["why_not"]["best"]
    search = shardwright.SearchOptions(fix={"tp": "8", "pp": "2"})
    options = PricingOptions(framework="megatron")
    made = shardwright.plan("llama3.1-70b", "dgx-h100:8", seq_len=4096, global_batch=256, options=options, search=search)
    assert found["step_time_s"] == pytest.approx(made.data["search"]["best_step_time_s"], rel=1e-9)


def _estimated(**degrees):
    made = Degrees(tp=4, pp=2, recompute="full", **degrees)
    options = PricingOptions(framework="megatron")
    priced = shardwright.estimate("llama3.1-8b", "dgx-h100:1", seq_len=4096, global_batch=32, degrees=made, options=options)
    return plain(priced.to_dict())


def test_stages_of_a_plan_stay_while_its_pipeline_does():
    source = _estimated(layers_per_stage=(18, 14), recompute_layers=5)
    turned = explain(source, why_not="micro_batch=2").to_dict()["why_not"]
    assert turned["followed"] == {}
    alone = _estimated(layers_per_stage=(18, 14), recompute_layers=5, micro_batch=2)
    assert turned["comparison"]["step"]["b_s"] == pytest.approx(alone["predicted"]["step_time_s"], rel=1e-9)
    assert turned["parallel"]["recompute"] == alone["parallel"]["recompute"]
    assert "split" in explain(source, why_not="pp=1").to_dict()["why_not"]["followed"]


def test_the_best_plan_may_have_what_the_explained_one_keeps_on_hosts():
    degrees = Degrees(tp=8, offload="optimizer")
    options = PricingOptions(framework="megatron")
    source = shardwright.estimate("llama3.1-70b", "dgx-h100:1", seq_len=4096, global_batch=8, degrees=degrees, options=options)
    best = explain(plain(source.to_dict()), why_not="micro_batch=2").to_dict()["why_not"]["best"]
    assert best["plan"]["offload"] == "optimizer"
    assert explain(plain(source.to_dict()), why_not="offload=none").to_dict()["why_not"]["best"] is None


def test_a_broken_rule_is_named_with_its_remedy(dense):
    made = explain(dense, why_not="tp=3")
    found = made.to_dict()["why_not"]
    assert made.exit_code == 1
    assert not found["legal"]
    assert found["comparison"] is None
    assert {"attention-heads", "world-size"} <= {v["rule"] for v in found["violations"]}
    assert all(v["remedy"] for v in found["violations"])
    jsonschema.validate(made.to_dict(), json_schema("explanation"))


def test_what_does_not_fit_is_priced_and_says_so(dense):
    made = explain(dense, why_not="tp=1,pp=1,cp=1,recompute=none,micro_batch=4")
    found = made.to_dict()["why_not"]
    assert made.exit_code == 1
    assert found["legal"] or found["comparison"]
    assert "memory" in {v["rule"] for v in found["violations"]}


def test_the_plan_itself_is_told_so(dense):
    tp = dense["plans"][0]["parallel"]["tp"]
    found = explain(dense, why_not=f"tp={tp}").to_dict()["why_not"]
    assert found["same"]
    assert found["comparison"]["step"]["delta_s"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("tq=8", UnknownNameError, "unknown axis"),
        ("tp", InvalidValueError, "KEY=VALUE"),
        ("tp=", InvalidValueError, "KEY=VALUE"),
        ("tp=-1", InvalidValueError, "tp=-1"),
        ("tp=0", InvalidValueError, "tp=0"),
        ("zero=4", InvalidValueError, "zero=4"),
        ("schedule=1b1f", UnknownNameError, "1b1f"),
        ("dp=4", ConflictError, "follows"),
        ("tp=2,tp=4", ConflictError, "two values"),
    ],
)
def test_what_cannot_be_asked_is_refused(dense, text, error, said):
    with pytest.raises(error, match=said) as refused:
        explain(dense, why_not=text)
    assert refused.value.where.startswith("--why-not")


@pytest.mark.parametrize(
    "degrees", ["vpp=3", "zero=3", "schedule=zb-v", "ep=2", "etp=2", "cp=3,tp=5", "pp=80", "micro_batch=7"]
)
def test_any_legal_or_illegal_degree_gives_an_answer(dense, degrees):
    found = explain(dense, why_not=degrees).to_dict()
    jsonschema.validate(found, json_schema("explanation"))
    assert found["why_not"]["comparison"] or found["why_not"]["violations"]


# --- files -------------------------------------------------------------------------------------------


def test_the_plan_of_a_rank_is_explained(dense):
    found = explain(dense, rank=3).to_dict()
    assert found["rank"] == 3
    assert found["id"] == dense["plans"][2]["id"]
    assert found["predicted"]["step_time_s"] == dense["plans"][2]["predicted"]["step_time_s"]


def test_same_input_same_answer(dense):
    assert explain(dense, rank=2, why_not="tp=8").to_dict() == explain(copy.deepcopy(dense), rank=2, why_not="tp=8").to_dict()


def test_damaged_results_are_refused(dense):
    with pytest.raises(InvalidValueError, match="no rank 99"):
        explain(dense, rank=99)
    for key in ("inputs", "plans"):
        with pytest.raises((DamagedFileError, InvalidValueError)):
            explain({name: value for name, value in dense.items() if name != key})


def test_a_plan_that_breaks_rules_is_still_explained(dense):
    problem = problem_from_inputs(dense["inputs"])
    plan = copy.deepcopy(dense["plans"][0])
    record = estimate_degrees(problem, degrees_of(plan))
    small = copy.deepcopy(dense)
    for group in small["inputs"]["cluster"]["groups"]:
        group["node"]["device"]["memory_bytes"] = record["memory"]["peak_bytes"] // 2
    found = explain(small).to_dict()
    assert not found["feasible"]
    assert found["binding"]["constraint"] == "memory"
    assert found["memory"]["free_bytes"] < 0


def test_a_plan_none_of_whose_neighbours_comes_near_is_explained():
    degrees, options = shardwright.Degrees(tp=2), PricingOptions(memory_margin_gib=1024)
    price = shardwright.estimate("gpt2", "dgx-h100:1", seq_len=1024, global_batch=64, degrees=degrees, options=options)
    data = explain(rounded(price.to_dict())).to_dict()
    assert data["binding"]["constraint"] == "memory"
    assert data["changes"] == []
