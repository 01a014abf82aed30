"""Prints predicted against measured memory of runs whose plan and the peak of every rank are published.

    python benchmarks/memory_published.py

MooreThreads/SimuMax (docs/b200/b200_release_v1.2_summary.json, Apache-2.0): Megatron-LM with Transformer Engine 2.11 on 8 B200,
bf16 with fp32 gradients, distributed optimizer, sequence parallelism, Transformer Engine's cross entropy, no recompute, one
sequence a micro-batch, models cut to a few layers; `torch.cuda.max_memory_allocated` of the fullest rank of each stage and
`max_memory_reserved` of the fullest of all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shardwright.models.catalog import load_model
from shardwright.models.graph import ModelGraph
from shardwright.models.spec import ModelSpec
from shardwright.models.transformer import build_graph
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions
from shardwright.planner.validation.statistics import median, quantile

GIB = 2.0**30
CLUSTER = "dgx-b200:1"
MICRO_BATCHES = 4
FUSED_LOSS = "stack.logit_saved_bytes=2"
"""Transformer Engine's cross entropy writes the gradient over the logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run.

    Attributes:
        model: preset; changes: what the run changed of it.
        degrees: the plan.
        allocated: GiB of each stage.
        reserved: GiB of the fullest stage.
        seq_len: tokens a sequence.
    """

    model: str
    changes: dict[str, Any]
    degrees: Degrees
    allocated: tuple[float, ...]
    reserved: float
    seq_len: int = 4096

    @property
    def name(self) -> str:
        """Model and plan in a word each."""
        plan = self.degrees
        degrees = {"tp": plan.tp, "cp": plan.cp, "pp": plan.pp, "ep": plan.ep}
        return " ".join([self.model, *(f"{axis}{size}" for axis, size in degrees.items() if size > 1), f"{self.seq_len:,}"])


LLAMA_70B = {"model": "llama3-70b", "changes": {"layers": 12}}
DEEPSEEK_V2 = {"model": "deepseek-v2", "changes": {"layers": 4}}
DEEPSEEK_V3 = {"model": "deepseek-v3", "changes": {"layers": 4, "mtp_layers": 0, "moe": {"dense_layers": [0]}}}
"""One dense layer, as the runs had it."""

LLAMA_405B = {"model": "llama3.1-405b", "changes": {"layers": 4, "kv_heads": 16}}


def _dense(model: dict[str, Any], tp: int, pp: int, allocated: tuple[float, ...], reserved: float) -> Case:
    return Case(**model, degrees=Degrees(tp=tp, pp=pp, zero=1), allocated=allocated, reserved=reserved)


def _experts(model: dict[str, Any], ep: int, pp: int, allocated: tuple[float, ...], reserved: float) -> Case:
    return Case(**model, degrees=Degrees(ep=ep, pp=pp, etp=1, zero=1), allocated=allocated, reserved=reserved)


def _long(model: dict[str, Any], tp: int, cp: int, seq_len: int, allocated: float, reserved: float) -> Case:
    degrees = Degrees(tp=tp, cp=cp, zero=1, cp_comm="a2a")
    return Case(**model, degrees=degrees, allocated=(allocated,), reserved=reserved, seq_len=seq_len)


CASES = (
    _dense(LLAMA_70B, 1, 2, (66.55, 62.97), 70.88),
    _dense(LLAMA_70B, 2, 1, (60.68,), 62.53),
    _dense(LLAMA_70B, 4, 1, (39.07,), 40.18),
    _dense(LLAMA_70B, 8, 1, (28.29,), 29.12),
    _dense(LLAMA_405B, 1, 2, (86.61, 87.08), 92.26),
    _dense(LLAMA_405B, 2, 1, (81.59,), 84.70),
    _dense(LLAMA_405B, 4, 1, (52.89,), 54.65),
    _dense(LLAMA_405B, 8, 1, (38.57,), 39.83),
    _long(LLAMA_70B, 2, 4, 32_768, 68.43, 70.33),
    _long(LLAMA_70B, 1, 8, 32_768, 104.51, 111.94),
    _long(LLAMA_405B, 2, 4, 32_768, 87.03, 91.15),
    _long(LLAMA_405B, 1, 8, 32_768, 139.22, 152.14),
    _long(LLAMA_70B, 2, 4, 131_072, 112.67, 121.40),
    _long(LLAMA_70B, 1, 8, 131_072, 147.99, 159.65),
    _long(LLAMA_405B, 2, 4, 131_072, 118.13, 127.50),
    _experts(DEEPSEEK_V2, 8, 1, (45.63,), 48.79),
    _experts(DEEPSEEK_V2, 4, 2, (31.59, 44.70), 47.05),
    _experts(DEEPSEEK_V3, 8, 1, (104.30,), 110.18),
    _experts(DEEPSEEK_V3, 4, 2, (71.24, 114.00), 118.61),
)


def graph_of(case: Case) -> ModelGraph:
    """The model with the changes of the run."""
    spec = load_model(case.model).spec
    given = spec.to_dict()
    changes = {name: given[name] | value if isinstance(value, dict) else value for name, value in case.changes.items()}
    return build_graph(ModelSpec.from_dict(given | changes))


def predicted(case: Case) -> tuple[list[float], float]:
    """GiB allocated on each stage and reserved on the fullest."""
    batch = MICRO_BATCHES * (8 // (case.degrees.tp * case.degrees.pp * case.degrees.cp))
    options = PricingOptions(framework="megatron", overrides=(FUSED_LOSS,))
    given = {"seq_len": case.seq_len, "global_batch": batch, "degrees": case.degrees}
    found = estimate(graph_of(case), CLUSTER, **given, options=options).to_dict()
    stages = [stage["memory"] for stage in found["stages"]]
    return [(m["total_bytes"] - m["reserve_bytes"]) / GIB for m in stages], found["memory"]["meters"]["reserved_bytes"] / GIB


def errors(cases: Iterable[Case]) -> list[tuple[Case, int, float, float]]:
    """Case, stage, predicted allocated GiB and its error, of every stage."""
    return [
        (case, stage, made, made / measured - 1.0)
        for case in cases
        for stage, (made, measured) in enumerate(zip(predicted(case)[0], case.allocated, strict=True))
    ]


def reserved_errors(cases: Iterable[Case]) -> list[float]:
    """Error of what the allocator of the fullest stage reserves, of every case."""
    return [predicted(case)[1] / case.reserved - 1.0 for case in cases]


def main() -> None:
    print(f"{'run':<36}{'stage':>6}{'measured':>10}{'predicted':>10}{'error %':>9}")
    found = errors(CASES)
    for case, stage, made, error in found:
        print(f"{case.name:<36}{stage:>6}{case.allocated[stage]:10.2f}{made:10.2f}{100 * error:9.1f}")
    for meter, size in (("allocated", [abs(e) for *_, e in found]), ("reserved", [abs(e) for e in reserved_errors(CASES)])):
        print(
            f"{meter}: median {100 * (median(size) or 0):.1f} %, p90 {100 * (quantile(size, 0.9) or 0):.1f} %, of {len(size)}"
        )


if __name__ == "__main__":
    main()
