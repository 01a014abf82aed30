"""`size`: how many machines a training run needs."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from shardwright.commands import console
from shardwright.errors import InvalidValueError
from shardwright.planner.report import asked
from shardwright.planner.report import options as o
from shardwright.planner.report.failures import UsageError

EFFORTS = ("scan", "search", "prove")


def size(
    model: o.Model = None,
    tokens: Annotated[str | None, o.option(o.INPUTS, "tokens to train: 15T, 300B, 1.5e12", metavar="T")] = None,
    days: Annotated[float | None, o.option(o.INPUTS, "within so many days", metavar="D")] = None,
    budget: Annotated[float | None, o.option(o.INPUTS, "or for so many USD", metavar="USD")] = None,
    tokens_per_s: Annotated[float | None, o.option(o.INPUTS, "or at so many tokens a second", metavar="R")] = None,
    node: Annotated[
        list[str] | None, o.option(o.INPUTS, "node types (dgx-a100-80g,dgx-h100,dgx-h200)", metavar="NODE,...")
    ] = None,
    nodes: Annotated[
        list[str] | None, o.option(o.INPUTS, "how many: a list, or 8..64x2, 8..64+8 (1, 2, 3, 4, 6 ...)", metavar="N,...")
    ] = None,
    spare: Annotated[int, o.option(o.INPUTS, "show the best plan with K nodes lost (1)", metavar="K")] = 1,
    seq_len: o.SeqLen = None,
    length_histogram: o.LengthHistogram = None,
    global_batch: Annotated[int | None, o.option(o.INPUTS, "sequences a step", metavar="B")] = None,
    overrides: o.Set = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    grad_dtype: o.GradDtype = None,
    lora: o.Lora = None,
    freeze: o.Freeze = None,
    calibration: o.Calibration = None,
    measured: o.Measured = None,
    framework: o.Framework = None,
    target_version: o.TargetVersion = None,
    stack: o.Stack = None,
    routing_skew: o.RoutingSkew = None,
    memory_margin: o.MemoryMargin = None,
    prices: o.Prices = None,
    fix: o.Fix = None,
    effort: Annotated[str, o.option(o.SEARCH, "of each size: scan (default) search prove", metavar="E")] = "scan",
    workers: o.Workers = None,
    form: o.Format = "table",
) -> int:
    """Find the smallest, cheapest and fastest cluster for a run."""
    given = locals()
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    console.one_of("effort", effort, EFFORTS)
    from shardwright.planner.report.progress import LiveLine
    from shardwright.planner.sizing.run import size as sized

    request = _request(given)
    with LiveLine(sys.stderr) as live:
        return console.finished(sized(request, on_progress=live), form)


def _request(given: dict[str, Any]) -> Any:
    from shardwright.planner.search.options import SearchOptions
    from shardwright.planner.sizing.request import DEFAULT_NODES, SizeRequest
    from shardwright.planner.sizing.target import Target, parse_tokens
    from shardwright.planner.sweep.knobs import numbers, words

    missing = [name for name in ("model", "tokens", "seq_len", "global_batch") if given[name] is None]
    if missing:
        hint = "such as: llama3.1-8b --tokens 1T --days 30 --seq-len 8192 --global-batch 512"
        named = ["MODEL" if name == "model" else "--" + name.replace("_", "-") for name in missing]
        raise UsageError(f"missing {', '.join(named)}", where=named[0], hint=hint)
    target = Target(
        tokens=parse_tokens(given["tokens"]),
        days=given["days"],
        budget_usd=given["budget"],
        tokens_per_s=given["tokens_per_s"],
    )
    types = words(given["node"], "--node") if given["node"] else DEFAULT_NODES
    if types is None:
        raise InvalidValueError("auto", where="--node", hint="name node types, or leave --node out")
    search = {"effort": given["effort"], "fix": asked.fixed(given["fix"] or []), "top": 1, "remedies": False}
    search |= {"workers": given["workers"]} if given["workers"] is not None else {}
    unused = dict.fromkeys(("gpus", "memory_meter", "objective"))
    return SizeRequest(
        model=given["model"],
        target=target,
        seq_len=given["seq_len"],
        global_batch=given["global_batch"],
        node_types=types,
        counts=(numbers(given["nodes"], "--nodes") or ()) if given["nodes"] else (),
        spare=given["spare"],
        options=asked.pricing(given | unused),
        search=SearchOptions(**search),
    )
