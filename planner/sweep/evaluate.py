"""One point evaluated: the same search as `plan`, from inputs that stand alone.

    evaluated(payload) -> text          JSON of status, reason, result_digest, search, best, others, about

`about` says what was planned in a few words, so that a store can be read without the sweep that filled it.

Both are text, so that a result has the same bytes whoever computed it, where, and however often it was stored. What points
share is kept in the process between them: presets and kernel fits, shapes of groups, schedules, and whatever else
the search remembers by its inputs; neighbours in the order of a sweep share most.
"""

from __future__ import annotations

import json
from typing import Any

from shardwright.documents import digest, rounded
from shardwright.errors import ConflictError, ShardwrightError
from shardwright.planner.problem import problem_from_inputs
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan_problem

LEAST_TOP = 10
"""Plans that are ranked at least: as many as `plan` ranks by default, so that the first is the same."""

GIB = 2**30
KEPT = ("candidates", "priced", "fits", "best_step_time_s", "lower_bound_step_time_s", "gap", "stopped")


def evaluated(payload: str) -> str:
    """The result of a point as one line of JSON.

    Args:
        payload: as `points.prepared` wrote it.

    Raises:
        KeyboardInterrupt: the search was stopped; there is no result.
    """
    asked = json.loads(payload)
    try:
        return _line(_searched(asked["inputs"], asked["search"]))
    except ConflictError as error:  # no candidate keeps the rules
        return failed("infeasible", error, asked["inputs"])
    except ShardwrightError as error:
        return failed("error", error, asked["inputs"])
    except MemoryError:  # of this worker, at this moment: another try may do
        raise
    except Exception as error:  # a bug spoils its own point alone
        return failed("error", ShardwrightError(f"internal error: {error!r}"))


def failed(status: str, error: ShardwrightError, inputs: dict[str, Any] | None = None) -> str:
    """The result of a point that has no plan because of an error."""
    reason = error.message + (f"; {error.hint}" if error.hint else "")
    return _line(_record(status, reason, about=about(inputs) if inputs else None))


def about(inputs: dict[str, Any]) -> dict[str, Any]:
    """A job in a few words, from inputs that stand alone."""
    groups, training = inputs["cluster"]["groups"], inputs["training"]
    return {
        "model": inputs["model"]["name"],
        "node": "+".join(dict.fromkeys(group["node"]["id"] for group in groups)),
        "nodes": sum(group["count"] for group in groups),
        "gpus": sum(group["count"] * group["gpus_per_node"] for group in groups),
        "seq_len": training["seq_len"],
        "global_batch": training["global_batch"],
        "precision": training["precision"],
        "framework": inputs["search"]["framework"],
        "objective": inputs["search"].get("objective", "throughput"),
    }


def _line(record: dict[str, Any]) -> str:
    return json.dumps(rounded(record), separators=(",", ":"), allow_nan=False)


def _record(status: str, reason: str | None, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "status": status,
        "reason": reason,
        "result_digest": None,
        "search": None,
        "best": None,
        "others": [],
        "about": None,
    }
    return made | more


def _searched(inputs: dict[str, Any], search: dict[str, Any]) -> dict[str, Any]:
    top = search["top"]
    options = SearchOptions(**{**search, "top": max(top, LEAST_TOP)}, workers=1, remedies=False)
    found = plan_problem(problem_from_inputs(inputs), search=options).data
    if found["search"]["stopped"] == "interrupted":
        raise KeyboardInterrupt
    told = about(inputs)
    name = digest(rounded({key: found[key] for key in ("inputs", "search", "plans")}))
    account = {key: found["search"][key] for key in KEPT}
    if not found["plans"]:
        return _record("infeasible", _shortage(found["near_misses"]), result_digest=name, search=account, about=told)
    best, *others = found["plans"][:top]
    return _record("ok", None, result_digest=name, search=account, best=best, others=others, about=told)


def _shortage(misses: list[dict[str, Any]]) -> str:
    if not misses:
        return "nothing fits"
    memory = min((miss["memory"] for miss in misses), key=lambda m: int(m["peak_bytes"]))
    needs, has = memory["peak_bytes"] / GIB, memory["capacity_bytes"] / GIB
    return f"nothing fits: the leanest plan needs {needs:,.1f} GiB of {has:,.1f} a device"
