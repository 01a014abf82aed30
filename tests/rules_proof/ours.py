"""What this project's rules say of a configuration."""

from cases import Case

from shardwright.planner.rules.base import Facts
from shardwright.planner.rules.checking import Violation, violations

EVEN_SPLIT, PLAIN, INTERLEAVED = 0, "1f1b", "interleaved-1f1b"


def candidate_of(case: Case) -> dict[str, int]:
    """The case as the rules read it: every axis the search knows, and what follows from the degrees."""
    from shardwright.planner.schedules.registry import SCHEDULE_IDS

    degrees = {name: getattr(case, name) for name in ("tp", "cp", "pp", "vpp", "ep", "etp", "sp", "micro_batch")}
    recompute = {None: 0, "selective": 1, "full": 2}[dict(case.settings).get("recompute_granularity")]
    schedule = SCHEDULE_IDS.index(INTERLEAVED if case.vpp > 1 else PLAIN)
    return {
        **degrees,
        "dp": case.dp,
        "zero": 1,
        "dp_replicate": int(dict(case.settings).get("num_distributed_optimizer_instances") or 1),
        "schedule": schedule,
        "split": EVEN_SPLIT,
        "recompute": recompute,
    }


def facts_of(case: Case) -> Facts:
    """The job as the rules read it."""
    return Facts(
        gpus=case.gpus,
        graph=case.graph,
        seq_len=case.seq_len,
        global_batch=case.global_batch,
        shard_extents=(8,),
        reduces_once_a_step=True,
    )


def broken(case: Case, framework: str, version: str) -> list[Violation]:
    """The rules a configuration breaks."""
    return violations(candidate_of(case), facts_of(case), dict(case.settings), framework, version)
