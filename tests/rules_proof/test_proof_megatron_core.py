"""Our verdict on a configuration is megatron-core's, and for the same reason, one step around legal configurations."""

import comparing
import pytest
from agreements import CORE_LAX, CORE_REASONS, NOT_IN_CORE
from bases import bases
from focused import focused_steps
from ours import refusing
from steps import steps

from shardwright.planner.rules.registry import rules_of_a_plan

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

VERSION = "0.16"
LEAST_CONFIGURATIONS = 5000
LEAST_HITS = 20


@pytest.fixture(scope="module")
def oracle():
    core = pytest.importorskip("megatron.core")
    assert core.__version__.startswith(VERSION)
    import megatron_oracle

    yield megatron_oracle
    megatron_oracle.GROUPS.stop()


@pytest.fixture(scope="module")
def trials(oracle):
    legal = bases()
    tried = [("", case) for case in legal] + [step for case in legal for step in steps(case)] + list(focused_steps())
    tried.sort(key=lambda one: repr(oracle.groups_key(one[1])))
    return comparing.judged(tried, oracle.verdict, lambda case: refusing(case, "megatron", VERSION))


def test_starting_points_are_legal(trials):
    refused = [trial for trial in trials if not trial.changed and (trial.rules or not trial.theirs.accepted)]
    assert not refused, [(trial.rules, trial.theirs.message, comparing.described(trial.case)) for trial in refused]


def test_verdicts_are_megatrons(trials):
    assert len(trials) >= LEAST_CONFIGURATIONS
    assert len({trial.case for trial in trials}) >= LEAST_CONFIGURATIONS
    found = comparing.disagreements(trials, CORE_LAX, NOT_IN_CORE)
    assert not found, comparing.shown(found)


def test_reasons_are_megatrons(trials):
    found = comparing.unlike_reasons(trials, CORE_REASONS)
    assert not found, "\n".join(sorted(set(found)))


def test_every_rule_is_hit_on_both_sides(trials):
    found = comparing.hits(trials)
    rare = {rule.id for rule in checked_rules()} - {
        rule for rule, hit in found.items() if min(hit.accepted, hit.refused) >= LEAST_HITS
    }
    assert not rare, f"hit too rarely: {sorted(rare)}\n{comparing.table(found)}"


def test_every_rule_has_its_reason():
    assert {rule.id for rule in checked_rules()} == {*CORE_REASONS, *CORE_LAX}
    assert not set(CORE_REASONS) & set(NOT_IN_CORE)


def test_known_gaps_name_rules():
    known = {rule.id for rule in rules_of_a_plan("megatron", VERSION, settings=True)}
    assert set(NOT_IN_CORE) | set(CORE_LAX) | set(CORE_REASONS) <= known


def test_lax_rules_are_broken_by_what_megatron_accepts(trials):
    """An entry that no configuration needs is stale."""
    for rule, lax in CORE_LAX.items():
        assert any(t.theirs.accepted and rule in t.rules and lax.where(t.case) for t in trials), rule


def checked_rules():
    """Our rules that megatron-core checks itself."""
    bound = rules_of_a_plan("megatron", VERSION, settings=True)
    return [rule for rule in bound if rule.severity == "error" and rule.id not in NOT_IN_CORE]
