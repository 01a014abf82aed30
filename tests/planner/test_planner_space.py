"""The counted space against a walk that knows no shortcuts."""

import dataclasses
import itertools
import math

import numpy as np
import planner_problems as problems
import pytest

from shardwright.errors import ConflictError, InvalidValueError, UnknownNameError
from shardwright.planner.cost.stages import even_chunks
from shardwright.planner.plans import RECOMPUTE_MODES, RECOMPUTED_SHARE
from shardwright.planner.rules.base import facts_of
from shardwright.planner.rules.registry import AXIS_ORDER, RULES, rules_for
from shardwright.planner.search.space import Space, declare, enumerate_legal, fixed_value

NAMES = tuple(problems.CASES)


def derived(candidate, facts):
    """What follows from the free axes, as the definitions say it (whole-number division where it is not exact)."""
    tp, cp, pp = (candidate[name] for name in ("tp", "cp", "pp"))
    dp = max(facts.gpus // (tp * cp * pp), 1)
    edp = tp * cp * dp // (candidate["ep"] * candidate["etp"])
    return {"dp": dp, "edp": edp, "micro_batches": max(facts.global_batch // (dp * candidate["micro_batch"]), 1)}


def first_broken(candidate, facts, rules):
    """The first rule in order that one candidate breaks, or None."""
    columns = {name: np.array([value]) for name, value in (candidate | derived(candidate, facts)).items()}
    return next((rule.id for rule in rules if bool(rule.broken(columns, facts)[0])), None)


def walked(problem, space):
    """Legal candidates in the order of the space and counts of the others, one candidate at a time."""
    facts, rules = facts_of(problem), rules_for(problem.framework)
    legal, rejected = [], {}
    for values in itertools.product(*space.axes.values()):
        broken = first_broken(dict(zip(space.axes, values, strict=True)), facts, rules)
        if broken is None:
            legal.append(values)
        else:
            rejected[broken] = rejected.get(broken, 0) + 1
    return legal, rejected


def thinned(space, limit, seed):
    """A smaller product: values are left out at random, from the longest axis first."""
    random = np.random.default_rng(seed)
    axes = {axis: list(values) for axis, values in space.axes.items()}
    while math.prod(len(v) for v in axes.values()) > limit:
        longest = max(axes, key=lambda a: len(axes[a]))
        axes[longest].pop(int(random.integers(1, len(axes[longest]))))
    return Space(axes={axis: tuple(values) for axis, values in axes.items()})


def tuples(legal):
    return list(zip(*(legal.columns[axis].tolist() for axis in AXIS_ORDER), strict=True))


@pytest.mark.parametrize("framework", ["any", "megatron", "torchtitan", "deepspeed"])
@pytest.mark.parametrize("name", ["dense-7", "dense-8-odd", "moe-96", "dense-1000"])
def test_legal_candidates_and_counts_are_those_of_a_walk(name, framework):
    problem = problems.problem_of(name, framework)
    space = thinned(problems.space_of(name, framework), 1500, seed=NAMES.index(name))
    legal = enumerate_legal(problem, space)
    expected, rejected = walked(problem, space)
    assert tuples(legal) == expected
    assert {rule: count for rule, count in legal.rejected.items() if count} == rejected


@pytest.mark.parametrize("name", NAMES)
def test_random_points_of_the_whole_space_are_legal_or_not_as_the_rules_say(name):
    problem, space = problems.problem_of(name), problems.space_of(name)
    facts, rules = facts_of(problem), rules_for("any")
    known = set(tuples(problems.legal_of(name)))
    random = np.random.default_rng(3)
    for _ in range(150):
        candidate = {axis: int(random.choice(values)) for axis, values in space.axes.items()}
        assert (first_broken(candidate, facts, rules) is None) == (tuple(candidate.values()) in known)
    for values in list(known)[:50]:
        assert first_broken(dict(zip(AXIS_ORDER, values, strict=True)), facts, rules) is None


@pytest.mark.parametrize("name", NAMES)
def test_candidates_are_rejected_once_or_legal(name):
    space, legal = problems.space_of(name), problems.legal_of(name)
    assert space.candidates == math.prod(len(v) for v in space.to_dict().values())
    assert space.candidates == sum(legal.rejected.values()) + len(legal)
    assert len(legal) > 0


@pytest.mark.parametrize("name", NAMES)
def test_rejections_come_in_the_order_of_the_rules(name):
    order = list(dict.fromkeys(rule.id for rule in RULES))
    ids = list(problems.legal_of(name).rejected)
    assert ids == [rule for rule in order if rule in ids]
    assert {"world-size", "attention-heads", "batch-dp", "no-effect"} <= set(ids)


@pytest.mark.parametrize("name", NAMES)
def test_legal_candidates_multiply_up(name):
    problem, c = problems.problem_of(name), problems.legal_of(name).columns
    spec = problem.graph.spec
    assert (c["tp"] * c["cp"] * c["pp"] * c["dp"] == problem.cluster.gpus).all()
    assert (c["etp"] * c["ep"] * c["pp"] * c["edp"] == problem.cluster.gpus).all()
    assert (c["dp"] * c["micro_batch"] * c["micro_batches"] == problem.job.global_batch).all()
    assert (c["dp"] % c["dp_replicate"] == 0).all()
    assert (spec.heads % c["tp"] == 0).all()
    assert ((spec.moe.experts if spec.moe else 1) % c["ep"] == 0).all()
    assert (c["pp"] * c["vpp"] <= problem.graph.layers + 2).all()


@pytest.mark.parametrize("name", ["dense-7", "dense-8-odd", "dense-8", "moe-16", "dense-1000"])
def test_no_plan_is_listed_twice(name):
    made, layers = problems.legal_of(name).columns, problems.problem_of(name).graph.layers
    splits = {key: even_chunks(layers, *key) for key in set(zip(made["pp"], made["vpp"], made["split"], strict=True))}
    share, modes = np.array(RECOMPUTED_SHARE)[made["recompute"]], np.minimum(made["recompute"], len(RECOMPUTE_MODES))
    covered = np.ceil(share * -(-layers // made["pp"]))
    modes = np.where(modes == len(RECOMPUTE_MODES), RECOMPUTE_MODES.index("full"), modes)
    others = ("tp", "cp", "ep", "etp", "sp", "zero", "dp_replicate", "micro_batch", "schedule")
    chunks = [splits[key] for key in zip(made["pp"], made["vpp"], made["split"], strict=True)]
    plans = list(zip(*(made[axis] for axis in others), made["pp"], made["vpp"], modes, covered, chunks, strict=True))
    assert len(plans) == len(set(plans))


@pytest.mark.parametrize("fix", [{"tp": "2"}, {"pp": "4", "schedule": "gpipe"}, {"zero": "3", "recompute": "full"}])
def test_a_fixed_axis_keeps_exactly_the_candidates_that_have_it(fix):
    whole, problem = problems.space_of("torch-8"), problems.problem_of("torch-8")
    held = dict(fixed_value(name, text) for name, text in fix.items())
    narrow = enumerate_legal(problem, Space(axes={**whole.axes, **{axis: (value,) for axis, value in held.items()}}))
    places = [AXIS_ORDER.index(axis) for axis in held]
    wanted = [t for t in tuples(problems.legal_of("torch-8")) if [t[p] for p in places] == list(held.values())]
    assert tuples(narrow) == wanted
    assert 0 < len(wanted) < len(problems.legal_of("torch-8"))
    declared = declare(problem, fix)
    assert {axis: declared.axes[axis] for axis in held} == {axis: (value,) for axis, value in held.items()}


def test_words_and_aliases_of_fix():
    assert fixed_value("sequence_parallel", "on") == fixed_value("sp", "1") == ("sp", 1)
    assert fixed_value("zero_stage", "3") == ("zero", 3)
    assert fixed_value("mbs", "2") == ("micro_batch", 2)
    assert fixed_value("schedule", "1f1b")[0] == "schedule"


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("tpp", "2", UnknownNameError),
        ("dp", "2", ConflictError),
        ("tp", "two", InvalidValueError),
        ("tp", "0", InvalidValueError),
        ("zero", "4", InvalidValueError),
        ("tp", "123456789", InvalidValueError),
        ("schedule", "zigzag", UnknownNameError),
    ],
)
def test_fixing_nonsense_is_refused(name, text, error):
    with pytest.raises(error, match=r".") as caught:
        fixed_value(name, text)
    assert caught.value.hint


def test_free_axes_grow_with_the_problem_not_beyond_its_bounds():
    space = problems.space_of("dense-8-odd").axes
    assert set(space["micro_batch"]) <= {1, 3, 5, 15}
    assert max(space["pp"]) <= problems.problem_of("dense-8-odd").cluster.gpus
    assert space["ep"] == space["etp"] == (1,)
    assert max(problems.space_of("moe-96").axes["ep"]) > 1


def test_a_truncated_cluster_has_its_own_space():
    problem = problems.problem_of("dense-8")
    smaller = dataclasses.replace(problem, cluster=problem.cluster.truncated(6))
    assert set(declare(smaller, {}).axes["tp"]) <= {1, 2, 3, 6}
    assert (enumerate_legal(smaller, declare(smaller, {})).columns["dp"] <= 6).all()
