"""The integer program against brute force, folded against unfolded, and what its pricing promises."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from operator_problems import Case, problem_of

from shardwright.planner.search.operators import amounts as a
from shardwright.planner.search.operators.amounts import Pricing
from shardwright.planner.search.operators.explanation import alternatives
from shardwright.planner.search.operators.program import Node, Program, Reader, Tensor
from shardwright.planner.search.operators.solver import solve

TIME = slice(0, a.STATES)


def random_program(seed):
    """A small connected graph with random costs, one or two layers; every column is used."""
    random = np.random.default_rng(seed)
    count = int(random.integers(3, 6))
    weights = [1.0, float(random.integers(1, 4))]
    nodes = []
    for at in range(count):
        choices = int(random.integers(2, 5))
        costs = random.uniform(0, 1e-3, (choices, len(a.COLUMNS)))
        costs[:, a.STATES :] *= 1e12
        section = int(at >= count // 2)
        nodes.append(Node(name=f"n{at}", costs=costs, weight=weights[section], section=section))
    tensors = []
    for writer in range(count - 1):
        readers = sorted({writer + 1, *random.integers(writer + 1, count, size=1).tolist()})
        tensors.append(random_tensor(random, nodes, writer, readers))
    if seed % 3 == 0:
        tensors.append(random_tensor(random, nodes, count - 1, [0]))  # a cyclic boundary
    pricing = Pricing(
        micro_batches=int(random.integers(1, 4)),
        interference=float(random.choice([0.0, 0.15])),
        floor=float(random.choice([0.0, 0.6])),
        in_flight=int(random.integers(1, 3)),
    )
    return Program(nodes=tuple(nodes), tensors=tuple(tensors), pricing=pricing)


def random_tensor(random, nodes, writer, readers):
    written, read = (int(random.integers(1, 4)) for _ in range(2))
    costs = random.uniform(0, 1e-3, (written, read, len(a.COLUMNS)))
    costs[..., a.STATES :] *= 1e11
    costs[..., [a.STATES, a.TRANSIENT]] = 0.0
    made = [Reader(node=r, layout=random.integers(0, read, len(nodes[r].costs))) for r in readers]
    layout = random.integers(0, written, len(nodes[writer].costs))
    weight = nodes[writer].weight
    return Tensor(name=f"t{writer}", writer=writer, written=layout, readers=tuple(made), costs=costs, weight=weight)


def everything(program):
    """Time and memory of every choice."""
    choices = list(itertools.product(*(range(len(n.costs)) for n in program.nodes)))
    return np.array([(program.total_s(c), program.memory_bytes(c)) for c in choices])


@pytest.mark.parametrize("seed", range(200))
def test_the_answer_is_that_of_brute_force(seed):
    program = random_program(seed)
    table = everything(program)
    if seed % 2:  # memory binds: the fastest does not fit
        fastest = table[np.argmin(table[:, 0]), 1]
        budget = (table[:, 1].min() + fastest) / 2
        program = replace(program, pricing=replace(program.pricing, budget_bytes=float(budget)))
        table = table[table[:, 1] <= budget]
    best = table[:, 0].min()
    found = solve(program)
    assert found.proven
    assert found.time_s == pytest.approx(best, rel=1e-6)
    assert program.memory_bytes(found.choice) <= program.pricing.budget_bytes * (1 + 1e-9)
    assert found.lp_bound_s <= best * (1 + 1e-6)
    assert found.bound_s <= best * (1 + 1e-6)


def test_memory_binds_where_it_should():
    binding = 0
    for seed in range(1, 200, 2):
        table = everything(random_program(seed))
        fastest = table[np.argmin(table[:, 0]), 1]
        binding += fastest > (table[:, 1].min() + fastest) / 2
    assert binding >= 90


def test_nothing_fits_a_budget_below_the_least():
    program = random_program(4)
    budget = 0.99 * everything(program)[:, 1].min()
    found = solve(replace(program, pricing=replace(program.pricing, budget_bytes=float(budget))))
    assert found.choice is None
    assert found.proven


@pytest.mark.parametrize("seed", range(20))
def test_alternatives_are_priced_like_whole_choices(seed):
    program = random_program(seed)
    choice = solve(program).choice
    for node in range(len(program.nodes)):
        seconds, memory = alternatives(program, choice, node)
        for row in range(len(program.nodes[node].costs)):
            changed = (*choice[:node], row, *choice[node + 1 :])
            assert seconds[row] == pytest.approx(program.total_s(changed), rel=1e-12)
            assert memory[row] == pytest.approx(program.memory_bytes(changed), rel=1e-12)


@pytest.mark.parametrize("batch", [64, 1])
def test_folded_answers_equal_those_of_four_layers(batch):
    problem = problem_of("llama3.1-8b", "dgx-h100:4", seq_len=8192, batch=batch, framework="any")
    folded = Case(problem, "dp=4,tp=8")
    layers = Case(problem, "dp=4,tp=8", copies=4)
    assert folded.solution.proven
    assert layers.solution.proven
    assert layers.solution.time_s / 4 == pytest.approx(folded.solution.time_s / 32, rel=1e-9)
    for name in folded.names():
        assert {layers.divides(name, section) for section in range(4)} == {folded.divides(name)}


def test_the_same_problem_has_the_same_answer():
    problem = problem_of("llama3.1-8b", "dgx-h100:2", seq_len=2048, batch=2)
    first, second = (Case(problem, "dp=2,tp=8") for _ in range(2))
    assert first.solution.choice == second.solution.choice
    assert first.solution.time_s == second.solution.time_s


def test_a_looser_budget_is_never_slower():
    problem = problem_of("llama3.1-8b", "dgx-h100:1", seq_len=2048, batch=8)
    ample = Case(problem, "tp=8")
    times = []
    for share in (1.0, 0.97, 0.94, 0.9):
        case = Case(problem, "tp=8", budget=share * ample.memory_bytes)
        times.append(np.inf if case.solution.time_s is None else case.solution.time_s)
    assert times == sorted(times)
    assert times[0] == pytest.approx(ample.solution.time_s, rel=1e-9)


@pytest.mark.parametrize("ways", [1, 3])
def test_exposed_parts_are_those_of_the_formula(ways):
    totals = np.zeros(len(a.COLUMNS))
    totals[[a.F_COMPUTE, a.F_EACH, a.F_ONCE]] = 10.0, 14.0, 5.0
    pricing = Pricing(micro_batches=ways, interference=0.1, floor=0.5)
    late = 0.9 * 4.0  # what 10 do not hide of 14, the interference counted apart
    update = max(late + 2.5, 5.0 + 0.9 * 4.0)
    assert pricing.pass_s(totals, 0) == pytest.approx(10.0 + 1.4 + ((ways - 1) * late + update) / ways)
