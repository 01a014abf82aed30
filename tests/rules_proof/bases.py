"""Legal configurations to start from: small models of every shape, each under plans that together use every axis and setting.

The models are small so that their layers can be built; what the rules look at, divisibility and the order of sizes, is that of
large ones.
"""

from collections.abc import Iterator
from dataclasses import replace

from cases import Case

COMMON: dict[str, object] = {
    "add_bias_linear": False,
    "apply_rope_fusion": False,
    "bf16": True,
    "attention_dropout": 0.0,
    "env.CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "gradient_accumulation_fusion": False,
    "hidden_dropout": 0.0,
    "moe_token_dispatcher_type": "alltoall",
    "position_embedding_type": "rope",
    "transformer_impl": "transformer_engine",
    "use_distributed_optimizer": True,
}
"""What every configuration sets: small models of the Llama kind."""

GQA = {"name": "gqa", "layers": 12, "hidden": 192, "heads": 12, "kv_heads": 4, "ffn": 768, "vocab": 1000}
DEEP = {**GQA, "name": "deep", "layers": 24, "heads": 8, "kv_heads": 2, "ffn": 384}
MHA = {"name": "mha", "layers": 8, "hidden": 128, "heads": 16, "kv_heads": 16, "ffn": 528, "vocab": 512}
ROUTED = {
    **GQA,
    "name": "moe",
    "layers": 8,
    "moe.experts": 8,
    "moe.topk": 2,
    "moe.expert_ffn": 96,
    "moe.shared_ffn": 192,
    "moe.dense_layers": (0,),
}
LATENT = {
    "name": "mla",
    "layers": 14,
    "hidden": 128,
    "heads": 8,
    "ffn": 256,
    "vocab": 1000,
    "mla.q_rank": 48,
    "mla.kv_rank": 32,
    "mla.nope_dim": 16,
    "mla.rope_dim": 8,
    "mla.v_dim": 16,
    "moe.experts": 16,
    "moe.topk": 4,
    "moe.expert_ffn": 64,
    "moe.shared_ffn": 64,
    "moe.dense_layers": (0,),
    "mtp_layers": 1,
}


def _case(model: dict[str, object], settings: dict[str, object] | None = None, **degrees: int) -> Case:
    options = {**COMMON, **(settings or {})}
    job = {"seq_len": 96, "global_batch": 48, "etp": degrees.get("tp", 1), "sp": int(degrees.get("tp", 1) > 1)}
    return Case(model=tuple(sorted(model.items())), settings=tuple(sorted(options.items())), **{**job, **degrees})


def _dense() -> Iterator[Case]:
    yield _case(GQA, gpus=8)
    yield _case(GQA, gpus=16, tp=2, pp=2)
    yield _case(GQA, gpus=24, tp=4, pp=3, sp=0)
    yield _case({**GQA, "head_dim": 24}, gpus=48, tp=12, cp=2)
    yield _case(GQA, gpus=12, tp=1, cp=3, pp=2, micro_batch=2)
    yield _case(DEEP, gpus=32, tp=8, pp=4, vpp=2)
    yield _case(DEEP, gpus=24, tp=2, cp=2, pp=3, vpp=4, micro_batch=4)
    yield _case(MHA, gpus=32, tp=16, pp=2)
    yield _case(MHA, gpus=64, tp=4, cp=4, pp=4, vpp=2, global_batch=16)
    yield _case(DEEP, {"microbatch_group_size_per_vp_stage": 6}, gpus=16, tp=2, pp=4, vpp=3)
    yield _case(DEEP, {"num_distributed_optimizer_instances": 2}, gpus=48, tp=2, cp=2)
    yield _case(MHA, {"hierarchical_context_parallel_sizes": (2, 2)}, gpus=16, cp=4)


def _uneven() -> Iterator[Case]:
    first, last = "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"
    embedding, loss = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
    yield _case(GQA, {first: 3, last: 3}, gpus=8, pp=4)
    yield _case({**DEEP, "layers": 22}, {first: 4, last: 2}, gpus=8, tp=2, pp=4, vpp=2)
    yield _case({**DEEP, "layers": 20}, {first: 2}, gpus=8, pp=4, global_batch=24)
    yield _case({**GQA, "layers": 11}, {last: 2}, gpus=8, pp=4)
    yield _case({**GQA, "layers": 10}, {first: 4, last: 6}, gpus=8, pp=2, vpp=2)
    yield _case({**GQA, "layers": 11}, {embedding: True}, gpus=8, pp=4)
    yield _case({**GQA, "layers": 14}, {embedding: True, loss: True}, gpus=16, tp=2, pp=4, vpp=2)
    yield _case({**DEEP, "layers": 23}, {loss: True}, gpus=12, pp=4, vpp=3)


def _layouts() -> Iterator[Case]:
    name = "pipeline_model_parallel_layout"
    yield _case({**GQA, "layers": 7}, {name: "Et*2|t*2|tt|tL"}, gpus=8, pp=4)
    yield _case({**DEEP, "layers": 12}, {name: "Et|(tt|)*5tL"}, gpus=14, pp=7)
    yield _case({**DEEP, "layers": 14}, {name: "Et|(tt|)*6tL"}, gpus=8, tp=2, pp=4, vpp=2)
    yield _case(LATENT, {name: "Ettt|(ttt|)*3ttmL|"[:-1]}, gpus=10, tp=2, pp=5)
    yield _case(LATENT, {name: "Ett|(tt|)*6mL"}, gpus=16, tp=2, pp=4, ep=2, vpp=2)


def _experts() -> Iterator[Case]:
    yield _case(ROUTED, gpus=16, tp=2, ep=4, etp=1)
    yield _case(ROUTED, gpus=16, tp=2, pp=2, ep=2)
    yield _case(ROUTED, {"moe_token_dispatcher_type": "allgather"}, gpus=32, tp=2, cp=2, ep=8, etp=1)
    yield _case({**ROUTED, "kv_heads": 6}, {"moe_shared_expert_overlap": True}, gpus=24, tp=3, ep=4, etp=1)
    yield _case({**ROUTED, "heads": 16}, gpus=16, tp=4, pp=2, ep=4, etp=2)
    yield _case(LATENT, gpus=32, tp=2, pp=2, ep=8, etp=1)
    yield _case({**LATENT, "layers": 12}, gpus=32, tp=4, pp=2, vpp=3, ep=4)
    yield _case(
        {**ROUTED, "moe.shared_ffn": 0}, {"overlap_moe_expert_parallel_comm": True}, gpus=32, tp=2, pp=2, vpp=2, ep=4, etp=1
    )
    yield _case(ROUTED, {"overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True}, gpus=8, ep=8)
    yield _case(ROUTED, {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}, gpus=8, ep=4)
    yield _case(ROUTED, {"moe_router_num_groups": 4, "moe_router_group_topk": 2}, gpus=8, ep=4)
    yield _case(
        LATENT, {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}, gpus=32, tp=2, ep=16, etp=1
    )
    yield _case({**ROUTED, "moe.topk": 1}, {"moe_router_pre_softmax": True}, gpus=8, ep=2)
    yield _case({**ROUTED, "moe.shared_ffn": 0, "mlp_bias": True}, {"add_bias_linear": True}, gpus=8, tp=2, ep=2, etp=1)


def _memory() -> Iterator[Case]:
    full = {"recompute_granularity": "full", "recompute_num_layers": 1}
    yield _case(GQA, {**full, "recompute_method": "uniform"}, gpus=16, tp=2, pp=2)
    yield _case(ROUTED, {**full, "recompute_method": "block"}, gpus=16, tp=2, pp=2, ep=2)
    yield _case(GQA, {"recompute_granularity": "selective"}, gpus=16, tp=2, pp=2)
    yield _case(
        {**ROUTED, "moe.shared_ffn": 96},
        {"recompute_granularity": "selective", "recompute_modules": ("shared_experts",)},
        gpus=16,
        tp=2,
        ep=4,
        etp=1,
    )
    yield _case(LATENT, {"recompute_granularity": "selective", "recompute_modules": ("mla_up_proj",)}, gpus=16, tp=2, ep=4)
    yield _case(GQA, {**full, "recompute_method": "uniform", "distribute_saved_activations": True}, gpus=16, tp=2, pp=2, sp=0)
    yield _case(GQA, {"cpu_offloading_num_layers": 2}, gpus=8, tp=2)


def bases() -> tuple[Case, ...]:
    """All of them; each with its tensor-parallel experts as wide as its attention, unless it says otherwise."""
    found = (*_dense(), *_uneven(), *_layouts(), *_experts(), *_memory())
    return tuple(case if case.graph.spec.moe else replace(case, ep=1, etp=1) for case in found)


_ZERO = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
_FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
_LAYOUT = "pipeline_model_parallel_layout"
_FREE = {"env.CUDA_DEVICE_MAX_CONNECTIONS": "8", "ckpt_format": "torch_dist"}
_EXPERT_OVERLAP = {"overlap_moe_expert_parallel_comm": True}


def argument_bases() -> dict[str, Case]:
    """Configurations whose argument lists Megatron-LM of every version accepts, by name."""
    plain = {"env.CUDA_DEVICE_MAX_CONNECTIONS": "1", "max_position_embeddings": 96, "ckpt_format": "torch_dist"}

    def case(model: dict[str, object], settings: dict[str, object] | None = None, **degrees: int) -> Case:
        made = _case(model, {**plain, **(settings or {})}, **degrees)
        made = made.with_settings(use_distributed_optimizer=(settings or {}).get("use_distributed_optimizer"))
        return made if made.graph.spec.moe else replace(made, etp=1)

    unshared = {**ROUTED, "moe.shared_ffn": 0}
    return {
        "zero-1": case(GQA, _ZERO, gpus=16, tp=2, pp=2),
        "tp-overlap": case(GQA, {"tp_comm_overlap": True}, gpus=16, tp=4),
        "context": case(GQA, {"use_distributed_optimizer": True}, gpus=24, cp=2, tp=2, pp=3),
        "interleaved": case(DEEP, _ZERO, gpus=32, tp=2, pp=4, vpp=2),
        "early-gather": case(
            DEEP,
            {**_ZERO, "overlap_param_gather_with_optimizer_step": True, "ckpt_format": "torch"},
            gpus=16,
            tp=1,
            pp=4,
            vpp=3,
        ),
        "chunk-layers": case(DEEP, {"num_layers_per_virtual_pipeline_stage": 3}, gpus=16, tp=2, pp=4),
        "first-last": case(
            {**GQA, "layers": 10},
            {"decoder_first_pipeline_num_layers": 2, "decoder_last_pipeline_num_layers": 2},
            gpus=16,
            tp=2,
            pp=4,
        ),
        "counted": case(
            {**GQA, "layers": 14},
            {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True},
            gpus=16,
            tp=2,
            pp=4,
        ),
        "layout": case({**GQA, "layers": 7}, {_LAYOUT: "Et*2|t*2|tt|tL"}, gpus=8, pp=4),
        "recompute-full": case(GQA, {**_FULL, "distribute_saved_activations": True}, gpus=16, tp=2, pp=2, sp=0),
        "recompute-selective": case(GQA, {"recompute_granularity": "selective"}, gpus=16, tp=2, pp=2),
        "torch-fsdp": case(GQA, {**_FREE, "use_torch_fsdp2": True, "untie_embeddings_and_output_weights": True}, gpus=8),
        "megatron-fsdp": case(
            GQA,
            {
                **_FREE,
                "use_megatron_fsdp": True,
                "use_distributed_optimizer": True,
                "ckpt_format": "fsdp_dtensor",
                "data_parallel_sharding_strategy": "optim_grads_params",
                "untie_embeddings_and_output_weights": True,
            },
            gpus=16,
            tp=2,
        ),
        "experts": case(ROUTED, {"use_distributed_optimizer": True}, gpus=32, tp=2, pp=2, ep=4, etp=1),
        "experts-overlap": case(unshared, _EXPERT_OVERLAP, gpus=32, tp=2, pp=2, vpp=2, ep=4, etp=1),
        "latent": case(LATENT, {"use_distributed_optimizer": True}, gpus=32, tp=2, pp=2, ep=8, etp=1),
        "instances": case(GQA, {**_ZERO, "num_distributed_optimizer_instances": 2}, gpus=32, tp=2, cp=2),
        "precision-aware": case(GQA, {**_ZERO, "use_precision_aware_optimizer": True}, gpus=16, tp=2),
        "fp8": case(GQA, {**_ZERO, "fp8_format": "hybrid", "fp8_param_gather": True}, gpus=16, tp=2),
    }
