"""What the page of a result, and of a sweep, consists of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.errors import InvalidValueError
from shardwright.planner.intervals import KINDS
from shardwright.planner.plan_records import degrees_of
from shardwright.planner.problem import Problem, problem_from_inputs
from shardwright.planner.report import words
from shardwright.planner.report.html import plans, topology
from shardwright.planner.report.html.memory import memory_picture
from shardwright.planner.report.html.page import Figure, Page, Section, pictured
from shardwright.planner.report.html.pareto import pareto_pictures
from shardwright.planner.report.html.picture import Picture
from shardwright.planner.report.html.scaling import scaling_picture
from shardwright.planner.report.html.search import search_picture, verdict
from shardwright.planner.report.html.time import time_picture
from shardwright.planner.report.html.timeline import timeline_picture
from shardwright.planner.report.html.topology import topology_picture
from shardwright.planner.simulation import step_timeline

MOST_OPERATIONS = 400_000
"""Operations of a step that are simulated for a picture; beyond, it would take many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A page and its pictures."""

    page: Page
    pictures: Sequence[Picture]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Which of the ESTIMATEs of a document the page shows in detail.

    Attributes:
        plans: ranked plans, else the nearest misses, else the one estimate.
        place: 1-based.
        fits: whether they are ranked plans.
    """

    plans: Sequence[Mapping[str, Any]]
    place: int
    fits: bool

    @property
    def plan(self) -> Mapping[str, Any]:
        """The one in detail."""
        return self.plans[self.place - 1]


def shown_of(document: Mapping[str, Any], rank: int) -> Shown | None:
    """The plan of a document that is shown in detail; None where it holds none at all.

    Raises:
        InvalidValueError: no such rank.
    """
    if document["kind"] == "estimate":
        plans_of, fits = [document], True
    else:
        plans_of, fits = (document["plans"], True) if document["plans"] else (document["near_misses"], False)
    if not plans_of and rank == 1:
        return None
    if rank > len(plans_of):
        allowed = "1" if len(plans_of) <= 1 else f"1 to {len(plans_of)}"
        raise InvalidValueError(f"the result has no rank {rank}", where="--rank", hint=f"it has {allowed}")
    return Shown(plans=plans_of, place=rank, fits=fits)


def result_page(document: Mapping[str, Any], rank: int, source: str) -> Made:
    """The page of a plan-result or an estimate."""
    shown = shown_of(document, rank)
    world = shown.plans[shown.place - 1]["parallel"]["world_size"] if shown is not None else None
    problem = problem_from_inputs(document["inputs"], world_size=world)
    sections: list[Section] = []
    if shown is not None:
        title = "Ranked plans" if shown.fits else "Nothing fits; the nearest misses"
        if document["kind"] == "plan-result":
            grid = plans.plans_grid(shown.plans, shown.place, title)
            sections.append(Section(id="plans", title="Plans", tables=[grid], width="wide long"))
        sections += _details(shown, problem)
    if document["kind"] == "plan-result":
        sections += _searched(document, shown)
    sections += _grounds(document, shown)
    page = Page(
        title=f"{document['model']['name']} on {document['cluster']['name']}",
        subtitle=_subtitle(document),
        source=source,
        sections=sections,
        figures=_figures(document, shown) if shown else (),
        figures_label=f"Rank {shown.place} in figures"
        if shown and document["kind"] == "plan-result"
        else "The plan in figures",
        notices=_notices(document, shown),
    )
    return Made(page=page, pictures=[s.picture for s in sections if s.picture is not None])


def _details(shown: Shown, problem: Problem) -> list[Section]:
    plan = shown.plan
    sections = [pictured(time_picture(plan)), pictured(memory_picture(plan))]
    timeline, missing = _timeline(plan, problem)
    if timeline is not None:
        sections.append(pictured(timeline, width="wide"))
    else:
        sections.append(Section(id="timeline", title="Pipeline timeline", note=missing, width="wide"))
    picture = topology_picture(plan, problem.cluster)
    sections.append(pictured(picture, cards=topology.cards(picture), width="wide"))
    return sections


def _searched(document: Mapping[str, Any], shown: Shown | None) -> list[Section]:
    """What plans there are, and what became of the others; side by side where that comes out even."""
    ranked = [] if shown is None else [_ranked(p, n) for n, p in enumerate(shown.plans, 1)]
    fronts = pareto_pictures(ranked, 1 if shown is None else shown.place, document.get("pareto") or ())
    return [*map(pictured, fronts), pictured(search_picture(document["search"]), width="" if len(fronts) == 1 else "wide")]


def _ranked(plan: Mapping[str, Any], place: int) -> dict[str, Any]:
    return {**plan, "rank": plan.get("rank", place)}


def _timeline(plan: Mapping[str, Any], problem: Problem) -> tuple[Picture | None, str]:
    """The timeline, or why there is none."""
    parallel = plan["parallel"]
    operations = parallel["pp"] * parallel["vpp"] * parallel["micro_batches"] * 2
    if operations > MOST_OPERATIONS:
        return None, f"The step has {words.count(operations)} operations, more than are drawn ({words.count(MOST_OPERATIONS)})."
    try:
        made = step_timeline(problem, degrees_of(plan))
    except InvalidValueError as error:
        return None, f"No timeline: {error.message}."
    return timeline_picture(made, plan["predicted"]["step_time_s"]), ""


def _grounds(document: Mapping[str, Any], shown: Shown | None) -> list[Section]:
    """Collectives, accuracy, and inputs."""
    sections = []
    if shown is not None and shown.plan["communication"]:
        grid = plans.communication_grid(shown.plan["communication"])
        sections.append(Section(id="communication", title="Communication", tables=[grid], width="wide"))
    if shown is not None:
        grid = plans.sources_grid(shown.plan["sources"])
        sections.append(
            Section(id="accuracy", title="How far to trust it", caption=_accuracy(shown.plan), tables=[grid], width="wide")
        )
    grid = plans.assumptions_grid(document["assumptions"])
    sections.append(Section(id="inputs", title="Inputs and assumptions", tables=[grid], width="wide long"))
    return sections


def _accuracy(plan: Mapping[str, Any]) -> str:
    predicted = plan["predicted"]
    low, high = predicted["step_time_low_s"], predicted["step_time_high_s"]
    return (
        "The step is predicted from operator measurements and a model of the links; nothing of this job was measured. "
        f"{words.seconds(low)} to {words.seconds(high)} is as wide as the interval that holds 80 % of published runs "
        f"{_of_kind(predicted)}around their predictions. Plans of one job share most of that error, so that their order is "
        "more certain than their times. The page docs/accuracy.md has the errors against published runs, docs/limits.md what "
        "is not modelled."
    )


def _of_kind(predicted: Mapping[str, Any]) -> str:
    width = predicted.get("interval")
    return f"of {KINDS[width['kind']]} " if width is not None else ""


def _subtitle(document: Mapping[str, Any]) -> str:
    model, cluster, training = document["model"], document["cluster"], document["training"]
    active = f" ({words.big(model['active_parameters'])} active)" if model["active_parameters"] != model["parameters"] else ""
    return (
        f"{words.big(model['parameters'])} parameters{active} in {model['layers']} layers · "
        f"{words.many(cluster['gpus'], 'GPU')} on {words.many(cluster['nodes'], 'node')} · "
        f"{words.many(training['global_batch'], 'sequence')} of {words.count(training['seq_len'])} tokens a step · "
        f"{training['precision']}, {training['optimizer']}"
    )


def _figures(document: Mapping[str, Any], shown: Shown) -> list[Figure]:
    plan = shown.plan
    predicted, memory, time = plan["predicted"], plan["memory"], plan["time"]
    step = predicted["step_time_s"]
    interval = f"{words.seconds(predicted['step_time_low_s'])} to {words.seconds(predicted['step_time_high_s'])}"
    exposed = sum(seconds for name, seconds in time.items() if name.startswith("exposed_"))
    capacity = memory["capacity_bytes"]
    made = [
        ("step_time_s", "Step", words.seconds(step, 4), step, interval),
        ("tokens_per_s", "Tokens/s", words.count(predicted["tokens_per_s"]), predicted["tokens_per_s"], _a_gpu(predicted)),
        ("mfu", "MFU", words.percent(predicted["mfu"]), predicted["mfu"], f"{predicted['flops_convention']} attention"),
        ("peak_bytes", "Memory", f"{words.gib(memory['peak_bytes'])} GiB", memory["peak_bytes"], f"of {words.gib(capacity)}"),
        ("exposed_s", "Exposed exchange", words.percent(exposed / step), exposed, words.seconds(exposed)),
        ("bubble_s", "Bubble", words.percent(time["bubble_s"] / step), time["bubble_s"], words.seconds(time["bubble_s"])),
    ]
    if document["kind"] == "plan-result" and document["search"]["gap"] is not None:
        gap = document["search"]["gap"]
        proven = "proven optimal" if document["search"]["proven_optimal"] else "to the bound"
        made.append(("gap", "Gap", words.percent(gap, 2), gap, proven))
    return [Figure(key=key, name=name, value=value, exact=repr(exact), note=note) for key, name, value, exact, note in made]


def _a_gpu(predicted: Mapping[str, Any]) -> str:
    return f"{words.count(predicted['tokens_per_s_per_gpu'])} a GPU"


def _notices(document: Mapping[str, Any], shown: Shown | None) -> list[str]:
    if shown is None:
        return [
            verdict(document["search"]),
            "No combination of degrees passes the rules; see below which ones reject how many.",
        ]
    made = [f"{v['rule']}: {v['message']}. {v['remedy']}." for v in shown.plan["violations"]]
    if not shown.fits:
        made.insert(0, "Nothing fits. What is shown is the nearest miss, marked in the table.")
    return made + list(shown.plan["warnings"])


def sweep_page(document: Mapping[str, Any], source: str) -> Made:
    """The page of a sweep-result."""
    points = document["points"]
    picture = scaling_picture(points)
    sections = [pictured(picture, width="wide")] if picture is not None else []
    sections.append(Section(id="points", title="Points", tables=[plans.points_grid(points)], width="wide long"))
    models = list(dict.fromkeys(str(point["key"].get("model", "?")) for point in points))
    page = Page(
        title=f"Sweep of {', '.join(models[:4])}" + (f" and {len(models) - 4} more" if len(models) > 4 else ""),
        subtitle=f"{words.many(len(points), 'point')}, {sum(p['status'] == 'ok' for p in points)} with a plan that fits",
        source=source,
        sections=sections,
        notices=[] if picture is not None else ["No plan fits at any point; the table says why."],
    )
    return Made(page=page, pictures=[s.picture for s in sections if s.picture is not None])
