"""Why no plan is left: a smallest set of what was asked that excludes every plan, and what giving up each of it would bring.

    asked   every --fix, the framework's rules, the memory margin, the number of GPUs, the memory of a device
    found   try to give up one after another; what is not missed is given up for good

What remains excludes every plan even while all else is given up, and without any one of it some plan is left. There may be
other such sets; the order above decides which is named. Giving up means: no --fix; no rules but those of mathematics and
hardware; no margin; up to `MORE` times the GPUs; memory without limit. Whether a plan is left is found by searching: the
core of the space first, then all of it.

Each relaxation is searched for with everything else held, and its best plan is priced again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.errors import ConflictError
from shardwright.planner.cost.memory import PARTS
from shardwright.planner.description import Record
from shardwright.planner.estimation import estimate_batch
from shardwright.planner.offloading import offload_of
from shardwright.planner.overrides import apply_overrides
from shardwright.planner.problem import Problem
from shardwright.planner.rules.versions import target_of
from shardwright.planner.search.finalists import settled
from shardwright.planner.search.near_misses import MAX_GPUS, least_state_bytes, more_nodes, scaled
from shardwright.planner.search.scan import scan
from shardwright.planner.search.space import FIX_ALIASES, Legal, declare, declare_all, enumerate_legal, no_plan

GIB = 2**30
STEP_BYTES = 10**9
"""Sizes of memory are named in whole GB."""

MORE = 64
"""Times as many GPUs as there are, at most, where their number is given up."""

FRAMEWORK, MARGIN, GPUS, MEMORY = "framework", "margin", "gpus", "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a search was asked, and which of it holds.

    Attributes:
        problem: what was planned.
        fix: axes held at a value.
        names: the constraints in the order in which they are given up; a fixed axis by its name.
        known: whether a plan is left under a set of them, as far as it was tried.
    """

    problem: Problem
    fix: Mapping[str, str]
    names: tuple[str, ...]
    known: dict[frozenset[str], bool] = field(default_factory=dict)

    def under(self, held: frozenset[str]) -> tuple[Problem, dict[str, str]]:
        """The problem and the fixed axes with only some of the constraints (GPUs and memory apart)."""
        problem = self.problem
        if FRAMEWORK not in held:
            problem = replace(problem, framework="any", target_version=None)
        if MARGIN not in held:
            problem = replace(problem, memory_margin_bytes=0)
        return problem, {axis: value for axis, value in self.fix.items() if axis in held}

    def leaves_a_plan(self, held: frozenset[str]) -> bool:
        """Whether some plan keeps these constraints."""
        if held not in self.known:
            problem, fix = self.under(held)
            limited = MEMORY in held
            found = _exists(problem, fix, limited, whole=True)
            if not found and GPUS in self.names and GPUS not in held:
                found = any(_exists(larger, fix, limited, whole=False) for larger in _larger(problem, limited))
            self.known[held] = found
        return self.known[held]


def asked(problem: Problem, fix: Mapping[str, str]) -> Asked:
    """The constraints of a search."""
    names = [FRAMEWORK] if target_of(problem.framework) is not None else []
    names += [MARGIN] if problem.memory_margin_bytes else []
    names += list(fix)
    joined = all(group.node.internode_bytes_per_s is not None for group in problem.cluster.groups)
    names += [GPUS] if joined else []
    return Asked(problem=problem, fix=dict(fix), names=(*names, MEMORY))


def smallest(request: Asked) -> frozenset[str]:
    """Constraints that exclude every plan, of which none can be left out."""
    held = frozenset(request.names)
    for name in request.names:
        if not request.leaves_a_plan(held - {name}):
            held = held - {name}
    return held


def conflict(problem: Problem, fix: Mapping[str, str], miss: Record | None = None) -> Record:
    """What excludes every plan of a problem, for which none is left.

    Args:
        problem: what was planned.
        fix: axes held at a value.
        miss: the candidate nearest to fitting, if any candidate keeps the rules.

    Returns:
        `constraints`: what was asked, in words, with a detail; `relaxations`: changes, those that cost no hardware first, then
        the fastest.
    """
    request = asked(problem, fix)
    held = smallest(request)
    ordered = [name for name in request.names if name in held]
    made = [(name in {GPUS, MEMORY}, _relaxation(request, name)) for name in ordered]
    made.sort(key=lambda item: (not item[1]["feasible"], item[0], item[1]["step_time_s"] or 0.0))
    return {
        "constraints": [{"constraint": _words(request, name), "detail": _detail(name, miss)} for name in ordered],
        "relaxations": [relaxation for _, relaxation in made],
    }


def explained(problem: Problem, fix: Mapping[str, str], legal: Legal) -> ConflictError:
    """The error of a space without a legal candidate, with what excludes them all and what to give up."""
    error, found = no_plan(legal, fix), conflict(problem, fix)
    names = [each["constraint"] for each in found["constraints"]]
    together = f"; {', '.join(names[:-1])} and {names[-1]} together leave none" if len(names) > 1 else ""
    able = [
        f"; or {each['change']}: a step of {each['step_time_s']:.4g} s" for each in found["relaxations"] if each["feasible"]
    ]
    return ConflictError(error.message + together, where=error.where, hint=error.hint + "".join(able[:1]))


def _exists(problem: Problem, fix: Mapping[str, str], limited: bool, *, whole: bool) -> bool:
    """Whether some candidate keeps the rules, and with limited memory fits."""
    core = declare_all([problem], fix, 0)
    if _any(problem, enumerate_legal(problem, core), limited):
        return True
    full = declare(problem, fix) if whole else core
    return full != core and _any(problem, enumerate_legal(problem, full), limited)


def _any(problem: Problem, legal: Legal, limited: bool) -> bool:
    return len(legal) > 0 and (not limited or bool(scan(problem, legal).fits.any()))


def _larger(problem: Problem, limited: bool) -> list[Problem]:
    """The job on twice the cluster, four times, and so on; without sizes whose memory cannot hold the states."""
    made, factor, gpus = [], 2, problem.cluster.gpus
    while factor <= MORE and gpus * factor <= MAX_GPUS:
        if not limited or factor * problem.memory_bytes > least_state_bytes(problem):
            made.append(replace(problem, cluster=scaled(problem.cluster, factor)))
        factor *= 2
    return made


def _relaxation(request: Asked, name: str) -> Record:
    """The best plan where one constraint is given up and all others hold."""
    problem, fix = request.under(frozenset(request.names) - {name})
    if name == GPUS:
        found = more_nodes(problem, fix)
        return _made(found[0]["change"], found[0]["step_time_s"]) if found else _made("more nodes", None)
    if name in {MEMORY, MARGIN}:
        return _roomier(problem, fix, name)
    best = _best(problem, fix)
    step = best["predicted"]["step_time_s"] if best and best["feasible"] else None
    if name == FRAMEWORK:
        return _made("--framework any", step)
    used = "" if step is None or best is None else _used(best, name)
    return _made(f"drop {_words(request, name)}{used}", step)


def _roomier(problem: Problem, fix: Mapping[str, str], name: str) -> Record:
    """The least memory, or the largest margin, with which a plan fits: that of the leanest candidate, searched again."""
    legal = enumerate_legal(problem, declare(problem, fix))
    if len(legal) == 0:
        return _made("more memory" if name == MEMORY else "no --memory-margin", None)
    made = scan(problem, legal)
    peak, room = float(made.peak_bytes.min()), float((made.capacity_bytes - made.peak_bytes).max())
    if name == MARGIN:
        margin = max(math.floor(room / GIB), 0)
        change, changed = f"--memory-margin {margin}", replace(problem, memory_margin_bytes=margin * GIB)
    else:
        needed = math.ceil(peak / STEP_BYTES)
        change = f"--set cluster.memory_bytes={needed}e9"
        cluster = apply_overrides(problem.job.graph, problem.cluster, problem.stack, [f"cluster.memory_bytes={needed}e9"])[1]
        changed = replace(problem, cluster=cluster)
    best = _best(changed, fix)
    return _made(change, best["predicted"]["step_time_s"] if best and best["feasible"] else None)


def _best(problem: Problem, fix: Mapping[str, str]) -> Record | None:
    """The fastest plan of a scan that fits, priced again."""
    legal = enumerate_legal(problem, declare(problem, fix))
    if len(legal) == 0:
        return None
    made = scan(problem, legal)
    if not made.fits.any():
        return None
    made = settled(made, problem, 1, 0.0, near=False)[0]
    batch = made.batch.take(np.array([int(np.where(made.fits, made.step_s, np.inf).argmin())]))
    return estimate_batch(problem, replace(batch, split=np.zeros(1, dtype=np.int64)), [made.splits[int(batch.split[0])]])[0]


def _used(record: Record, name: str) -> str:
    """What the best plan has on an axis that is no longer fixed."""
    axis = FIX_ALIASES.get(name, name)
    parallel = record["parallel"]
    named = {"sp": "sequence_parallel", "zero": "zero_stage"}.get(axis, axis)
    value = parallel["recompute"]["mode"] if axis == "recompute" else parallel.get(named)
    if axis == "offload":
        value = offload_of(value).text.replace(",", "+")  # as --fix takes it
    return "" if value is None else f", for {name}={str(value).lower()}"


def _made(change: str, step_time_s: float | None) -> Record:
    return {"change": change, "feasible": step_time_s is not None, "step_time_s": step_time_s}


def _words(request: Asked, name: str) -> str:
    """A constraint as it was asked."""
    problem = request.problem
    sizes = [f"{group.node.device.memory_bytes / GIB:.1f}" for group in problem.cluster.groups]
    said = {
        FRAMEWORK: f"the rules of {problem.framework}",
        MARGIN: f"--memory-margin {problem.memory_margin_bytes / GIB:g}",
        GPUS: f"{problem.cluster.gpus:,} GPUs",
        MEMORY: f"{' or '.join(dict.fromkeys(sizes))} GiB a GPU",
    }
    return said[name] if name in said else f"--fix {name}={request.fix[name]}"


def _detail(name: str, miss: Record | None) -> str | None:
    """Of memory: which stage of the candidate nearest to fitting is too large, and what fills most of it."""
    if name != MEMORY or miss is None:
        return None
    stage = miss["stages"][miss["memory"]["peak_stage"]]
    memory = stage["memory"]
    part = max(PARTS, key=lambda each: memory[each])
    return (
        f"the leanest plan needs {memory['total_bytes'] / GIB:.1f} GiB on stage {stage['index']}, "
        f"{memory[part] / GIB:.1f} of it {part.removesuffix('_bytes')}"
    )
