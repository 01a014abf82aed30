"""What the reader finds in an argument list, in the words of megatron-core's own configurations.

Done by hand here, since what does it in Megatron-LM (`core_transformer_config_from_args`) is in no package: a setting goes to
the field of its name, a few have another name or form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import torch
from cases import Case
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.transformer_config import MLATransformerConfig

from shardwright.models.spec import ModelSpec
from shardwright.planner.readers.arithmetic import numbers
from shardwright.planner.readers.configuration import Configuration

SPLIT = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
"""Settings that the oracle renames."""

OF_THE_MODEL = frozenset((
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels"),
    *("multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
    *("moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_layer_freq", "mtp_num_layers"),
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "sequence_parallel"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size"),
))  # fmt: skip
"""Settings that a case holds as its model and degrees."""

SINGLE = ("cp_comm_type", "moe_router_load_balancing_type", "moe_aux_loss_coeff")
"""Lists of the parser that stand for their entry where they have one."""

GRID = frozenset(("num_distributed_optimizer_instances", "use_distributed_optimizer", "position_embedding_type"))
ON_CPU = {"gradient_accumulation_fusion": False, "transformer_impl": "transformer_engine"}


def case_of(found: Configuration, gpus: int) -> Case:
    """The question to megatron-core."""
    degrees = found.degrees
    named = {name: getattr(degrees, name) for name in ("tp", "cp", "pp", "ep", "micro_batch")}
    return Case(
        model=tuple(flat_model(found.graph.spec)),
        gpus=gpus,
        seq_len=found.seq_len,
        global_batch=found.global_batch,
        vpp=degrees.vpp or 1,
        etp=degrees.etp or degrees.tp,
        sp=int(bool(degrees.sequence_parallel)),
        settings=tuple(sorted(core_settings(found.settings).items())),
        **named,
    )


def flat_model(spec: ModelSpec) -> Iterator[tuple[str, Any]]:
    """Fields of the model as a case holds them."""
    for name, value in sorted(spec.to_dict().items()):
        inner = value if isinstance(value, dict) else None
        pairs = [(name, value)] if inner is None else [(f"{name}.{key}", one) for key, one in sorted(inner.items())]
        yield from ((key, tuple(one) if isinstance(one, list) else one) for key, one in pairs if one is not None)


def core_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that megatron-core's transformer configuration or process groups know."""
    known = {field.name for field in fields(MLATransformerConfig)} | set(SPLIT) | GRID
    made = {name: value for name, value in settings.items() if name in known - OF_THE_MODEL and value is not None}
    for name in SINGLE:
        if isinstance(made.get(name), tuple) and len(made[name]) == 1:
            (made[name],) = made[name]
    for name in ("window_attn_skip_freq", "no_rope_freq"):
        if name in made:
            made[name] = tuple(numbers(str(made[name])))
    if "window_size" in made:
        made["window_size"] = tuple(map(int, str(made["window_size"]).strip("()").split(",")))
    return made | ON_CPU


def build_ddp(settings: Mapping[str, Any]) -> DistributedDataParallelConfig:
    """The configuration of data parallelism."""
    known = {field.name for field in fields(DistributedDataParallelConfig)}
    made = {name: value for name, value in settings.items() if name in known}
    made["grad_reduce_in_fp32"] = not settings.get("grad_reduce_in_bf16", False)
    return DistributedDataParallelConfig(**made)


def build_optimizer(settings: Mapping[str, Any]) -> OptimizerConfig | None:
    """The configuration of the optimizer; None where all was well but for Transformer Engine's own, which is not there."""
    known = {field.name for field in fields(OptimizerConfig)}
    made = {name: value for name, value in settings.items() if name in known and not name.endswith("_dtype")}
    half = torch.bfloat16 if settings.get("bf16") else torch.float16 if settings.get("fp16") else torch.float32
    try:
        return OptimizerConfig(**made, params_dtype=half)
    except RuntimeError as error:
        if "FusedAdam from TransformerEngine, but not found" in str(error):
            return None
        raise
