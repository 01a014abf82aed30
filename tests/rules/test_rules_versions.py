"""Versions of frameworks: what a user may write, what is refused, and which rules hold in which."""

import pytest

from shardwright.errors import InvalidValueError, UnknownNameError
from shardwright.planner.rules.registry import RULES
from shardwright.planner.rules.versions import BRIDGE_CORES, VERSIONS, checked_version, holds_in, target_of


@pytest.mark.parametrize(
    ("framework", "text", "known"),
    [
        ("megatron", "0.12", "0.12"),
        ("megatron", "0.16.1", "0.16"),
        ("megatron", "core_r0.19.0", "0.19"),
        ("megatron", None, VERSIONS["megatron"][-1]),
        ("megatron", "current", VERSIONS["megatron"][-1]),
        ("torchtitan", "v0.2.2", "0.2"),
        ("torchtitan", "main", "main"),
        ("pytorch", "2.13.0", "2.13"),
        ("torchrun", "2.9", "2.9"),
        ("any", None, None),
    ],
)
def test_versions_as_users_write_them(framework, text, known):
    assert checked_version(framework, text) == known


@pytest.mark.parametrize(
    ("framework", "text"), [("megatron", "0.1"), ("megatron", "0.120"), ("torchtitan", "9"), ("deepspeed", "")]
)
def test_unknown_versions_are_refused_with_the_known_ones(framework, text):
    with pytest.raises(UnknownNameError) as caught:
        checked_version(framework, text)
    assert caught.value.where == "--target-version"
    assert any(version in caught.value.hint for version in VERSIONS[framework])


def test_a_version_needs_a_framework():
    with pytest.raises(InvalidValueError, match="no framework"):
        checked_version("any", "0.16")


def test_ranges_hold_their_first_version_and_not_their_end():
    assert holds_in("megatron", "0.13", "0.13", None)
    assert not holds_in("megatron", "0.12", "0.13", None)
    assert holds_in("megatron", "0.12", None, "0.13")
    assert not holds_in("megatron", "0.13", None, "0.13")
    assert holds_in("megatron", None, "0.20", None)


def test_the_bridge_is_held_to_the_rules_of_its_core():
    for bridge, core in BRIDGE_CORES.items():
        for since in VERSIONS["megatron"]:
            assert holds_in("megatron-bridge", bridge, since, None) == holds_in("megatron", core, since, None)


def test_framework_names_become_targets():
    assert target_of("pytorch") == target_of("torchrun") == "torchrun"
    assert target_of("any") is None
    assert target_of("megatron-bridge") == "megatron-bridge"


def test_every_range_names_known_versions():
    for rule in RULES:
        for version in (rule.since, rule.until):
            target = "megatron" if "megatron-bridge" in rule.targets else rule.targets[0] if rule.targets else ""
            assert version is None or version in VERSIONS[target], rule.id
