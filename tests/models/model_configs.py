"""Small configurations of the published shape, written for the tests, and what transformers counts for them.

The figures beside each (trainable parameters) were counted with transformers 5.24 on the meta device;
`test_models_frameworks.py` counts again where the extra `frameworks` is installed.
"""

from collections.abc import Callable
from typing import Any

from shardwright.errors import ShardwrightError

GENERIC = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-05,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.57.1",
    "use_cache": True,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
}
DENSE = {
    **GENERIC,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
LATENT = {
    **GENERIC,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        **DENSE,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "mlp_bias": False,
    },
    "llama-biases": {**DENSE, "model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 48},
    "llama-tied": {**DENSE, "model_type": "llama", "tie_word_embeddings": True, "num_key_value_heads": None},
    "mistral": {**DENSE, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 128},
    "mixtral": {
        **DENSE,
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen2": {
        **DENSE,
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 2,
    },
    "qwen3": {
        **DENSE,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 64,
        "attention_bias": False,
        "tie_word_embeddings": True,
    },
    "qwen2_moe": {
        **DENSE,
        "model_type": "qwen2_moe",
        "architectures": ["Qwen2MoeForCausalLM"],
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "shared_expert_intermediate_size": 384,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [1],
        "use_sliding_window": False,
    },
    "qwen3_moe": {
        **DENSE,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "head_dim": 64,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [],
    },
    "deepseek_v2": {
        **LATENT,
        "model_type": "deepseek_v2",
        "architectures": ["DeepseekV2ForCausalLM"],
        "q_lora_rank": None,
        "topk_method": "group_limited_greedy",
        "scoring_func": "softmax",
    },
    "deepseek_v3": {
        **LATENT,
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "num_nextn_predict_layers": 1,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    },
    "deepseek_v3-biases": {**LATENT, "model_type": "deepseek_v3", "attention_bias": True, "num_nextn_predict_layers": 0},
    "gpt_oss": {
        **DENSE,
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        "head_dim": 64,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "attention_bias": True,
        "swiglu_limit": 7.0,
    },
    "glm4_moe": {
        **DENSE,
        "model_type": "glm4_moe",
        "architectures": ["Glm4MoeForCausalLM"],
        "head_dim": 64,
        "attention_bias": True,
        "use_qk_norm": True,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
    },
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu_new",
        "attn_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "resid_pdrop": 0.1,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-05,
        "n_ctx": 128,
        "n_embd": 96,
        "n_head": 4,
        "n_layer": 3,
        "n_positions": 128,
        "n_inner": None,
        "vocab_size": 500,
        "summary_type": "cls_index",
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    },
}


def outcome(call: Callable[[Any], Any], argument: Any) -> Any:
    """What the call gives, or the error of ours that it raises; any other exception escapes."""
    try:
        return call(argument)
    except ShardwrightError as error:
        return error
