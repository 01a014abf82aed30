"""Rules that keep the search from pricing one plan twice: a switch without effect takes its neutral value."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from shardwright.planner.plans import RECOMPUTE_MODES, RECOMPUTED_SHARE, BoolArray
from shardwright.planner.rules.base import Columns, Facts, Rule
from shardwright.planner.schedules.registry import SCHEDULE_IDS

_PLAIN, _GPIPE = SCHEDULE_IDS.index("1f1b"), SCHEDULE_IDS.index("gpipe")


def _search_only(
    name: str,
    says: str,
    reads: tuple[str, ...],
    broken: Callable[[Columns, Facts], BoolArray],
    neutral: str,
    waived_by: str | None = None,
) -> Rule:
    def message(candidate: Mapping[str, int], facts: Facts) -> str:
        return says

    def remedy(candidate: Mapping[str, int], facts: Facts) -> str:
        return neutral

    return Rule(
        id=name,
        says=says,
        reads=reads,
        broken=broken,
        message=message,
        remedy=remedy,
        canonical=True,
        waived_by=waived_by,
        source="search space",
    )


def _no_effect(says: str, reads: tuple[str, ...], broken: Callable[[Columns, Facts], BoolArray], neutral: str) -> Rule:
    return _search_only("no-effect", says, reads, broken, neutral)


def _etp_dense(c: Columns, f: Facts) -> BoolArray:
    return (c["etp"] > 1) & (f.graph.spec.moe is None)


def _sp_alone(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((c["sp"] > 0) & (c["tp"] == 1))


def _nothing_sharded(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((c["zero"] > 0) & (c["dp"] // c["dp_replicate"] * c["cp"] == 1))


def _gradients_whole(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((c["zero"] == 2) & (c["pp"] > 1) & f.reduces_once_a_step)


def _schedule(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((c["pp"] == 1) & (c["schedule"] != _PLAIN))


def _gpipe(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((c["schedule"] == _GPIPE) & (c["micro_batches"] >= c["pp"]))


def _other_schedules(c: Columns, f: Facts) -> BoolArray:
    """Schedules that the target whose facts price the plan does not run."""
    return np.asarray(~np.isin(SCHEDULE_IDS, f.planned_schedules)[c["schedule"]])


def _split_alone(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((c["pp"] == 1) & (c["split"] > 0))


def _same_split(c: Columns, f: Facts) -> BoolArray:
    """Counting something gives the same layers as counting nothing or less."""
    layers, chunks = f.graph.layers, c["pp"] * c["vpp"]
    same = np.zeros(len(chunks), dtype=bool)
    for kind in np.unique(c["split"][c["split"] < 4]):
        for other in range(int(kind)):
            if other & ~int(kind):
                continue
            same |= (c["split"] == kind) & _equal_splits(layers, chunks, int(kind), other)
    return same


def _equal_splits(layers: int, chunks: np.ndarray, one: int, other: int) -> BoolArray:
    """Whether two even splits coincide: their sums agree, so equal first and last chunks leave the same in between."""

    def first_and_last(kind: int) -> tuple[np.ndarray, np.ndarray]:
        embedding, head = kind & 1, kind >> 1
        base, larger = np.divmod(layers + embedding + head, chunks)
        return base + (larger > 0) - embedding, base - head

    (first, last), (other_first, other_last) = first_and_last(one), first_and_last(other)
    return np.asarray((chunks == 1) | ((first == other_first) & (last == other_last)))


def _few_layers(c: Columns, f: Facts) -> BoolArray:
    """A share of recomputed layers that comes out as all layers of a stage, or as the next larger share does."""
    most = -(-f.graph.layers // c["pp"])
    same = np.zeros(len(most), dtype=bool)
    for choice in range(len(RECOMPUTE_MODES), len(RECOMPUTED_SHARE)):
        larger = RECOMPUTED_SHARE[choice - 1] if choice > len(RECOMPUTE_MODES) else 1.0
        covered, more = np.ceil(most * RECOMPUTED_SHARE[choice]), np.ceil(most * larger)
        same |= (c["recompute"] == choice) & (covered == more)
    return same


def _etp_partial(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((c["etp"] > 1) & (c["etp"] != c["tp"]))


def _hybrid(c: Columns, f: Facts) -> BoolArray:
    """Replicated groups of shards that are not a whole scale-up domain or node (or several)."""
    extent = c["tp"] * c["cp"] * (c["dp"] // c["dp_replicate"])
    whole = np.isin(extent, f.shard_extents)
    return (c["zero"] > 0) & (c["dp_replicate"] > 1) & ~whole


CANONICAL: tuple[Rule, ...] = (
    _no_effect(
        "ZeRO 2 is ZeRO 1 where a pipeline accumulates whole gradients",
        ("pp", "zero"),
        _gradients_whole,
        "zero 1",
    ),
    _no_effect("etp above 1 does nothing without experts", ("etp",), _etp_dense, "etp 1"),
    _no_effect("sequence parallelism does nothing with tp 1", ("tp", "sp"), _sp_alone, "sequence parallelism off"),
    _no_effect(
        "ZeRO does nothing where no rank shares the states", ("dp", "cp", "zero", "dp_replicate"), _nothing_sharded, "zero 0"
    ),
    _no_effect(
        "without a pipeline all schedules are plain 1f1b",
        ("pp", "schedule"),
        _schedule,
        "schedule 1f1b",
    ),
    _no_effect("without a pipeline there is one split of the layers", ("pp", "split"), _split_alone, "split even"),
    _no_effect(
        "counting embedding or head gives the same layers as not counting them",
        ("pp", "vpp", "split"),
        _same_split,
        "split even",
    ),
    _search_only(
        "priced-schedules",
        "without a named framework the search plans schedules that the target whose facts price the plan (the stack's) runs: "
        "name a framework, or fix the schedule, for others",
        ("schedule",),
        _other_schedules,
        "name a framework that runs it, or another schedule",
        waived_by="schedule",
    ),
    _search_only(
        "gpipe-1f1b",
        "GPipe is tried only where there are fewer micro-batches than stages: else 1F1B takes as long and keeps less",
        ("pp", "micro_batches", "schedule"),
        _gpipe,
        "schedule 1f1b",
        waived_by="schedule",
    ),
    _no_effect("a share of a single layer is that layer", ("pp", "recompute"), _few_layers, "recompute full"),
    _search_only(
        "expert-tensor",
        "experts are split as the attention is (etp = tp) or not at all (etp 1)",
        ("tp", "etp"),
        _etp_partial,
        "etp 1",
        waived_by="etp",
    ),
    _search_only(
        "hybrid-shards",
        "states are sharded over all data-parallel ranks, or over the ranks of one node or scale-up domain, or of eight",
        ("dp", "cp", "tp", "zero", "dp_replicate"),
        _hybrid,
        "dp_replicate 1",
        waived_by="dp_replicate",
    ),
)
