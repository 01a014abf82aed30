"""Which versions of each target are known, and whether a rule's range covers one.

A range is [since, until): the first version a rule holds for and the first it no longer holds for, compared by major and minor
number. Rules of Megatron give versions of megatron-core; Megatron-Bridge is looked up under the megatron-core it carries
(`BRIDGE_CORES`). `main` and `current` name the newest.

Source: release notes and package metadata of the frameworks; `0.20` is megatron-core as it stood in August 2026, the last
torchtitan version its main branch of that month.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.errors import InvalidValueError, unknown_name

TARGETS = ("megatron", "torchrun", "torchtitan", "megatron-bridge", "deepspeed")

VERSIONS: Mapping[str, tuple[str, ...]] = {
    "megatron": ("0.12", "0.13", "0.14", "0.15", "0.16", "0.17", "0.18", "0.19", "0.20"),
    "torchrun": ("2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13"),
    "torchtitan": ("0.1", "0.2", "0.3", "main"),
    "megatron-bridge": ("0.2", "0.3", "0.4", "0.5", "0.6"),
    "deepspeed": ("0.15", "0.16", "0.17", "0.18", "0.19"),
}

BRIDGE_CORES: Mapping[str, str] = {"0.2": "0.15", "0.3": "0.16", "0.4": "0.17", "0.5": "0.18", "0.6": "0.19"}

_NEWEST = ("main", "current", "head")
_WORDS: Mapping[str, str] = {"pytorch": "torchrun"}

FRAMEWORK_WORDS = (*TARGETS, "pytorch", "any")
"""What a framework may be called where rules are asked for."""


def target_of(framework: str) -> str | None:
    """The target a framework's name stands for; None for `any`."""
    name = _WORDS.get(framework, framework)
    return name if name in TARGETS else None


def current(target: str) -> str:
    """The newest known version."""
    return VERSIONS[target][-1]


def checked_version(framework: str, text: str | None) -> str | None:
    """The known version a user's `0.16.1`, `v0.16` or `current` means; the newest where none is given; None for `any`.

    Raises:
        InvalidValueError: a version without a framework.
        UnknownNameError: a version that is not known.
    """
    target = target_of(framework)
    if target is None:
        if text is not None:
            hint = "name one by --framework " + "|".join(VERSIONS)
            raise InvalidValueError(f"version {text} of no framework", where="--target-version", hint=hint)
        return None
    known = VERSIONS[target]
    if text is None or text.lower() in _NEWEST:
        return known[-1]
    for version in known:
        if ".".join(text.lower().removeprefix("v").removeprefix("core_r").split(".")[:2]) == version:
            return version
    raise unknown_name(f"version of {target}", text, known, where="--target-version")


def holds_in(target: str, version: str | None, since: str | None, until: str | None) -> bool:
    """Whether a version (None: the newest) of a target lies in [since, until)."""
    if since is None and until is None:
        return True
    name, found = target, version or current(target)
    if target == "megatron-bridge":
        name, found = "megatron", BRIDGE_CORES[found]
    order = VERSIONS[name]
    at = order.index(found)
    return (since is None or at >= order.index(since)) and (until is None or at < order.index(until))
