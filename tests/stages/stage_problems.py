"""Small random pipelines whose divisions can all be tried, and trying them."""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from shardwright.models.catalog import load_model
from shardwright.models.transformer import build_graph
from shardwright.planner.cost.context import make_context
from shardwright.planner.cost.network import network_of
from shardwright.planner.cost.pricing import price
from shardwright.planner.cost.stages import Split, even_chunks, fold
from shardwright.planner.offloading import offload_of
from shardwright.planner.plans import ALL_LAYERS, PlanBatch
from shardwright.planner.problem import build_problem
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.search.stages.menu import layer_range

SIZES = {"1f1b": (1,), "gpipe": (1,), "interleaved-1f1b": (2, 3)}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan, its operator key and context, and all its divisions."""

    context: object
    plan: PlanBatch
    key: object
    chunks: np.ndarray


def divisions(layers, pp, vpp):
    """Every legal division: inner chunks within the range, the ends also fewer, [divisions, chunks]."""
    low, high = layer_range(layers, pp, vpp, layers)
    chunks = pp * vpp
    if vpp == 1:
        bars = np.array(list(combinations(range(layers + 1), chunks - 1)), dtype=np.int64).reshape(-1, chunks - 1)
        edges = np.concatenate((np.zeros((len(bars), 1), int), bars, np.full((len(bars), 1), layers)), axis=1)
        made = np.diff(edges, axis=1)
        return made[(made[:, 1:-1] >= 1).all(axis=1)]
    made = np.zeros((1, 0), dtype=np.int64)
    for chunk in range(chunks):
        values = np.arange(0 if chunk in {0, chunks - 1} else low, high + 1)
        made = np.concatenate((np.repeat(made, len(values), axis=0), np.tile(values, len(made))[:, None]), axis=1)
        made = made[made.sum(axis=1) <= layers]
    return made[made.sum(axis=1) == layers]


def priced(context, plan, key, chunks, margin=0):
    """Steps and peaks of a plan with divisions."""
    pp, vpp = int(plan.pp[0]), int(plan.vpp[0])
    splits = [Split(chunks=tuple(row), pp=pp, vpp=vpp) for row in chunks.tolist()]
    batch = replace(plan.take(np.zeros(len(splits), dtype=np.int64)), split=np.arange(len(splits)))
    table = fold(context.problem.graph, splits)
    made = price(replace(context, splits=table, uneven={}), batch, np.repeat(key, len(splits)), exact=True)
    return made.step_s, made.peak_bytes


def random_case(seed, *, most, offload="none"):
    """A random small problem with no more divisions than `most`, or None."""
    rng = np.random.default_rng(seed)
    schedule = str(rng.choice(["1f1b", "1f1b", "gpipe", "interleaved-1f1b"]))
    vpp = int(rng.choice(SIZES[schedule]))
    pp = int(rng.choice([2, 4])) if vpp > 1 else int(rng.choice([2, 4, 4, 8]))
    layers = int(rng.integers(pp * vpp, 4 * pp * vpp if vpp == 1 else 2 * pp * vpp))
    name = str(rng.choice(["gpt2", "gpt2", "qwen3-30b-a3b", "deepseek-v2"]))
    spec = load_model(name).spec
    spec = replace(spec, name="small", layers=layers)
    try:
        graph = build_graph(spec)
    except Exception:
        return None
    micro_batches = pp * int(rng.integers(1, 4))
    problem = build_problem(graph, "dgx-h100:1", seq_len=int(rng.choice([512, 2048])), global_batch=micro_batches * (8 // pp))
    mode = int(rng.integers(0, 4))
    covered = int(rng.integers(1, 4)) if mode == 3 and vpp == 1 else ALL_LAYERS
    row = {"tp": 1, "sp": 0, "cp": 1, "pp": pp, "vpp": vpp, "ep": 1, "etp": 1, "dp": 8 // pp, "dp_replicate": 1}
    row |= {
        "micro_batch": 1,
        "micro_batches": micro_batches,
        "zero": 1 if pp < 8 else 0,
        "split": 0,
        "cp_comm": 0,
        "loss_chunks": 1,
        "moe_dispatcher": 1,
        "offload": offload_of(offload).code,
    }
    row |= {"schedule": SCHEDULE_IDS.index(schedule), "recompute": min(mode, 2), "recompute_layers": covered}
    chunks = divisions(layers, pp, vpp)
    if not 1 < len(chunks) <= most:
        return None
    plan = PlanBatch.stack([row])
    even = Split(chunks=even_chunks(layers, pp, vpp, 0), pp=pp, vpp=vpp)
    context, key = make_context(problem, plan, fold(graph, [even]), network_of(problem))
    return Case(context=context, plan=plan, key=key, chunks=chunks)


def with_room(case, peak_bytes):
    """The case on devices on which nothing that needs more than `peak_bytes` fits."""
    problem = case.context.problem
    margin = problem.device.memory_bytes - int(peak_bytes)
    return replace(case, context=replace(case.context, problem=replace(problem, memory_margin_bytes=margin)))
