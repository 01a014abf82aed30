"""How near searches come to the best plan, how long they take, and what dividing layers freely gains.

    python benchmarks/search_gap.py [--only search prove gain] [--workers N]

`search` and `prove` print for each case the operators of all layers, programs solved and variables of the largest, the solver,
the gap and seconds. `gain` compares the best plan with even divisions (`--effort scan`) with the best of all, both
without ties, and says how the layers lie.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from shardwright.models.catalog import load_model
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan

SEARCH = (
    ("llama3.1-70b", "dgx-h100:32", 8192, 512),
    ("qwen3-235b-a22b", "dgx-h100:128", 4096, 2048),
    ("deepseek-v3", "hgx-h800-80g:256", 4096, 15360),
)
PROVE = (("llama3.1-405b", "dgx-h100:2048", 8192, 2048, 60.0), ("llama3.1-405b", "dgx-h100:12500", 8192, 100000, 180.0))
GAIN = (
    ("megatron-175b", "dgx-a100-80g:128", 2048, 1536),
    ("glm-4.5-air", "dgx-h100:16", 4096, 1024),
    ("deepseek-v3", "hgx-h800-80g:256", 4096, 15360),
    ("qwen3-235b-a22b", "dgx-h100:128", 4096, 2048),
    ("llama3.1-405b", "dgx-h100:256", 8192, 2048),
)


def searched(case: tuple[Any, ...], **options: Any) -> dict[str, Any]:
    """The result of a search."""
    model, cluster, seq_len, batch = case[:4]
    return dict(plan(model, cluster, seq_len=seq_len, global_batch=batch, search=SearchOptions(**options)).data)


def account(case: tuple[Any, ...], workers: int, **options: Any) -> None:
    """One line a case."""
    started = time.perf_counter()
    made = searched(case, workers=workers, **options)
    wall, search, graph = time.perf_counter() - started, made["search"], load_model(case[0])
    operators = sum(len(graph.layer_kinds[kind].operators) for kind in graph.pattern)
    division, solver = search["division"], made["run"]["solver"] or "none needed"
    print(
        f"{case[0]} on {case[1]}: {operators:,} operators, {division['tasks']:,} tasks, {division['solved']:,} looked at, "
        f"{division['programs']:,} programs of up to {division['variables']:,} variables ({solver}); "
        f"gap {search['gap']:.3%}{', ' + search['stopped'] if search['stopped'] else ''}; "
        f"{wall:.1f} s wall, {made['run']['cpu_s']:.1f} s CPU"
    )


def gain(case: tuple[Any, ...], workers: int) -> None:
    """What dividing layers gains over even divisions."""
    even = searched(case, effort="scan", tie_percent=0, top=1, workers=workers)
    free = searched(case, effort="search", tie_percent=0, top=1, workers=workers)
    before, after = (made["search"]["best_step_time_s"] for made in (even, free))
    less, gap = 1 - after / before, free["search"]["gap"]
    print(f"{case[0]} on {case[1]}: {before:.4g} s -> {after:.4g} s, {less:.2%} less; gap {gap:.2%}")
    for name, made in (("even", even), ("free", free)):
        best = made["plans"][0]
        parallel = {k: best["parallel"][k] for k in ("tp", "cp", "pp", "vpp", "ep", "micro_batch", "zero_stage")}
        layers = [sum(span[1] - span[0] + 1 for span in stage["layers"] if span) for stage in best["stages"]]
        recompute = best["parallel"]["recompute"]
        peak = max(s["memory"]["total_bytes"] / s["memory"]["capacity_bytes"] for s in best["stages"])
        print(f"  {name}: {parallel} layers {layers} recompute {recompute['mode']} {recompute['layers']}, fullest {peak:.0%}")


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=("search", "prove", "gain"), default=("search", "prove", "gain"))
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    if "search" in asked.only:
        for case in SEARCH:
            account(case, asked.workers)
    if "prove" in asked.only:
        for *case, limit in PROVE:
            account(tuple(case), asked.workers, effort="prove", time_limit_s=limit)
    if "gain" in asked.only:
        for case in GAIN:
            gain(case, asked.workers)


if __name__ == "__main__":
    main()
