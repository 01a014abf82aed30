"""Small problems that the planner's tests share, their legal candidates, and candidates as a user would state them."""

import functools

import numpy as np

from shardwright.hardware.collectives import fabric_of
from shardwright.planner.cost.context import make_context
from shardwright.planner.cost.network import Network
from shardwright.planner.cost.pricing import price
from shardwright.planner.cost.stages import fold
from shardwright.planner.plans import ALL_LAYERS, RECOMPUTE_MODES, Degrees
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.search.scan import scan
from shardwright.planner.search.space import declare, enumerate_legal

CASES = {
    "dense-7": ("gpt2", "dgx-a100-80g:1x7", 1024, 14),
    "dense-8-odd": ("gpt2", "dgx-h100:1", 1024, 15),
    "dense-8": ("llama3.1-8b", "dgx-h100:1", 4096, 32),
    "moe-16": ("qwen3-30b-a3b", "dgx-h100:2", 4096, 32),
    "moe-96": ("qwen3-30b-a3b", "dgx-h100:12", 4096, 96),
    "mtp-64": ("deepseek-v3", "dgx-h200:8", 4096, 64),
    "dense-1000": ("llama3.1-8b", "dgx-h100:125", 8192, 1000),
}
TORCH = {"torch-8": "dense-8", "torch-moe-16": "moe-16"}
"""The same for PyTorch, whose search tries all schedules."""


@functools.cache
def problem_of(name, framework="any", stack=None):
    if name in TORCH:
        return problem_of(TORCH[name], "pytorch", stack)
    model, cluster, seq_len, batch = CASES[name]
    options = PricingOptions(framework=framework, stack=stack)
    return build_problem(model, cluster, seq_len=seq_len, global_batch=batch, options=options)


@functools.cache
def space_of(name, framework="any"):
    return declare(problem_of(name, framework), {})


@functools.cache
def legal_of(name, framework="any"):
    return enumerate_legal(problem_of(name, framework), space_of(name, framework))


@functools.cache
def scan_of(name):
    return scan(problem_of(name), legal_of(name), workers=1)


def some_rows(made, count, seed=7):
    """Indices of random candidates, ascending."""
    size = min(count, len(made.batch))
    return np.sort(np.random.default_rng(seed).choice(len(made.batch), size=size, replace=False))


def degrees_at(made, index):
    """One candidate of a scan as a user would state it."""
    batch = made.batch
    covered = int(batch.recompute_layers[index])
    return Degrees(
        **{name: int(getattr(batch, name)[index]) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch")},
        dp_replicate=int(batch.shown_dp_replicate[index]),
        zero=int(batch.zero[index]),
        schedule=SCHEDULE_IDS[batch.schedule[index]],
        sequence_parallel=bool(batch.sp[index]),
        recompute=RECOMPUTE_MODES[batch.recompute[index]],
        recompute_layers=covered if covered < ALL_LAYERS else None,
        layers_per_stage=made.splits[batch.split[index]].chunks,
    )


def context_for(problem, batch, splits, *, every_rank=False, fabric=None):
    """A pricing context and the keys of a batch."""
    network = Network(problem.cluster, fabric or fabric_of(problem.cluster))
    return make_context(problem, batch, fold(problem.graph, splits, every_rank=every_rank), network)


def priced(problem, batch, splits, *, every_rank=False, fabric=None, exact=False):
    """Prices of a batch under a problem."""
    context, key = context_for(problem, batch, splits, every_rank=every_rank, fabric=fabric)
    return price(context, batch, key, exact=exact)
