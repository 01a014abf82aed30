"""Argument lists of Megatron-LM for configurations, and the options that only its `validate_args` looks at.

`argument_list(case, version)` writes a case; `argument_steps(case)` changes one option by one step. Degrees, sizes and settings
have the framework's own names, so that writing them is a matter of dashes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cases import Case

FLAGS_OFF: Mapping[str, str] = {
    "add_bias_linear": "--disable-bias-linear",
    "check_for_nan_in_loss_and_grad": "--no-check-for-nan-in-loss-and-grad",
    "enable_gloo_process_groups": "--disable-gloo-process-groups",
    "overlap_p2p_comm": "--no-overlap-p2p-communication",
    "apply_rope_fusion": "--no-rope-fusion",
    "gradient_accumulation_fusion": "--no-gradient-accumulation-fusion",
}
"""Options that are on unless a flag says otherwise."""


ALWAYS = "--train-iters 10 --lr 1e-4 --min-lr 1e-5 --tokenizer-type NullTokenizer --mock-data --normalization RMSNorm"

STEPS: Mapping[str, tuple[object, ...]] = {
    "use_distributed_optimizer": (None, True),
    "overlap_grad_reduce": (None, True),
    "overlap_param_gather": (None, True),
    "overlap_param_gather_with_optimizer_step": (None, True),
    "tp_comm_overlap": (None, True),
    "overlap_p2p_comm": (None, False),
    "align_param_gather": (None, True),
    "use_torch_fsdp2": (None, True),
    "use_megatron_fsdp": (None, True),
    "data_parallel_sharding_strategy": (None, "no_shard", "optim", "optim_grads", "optim_grads_params"),
    "ckpt_format": (None, "torch", "torch_dist", "torch_dcp", "fsdp_dtensor"),
    "untie_embeddings_and_output_weights": (None, True),
    "optimizer_cpu_offload": (None, True),
    "use_precision_aware_optimizer": (None, True),
    "optimizer": (None, "adam", "sgd"),
    "fp16": (None, True),
    "bf16": (None, True),
    "fp8_format": (None, "hybrid"),
    "fp8_param_gather": (None, True),
    "num_distributed_optimizer_instances": (None, 2, 3, 4),
    "enable_gloo_process_groups": (None, False),
    "calculate_per_token_loss": (None, True),
    "ddp_average_in_collective": (None, True),
    "env.CUDA_DEVICE_MAX_CONNECTIONS": ("1", "8"),
    "max_position_embeddings": (48, 95, 96, 97, 192),
    "num_layers_per_virtual_pipeline_stage": (None, 1, 2, 3, 4),
    "recompute_granularity": (None, "selective", "full"),
    "recompute_method": (None, "uniform", "block"),
    "recompute_num_layers": (None, 1, 2),
    "distribute_saved_activations": (None, True),
    "moe_grouped_gemm": (None, True),
    "moe_token_dispatcher_type": (None, "allgather", "alltoall"),
    "overlap_moe_expert_parallel_comm": (None, True),
    "decoder_first_pipeline_num_layers": (None, 2, 3, 4),
    "decoder_last_pipeline_num_layers": (None, 2, 3, 4),
    "account_for_embedding_in_pipeline_split": (None, True),
    "account_for_loss_in_pipeline_split": (None, True),
}
"""Options and the values a step goes to."""

DEGREES = ("tp", "cp", "pp", "vpp", "ep", "etp")


def argument_steps(case: Case) -> Iterator[tuple[str, object, Case]]:
    """Every configuration one option away: (option, its value, configuration)."""
    for name in DEGREES:
        value = getattr(case, name)
        for near in sorted({value * 2, max(value // 2, 1), value + 1} - {value}):
            yield name, near, replace(case, **{name: near})
    yield "sp", 1 - case.sp, replace(case, sp=1 - case.sp)
    for gpus in (case.gpus - 1, case.gpus * 2):
        yield "gpus", gpus, replace(case, gpus=gpus)
    for seq_len in (case.seq_len - 2, case.seq_len // 2):
        yield "seq_len", seq_len, replace(case, seq_len=seq_len)
    for layers in (case.graph.spec.layers - 1, case.graph.spec.layers + 1):
        yield "layers", layers, case.with_model(layers=layers)
    for name, values in STEPS.items():
        given = dict(case.settings).get(name)
        for value in values:
            if value != given:
                yield name, value, case.with_settings(**{name: value})


def environment(case: Case) -> dict[str, str]:
    """Environment of the launch."""
    given = {key.removeprefix("env."): str(value) for key, value in case.settings if key.startswith("env.")}
    return {"WORLD_SIZE": str(case.gpus), **given}


def argument_list(case: Case) -> list[str]:
    """The command line of a configuration."""
    spec, options = case.graph.spec, dict(case.settings)
    made = ALWAYS.split()
    numbers: dict[str, object] = {
        "num-layers": spec.layers,
        "hidden-size": spec.hidden,
        "num-attention-heads": spec.heads,
        "ffn-hidden-size": spec.ffn,
        "vocab-size": spec.vocab,
        "seq-length": case.seq_len,
        "max-position-embeddings": options.get("max_position_embeddings", case.seq_len),
        "micro-batch-size": case.micro_batch,
        "global-batch-size": case.global_batch,
        "tensor-model-parallel-size": case.tp,
        "pipeline-model-parallel-size": case.pp,
        "context-parallel-size": case.cp,
    }
    if case.vpp > 1 and "pipeline_model_parallel_layout" not in options:
        numbers["num-virtual-stages-per-pipeline-rank"] = case.vpp
    numbers |= _attention(case) | _experts(case)
    made += [word for key, value in numbers.items() for word in (f"--{key}", str(value))]
    made += ["--sequence-parallel"] * case.sp + ["--swiglu"] * spec.gated
    made += ["--group-query-attention"] * (spec.kv_heads < spec.heads) + ["--multi-latent-attention"] * (spec.mla is not None)
    skipped = ("max_position_embeddings", "transformer_impl")
    made += [word for key, value in options.items() if key not in skipped for word in _option(key, value)]
    return made


def _attention(case: Case) -> dict[str, object]:
    spec = case.graph.spec
    if spec.mla is not None:
        return {
            "q-lora-rank": spec.mla.q_rank,
            "kv-lora-rank": spec.mla.kv_rank,
            "qk-head-dim": spec.mla.nope_dim,
            "qk-pos-emb-head-dim": spec.mla.rope_dim,
            "v-head-dim": spec.mla.v_dim,
        }
    grouped = {"num-query-groups": spec.kv_heads} if spec.kv_heads < spec.heads else {}
    return {"kv-channels": spec.head_dim, **grouped}


def _experts(case: Case) -> dict[str, object]:
    spec = case.graph.spec
    made: dict[str, object] = {"mtp-num-layers": spec.mtp_layers} if spec.mtp_layers else {}
    made["expert-model-parallel-size"] = case.ep
    if spec.moe is not None:
        pattern = [int(spec.is_moe(layer)) for layer in range(spec.layers)]
        made |= {
            "expert-tensor-parallel-size": case.etp,
            "num-experts": spec.moe.experts,
            "moe-router-topk": spec.moe.topk,
            "moe-ffn-hidden-size": spec.moe.expert_ffn,
            "moe-layer-freq": str(pattern).replace(" ", ""),
        }
        if spec.moe.shared_ffn:
            made["moe-shared-expert-intermediate-size"] = spec.moe.shared_ffn
    return made


def _option(key: str, value: object) -> list[str]:
    if key.startswith("env.") or value is None:
        return []
    if value is False:
        return [FLAGS_OFF[key]]
    name = "--" + key.replace("_", "-")
    if value is True:
        return [] if key in FLAGS_OFF else [name]
    return [name, *map(str, value)] if isinstance(value, tuple) else [name, str(value)]
