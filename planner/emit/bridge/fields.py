"""Megatron arguments as fields of Megatron-Bridge's configuration: one table, so that both targets say one thing.

Each argument of the Megatron-LM list becomes a field of a section; names differ where Bridge's do
(`--decoder-first-pipeline-num-layers` is `num_layers_in_first_pipeline_stage`). An argument without a line here would be lost,
so `bridge_fields` refuses it.

Source: `megatron/bridge/training/config.py`, `models/gpt_provider.py` of https://github.com/NVIDIA-NeMo/Megatron-Bridge (0.3.1,
0.6.2); TransformerConfig of Megatron-Core.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright.errors import UnsupportedError
from shardwright.planner.emit.base import Word

Fields = dict[str, dict[str, Any]]


def _on(values: Sequence[str]) -> Any:
    return True


def _off(values: Sequence[str]) -> Any:
    return False


def _whole(values: Sequence[str]) -> Any:
    return int(values[0])


def _real(values: Sequence[str]) -> Any:
    return float(values[0])


def _text(values: Sequence[str]) -> Any:
    return values[0]


def _texts(values: Sequence[str]) -> Any:
    return list(values)


def _pattern(values: Sequence[str]) -> Any:
    """`([0]*3+[1]*58)` as the list of its entries."""
    made: list[int] = []
    for part in values[0].strip("()").split("+"):
        value, count = part.split("*")
        made += [int(value.strip("[]"))] * int(count)
    return made


def _pair(values: Sequence[str]) -> Any:
    return ast.literal_eval(values[0])


_Convert = Callable[[Sequence[str]], Any]
_MODEL: Mapping[str, tuple[str, _Convert]] = {
    "num-layers": ("num_layers", _whole),
    "hidden-size": ("hidden_size", _whole),
    "ffn-hidden-size": ("ffn_hidden_size", _whole),
    "num-attention-heads": ("num_attention_heads", _whole),
    "num-query-groups": ("num_query_groups", _whole),
    "kv-channels": ("kv_channels", _whole),
    "make-vocab-size-divisible-by": ("make_vocab_size_divisible_by", _whole),
    "untie-embeddings-and-output-weights": ("share_embeddings_and_output_weights", _off),
    "normalization": ("normalization", _text),
    "swiglu": ("gated_linear_unit", _on),
    "disable-bias-linear": ("add_bias_linear", _off),
    "add-qkv-bias": ("add_qkv_bias", _on),
    "hidden-dropout": ("hidden_dropout", _real),
    "attention-dropout": ("attention_dropout", _real),
    "position-embedding-type": ("position_embedding_type", _text),
    "qk-layernorm": ("qk_layernorm", _on),
    "qk-l2-norm": ("qk_l2_norm", _on),
    "attention-output-gate": ("attention_output_gate", _on),
    "softmax-type": ("softmax_type", _text),
    "window-size": ("window_size", _pair),
    "window-attn-skip-freq": ("window_attn_skip_freq", _pattern),
    "no-rope-freq": ("no_rope_freq", _pattern),
    "mtp-num-layers": ("mtp_num_layers", _whole),
    "q-lora-rank": ("q_lora_rank", _whole),
    "kv-lora-rank": ("kv_lora_rank", _whole),
    "qk-head-dim": ("qk_head_dim", _whole),
    "qk-pos-emb-head-dim": ("qk_pos_emb_head_dim", _whole),
    "v-head-dim": ("v_head_dim", _whole),
    "num-experts": ("num_moe_experts", _whole),
    "moe-router-topk": ("moe_router_topk", _whole),
    "moe-ffn-hidden-size": ("moe_ffn_hidden_size", _whole),
    "moe-grouped-gemm": ("moe_grouped_gemm", _on),
    "moe-layer-freq": ("moe_layer_freq", _pattern),
    "moe-shared-expert-intermediate-size": ("moe_shared_expert_intermediate_size", _whole),
    "moe-shared-expert-gate": ("moe_shared_expert_gate", _on),
    "moe-router-load-balancing-type": ("moe_router_load_balancing_type", _text),
    "moe-aux-loss-coeff": ("moe_aux_loss_coeff", _real),
    "moe-router-score-function": ("moe_router_score_function", _text),
    "moe-router-enable-expert-bias": ("moe_router_enable_expert_bias", _on),
    "moe-router-num-groups": ("moe_router_num_groups", _whole),
    "moe-router-group-topk": ("moe_router_group_topk", _whole),
    "moe-router-dtype": ("moe_router_dtype", _text),
    "moe-token-dispatcher-type": ("moe_token_dispatcher_type", _text),
    "moe-flex-dispatcher-backend": ("moe_flex_dispatcher_backend", _text),
    "moe-enable-deepep": ("moe_enable_deepep", _on),
    "tensor-model-parallel-size": ("tensor_model_parallel_size", _whole),
    "sequence-parallel": ("sequence_parallel", _on),
    "context-parallel-size": ("context_parallel_size", _whole),
    "cp-comm-type": ("cp_comm_type", _text),
    "pipeline-model-parallel-size": ("pipeline_model_parallel_size", _whole),
    "num-virtual-stages-per-pipeline-rank": ("virtual_pipeline_model_parallel_size", _whole),
    "pipeline-model-parallel-layout": ("pipeline_model_parallel_layout", _text),
    "decoder-first-pipeline-num-layers": ("num_layers_in_first_pipeline_stage", _whole),
    "decoder-last-pipeline-num-layers": ("num_layers_in_last_pipeline_stage", _whole),
    "no-overlap-p2p-communication": ("overlap_p2p_comm", _off),
    "expert-model-parallel-size": ("expert_model_parallel_size", _whole),
    "expert-tensor-parallel-size": ("expert_tensor_parallel_size", _whole),
    "recompute-granularity": ("recompute_granularity", _text),
    "recompute-method": ("recompute_method", _text),
    "recompute-num-layers": ("recompute_num_layers", _whole),
    "recompute-modules": ("recompute_modules", _texts),
    "cpu-offloading-num-layers": ("cpu_offloading_num_layers", _whole),
    "tp-comm-overlap": ("tp_comm_overlap", _on),
    "no-gradient-accumulation-fusion": ("gradient_accumulation_fusion", _off),
    "seq-length": ("seq_length", _whole),
}
_OTHERS: Mapping[str, tuple[tuple[str, str], _Convert]] = {
    "micro-batch-size": (("train", "micro_batch_size"), _whole),
    "global-batch-size": (("train", "global_batch_size"), _whole),
    "train-iters": (("train", "train_iters"), _whole),
    "use-distributed-optimizer": (("ddp", "use_distributed_optimizer"), _on),
    "use-megatron-fsdp": (("ddp", "use_megatron_fsdp"), _on),
    "data-parallel-sharding-strategy": (("ddp", "data_parallel_sharding_strategy"), _text),
    "overlap-grad-reduce": (("ddp", "overlap_grad_reduce"), _on),
    "overlap-param-gather": (("ddp", "overlap_param_gather"), _on),
    "num-distributed-optimizer-instances": (("ddp", "num_distributed_optimizer_instances"), _whole),
    "grad-reduce-in-bf16": (("precision", "grad_reduce_in_fp32"), _off),
    "accumulate-allreduce-grads-in-fp32": (("precision", "grad_reduce_in_fp32"), _on),
    "ckpt-format": (("checkpoint", "ckpt_format"), _text),
    "optimizer": (("optimizer", "optimizer"), _text),
    "lr": (("optimizer", "lr"), _real),
    "use-precision-aware-optimizer": (("optimizer", "use_precision_aware_optimizer"), _on),
    "optimizer-cpu-offload": (("optimizer", "optimizer_cpu_offload"), _on),
    "optimizer-offload-fraction": (("optimizer", "optimizer_offload_fraction"), _real),
    "overlap-cpu-optimizer-d2h-h2d": (("optimizer", "overlap_cpu_optimizer_d2h_h2d"), _on),
    "exp-avg-dtype": (("optimizer_dtypes", "exp_avg_dtype"), _text),
    "exp-avg-sq-dtype": (("optimizer_dtypes", "exp_avg_sq_dtype"), _text),
    "log-interval": (("logger", "log_interval"), _whole),
    "log-throughput": (("logger", "log_throughput"), _on),
    "distributed-timeout-minutes": (("dist", "distributed_timeout_minutes"), _whole),
}
SAID_OTHERWISE = frozenset(
    {
        *("group-query-attention", "multi-latent-attention", "squared-relu"),  # the class and the activation function
        *("tokenizer-type", "vocab-size", "mock-data", "max-position-embeddings"),  # the recipe's own sections
        *("bf16", "fp16", "fp8-format", "fp8-recipe", "fp4-format", "fp4-recipe"),  # the name of a mixed precision
        "eval-iters",
    }
)
"""Arguments the recipe says in other words."""


def bridge_fields(words: Sequence[Word]) -> Fields:
    """Sections, fields and values of an argument list.

    Raises:
        UnsupportedError: an argument without a field.
    """
    made: Fields = {}
    for name, values in options_of(words).items():
        if name in _MODEL:
            field, convert = _MODEL[name]
            made.setdefault("model", {})[field] = convert(values)
            if field == "cpu_offloading_num_layers":
                made["model"]["cpu_offloading"] = True  # Megatron-LM's arguments switch it on with the number
        elif name in _OTHERS:
            (section, field), convert = _OTHERS[name]
            made.setdefault(section, {})[field] = convert(values)
        elif name not in SAID_OTHERWISE:
            raise UnsupportedError(
                f"Megatron-Bridge has no field for --{name}", where="--target", hint="use the target megatron"
            )
    return made


def options_of(words: Sequence[Word]) -> dict[str, list[str]]:
    """The options of an argument list and their values."""
    made: dict[str, list[str]] = {}
    for word in words:
        if word.text.startswith("--"):
            values = made.setdefault(word.text.removeprefix("--"), [])
        else:
            values.append(word.text)
    return made
