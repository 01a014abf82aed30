"""What targets refuse of a plan, and so which of them can write it.

    refusals(request, target)   rules of the target in that release; what its files cannot say; rules on what they set
    expressing(problem)         record -> the targets that refuse nothing of it

`emit` refuses by the same function by which `expressible_by` is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shardwright.errors import ShardwrightError
from shardwright.planner.emit.base import Refusal, Request, Target
from shardwright.planner.emit.options import LaunchOptions
from shardwright.planner.emit.registry import TARGETS
from shardwright.planner.emit.request import request_of
from shardwright.planner.problem import Problem
from shardwright.planner.rules.versions import checked_version, target_of
from shardwright.planner.settling import settle


def expressing(problem: Problem) -> Callable[[Mapping[str, Any]], list[str]]:
    """Tells of the records of a problem which targets write them: the one it is for in its version, others in their newest."""
    inputs, options = problem.to_inputs(), LaunchOptions()

    def targets_of(record: Mapping[str, Any]) -> list[str]:
        try:
            request = request_of(problem, inputs, record, options)
        except ShardwrightError:
            return []
        return [name for name, target in TARGETS.items() if not refusals(for_version(request, target), target)]

    return targets_of


def refusals(request: Request, target: Target) -> tuple[Refusal, ...]:
    """What a target refuses of a request for one of its releases; rules on what its files set where they can be made."""
    found = (*_rule_refusals(request, target), *target.refusals(request))
    if found or target.settings is None:
        return found
    return _rule_refusals(request, target, target.settings(request))


def for_version(request: Request, target: Target, asked: str | None = None) -> Request:
    """The request for a release: the one asked for, else the one the plan was made for, else the newest."""
    planned = request.version if target_of(request.problem.framework) == target.id else None
    version = checked_version(target.id, asked or planned or None)
    return replace(request, version=str(version))


def _rule_refusals(request: Request, target: Target, settings: Mapping[str, Any] | None = None) -> tuple[Refusal, ...]:
    """What the target's own rules say of the plan in that release, and of what its files set."""
    problem = replace(request.problem, framework=target.id, target_version=request.version)
    found = settle(problem, request.degrees, settings).violations
    return tuple(Refusal(field=v["rule"], message=v["message"], remedy=v["remedy"]) for v in found)
