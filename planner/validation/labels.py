"""What a measured run is, for summaries by more than its source: `labels_of(problem)`.

hardware    the generation of its devices (ampere, hopper, blackwell, cdna3)
kind        dense, experts, or fine-tuning (adapters or frozen modules, dense or with experts)
scale       how many GPUs, in bands of a factor of eight
precision   format of the products (bf16, fp16, fp8, fp4)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardwright.planner.problem import Problem

BANDS = (8, 64, 512)
"""Most GPUs of all bands of scale but the last: one node, a rack, a small and a large cluster."""

SCALES = ("1-8 GPUs", "9-64 GPUs", "65-512 GPUs", "over 512 GPUs")
KINDS = ("dense", "experts", "fine-tuning")

WAYS: Mapping[str, tuple[str, ...]] = {
    "hardware": ("volta", "ampere", "ada", "hopper", "blackwell", "blackwell-ultra"),
    "kind": KINDS,
    "scale": SCALES,
    "precision": ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4"),
}
"""Ways to break errors down, each with labels in the order they are shown; others follow by name."""


def labels_of(problem: Problem) -> dict[str, str]:
    """The label of a run in each of `WAYS`."""
    return {
        "hardware": problem.device.arch.lower(),
        "kind": _kind(problem),
        "scale": SCALES[sum(problem.cluster.gpus > most for most in BANDS)],
        "precision": problem.job.precision.compute,
    }


def _kind(problem: Problem) -> str:
    if problem.job.frozen:
        return "fine-tuning"
    return "experts" if problem.graph.spec.moe is not None else "dense"


def ordered(way: str, labels: Iterable[str]) -> list[str]:
    """Labels of a way in the order they are shown."""
    known = WAYS[way]
    return sorted(labels, key=lambda label: (known.index(label) if label in known else len(known), label))
