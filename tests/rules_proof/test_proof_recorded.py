"""Our verdict on argument lists is what Megatron-LM's own argument checks said of them, version by version."""

import pytest
from agreements import ARGUMENTS_LAX, NOT_IN_ARGUMENTS
from ours import refusing
from recorded import argument_cases, recorded

RECORDED = recorded()
CASES = dict(argument_cases())


@pytest.mark.parametrize("version", RECORDED)
def test_verdicts_are_those_recorded(version):
    wrong = []
    for key, letter in RECORDED[version].items():
        if letter in "un":
            continue
        case = CASES[key]
        rules = refusing(case, "megatron", version)
        checked = [rule for rule in rules if rule not in NOT_IN_ARGUMENTS and not excused(rule, case, version)]
        if letter == "a" and checked:
            wrong.append(f"{key}: accepted, but refused by {', '.join(checked)}")
        if letter == "r" and not rules:
            wrong.append(f"{key}: refused, but accepted by us")
    assert not wrong, f"{len(wrong)} of {len(CASES)}\n" + "\n".join(wrong)


def excused(rule, case, version):
    lax = ARGUMENTS_LAX.get(rule)
    return lax is not None and lax.where(case) and (not lax.versions or version in lax.versions)


def test_every_configuration_is_recorded():
    for version, letters in RECORDED.items():
        assert set(letters) == set(CASES), version
