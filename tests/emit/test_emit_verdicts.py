"""What frameworks said of emitted bundles, and of the same with something wrong, is what this project says of them.

The verdicts are recorded (`verdict_corpus`): of three Megatron-LM releases, DeepSpeed and torchtitan. Here our rules and
readers judge the same files; where a framework is installed it is asked again.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import record_verdicts
from agreements import ARGUMENTS_LAX, DEEPSPEED_LAX, NOT_IN_ARGUMENTS, TITAN_CHECKED
from record_verdicts import by_checkout, release_of
from verdict_corpus import FRAMEWORKS, Case, load, ours

LEAST = {"megatron": (20, 3), "deepspeed": (20, 1), "torchtitan": (12, 1)}
"""Bundles, and releases."""

CHECKED_LATER = {
    "megatron": {*NOT_IN_ARGUMENTS, *ARGUMENTS_LAX, "dp-replicate", "expert-replicate"},  # when groups are made
    "deepspeed": {*DEEPSPEED_LAX, "deepspeed-offload-zero"},  # in the first step: parameters on GPUs, the optimizer on hosts
    "torchtitan": set[str](),
}
"""Rules that the validator asked here does not check, though the framework does when it runs, each with a reason there."""


NO_MODEL = "reader: kv_heads"
"""Heads that groups do not divide are no model here; Megatron's arguments let them be, its attention does not."""


def refused(framework: str, case: Case, release: str, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Our rules that refuse a case: those the validator checks as well, and all."""
    found = ours(framework, case, release, folder)
    if framework == "torchtitan":
        return tuple(rule for rule in found if rule in TITAN_CHECKED or rule.startswith("reader")), found
    later = CHECKED_LATER[framework]
    return tuple(rule for rule in found if rule not in later and not rule.startswith(NO_MODEL)), found


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_verdicts_are_those_of_the_framework(tmp_path: Path, framework: str) -> None:
    wrong = []
    for case in load(framework):
        for release, letter in case.verdicts.items():
            if letter == "n":
                continue
            checked, found = refused(framework, case, release, tmp_path)
            if letter == "a" and checked:
                wrong.append(f"{release} {case.name}: accepted, but refused by {', '.join(checked)}")
            if letter == "r" and not found:
                wrong.append(f"{release} {case.name}: refused, but accepted by us")
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_both_verdicts_are_there(framework: str) -> None:
    cases, (bundles, releases) = load(framework), LEAST[framework]
    assert len({case.bundle.name for case in cases}) >= bundles
    assert len({release for case in cases for release in case.verdicts}) >= releases
    letters = Counter((bool(case.change), letter) for case in cases for letter in case.verdicts.values())
    assert letters[True, "r"] >= bundles
    assert letters[True, "a"] >= bundles // 2


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_was_emitted_was_accepted(framework: str) -> None:
    """Of the release it was emitted for."""
    own = {"megatron": "0.16", "deepspeed": "0.19", "torchtitan": "0.2"}[framework]
    assert {case.name for case in load(framework) if not case.change and case.verdicts[own] != "a"} == set()


def different(framework: str, release: str, letters: list[str]) -> list[str]:
    """Cases of which something else is recorded."""
    cases = load(framework)
    pairs = zip(cases, letters, strict=True)
    return [f"{case.name}: {case.verdicts[release]}, now {now}" for case, now in pairs if case.verdicts[release] != now]


def asked_again(framework: str) -> list[str]:
    """Letters of the framework that is installed, in a process of its own."""
    command = [sys.executable, "-W", "ignore", record_verdicts.__file__, "again", framework]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    letters: list[str] = json.loads(done.stdout.splitlines()[-1])
    return letters


@pytest.mark.frameworks
@pytest.mark.deepspeed
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs deepspeed")
def test_deepspeed_still_says_so() -> None:
    assert different("deepspeed", "0.19", asked_again("deepspeed")) == []


@pytest.mark.frameworks
@pytest.mark.torchtitan
@pytest.mark.torchtitan_toml
@pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="needs torchtitan")
def test_torchtitan_still_says_so() -> None:
    assert different("torchtitan", "0.2", asked_again("torchtitan")) == []


CHECKOUTS = [part for part in os.environ.get("SHARDWRIGHT_MEGATRON_LM", "").split(os.pathsep) if part]


@pytest.mark.frameworks
@pytest.mark.megatron_lm
@pytest.mark.slow
@pytest.mark.parametrize("checkout", CHECKOUTS or [None], ids=str)
def test_megatron_lm_still_says_so(checkout: str | None) -> None:
    if checkout is None:
        pytest.skip("SHARDWRIGHT_MEGATRON_LM names no checkout")
    release, cases = release_of(checkout), load("megatron")
    if release not in cases[0].verdicts:
        pytest.skip(f"nothing is recorded for release {release}")
    assert different("megatron", release, by_checkout(checkout, cases)) == []
