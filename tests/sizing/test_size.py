"""Answers of `size` against planning every size; bounds against what they exclude; the run by hand; prices; lost nodes."""

from dataclasses import replace
from functools import cache

import jsonschema
import pytest

from shardwright.documents import rounded
from shardwright.errors import ConflictError, InvalidValueError
from shardwright.planner.problem import PricingOptions
from shardwright.planner.schema import json_schema
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan_cluster
from shardwright.planner.sizing.outcome import least_outcome, outcome_of
from shardwright.planner.sizing.request import SizeRequest, auto_counts
from shardwright.planner.sizing.run import evaluated, excluded, size
from shardwright.planner.sizing.target import Target, parse_tokens

TOKENS = 2 * 10**10
TYPES = ("dgx-a100-80g", "dgx-h100")
COUNTS = (1, 2, 3, 4, 5, 6, 7)
QUICK = SearchOptions(effort="scan", top=1, remedies=False)


def request(target, **changes):
    asked = {"model": "llama3.1-8b", "seq_len": 4096, "global_batch": 96, "node_types": TYPES, "counts": COUNTS}
    return SizeRequest(**asked | {"target": target, "search": QUICK} | changes).loaded()


@cache
def every_run(tokens=TOKENS):
    """Every size of every type planned and run, without a bound: (node, nodes) → outcome."""
    asked = request(Target(tokens=tokens, days=1e6))
    made = {}
    for node in TYPES:
        for nodes in COUNTS:
            problem = asked.problem(node, nodes)
            try:
                plans = plan_cluster(problem, QUICK).plans
            except ConflictError:
                continue
            if plans:
                made[node, nodes] = outcome_of(problem, plans[0]["predicted"]["step_time_s"], tokens)
    return made


def target(kind, share):
    """A target that some sizes meet: between the least and the greatest of all runs."""
    runs = list(every_run().values())
    attribute, keyword = {
        "days": ("days", "days"),
        "budget": ("usd", "budget_usd"),
        "rate": ("tokens_per_s", "tokens_per_s"),
    }[kind]
    values = sorted(getattr(run, attribute) for run in runs)
    return Target(tokens=TOKENS, **{keyword: values[int(share * (len(values) - 1))]})


@cache
def answered(kind, share):
    return size(request(target(kind, share))).data


# --- answers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "share"), [("days", 0.1), ("days", 0.5), ("days", 0.9), ("budget", 0.3), ("rate", 0.6)])
def test_answers_are_those_of_planning_every_size(kind, share):
    aim = target(kind, share)
    meeting = {key: run for key, run in every_run().items() if aim.excess(run) <= 1}
    best = {
        "smallest": min(meeting, key=lambda key: (8 * key[1], meeting[key].usd)),
        "cheapest": min(meeting, key=lambda key: (meeting[key].usd, 8 * key[1])),
        "fastest": min(meeting, key=lambda key: (meeting[key].days, 8 * key[1])),
    }
    data = answered(kind, share)
    assert [answer["criterion"] for answer in data["answers"]] == list(best)
    for answer in data["answers"]:
        key = best[answer["criterion"]]
        assert answer["cluster"]["name"] == f"{key[0]}:{key[1]}"
        assert answer["days"] == meeting[key].days
        assert answer["usd"] == meeting[key].usd


def test_time_is_not_monotone_in_nodes_and_the_smallest_is_found_all_the_same():
    runs = {nodes: run.days for (node, nodes), run in every_run().items() if node == "dgx-h100"}
    rises = [(one, other) for one in runs for other in runs if other > one and runs[other] > runs[one]]
    assert rises, "a larger size that takes longer is what this test is about"
    one, other = rises[0]
    aim = Target(tokens=TOKENS, days=(runs[one] + runs[other]) / 2)
    data = size(request(aim, node_types=("dgx-h100",))).data
    status = {row["nodes"]: row["status"] for row in data["sizes"]}
    assert status[other] in {"misses", "beaten"}
    assert data["answers"][0]["cluster"]["nodes"] == min(nodes for nodes, days in runs.items() if days <= aim.days) <= one


@pytest.mark.parametrize(("kind", "share"), [("days", 0.1), ("budget", 0.3), ("rate", 0.6)])
def test_what_a_bound_excludes_would_have_missed(kind, share):
    aim = target(kind, share)
    asked = request(aim)
    for (node, nodes), run in every_run().items():
        problem = asked.problem(node, nodes)
        least = least_outcome(problem, TOKENS)
        assert least.days <= run.days_low
        assert least.usd <= run.usd_low
        assert least.tokens_per_s >= run.tokens_per_s
        if excluded(problem, least, aim) is not None:
            assert aim.excess(run) > 1


def test_what_is_excluded_at_a_size_is_excluded_at_every_smaller_one():
    aim = target("days", 0.1)
    asked = request(aim)
    for node in TYPES:
        out = [excluded(p, least_outcome(p, TOKENS), aim) is not None for p in (asked.problem(node, n) for n in COUNTS)]
        assert out == sorted(out, reverse=True)


def test_no_plan_is_made_for_sizes_that_are_excluded(monkeypatch):
    from shardwright.planner.sizing import run as module

    planned = []
    real = module.plan_cluster
    monkeypatch.setattr(
        module, "plan_cluster", lambda problem, *more: planned.append(problem.cluster.name) or real(problem, *more)
    )
    rows = evaluated(request(target("days", 0.1)))
    assert {one.problem.cluster.name for one in rows if one.status == "excluded"}.isdisjoint(planned)
    assert any(one.status == "excluded" for one in rows)


# --- the run ------------------------------------------------------------------------------------------


def test_the_run_by_hand():
    for answer in answered("days", 0.5)["answers"]:
        gpus, price = answer["cluster"]["gpus"], answer["cluster"]["usd_per_gpu_hour"]
        steps = -(-TOKENS // (4096 * 96))
        hours = steps * answer["step_time_s"] / answer["goodput_fraction"] / 3600
        assert answer["steps"] == steps
        assert answer["days"] == pytest.approx(hours / 24)
        assert answer["usd"] == pytest.approx(hours * gpus * price)
        assert answer["interruptions"] == pytest.approx(hours * gpus * 205 / (1_600 * 2_920))  # the median of published rates
        assert answer["tokens_per_s"] == pytest.approx(4096 * 96 / answer["step_time_s"] * answer["goodput_fraction"])
        assert answer["checkpoint_bytes_per_rank"] == pytest.approx(8_030_261_248 * 14 / gpus)
        assert answer["days_low"] < answer["days"] < answer["days_high"]
        assert answer["plan"]["predicted"]["step_time_s"] == answer["step_time_s"]


def test_lost_nodes_are_planned_again():
    for answer in answered("days", 0.5)["answers"]:
        spare, node = answer["spare"], answer["cluster"]["node"]
        assert spare["lost"] == 1
        assert spare["nodes"] == answer["cluster"]["nodes"] - 1
        assert spare["nodes_used"] <= spare["nodes"]
        assert spare["plan"]["parallel"]["world_size"] == 8 * spare["nodes_used"]
        assert spare["days"] == every_run()[node, spare["nodes_used"]].days
        exact = every_run().get((node, spare["nodes"]))
        assert exact is None or spare["days"] <= exact.days


def test_of_one_node_none_is_left():
    data = size(request(Target(tokens=TOKENS, days=1e4), counts=(1,), node_types=("dgx-h100",), spare=1)).data
    assert data["answers"][0]["spare"]["plan"] is None
    assert data["answers"][0]["spare"]["reason"] == "no node is left"


def test_the_record_keeps_its_schema():
    for data in (answered("days", 0.5), answered("budget", 0.3)):
        jsonschema.validate(rounded(dict(data)), json_schema("size-result"))


# --- prices -------------------------------------------------------------------------------------------


def test_a_stated_price_changes_the_cheapest_and_never_lowers_its_cost():
    aim = target("days", 0.9)
    usual = size(request(aim, counts=(2, 4), spare=0)).data["answers"][1]
    prices = []
    for usd in (0.2, 1.3, 2.6):
        options = PricingOptions(prices=(f"dgx-a100-80g={usd}",))
        prices.append(size(request(aim, options=options, counts=(2, 4), spare=0)).data["answers"][1])
    assert prices[0]["cluster"]["node"] == "dgx-a100-80g" != usual["cluster"]["node"]
    assert [answer["usd"] for answer in prices] == sorted(answer["usd"] for answer in prices)
    assert prices[1]["usd"] == usual["usd"]


def test_a_node_without_price_is_refused_by_name():
    with pytest.raises(InvalidValueError) as caught:
        size(request(Target(tokens=TOKENS, days=5), node_types=("dgx-h100", "dgx-b200")))
    assert "dgx-b200" in caught.value.message
    assert "--price dgx-b200=" in caught.value.hint


# --- nothing meets it ---------------------------------------------------------------------------------


def test_where_nothing_meets_the_target_the_nearest_is_named():
    aim = Target(tokens=TOKENS, days=min(run.days for run in every_run().values()) * 0.99)
    result = size(request(aim))
    assert result.exit_code == 1
    assert result.data["answers"] == []
    assert result.data["nearest"]["days"] == min(run.days for run in every_run().values())
    assert 1 < result.data["nearest"]["excess"] < 1.02
    jsonschema.validate(rounded(result.to_dict()), json_schema("size-result"))


def test_where_nothing_fits_nothing_is_near():
    result = size(request(Target(tokens=TOKENS, days=1e5), model="llama3.1-405b", counts=(1, 2), node_types=("dgx-h100",)))
    assert result.exit_code == 1
    assert result.data["nearest"] is None
    assert {row["status"] for row in result.data["sizes"]} == {"excluded"}


# --- what is asked ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tokens"), [("15T", 15 * 10**12), ("300b", 3 * 10**11), ("1.5e12", 15 * 10**11), ("2.5M", 2_500_000), ("7", 7)]
)
def test_tokens_as_people_write_them(text, tokens):
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize("text", ["", "many", "-3", "nan", "1 000", "3Q"])
def test_what_is_no_number_of_tokens(text):
    with pytest.raises(InvalidValueError, match="no number of tokens"):
        parse_tokens(text)


def test_more_tokens_than_anybody_has_are_refused():
    with pytest.raises(InvalidValueError, match="tokens"):
        Target(tokens=parse_tokens("1.5e12T"), days=1)


def test_a_target_is_one_limit():
    with pytest.raises(InvalidValueError, match="no target"):
        Target(tokens=1)
    with pytest.raises(ConflictError, match="--days and --budget"):
        Target(tokens=1, days=1, budget_usd=1)
    with pytest.raises(InvalidValueError):
        Target(tokens=1, days=0)


def test_sizes_without_a_list():
    from shardwright.hardware.catalog import load_node

    counts = auto_counts(load_node("dgx-h100"))
    assert counts[:6] == (1, 2, 3, 4, 6, 8)
    assert counts[-1] == 512
    with pytest.raises(InvalidValueError):
        replace(request(Target(tokens=1, days=1)), spare=-1)
