"""The menu of a layer: what it can cost on a mesh, none of it worse than another in everything.

    menu = { (forward, backward, states, saved, transient) } of the fastest choices under budgets for
           8 (states + k · saved) + transient, k = 1, 4 or 16 in flight, from what the fastest takes down to the least there is

An entry is left out where another is at most 0.5 % worse in every column (ε-dominance), and at most 32 are kept: those that the
budgets found first, fastest first. A stage's program chooses one entry a layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.models.graph import LayerGraph
from shardwright.planner.problem import Problem
from shardwright.planner.search.operators import amounts as a
from shardwright.planner.search.operators.assembly import Assembly, assemble, folded
from shardwright.planner.search.operators.context import context_of, links_of
from shardwright.planner.search.operators.options import ShardOptions
from shardwright.planner.search.operators.program import Program
from shardwright.planner.search.operators.sharding import check, pricing_of
from shardwright.planner.search.operators.solver import Effort, solve
from shardwright.planner.search.operators.targets import Variant, variants_of

EPSILON = 0.005
MOST = 32
IN_FLIGHT = (1, 4, 16)
LAYERS = 8.0
"""Layers that share the largest transient, when budgets weigh it against what every layer keeps."""
GAP = EPSILON / 5
"""Of each solve: entries nearer to each other are one."""
SHARES = (0.75, 0.5, 0.25, 0.1, 0.0)
"""Budgets between the memory of the fastest choice and the least, as shares of the span."""
NODES = 50
"""Of the search tree of each solve, the same on every machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MenuEntry:
    """One way to run a layer on a mesh; times and bytes of one micro-batch and one device.

    Attributes:
        forward_s, backward_s: with exposed exchange, and with what is run again.
        states_bytes: parameters, gradients, optimizer states.
        saved_bytes: activations a micro-batch keeps.
        transient_bytes: the largest alive beside them.
        recompute: none, selective or full.
        variant: what operators agreed on for the target; "" where they are free.
        divides: operator → dim divided over each axis, None for nothing.
    """

    forward_s: float
    backward_s: float
    states_bytes: float
    saved_bytes: float
    transient_bytes: float
    recompute: str
    variant: str
    divides: tuple[tuple[str, tuple[str | None, ...]], ...]

    @property
    def columns(self) -> tuple[float, ...]:
        """What entries are compared by."""
        return self.forward_s, self.backward_s, self.states_bytes, self.saved_bytes, self.transient_bytes


def operator_menu(
    layer: LayerGraph, problem: Problem, options: ShardOptions, recompute: tuple[str, ...] = ("none", "selective", "full")
) -> tuple[MenuEntry, ...]:
    """The menu of a layer on a mesh, fastest first.

    Args:
        layer: of the problem's graph (repeated layers share one menu).
        problem: cluster, batch, stack and target.
        options: the mesh, micro-batches, and a budget that no entry exceeds (None: no limit).
        recompute: modes to choose from.

    Raises:
        ShardwrightError: a mesh that is no part of the cluster, or operators the target cannot divide.
    """
    check(problem, options)
    found: list[MenuEntry] = []
    for mode in recompute:
        chosen = replace(options, recompute=mode)
        for variant in variants_of(problem.framework, chosen):
            found += _entries(layer, problem, chosen, variant)
    return tuple(undominated(found))


def undominated(entries: list[MenuEntry]) -> list[MenuEntry]:
    """The fastest first; those that one before it is at most ε worse than in every column are left out; at most 32."""
    kept: list[MenuEntry] = []
    for entry in sorted(entries, key=lambda e: (e.forward_s + e.backward_s, e.columns, e.recompute, e.divides)):
        own = np.array(entry.columns)
        if not any((np.array(other.columns) <= own * (1 + EPSILON)).all() for other in kept):
            kept.append(entry)
    return kept[:MOST]


def _entries(layer: LayerGraph, problem: Problem, options: ShardOptions, variant: Variant) -> Iterator[MenuEntry]:
    sections, junctions = folded(layer, LAYERS)
    assembly = assemble(sections, junctions, context_of(problem, links_of(problem, options), options, variant))
    limit = options.memory_bytes if options.memory_bytes is not None else float("inf")
    for k in IN_FLIGHT:
        program = assembly.program(replace(pricing_of(problem, options, limit), in_flight=k))
        yield from _down(assembly, program, variant, options)


def _down(assembly: Assembly, program: Program, variant: Variant, options: ShardOptions) -> Iterator[MenuEntry]:
    """The fastest choice, then the fastest under ever smaller budgets, down to the least memory there is."""
    effort = Effort(limit_s=options.time_limit_s, gap=GAP, nodes=NODES)
    fastest, smallest = solve(program, effort).choice, solve(program, replace(effort, aim="memory")).choice
    if fastest is None or smallest is None:
        return
    yield _entry(assembly, program, fastest, variant, options)
    most, least = program.memory_bytes(fastest), program.memory_bytes(smallest)
    used = most
    for share in SHARES:
        budget = least + share * (most - least)
        if budget >= used * (1 - EPSILON / 5):
            continue
        tight = replace(program, pricing=replace(program.pricing, budget_bytes=budget * (1 + 1e-9)))
        choice = solve(tight, effort).choice
        if choice is not None:
            used = program.memory_bytes(choice)
            yield _entry(assembly, program, choice, variant, options)


def _entry(assembly: Assembly, program: Program, choice: tuple[int, ...], variant: Variant, options: ShardOptions) -> MenuEntry:
    totals: NDArray[np.float64] = program.columns(choice)[0] / LAYERS
    transient = float(totals[a.TRANSIENT]) * LAYERS
    divides = []
    for table, row in zip(assembly.tables, choice, strict=True):
        words = table.strategies.words(int(table.strategy[row]))
        divides.append((table.name, tuple(None if word == "-" else word for word in words)))
    return MenuEntry(
        forward_s=program.pricing.pass_s(totals, 0),
        backward_s=program.pricing.pass_s(totals, 1),
        states_bytes=float(totals[a.STATES]),
        saved_bytes=float(totals[a.SAVED]),
        transient_bytes=transient,
        recompute=options.recompute,
        variant=variant.name,
        divides=tuple(divides),
    )
