"""The report of `plan`: what was asked, the ranked plans, how the search went, what was assumed.

    plan_parts(result) -> parts for `style.to_text`

Columns that say nothing are left out (cp, ep, vpp of 1, the schedule without pipelines), and the bars take what is
left of 80 columns.
Where nothing fits, the nearest misses are shown with what is short and what would help.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright.planner.cost.stages import even_chunks
from shardwright.planner.offloading import offload_of
from shardwright.planner.plan_records import chunk_layers
from shardwright.planner.report import words
from shardwright.planner.report.mixed_lines import mixed_parts
from shardwright.planner.report.pareto_table import pareto_parts, subset_parts
from shardwright.planner.report.placement_lines import placement_parts
from shardwright.planner.report.style import BARS, WIDTH, heading, paragraph, table
from shardwright.planner.report.time_table import where_the_step_goes
from shardwright.planner.report.trials_table import trials_parts

SCHEDULES = {"interleaved-1f1b": "inter", "dualpipe-v": "dual-v"}
RECOMPUTE = {"selective": "sel"}
BAR, SHORTEST_BAR = 8, 3
TIGHT = 0.95
"""Share of a device above which a run that fits is marked."""

LEFT = ("sched", "recomp")

REMEDIES = (
    "One change each: --… for this command; other words for the plan of the miss, as options of `estimate`; nodes: the best "
    "plan of a larger cluster."
)


def plan_parts(result: Mapping[str, Any]) -> list[Any]:
    """Everything `plan` shows."""
    parts = [header(result), *of_graph(result)]
    if result["plans"]:
        parts += [heading("Plans"), _plans(result["plans"], result["search"].get("objective")), *_notes(result["plans"])]
        parts += [paragraph("rank 1: " + where_the_step_goes(result["plans"][0]["time"]))]
        parts += [*mixed_parts(result), *placement_parts(result["plans"][0])]
    else:
        parts += [heading("Nothing fits. Nearest misses"), *_misses(result["near_misses"])]
        parts += _conflict(result.get("conflict"))
    parts += pareto_parts(result)
    parts += trials_parts(result)
    parts += [heading("Search"), *search_account(result["search"])]
    return [*parts, heading("Assumed"), *assumptions(result["assumptions"])]


def header(result: Mapping[str, Any]) -> Any:
    """Model, machine and training job in two lines."""
    from rich.text import Text

    model, cluster, training = result["model"], result["cluster"], result["training"]
    active = ""
    if model["active_parameters"] != model["parameters"]:
        active = f" ({words.big(model['active_parameters'])} active)"
    if model.get("trainable_parameters") is not None:
        active += f", {words.big(model['trainable_parameters'])} trained"
    first = (
        f"{model['name']} on {cluster['name']}: {words.many(cluster['gpus'], 'GPU')}, {words.many(cluster['nodes'], 'node')}"
    )
    second = (
        f"{words.big(model['parameters'])} parameters{active}, {words.many(model['layers'], 'layer')}; "
        f"{_batch(result)} a step; "
        f"{training['precision']}, {training['optimizer']}"
    )
    return Text(f"{first}\n{second}")


def _batch(result: Mapping[str, Any]) -> str:
    """What a step takes in: sequences, or samples of a graph without a sequence."""
    training, graph = result["training"], _graph(result)
    batch = training["global_batch"]
    if graph is not None and graph["seq"] is None:
        return words.many(batch, "sample")
    return f"{words.many(batch, 'sequence')} of {words.count(training['seq_len'])} tokens"


def of_graph(result: Mapping[str, Any]) -> list[Any]:
    """What to know of a model that was read from a graph file."""
    graph = _graph(result)
    if graph is None:
        return []
    from shardwright.models.traced.origin import notes

    return [paragraph(note) for note in notes(len(graph["layers"]), graph["operators"], graph["source"], graph["seq"])]


def _graph(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The graph a result is for; None where its model is an architecture, or where it holds no inputs."""
    inputs = result.get("inputs")
    model = inputs.get("model") if isinstance(inputs, Mapping) else None
    return model if isinstance(model, Mapping) and model.get("kind") is not None else None


def _plans(plans: Sequence[Mapping[str, Any]], objective: str | None) -> Any:
    optional = optional_columns(plans)
    sized = plans[0].get("objective_value") is not None
    name, spent = SPENT[str(objective)] if sized else ("tok/s/GPU", _tokens_a_gpu)
    names = ("#", "tie", *(["GPUs"] if sized else []), *degree_names(optional), "step", name, "MFU", "GiB")
    rows = [_row(plan, optional, spent) for plan in plans]
    taken = sum(1 + max(map(len, column)) for column in zip(names, *rows, strict=True))
    room = min(BAR, WIDTH - taken)
    if room < SHORTEST_BAR:
        shown = table(*names, left=LEFT)
        for row in rows:
            shown.add_row(*row)
        return shown
    shown = table(*names, BARS, left=LEFT)
    for row, plan in zip(rows, plans, strict=True):
        shown.add_row(*row, words.bar(plan["memory"]["peak_bytes"] / plan["memory"]["capacity_bytes"], room))
    return shown


def _row(plan: Mapping[str, Any], optional: Sequence[str], spent: Callable[[Mapping[str, Any]], str]) -> tuple[str, ...]:
    predicted = plan["predicted"]
    return (
        str(plan["rank"]),
        str(plan["tie_group"]),
        *([words.count(plan["parallel"]["world_size"])] if plan.get("objective_value") is not None else []),
        *degree_cells(plan, optional),
        words.seconds(predicted["step_time_s"], 4),
        spent(predicted),
        words.percent(predicted["mfu"]).removesuffix(" %"),
        words.gib(words.peak_bytes(plan["memory"])) + ("!" if _is_tight(plan) else ""),
    )


def _tokens_a_gpu(predicted: Mapping[str, Any]) -> str:
    return words.count(predicted["tokens_per_s_per_gpu"])


SPENT: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "throughput": ("tok/s", lambda predicted: words.count(predicted["tokens_per_s"])),
    "cost": ("USD/1M", lambda predicted: words.digits(predicted["usd_per_1m_tokens"])),
    "energy": ("J/tok", lambda predicted: words.digits(predicted["joules_per_token"])),
    "goodput": ("good %", lambda predicted: words.percent(predicted["goodput_fraction"]).removesuffix(" %")),
}
"""Where plans differ in size, the column of each objective."""


def _is_tight(plan: Mapping[str, Any]) -> bool:
    """Whether a plan fits with so little to spare that such runs fail now and then."""
    return bool(plan["memory"]["peak_bytes"] > TIGHT * plan["memory"]["capacity_bytes"])


def optional_columns(plans: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Those of cp, vpp, ep that are not 1 in some plan, and the schedule if some plan has a pipeline."""
    degrees = tuple(name for name in ("cp", "vpp", "ep") if any(p["parallel"][name] != 1 for p in plans))
    return (*degrees, *(["sched"] if any(p["parallel"]["pp"] > 1 for p in plans) else []))


def degree_names(optional: Sequence[str]) -> tuple[str, ...]:
    """Headings of `degree_cells`."""
    pipeline = "pp×v" if "vpp" in optional else "pp"
    context, expert, schedule = (tuple(n for n in (name,) if n in optional) for name in ("cp", "ep", "sched"))
    return ("tp", *context, pipeline, *expert, "dp", "z", "mb", *schedule, "recomp")


def degree_cells(plan: Mapping[str, Any], optional: Sequence[str]) -> tuple[str, ...]:
    """One plan's degrees as cells."""
    parallel = plan["parallel"]
    pipeline = str(parallel["pp"])
    if "vpp" in optional and parallel["vpp"] != 1:
        pipeline += f"×{parallel['vpp']}"
    schedule = SCHEDULES.get(parallel["schedule"], parallel["schedule"]) if parallel["pp"] > 1 else words.UNKNOWN
    return (
        str(parallel["tp"]),
        *([str(parallel["cp"])] if "cp" in optional else []),
        pipeline,
        *([_expert(parallel)] if "ep" in optional else []),
        data_parallel(parallel),
        str(parallel["zero_stage"]),
        str(parallel["micro_batch"]),
        *([schedule] if "sched" in optional else []),
        recompute(plan, RECOMPUTE),
    )


def data_parallel(parallel: Mapping[str, Any]) -> str:
    """Data parallelism as replicas × shards where both are more than one."""
    if 1 in (parallel["dp_replicate"], parallel["dp_shard"]):
        return str(parallel["dp"])
    return f"{parallel['dp_replicate']}×{parallel['dp_shard']}"


def recompute(plan: Mapping[str, Any], short: Mapping[str, str]) -> str:
    """The mode, with the layers of a stage where only some are recomputed.

    Args:
        plan: an ESTIMATE.
        short: shorter words for modes.
    """
    value = plan["parallel"]["recompute"]
    mode, layers = value["mode"], value["layers"]
    covered = max(layers, default=0) if isinstance(layers, list) else layers
    if mode != "full" or covered is None or covered >= max(map(layers_of, plan["stages"]), default=0):
        return short.get(mode, str(mode))
    return f"{mode} {covered}"


def layers_of(stage: Mapping[str, Any]) -> int:
    """Layers of a stage, over all its virtual chunks."""
    return sum(chunk[1] - chunk[0] + 1 for chunk in stage["layers"] if chunk)


def _expert(parallel: Mapping[str, Any]) -> str:
    return str(parallel["ep"]) if parallel["etp"] == 1 else f"{parallel['ep']}×{parallel['etp']}"


def _notes(plans: Sequence[Mapping[str, Any]]) -> list[Any]:
    capacities = {words.gib(plan["memory"]["capacity_bytes"]) for plan in plans}
    capacity = capacities.pop() if len(capacities) == 1 else "its device"
    meter = words.meter_of(plans[0]["memory"])
    legend = (
        f"{_MEMORY[meter]}, of {capacity}. z: ZeRO stage, mb: micro-batch. Plans of one tie are nearer to each other than the "
        "model tells plans of one job apart; the simplest comes first."
    )
    if any(map(_is_tight, plans)):
        legend += f" !: above {TIGHT:.0%} of the device; such runs fail now and then."
        legend += _roomier(plans)
    hosted = dict.fromkeys(offload_of(plan["parallel"]["offload"]).text for plan in plans)
    legend += f" In host memory: {'; '.join(hosted)}." if any(text != "none" for text in hosted) else ""
    senders = dict.fromkeys(plan["parallel"]["moe_dispatcher"] for plan in plans if plan["parallel"]["ep"] > 1)
    legend += f" Dispatcher of tokens to experts: {'; '.join(senders)}." if senders else ""
    uneven = [str(plan["rank"]) for plan in plans if _is_uneven(plan)]
    legend += f" Own division of layers (`estimate --plan` shows it): rank {', '.join(uneven)}." if uneven else ""
    lost = [str(p["rank"]) for p in plans if not p["expressible_by"]]
    unlaunchable = [paragraph(f"no target can launch rank {', '.join(lost)}")] if lost else []
    return [paragraph(legend, style="dim"), *unlaunchable]


def _is_uneven(plan: Mapping[str, Any]) -> bool:
    """Whether layers are divided otherwise than `estimate` divides them where nobody says."""
    parallel = plan["parallel"]
    layers = chunk_layers(plan["stages"], parallel)
    return layers != even_chunks(sum(layers), parallel["pp"], parallel["vpp"], 0)


_MEMORY = {
    "device": "GiB: fullest rank",
    "reserved": "GiB: reserved on the fullest rank; bars show all that the device holds",
    "allocated": "GiB: allocated on the fullest rank; bars show all that the device holds",
}
"""What the column of memory reads, by meter."""


def _roomier(plans: Sequence[Mapping[str, Any]]) -> str:
    """Where the first plan is so full: which of the others is not, and how to ask for such plans alone."""
    if not _is_tight(plans[0]):
        return ""
    room = next((f"; the first that leaves more is rank {p['rank']}" for p in plans if not _is_tight(p)), "")
    margin = math.ceil((1 - TIGHT) * plans[0]["memory"]["capacity_bytes"] / 2**30)
    return f" Rank 1 is one of them{room}; --memory-margin {margin} asks for plans that leave {margin} GiB."


def _misses(misses: Sequence[Mapping[str, Any]]) -> list[Any]:
    if not misses:
        return [paragraph("none: no combination of degrees passes the rules below")]
    optional = optional_columns(misses)
    shown = table("#", *degree_names(optional), "needs GiB", "of", "short by", left=LEFT)
    for number, miss in enumerate(misses, 1):
        memory = miss["memory"]
        shown.add_row(
            str(number),
            *degree_cells(miss, optional),
            words.gib(memory["peak_bytes"]),
            words.gib(memory["capacity_bytes"]),
            words.gib(miss["shortage_bytes"]),
        )
    said = [paragraph(_remedies(n, m["remedies"])) for n, m in enumerate(misses, 1) if m["remedies"]]
    return [shown, *said, *([paragraph(REMEDIES, style="dim")] if said else [])]


def _conflict(found: Mapping[str, Any] | None) -> list[Any]:
    """What excludes every plan together, and what giving up each of it brings."""
    if not found or not found["constraints"]:
        return []
    said = [each["constraint"] + (f" ({each['detail']})" if each["detail"] else "") for each in found["constraints"]]
    parts = [heading("Why"), paragraph(("together too much: " if len(said) > 1 else "too much: ") + "; ".join(said))]
    able = [_remedy(each) for each in found["relaxations"] if each["feasible"]]
    lost = [each["change"] for each in found["relaxations"] if not each["feasible"]]
    parts += [paragraph("giving up one: " + "; ".join(able))] if able else []
    return parts + ([paragraph("not enough alone: " + "; ".join(lost))] if lost else [])


def _remedies(number: int, remedies: Sequence[Mapping[str, Any]]) -> str:
    return f"miss {number}: " + "; ".join(map(_remedy, remedies))


def _remedy(remedy: Mapping[str, Any]) -> str:
    if remedy["feasible"]:
        return f"{remedy['change']} → fits, {words.seconds(remedy['step_time_s'])}"
    return f"{remedy['change']} → still too large" if remedy["step_time_s"] is not None else str(remedy["change"])


def search_account(search: Mapping[str, Any]) -> list[Any]:
    """What became of every candidate, and how far the best may be from the optimum."""
    rejected = {rule: n for rule, n in search["rejected"].items() if n}
    parts = [paragraph(_counts(search, sum(rejected.values())))]
    if rejected:
        by_rule = "; ".join(f"{rule} {words.count(n)}" for rule, n in sorted(rejected.items(), key=lambda item: -item[1]))
        parts.append(paragraph("rejected by rule: " + by_rule))
    parts += subset_parts(search)
    if search["best_step_time_s"] is not None:
        parts.append(paragraph(_bound(search)))
    if search["stopped"]:
        parts.append(paragraph(f"stopped early: {search['stopped'].replace('_', ' ')}"))
    return parts


def _counts(search: Mapping[str, Any], rejected: int) -> str:
    return (
        f"{words.count(search['candidates'])} candidates = {words.count(rejected)} rejected"
        f" + {words.count(search['pruned_by_bound'])} pruned by the bound + {words.count(search['priced'])} priced,"
        f" of which {words.count(search['fits'])} fit"
    )


def _bound(search: Mapping[str, Any]) -> str:
    if search.get("best_objective") is not None and search["objective"] != "throughput":
        return _objective_bound(search)
    text = f"best {words.seconds(search['best_step_time_s'], 4)}"
    if search["lower_bound_step_time_s"] is None:
        return text
    text += f"; no plan of this space is faster than {words.seconds(search['lower_bound_step_time_s'], 4)}"
    return text + (", proven optimal" if search["proven_optimal"] else f", gap {words.percent(search['gap'])}")


def _objective_bound(search: Mapping[str, Any]) -> str:
    unit = {"cost": "USD per million tokens", "energy": "J a token", "goodput": "s a useful step"}[search["objective"]]
    text = f"best {words.digits(search['best_objective'], 4)} {unit}"
    if search["lower_bound_objective"] is None:
        return text
    text += f"; no plan of this space needs less than {words.digits(search['lower_bound_objective'], 4)}"
    return text + (", proven optimal" if search["proven_optimal"] else f", gap {words.percent(search['gap'])}")


def assumptions(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The values in force, by where they come from."""
    origins = [o for o in ("given", "preset", "inferred", "default") if any(r["origin"] == o for r in rows)]
    return [
        paragraph(f"{origin}: " + words.joined((r["key"], r["value"]) for r in rows if r["origin"] == origin))
        for origin in origins
    ]
