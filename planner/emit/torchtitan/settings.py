"""The plan in torchtitan's own keys, which every format shares.

    parallelism(request)   degrees, schedule, modules of each pipeline stage
    training(request)      batch, sequence, dtypes

Batch identity: without a pipeline a step is `global_batch / (local_batch · dp)` accumulations of the local batch (the
micro-batch); with one, the local batch is all micro-batches of a data-parallel rank, cut by the schedule. From mid-2026 on the
same is said in tokens.

Source: `torchtitan/config/job_config.py` (0.2.2), `torchtitan/config/configs.py` (0.3.0 and main).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from shardwright.planner.emit.base import Request
from shardwright.planner.emit.torch_offload import all_states_on_host
from shardwright.planner.emit.torch_schedules import TITAN_SCHEDULES

ROTATE_METHODS = {"p2p": "alltoall", "allgather": "allgather"}


def in_tokens(version: str) -> bool:
    """Whether batches are said in tokens."""
    return version == "main"


FLOAT8_RECIPES: Mapping[str, str] = {
    "fp8-tensorwise": "tensorwise",
    "fp8-rowwise": "rowwise",
    "fp8-rowwise-gw-hp": "rowwise_with_gw_hp",
}
"""Names of torchao's recipes (Float8LinearRecipeName)."""


def is_toml(version: str) -> bool:
    """Whether the format is TOML."""
    return version == "0.2"


def parallelism(request: Request) -> dict[str, Any]:
    """The section `parallelism`."""
    parallel = request.parallel
    made: dict[str, Any] = {
        "data_parallel_replicate_degree": parallel["dp_replicate"],
        "data_parallel_shard_degree": parallel["dp_shard"],
        "tensor_parallel_degree": parallel["tp"],
        "context_parallel_degree": parallel["cp"],
        "expert_parallel_degree": parallel["ep"] if request.spec.moe else 1,
        "pipeline_parallel_degree": parallel["pp"],
    }
    if parallel["zero_stage"] > 1:
        made["fsdp_reshard_after_forward"] = "always" if parallel["reshard_after_forward"] else "never"
    if is_toml(request.version):
        made |= _old_keys(request)
    return made | (_pipeline(request) if parallel["pp"] > 1 else {})


def training(request: Request) -> dict[str, Any]:
    """The section `training`."""
    parallel, job = request.parallel, request.training
    dtypes = {"dtype": "float32", "mixed_precision_param": "float32" if job["precision"] == "fp32" else "bfloat16"}
    return (
        _batch(request)
        | {"steps": request.launch.steps, **dtypes, "mixed_precision_reduce": "float32"}
        | _graphs(request, parallel)
        | ({"enable_cpu_offload": True} if all_states_on_host(request) else {})
    )


def _graphs(request: Request, parallel: Any) -> dict[str, Any]:
    """CUDA graphs are on by default from 0.3 on, and refuse pipelines and host-synchronising expert dispatch."""
    off = parallel["pp"] > 1 or parallel["ep"] > 1
    return {"disable_cuda_graphs": True} if off and not is_toml(request.version) else {}


def _batch(request: Request) -> dict[str, int]:
    parallel, job = request.parallel, request.training
    piped = parallel["pp"] > 1
    if in_tokens(request.version):
        return {
            "num_tokens_per_microbatch_per_dp_rank": parallel["micro_batch"] * job["seq_len"],
            "num_tokens_per_train_step": job["global_batch"] * job["seq_len"],
            "max_context_length": job["seq_len"],
        }
    return {
        "local_batch_size": parallel["micro_batch"] * (parallel["micro_batches"] if piped else 1),
        "global_batch_size": job["global_batch"],
        "seq_len": job["seq_len"],
    }


def _old_keys(request: Request) -> dict[str, Any]:
    """Keys that 0.3 dropped."""
    parallel = request.parallel
    made: dict[str, Any] = {}
    if parallel["cp"] > 1:
        made["context_parallel_rotate_method"] = ROTATE_METHODS[parallel["cp_comm"]]
    if request.spec.moe:
        made["expert_tensor_parallel_degree"] = parallel["etp"]
        made["expert_parallel_comm_backend"] = "deepep" if parallel["moe_dispatcher"] == "deepep" else "standard"
    return made


def _pipeline(request: Request) -> dict[str, Any]:
    parallel = request.parallel
    size = {"num_pp_microbatches": parallel["micro_batches"]}
    if not in_tokens(request.version):
        size = {"pipeline_parallel_microbatch_size": parallel["micro_batch"]}
    return {
        "pipeline_parallel_schedule": TITAN_SCHEDULES[parallel["schedule"]],
        "module_fqns_per_model_part": stage_modules(request.chunks, "output" if is_toml(request.version) else "lm_head"),
        **size,
    }


def stage_modules(chunks: tuple[int, ...], head: str) -> list[list[str]]:
    """Names of the modules of each pipeline stage, in the order the layers run.

    Args:
        chunks: layers of each stage.
        head: name of the output projection.
    """
    ends = list(accumulate(chunks))
    stages = [[f"layers.{i}" for i in range(end - count, end)] for count, end in zip(chunks, ends, strict=True)]
    stages[0].insert(0, "tok_embeddings")
    stages[-1] += ["norm", head]
    return stages
