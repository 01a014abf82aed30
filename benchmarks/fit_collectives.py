"""Fits the constants of ``hardware/presets/fabrics`` to public measurements and prints the error on held-out series.

    python benchmarks/fit_collectives.py --data FOLDER [--only nvlink4,infiniband] [--write]

The measured times are priced by the package itself (`collective_s`), so what is fitted is what is used. Residuals are
log(predicted / measured) with a soft L1 loss, half weight below 64 KiB, and a weak pull of every constant towards its
prior (needed where a fabric has few rows): general figures, NCCL's own latencies, or what fits all fabrics of a family.
Hold-out is by series, never by row: every series is predicted once with constants fitted to the others. The medians of
those errors are written beside the constants; `collective_report` prints them by reach, fabric and device.

Local fabrics are fitted first (single-node rows), then networks (multi-node rows) with the local curves of the tree fixed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from collective_report import Report
from collective_rows import Row, all_rows
from scipy.optimize import least_squares

from shardwright.hardware.catalog import load_cluster, load_node
from shardwright.hardware.collectives import GroupTable, collective_s
from shardwright.hardware.fabric import Curve, Fabric, fabric_of
from shardwright.hardware.groups import group_shape

Curves = Mapping[str, Curve]
Price = Callable[[Sequence[Row], Curves], np.ndarray]
PULL = 0.05
PRESETS = Path(__file__).parents[1] / "hardware" / "presets" / "fabrics"
SMALL_BYTES = 64 * 1024
LOCAL_FIELDS = ("alpha_s", "hop_s", "efficiency", "rank_power", "ramp_bytes", "ramp_power")
NETWORK_FIELDS = ("alpha_s", "hop_s", "efficiency", "ramp_bytes", "ramp_power", "node_power")
FURTHER = ("quick_share", "bulk_step_s", "post_s")  # fitted where the prior has them
LOW = {"alpha_s": 1e-7, "hop_s": 1e-8, "efficiency": 0.02, "rank_power": -0.6, "ramp_bytes": 1e2, "ramp_power": 0.2}
LOW |= {"post_s": 1e-8, "node_power": 0.0, "quick_share": 0.02, "bulk_step_s": 1e-8}
HIGH = {"alpha_s": 3e-4, "hop_s": 2e-4, "efficiency": 1.0, "rank_power": 0.6, "ramp_bytes": 1e9, "ramp_power": 1.0}
HIGH |= {"post_s": 6e-6, "node_power": 0.3, "quick_share": 0.6, "bulk_step_s": 5e-4}
SPREAD = {"alpha_s": 1.0, "hop_s": 1.0, "efficiency": 0.3, "rank_power": 0.3, "ramp_bytes": 2.0, "ramp_power": 0.3}
SPREAD |= {"post_s": 1.0, "node_power": 0.05, "quick_share": 0.5, "bulk_step_s": 1.0}
OPTIONAL = ("rank_power", "node_power", *FURTHER)  # written where they are not zero
PLAIN = ("rank_power", "ramp_power", "node_power")  # the others are fitted as logarithms
# Held near their priors, for want of rows: trees over many nodes were measured on one fabric only (NCCL's own latency is
# the prior), sends inside a node in one run only (the ramp of all-to-all is taken).
TIGHT = {
    ("tree", "alpha_s"): 0.3,
    ("tree", "hop_s"): 0.3,
    ("in_switch", "alpha_s"): 0.02,
    ("in_switch", "hop_s"): 0.02,
    ("send", "ramp_bytes"): 0.02,
    ("send", "ramp_power"): 0.05,
}

LOCAL_PRIOR: dict[str, Curve] = {
    "ring_reduce": Curve(alpha_s=10e-6, hop_s=1e-6, efficiency=0.75, rank_power=0.1, ramp_bytes=3e6, ramp_power=0.6),
    "in_switch_reduce": Curve(alpha_s=25e-6, hop_s=1e-8, efficiency=0.6, ramp_bytes=3e6, ramp_power=0.7, min_ranks=5),
    "gather": Curve(alpha_s=8e-6, hop_s=1e-6, efficiency=0.7, rank_power=0.15, ramp_bytes=3e6, ramp_power=0.6),
    "scatter": Curve(alpha_s=8e-6, hop_s=1e-6, efficiency=0.7, rank_power=0.15, ramp_bytes=3e6, ramp_power=0.6),
    "exchange": Curve(alpha_s=10e-6, hop_s=0.2e-6, efficiency=0.7, rank_power=0.2, ramp_bytes=3e6, ramp_power=0.6),
    "send": Curve(alpha_s=8e-6, hop_s=1e-8, efficiency=0.8, ramp_bytes=4e6, ramp_power=0.6),
}
# NCCL's constants: 40.1 of 50 GB/s of a link go into rings on Blackwell; of the rate in the switch 0.74 / 0.85 of Hopper's 0.6.
LOCAL_TWO = {"efficiency": 0.81, "ramp_bytes": 1e6, "quick_share": 0.3, "bulk_step_s": 2e-6}
TREE = {"quick_share": 0.3, "bulk_step_s": 10e-6}
RING = {"quick_share": 0.4, "bulk_step_s": 10e-6, "post_s": 2e-6}
NETWORK_PRIOR: dict[str, Curve] = {
    # Latencies of NCCL's tuning model: base and hop of a tree (LL), a ring's hop between LL (2.7 us) and Simple (14 us),
    # 1 us (Intel, Arm) or 2 us (AMD) for posting a message, three times that for large ones.
    "ring": Curve(alpha_s=6.6e-6, hop_s=10e-6, efficiency=0.9, ramp_bytes=1e5, ramp_power=0.7, node_power=0.02, **RING),
    "tree": Curve(alpha_s=6.8e-6, hop_s=5e-6, efficiency=0.9, ramp_bytes=1e6, ramp_power=0.6, node_power=0.02, **TREE),
    # 8 nodes of H100 with SHARP: a pass mark of 450 GB/s bus bandwidth (Azure), so 0.6 of 400 GB/s a node.
    "in_switch": Curve(alpha_s=15e-6, hop_s=5e-6, efficiency=0.6, ramp_bytes=1e6, ramp_power=0.6),
    "exchange": Curve(alpha_s=20e-6, hop_s=4e-6, efficiency=0.9, ramp_bytes=2e4, ramp_power=0.7, node_power=0.02),
    "send": Curve(alpha_s=15e-6, hop_s=1e-8, efficiency=0.9, ramp_bytes=1e6, ramp_power=0.8),
}
TWO_PROTOCOLS = ("slingshot", "nvlink5")
HOP_S = {"efa": 15.5e-6}  # latency of a message that the provider states for its SRD transport (HPC blog, 2018)
IN_SWITCH = {"nvlink4": 5, "nvlink5": 6}


def priced(rows: Sequence[Row], local: Mapping[str, Curves], network: Mapping[str, Curves]) -> np.ndarray:
    """Predicted seconds of each row with the given curves by fabric preset."""
    out = np.zeros(len(rows))
    for batch in _batches(tuple(rows)):
        fabric = _with_curves(batch.fabric, local, network, batch.in_switch)
        out[batch.index] = collective_s(batch.kind, batch.table, batch.message_bytes, fabric).time_s
    return out


@dataclasses.dataclass(frozen=True)
class _Batch:
    """Rows of one kind on one cluster."""

    index: np.ndarray
    kind: str
    in_switch: bool
    fabric: Fabric
    table: GroupTable
    message_bytes: np.ndarray


@functools.lru_cache(maxsize=64)
def _batches(rows: tuple[Row, ...]) -> list[_Batch]:
    found: dict[tuple[str, int, int, str, bool], list[int]] = defaultdict(list)
    for i, r in enumerate(rows):
        found[r.node, r.nodes, r.gpus_per_node, r.kind, r.in_switch].append(i)
    return [_batch(rows, np.array(index), *key) for key, index in found.items()]


def _batch(rows: tuple[Row, ...], index: np.ndarray, node: str, nodes: int, usable: int, kind: str, in_switch: bool) -> _Batch:
    cluster = load_cluster(f"{node}:{nodes}x{usable}")
    crossing = kind == "send" and nodes > 1
    shape = group_shape(cluster, 2, usable) if crossing else group_shape(cluster, nodes * usable, 1)
    message = np.array([rows[i].message_bytes for i in index])
    table = GroupTable.of([shape] * len(index))
    return _Batch(
        index=index, kind=kind, in_switch=in_switch, fabric=_fabric(node, nodes, usable), table=table, message_bytes=message
    )


@functools.lru_cache(maxsize=256)
def _fabric(node: str, nodes: int, usable: int) -> Fabric:
    return fabric_of(load_cluster(f"{node}:{nodes}x{usable}"))


def _with_curves(fabric: Fabric, local: Mapping[str, Curves], network: Mapping[str, Curves], in_switch: bool) -> Fabric:
    def inner(tier):
        if tier is None:
            return None
        curves = dict(local.get(tier.preset, tier.curves))
        if not in_switch:
            curves.pop("in_switch_reduce", None)
        return dataclasses.replace(tier, curves=curves)

    net = fabric.network
    if net is not None:
        net = dataclasses.replace(net, curves=network.get(net.preset, net.curves))
    return dataclasses.replace(fabric, scaleup=inner(fabric.scaleup), host=inner(fabric.host), network=net)


def fields_of(name: str, prior: Curves) -> tuple[str, ...]:
    """The constants that are fitted of a curve: those of networks where the prior speaks of several nodes."""
    curve = prior[name]
    own = NETWORK_FIELDS if curve.node_power > 0 or name == "in_switch" else LOCAL_FIELDS
    return own + tuple(f for f in FURTHER if getattr(curve, f) > 0)


def _names(prior: Curves) -> list[tuple[str, str]]:
    return [(name, field) for name in sorted(prior) for field in fields_of(name, prior)]


def pack(curves: Curves) -> np.ndarray:
    return np.array([_squash(field, getattr(curves[name], field)) for name, field in _names(curves)])


def unpack(values: np.ndarray, like: Curves) -> dict[str, Curve]:
    changes: dict[str, dict[str, float]] = defaultdict(dict)
    for (name, field), value in zip(_names(like), values, strict=True):
        changes[name][field] = _stretch(field, value)
    return {name: dataclasses.replace(like[name], **changes[name]) for name in like}


def _squash(field: str, value: float) -> float:
    return value if field in PLAIN else float(np.log(max(value, LOW[field])))


def _stretch(field: str, value: float) -> float:
    plain = value if field in PLAIN else float(np.exp(value))
    return float(np.clip(plain, LOW[field], HIGH[field]))


PARTS = (
    (("ring_reduce", "in_switch_reduce"), ("all_reduce",)),
    (("gather",), ("all_gather",)),
    (("scatter",), ("reduce_scatter",)),
    (("ring", "tree", "in_switch"), ("all_reduce", "all_gather", "reduce_scatter")),
    (("exchange",), ("all_to_all",)),
    (("send",), ("send",)),
)


def fit(rows: Sequence[Row], prior: Curves, price: Price) -> dict[str, Curve]:
    """The curves that price `rows` best; curves that share no kind of row are fitted apart."""
    made = dict(prior)
    for names, kinds in PARTS:
        own = {n: prior[n] for n in names if n in prior}
        some = [r for r in rows if r.kind in kinds]
        if own and some:
            pull = PULL if len({r.series for r in some}) > 8 else 4 * PULL
            made |= fit_part(some, own, lambda r, c: price(r, {**prior, **c}), pull)
    return made


def fit_part(rows: Sequence[Row], prior: Curves, price: Price, pull: float) -> dict[str, Curve]:
    """The curves that price `rows` best, pulled to `prior` by `pull` per row-equivalent."""
    measured = np.log([r.time_s for r in rows])
    weight = np.where(np.array([r.message_bytes for r in rows]) < SMALL_BYTES, 0.5, 1.0) * _series_weights(rows)
    start = pack(prior)
    spread = np.array([SPREAD[f] * _tightness(name, f, prior) for name, f in _names(prior)])
    bounds = [np.array([_squash(f, edge[f]) for _, f in _names(prior)]) for edge in (LOW, HIGH)]

    def residuals(values: np.ndarray) -> np.ndarray:
        error = (np.log(price(rows, unpack(values, prior))) - measured) * weight
        return np.concatenate([_soft(error), pull * (values - start) / spread])

    low, high = bounds
    inside = np.clip(start, low + 1e-9, high - 1e-9)
    found = least_squares(residuals, inside, bounds=(low - 1e-6, high + 1e-6), x_scale=spread, max_nfev=60)
    return unpack(found.x, prior)


def _tightness(name: str, field: str, prior: Curves) -> float:
    """How much closer to its prior a constant is held; rates of rings and switch where they could stand in for each other."""
    if field == "efficiency" and name in ("ring_reduce", "in_switch_reduce") and prior["ring_reduce"].quick_share > 0:
        return 0.1
    return TIGHT.get((name, field), 1.0)


def _soft(error: np.ndarray, scale: float = 0.15) -> np.ndarray:
    return np.sign(error) * scale * np.sqrt(2 * (np.sqrt(1 + (error / scale) ** 2) - 1))


def _series_weights(rows: Sequence[Row]) -> np.ndarray:
    """No series counts more than 60 rows of one kind."""
    count: dict[tuple[str, str], int] = defaultdict(int)
    for r in rows:
        count[r.series, r.kind] += 1
    return np.array([min(1.0, (60 / count[r.series, r.kind]) ** 0.5) for r in rows])


def local_rows(rows: Sequence[Row], preset: str) -> list[Row]:
    return [r for r in rows if r.nodes <= load_node(r.node).nodes_per_domain and _local_preset(r.node) == preset]


FAMILIES = {"roce": ("roce", "gib"), "gib": ("roce", "gib")}
"""Fabrics of one kind: constants of each are drawn to those that fit all of them."""


class Family:
    """Prices and fits one fabric, drawn to what fits the rows of its whole family."""

    def __init__(self, kind: str, preset: str, rows: Sequence[Row]) -> None:
        self.local = kind == "scale-up"
        own = local_rows if self.local else network_rows
        self.prior = _local_prior(preset) if self.local else _network_prior(preset)
        self.members = FAMILIES.get(preset, (preset,))
        self.rows = own(rows, preset)
        self.shared = [r for name in self.members if len(self.members) > 1 for r in own(rows, name)]

    def price(self, rows: Sequence[Row], curves: Curves) -> np.ndarray:
        """Predicted seconds of each row."""
        each = dict.fromkeys(self.members, curves)
        return priced(rows, each, {}) if self.local else priced(rows, {}, each)

    def fit(self, without: Sequence[str] = ()) -> dict[str, Curve]:
        """The curves, fitted to the series outside `without`."""
        shared, own = ([r for r in some if r.series not in without] for some in (self.shared, self.rows))
        prior = fit(shared, self.prior, self.price) if shared else dict(self.prior)
        return fit(own, prior, self.price) if own else prior

    def held_out(self) -> np.ndarray:
        """log(predicted / measured) of every row, each predicted from the other folds of series."""
        error = np.zeros(len(self.rows))
        for part in folds(self.rows):
            index = [i for i, r in enumerate(self.rows) if r.series in part]
            error[index] = self.error(self.fit(part), index)
        return error

    def error(self, curves: Curves, index: Sequence[int] | None = None) -> np.ndarray:
        """log(predicted / measured) of the rows of an index, or of all."""
        some = [self.rows[i] for i in (range(len(self.rows)) if index is None else index)]
        return np.log(self.price(some, curves)) - np.log([r.time_s for r in some])


def network_rows(rows: Sequence[Row], preset: str) -> list[Row]:
    return [r for r in rows if r.nodes > load_node(r.node).nodes_per_domain and load_node(r.node).fabric == preset]


def _local_preset(node: str) -> str:
    made = load_node(node)
    return made.scaleup_fabric if made.scaleup_domain_gpus > 1 else "pcie"


def folds(rows: Sequence[Row]) -> list[set[str]]:
    """Series in at most six folds of about equal rows."""
    count: dict[str, int] = defaultdict(int)
    for r in rows:
        count[r.series] += 1
    parts: list[tuple[int, set[str]]] = [(0, set()) for _ in range(min(6, len(count)))]
    for series in sorted(count, key=lambda s: (-count[s], s)):
        least = min(range(len(parts)), key=lambda i: parts[i][0])
        parts[least] = (parts[least][0] + count[series], parts[least][1] | {series})
    return [p for _, p in parts]


def summary(rows: Sequence[Row], error: np.ndarray) -> dict[str, dict[str, float]]:
    """Per kind: rows, median absolute error of all sizes and from 1 MiB."""
    table = {}
    for kind in sorted({r.kind for r in rows}):
        mine = np.array([r.kind == kind for r in rows])
        large = mine & np.array([r.message_bytes >= 2**20 for r in rows])
        table[kind] = {"rows": int(mine.sum()), "median": _median(error[mine])}
        if large.any():
            table[kind] |= {"rows_1mib": int(large.sum()), "median_1mib": _median(error[large]), "p90_1mib": _p90(error[large])}
    return table


def _median(error: np.ndarray) -> float:
    return round(float(np.median(np.abs(np.expm1(error)))), 4)


def _p90(error: np.ndarray) -> float:
    return round(float(np.percentile(np.abs(np.expm1(error)), 90)), 4)


def followed(curves: Curves, rows: Sequence[Row]) -> dict[str, Curve]:
    """The curves, with those that no row speaks of given the efficiency of the all-reduce (or network ring) curve."""
    kinds = {r.kind for r in rows}
    of = {"gather": "all_gather", "scatter": "reduce_scatter", "exchange": "all_to_all", "send": "send"}
    lead = curves["ring_reduce" if "ring_reduce" in curves else "ring"]
    made = {}
    for name, curve in curves.items():
        unseen = name in of and of[name] not in kinds
        made[name] = dataclasses.replace(curve, efficiency=lead.efficiency, rank_power=lead.rank_power) if unseen else curve
    return made


def text_of(kind: str, rows: Sequence[Row], curves: Curves, errors: Mapping[str, Mapping[str, float]], source: str) -> str:
    lines = [
        f"kind: {kind}",
        "origin: measured",
        f"source: {source}",
        f"rows: {len(rows)}",
        f"series: {len({r.series for r in rows})}",
    ]
    lines += ["held_out:"] + [f"  {k}: {{{', '.join(f'{a}: {b:g}' for a, b in v.items())}}}" for k, v in errors.items()]
    lines += ["curves:"] + [f"  {name}: {{{_curve_text(curve)}}}" for name, curve in curves.items()]
    return "\n".join(lines) + "\n"


def _curve_text(curve: Curve) -> str:
    values = {f: _plain(f, getattr(curve, f)) for f in (*LOCAL_FIELDS, *OPTIONAL[1:])}
    shown = [f"{f}: {value:.4g}" for f, value in values.items() if value or f not in OPTIONAL]
    return ", ".join(shown + ([f"min_ranks: {curve.min_ranks}"] if curve.min_ranks != 2 else []))


def _plain(field: str, value: float) -> float:
    """The value, or 0 where the fit left it at its lower edge."""
    least = {"hop_s": LOW["hop_s"] * 1.001, "rank_power": 1e-5, "node_power": 1e-5}.get(field, 0.0)
    return 0.0 if abs(value) <= least else value


def source_text(rows: Sequence[Row]) -> str:
    names = {"aiconfigurator": "NCCL tables of ai-dynamo/aiconfigurator 0.12.0", "coreweave": "coreweave/nccl-tests README"}
    named = [names.get(o, "public nccl-tests logs") for o in sorted({r.origin for r in rows})]
    nodes = ", ".join(sorted({r.node for r in rows}))
    return f"{', '.join(dict.fromkeys(named))} on {nodes}; fitted by benchmarks/fit_collectives.py"


LOCAL = ("nvlink2", "nvlink3", "nvlink4", "nvlink5", "infinity-fabric", "pcie")
NETWORKS = ("infiniband", "roce", "gib", "efa", "slingshot", "gpudirect-tcpx")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the reference measurements")
    parser.add_argument("--only", default="", help="comma-separated fabric ids")
    parser.add_argument("--write", action="store_true", help="write the presets")
    args = parser.parse_args()
    rows = all_rows(args.data)
    wanted = {w for w in args.only.split(",") if w}
    report = Report()
    for kind, presets in (("scale-up", LOCAL), ("network", NETWORKS)):
        for preset in presets:
            if not wanted or preset in wanted:
                _run(kind, preset, Family(kind, preset, rows), report, args.write)
    print(report.text())


def _local_prior(preset: str) -> dict[str, Curve]:
    prior = dict(LOCAL_PRIOR)
    if preset in IN_SWITCH:
        prior["in_switch_reduce"] = dataclasses.replace(prior["in_switch_reduce"], min_ranks=IN_SWITCH[preset])
    else:
        del prior["in_switch_reduce"]
    if preset in TWO_PROTOCOLS:
        prior |= {k: dataclasses.replace(prior[k], **LOCAL_TWO) for k in ("ring_reduce", "gather", "scatter")}
        prior["in_switch_reduce"] = dataclasses.replace(prior["in_switch_reduce"], efficiency=0.522)
    if preset == "pcie":
        # A fourteenth of the rate of NVLink: so is the message at which latency and transport are alike.
        prior = {k: dataclasses.replace(c, efficiency=0.7, rank_power=0.0, ramp_bytes=2e5) for k, c in prior.items()}
    return prior


def _network_prior(preset: str) -> dict[str, Curve]:
    """Only InfiniBand switches are set up to reduce; two protocols are told apart where rows over many nodes allow it."""
    prior = {k: c for k, c in NETWORK_PRIOR.items() if k != "in_switch" or preset == "infiniband"}
    if preset not in TWO_PROTOCOLS:
        prior |= {k: dataclasses.replace(prior[k], quick_share=0.0, bulk_step_s=0.0) for k in ("ring", "tree")}
    if preset in HOP_S:
        prior |= {k: dataclasses.replace(prior[k], hop_s=HOP_S[preset]) for k in ("ring", "tree")}
    return prior


def _run(kind: str, preset: str, family: Family, report: Report, write: bool) -> None:
    rows = family.rows
    if not rows:
        return
    shipped = np.log(priced(rows, {}, {})) - np.log([r.time_s for r in rows])
    errors = family.held_out()
    curves = followed(family.fit(), rows)
    report.add(kind, preset, rows, errors, shipped)
    text = text_of(kind, rows, {name: curves[name] for name in family.prior}, summary(rows, errors), source_text(rows))
    if write:
        (PRESETS / f"{preset}.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
