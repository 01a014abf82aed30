"""Keys of a ``config.json`` that do not change the layer graph, and how to tell those that might.

`NEUTRAL` keys are skipped. Of any other key that a family did not read, one whose value is empty (null,
false, 0, nothing) is skipped; one whose name speaks of the architecture (`may_change_graph`) is refused; the rest is
named in the notes of the spec.
"""

from __future__ import annotations

import re

_FILE = """
    _name_or_path architectures auto_map model_type transformers_version dtype torch_dtype use_bfloat16 torchscript
    _attn_implementation _attn_implementation_autoset attn_implementation _commit_hash _experts_implementation
    quantization_config compression_config unsloth_version unsloth_fixed return_dict return_dict_in_generate name_or_path
    task_specific_params finetuning_task id2label label2id num_labels problem_type tokenizer_class keys_to_ignore_at_inference
    output_attentions output_hidden_states output_scores use_cache is_decoder tf_legacy_loss use_return_dict
    gradient_checkpointing pruned_heads language
"""
_TOKENS = """
    bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id decoder_start_token_id forced_bos_token_id
    forced_eos_token_id image_token_id video_token_id audio_token_id suppress_tokens begin_suppress_tokens prefix bad_words_ids
"""
_GENERATION = """
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p
    repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size num_return_sequences
    exponential_decay_length_penalty remove_invalid_values chunk_size_feed_forward max_new_tokens num_logits_to_keep
"""
_TRAINING = """
    initializer_range initializer_factor attention_dropout attn_pdrop hidden_dropout classifier_dropout dropout layerdrop
    aux_loss_alpha seq_aux router_aux_loss_coef router_z_loss_coef output_router_logits router_jitter_noise
    router_bias_update_speed ep_size pretraining_tp tensor_parallel_size
"""
_NUMERICS = """
    rms_norm_eps layer_norm_epsilon layer_norm_eps norm_eps rope_theta rope_scaling rope_parameters rope_interleave rope_ratio
    rope_type rope_local_base_freq partial_rotary_factor rotary_pct initial_context_length original_max_position_embeddings
    norm_topk_prob routed_scaling_factor scoring_func swiglu_limit swiglu_alpha
    query_pre_attn_scalar attn_temperature_tuning floor_scale attn_scale for_llm_compressor logit_scale logits_scaling
    rotary_emb_base rotary_emb_fraction cache_implementation norm_epsilon init_std time_step_limit
    scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    mscale attention_factor
"""
NEUTRAL: frozenset[str] = frozenset(" ".join((_FILE, _TOKENS, _GENERATION, _TRAINING, _NUMERICS)).split())

# Parts of a key's name that speak of the architecture: whole parts, and beginnings of parts.
_WHOLE = "num n dim dims size rank act hc kv qk q k v o glu nope freq tie tied mlp ffn moe ssm attn norm norms"
_BEGUN = """
    layer head expert conv mamba state index lora window attention bias embed hidden intermediate residual multiplier rout gat
    cross encod decod vision audio compress parallel alibi softcap activation linear recurr block chunk sparse share adapter
    prompt skip period offset pattern dense stack loop depth width group topk dual branch
"""
_PARTS = frozenset(_WHOLE.split())
_BEGINNINGS = tuple(_BEGUN.split())


def is_neutral(key: str, value: object) -> bool:
    """Whether a key that no family read can be skipped without a word."""
    return key in NEUTRAL or value is None or value is False or value in (0, "", [], {})


def may_change_graph(key: str) -> bool:
    """Whether the name of a key speaks of the architecture."""
    parts = re.split(r"[^a-z0-9]+", key.lower())
    return any(part in _PARTS or part.startswith(_BEGINNINGS) for part in parts)
