"""The step as a waterfall: each part with its formula, the function that computes it, and where its figures come from.

M micro-batches, on the stage that determines the step (`cost.pricing`); the parts sum to `step_time_s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.planner.cost.pricing import TIME_PARTS
from shardwright.planner.explanation.saved import Record

KERNELS = ("gemm", "attention", "sustained_factor", "attention_sustained_factor", "memory_fraction", "precision_speedup")
"""Terms of `sources` that times of operators depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """How a part of the step is computed.

    Attributes:
        name: what the formula is called here.
        formula: in symbols.
        computed_by: the function.
        terms: keys of an estimate's `sources` that it depends on.
        origin: where its figures come from besides those; empty for nowhere.
        source: what that is.
    """

    name: str
    formula: str
    computed_by: str
    terms: tuple[str, ...] = ()
    origin: str = ""
    source: str = ""


def _exchange(axis: str, name: str) -> Formula:
    return Formula(
        name=name,
        formula="M · Σ layers · (exchange − what computation hides), forward, backward and recomputed",
        computed_by="cost.operators.unit_tables",
        terms=(f"collective.{axis}",),
        origin="modelled",
        source=f"stack profile: {axis}_exposed" if axis != "cp" else "stack profile: cp_hidden",
    )


FORMULAS: Mapping[str, Formula] = {
    "compute_s": Formula(
        name="operator sum",
        formula="M · Σ layers · Σ operators · (forward + backward)",
        computed_by="cost.compute.operator_times",
        terms=KERNELS,
    ),
    "recompute_s": Formula(
        name="repeated operators",
        formula="M · share of layers · Σ operators run again",
        computed_by="cost.operators.unit_tables",
        terms=KERNELS,
    ),
    "exposed_tp_s": _exchange("tp", "exposed tensor exchange"),
    "exposed_cp_s": _exchange("cp", "exposed context exchange"),
    "exposed_ep_s": _exchange("ep", "exposed expert exchange"),
    "exposed_pp_s": Formula(
        name="exposed sends",
        formula="2 · M · vpp · send · exposed share, + sum of tied embeddings",
        computed_by="cost.sends.send_s",
        terms=("collective.pp",),
        origin="modelled",
        source="stack profile: p2p_exposed, p2p_exposed_interleaved",
    ),
    "exposed_dp_s": Formula(
        name="exposed exchange of states",
        formula="max(f·R, R − B) + max(f·G, G − F) once a step; ZeRO 2, 3: what exceeds each pass",
        computed_by="cost.exchange.exposed_data",
        terms=("collective.dp",),
        origin="modelled",
        source="stack profile: dp_exposed_floor, fsdp_interference",
    ),
    "bubble_s": Formula(
        name="schedule",
        formula="end of the last rank − busy time of the busiest",
        computed_by="cost.pipelines.exact_ends",
        origin="modelled",
        source="recurrence of the schedule, equal to its event simulation",
    ),
    "optimizer_s": Formula(
        name="update traffic",
        formula="bytes a parameter / memory bandwidth",
        computed_by="cost.states.states",
        terms=("memory_fraction",),
        origin="modelled",
        source="stack profile: optimizer_bytes_per_parameter",
    ),
    "other_s": Formula(
        name="host launches",
        formula="M · Σ layers · ((c⁴ + h⁴)^¼ − c), h = kernels · host time a kernel",
        computed_by="cost.operators.unit_tables",
        origin="modelled",
        source="stack profile: kernels_per_layer, host_s_per_kernel",
    ),
}

HOSTED: Mapping[str, Formula] = {
    "optimizer_s": Formula(
        name="update on the host",
        formula="(1 − o) · on the device + max(o · bytes a parameter / host bandwidth, o · copies / host link)",
        computed_by="cost.offload.update_s",
        terms=("memory_fraction", "offload"),
        origin="modelled",
        source="stack profile: optimizer_bytes_per_parameter",
    ),
    "other_s": Formula(
        name="host launches and copies",
        formula="launches that computing does not hide + M · max(copies / host link − pass, 0), both ways",
        computed_by="cost.offload.copies_s",
        terms=("offload",),
        origin="modelled",
        source="stack profile: kernels_per_layer, host_s_per_kernel",
    ),
}
"""What other formulas hold where a plan keeps something in host memory."""


def waterfall(estimate: Mapping[str, Any]) -> list[Record]:
    """The ten parts of a step in order, those of zero among them."""
    total = estimate["predicted"]["step_time_s"]
    return [_part(name, estimate["time"][name], total, estimate["sources"]) for name in TIME_PARTS]


def _part(name: str, seconds: float, total: float, sources: Mapping[str, Any]) -> Record:
    formula = HOSTED[name] if "offload" in sources and name in HOSTED else FORMULAS[name]
    return {
        "part": name,
        "time_s": seconds,
        "share": seconds / total,
        "name": formula.name,
        "formula": formula.formula,
        "computed_by": formula.computed_by,
        "figures": _figures(formula, sources),
    }


def _figures(formula: Formula, sources: Mapping[str, Any]) -> list[Record]:
    """Where the figures of a formula come from."""
    found: list[Record] = []
    for term in formula.terms:
        source = sources.get(term)
        if isinstance(source, Mapping):
            error = source.get("median_error")
            found.append({"term": term, "origin": source["origin"], "source": source["source"], "median_error": error})
    own = {"term": formula.name, "origin": formula.origin, "source": formula.source, "median_error": None}
    return [*found, *([own] if formula.origin else [])]
