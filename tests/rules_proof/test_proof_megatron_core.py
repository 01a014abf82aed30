"""Our verdict on a configuration is megatron-core's, and for the same reason, one step around legal configurations."""

import comparing
import pytest
from agreements import CORE_LAX, CORE_REASONS, NOT_IN_CORE
from bases import bases
from ours import refusing
from steps import steps

from shardwright.planner.rules.registry import rules_for

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
    tried = [("", case) for case in legal] + [step for case in legal for step in steps(case)]
    tried.sort(key=lambda one: repr(oracle.groups_key(one[1])))
    return comparing.judged(tried, oracle.verdict, lambda case: refusing(case, "megatron", VERSION))


def test_starting_points_are_legal(trials):
    refused = [trial for trial in trials if not trial.changed and (trial.rules or not trial.theirs.accepted)]
    assert not refused, [(trial.rules, trial.theirs.message, comparing.described(trial.case)) for trial in refused]


def test_verdicts_are_megatrons(trials):
    assert len(trials) >= LEAST_CONFIGURATIONS
    assert len({trial.case for trial in trials}) >= LEAST_CONFIGURATIONS
    found = comparing.disagreements(trials, {**CORE_LAX, **NOT_IN_CORE})
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
    assert {rule.id for rule in checked_rules()} == set(CORE_REASONS)


def test_lax_rules_are_broken_by_what_megatron_accepts(trials):
    """An entry that no configuration needs is stale."""
    needed = {rule for trial in trials if trial.theirs.accepted for rule in trial.rules}
    assert set(CORE_LAX) <= needed


def checked_rules():
    """Our rules that megatron-core checks itself."""
    bound = rules_for("megatron", VERSION, canonical=False, settings=True)
    return [r for r in bound if r.severity == "error" and r.id not in CORE_LAX and r.id not in NOT_IN_CORE]
