"""What this project's rules say of a configuration."""

from dataclasses import replace

from cases import Case

from shardwright.errors import ShardwrightError
from shardwright.planner.layouts import parse_layout
from shardwright.planner.rules.base import Facts
from shardwright.planner.rules.checking import Violation, violations
from shardwright.planner.schedules.registry import SCHEDULE_IDS

PLAIN, INTERLEAVED = "1f1b", "interleaved-1f1b"


def candidate_of(case: Case) -> dict[str, int]:
    """The case as the rules read it: every axis the search knows, and what follows from the degrees."""
    degrees = {name: getattr(case, name) for name in ("tp", "cp", "pp", "vpp", "ep", "etp", "sp", "micro_batch")}
    options = dict(case.settings)
    split = int(bool(options.get("account_for_embedding_in_pipeline_split"))) + 2 * int(
        bool(options.get("account_for_loss_in_pipeline_split"))
    )
    recompute = {"selective": 1, "full": 2}.get(str(options.get("recompute_granularity")), 0)
    schedule = SCHEDULE_IDS.index(INTERLEAVED if case.vpp > 1 else PLAIN)
    return {
        **degrees,
        "dp": case.dp,
        "zero": 1,
        "dp_replicate": 1,
        "schedule": schedule,
        "split": split,
        "recompute": recompute,
    }


def settled(case: Case) -> Case:
    """The case with the virtual stages that follow from its layout or its layers a chunk, as Megatron-LM counts them."""
    options = dict(case.settings)
    by_chunk, layout = options.get("num_layers_per_virtual_pipeline_stage"), options.get("pipeline_model_parallel_layout")
    if by_chunk is not None:
        chunks, rest = divmod(case.graph.spec.layers // case.pp, int(str(by_chunk)))
        return replace(case, vpp=max(chunks, 1)) if rest == 0 else case
    if layout is None:
        return case
    try:
        stages = len(parse_layout(str(layout)).chunks)
    except ShardwrightError:
        return case
    return replace(case, vpp=stages // case.pp) if stages % case.pp == 0 else case


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


def megatron_settings(case: Case) -> dict[str, object]:
    """Everything a command line of Megatron-LM says, under the names its parser gives: settings, model and degrees."""
    spec, moe = case.graph.spec, case.graph.spec.moe
    said: dict[str, object] = {
        "group_query_attention": (spec.kv_heads < spec.heads and spec.mla is None) or None,
        "multi_latent_attention": spec.mla is not None or None,
        "mtp_num_layers": spec.mtp_layers or None,
        "sequence_parallel": bool(case.sp) or None,
        "num_virtual_stages_per_pipeline_rank": case.vpp if case.vpp > 1 else None,
        "kv_channels": None if spec.mla else spec.head_dim,
    }
    if moe is not None:
        said |= {"num_experts": moe.experts, "moe_router_topk": moe.topk, "moe_ffn_hidden_size": moe.expert_ffn}
        said["moe_shared_expert_intermediate_size"] = moe.shared_ffn or None
    said |= dict(case.settings)
    said["fp8"] = said.pop("fp8_format", None)  # the names of what these flags set
    said["use_gloo_process_groups"] = said.pop("enable_gloo_process_groups", None)
    if "pipeline_model_parallel_layout" in said:
        said["num_virtual_stages_per_pipeline_rank"] = None
    return {name: value for name, value in said.items() if value is not None}


def broken(case: Case, framework: str, version: str) -> list[Violation]:
    """The rules a configuration breaks."""
    settings = megatron_settings(case) if framework == "megatron" else dict(case.settings)
    case = settled(case)
    return violations(candidate_of(case), facts_of(case), settings, framework, version)


def refusing(case: Case, framework: str, version: str) -> tuple[str, ...]:
    """Ids of the rules that make a configuration infeasible."""
    return tuple(sorted({one.rule for one in broken(case, framework, version) if one.severity == "error"}))


def schedule_rules(schedule: str, pp: int, vpp: int, micro_batches: int, version: str) -> tuple[str, ...]:
    """Ids of the rules of PyTorch that refuse a schedule over so many stages and micro-batches."""
    model = {"name": "deep", "layers": 64, "hidden": 128, "heads": 8, "kv_heads": 8, "ffn": 256, "vocab": 1024}
    case = Case(model=tuple(sorted(model.items())), gpus=pp, seq_len=64, global_batch=micro_batches, pp=pp, vpp=vpp)
    candidate = {**candidate_of(case), "schedule": SCHEDULE_IDS.index(schedule), "zero": 0, "dp_replicate": 1}
    found = violations(candidate, facts_of(case), {}, "pytorch", version)
    return tuple(sorted({one.rule for one in found if one.severity == "error"}))
