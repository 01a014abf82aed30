"""Sections and keys of torchtitan 0.2's configuration file.

torchtitan refuses a key it does not know; `MOVED` says where older versions kept those that have another name now.

Source: `torchtitan/config/job_config.py` of torchtitan 0.2.2; older names from 0.1.0 and its release notes.
"""

from __future__ import annotations

from collections.abc import Mapping

SECTIONS: Mapping[str, frozenset[str]] = {
    section: frozenset(keys.split())
    for section, keys in {
        "job": "config_file dump_folder description print_config save_config_file custom_config_module",
        "profiling": "enable_profiling save_traces_folder profile_freq profiler_active profiler_warmup enable_memory_snapshot "
        "save_memory_snapshot_folder",
        "metrics": "log_freq enable_tensorboard disable_color_printing save_tb_folder save_for_all_ranks enable_wandb",
        "model": "name flavor hf_assets_path tokenizer_path converters print_after_conversion",
        "optimizer": "name lr beta1 beta2 eps weight_decay implementation early_step_in_backward",
        "lr_scheduler": "warmup_steps total_steps decay_ratio decay_type min_lr_factor",
        "training": "dataset dataset_path local_batch_size global_batch_size seq_len max_norm steps enable_cpu_offload dtype "
        "mixed_precision_param mixed_precision_reduce gc_freq gc_debug dataloader",
        "parallelism": "data_parallel_replicate_degree data_parallel_shard_degree fsdp_reshard_after_forward "
        "tensor_parallel_degree disable_loss_parallel enable_async_tensor_parallel pipeline_parallel_degree "
        "module_fqns_per_model_part pipeline_parallel_first_stage_less_layers pipeline_parallel_last_stage_less_layers "
        "pipeline_parallel_layers_per_stage pipeline_parallel_schedule pipeline_parallel_schedule_csv "
        "pipeline_parallel_microbatch_size pipeline_parallel_expert_parallel_overlap context_parallel_degree "
        "context_parallel_load_balancer context_parallel_rotate_method expert_parallel_degree expert_tensor_parallel_degree "
        "expert_parallel_comm_backend",
        "checkpoint": "enable enable_ft_dataloader_checkpoints folder interval initial_load_path initial_load_model_only "
        "initial_load_in_hf initial_load_in_hf_quantized last_save_model_only last_save_in_hf export_dtype async_mode "
        "keep_latest_k load_step exclude_from_loading enable_first_step_checkpoint create_seed_checkpoint load_only",
        "activation_checkpoint": "mode selective_ac_option per_op_sac_force_recompute_mm_shapes_by_fqns early_stop "
        "memory_budget visualize_memory_budget_pareto preserve_rng_state determinism_check debug",
        "compile": "enable components backend",
        "quantize": "linear grouped_mm",
        "comm": "init_timeout_seconds train_timeout_seconds trace_buf_size save_traces_folder save_traces_file_prefix mode",
        "memory_estimation": "enable disable_fake_mode",
        "fault_tolerance": "enable process_group process_group_timeout_ms replica_id group_size min_replica_size "
        "semi_sync_method sync_steps should_quantize fragment_sync_delay fragment_update_alpha module_fragmenter",
        "experimental": "custom_import custom_args_module",
        "validation": "enable dataset dataset_path local_batch_size seq_len freq steps dataloader",
        "debug": "seed deterministic deterministic_warn_only moe_force_load_balance print_config",
    }.items()
}

MOVED: Mapping[str, str] = {
    "training.batch_size": "training.local_batch_size",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.compile": "compile.enable",
    "training.seed": "debug.seed",
    "training.deterministic": "debug.deterministic",
    "experimental.pipeline_parallel_degree": "parallelism.pipeline_parallel_degree",
    "experimental.pipeline_parallel_schedule": "parallelism.pipeline_parallel_schedule",
    "experimental.pipeline_parallel_microbatches": "parallelism.pipeline_parallel_microbatch_size",
    "experimental.context_parallel_degree": "parallelism.context_parallel_degree",
    "experimental.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "parallelism.pipeline_parallel_split_points": "parallelism.module_fqns_per_model_part",
    "model.norm_type": "model.flavor",
    "model.tokenizer_path": "model.hf_assets_path",
    "float8.enable_float8_linear": "model.converters",
    "checkpoint.enable_checkpoint": "checkpoint.enable",
}
"""Older key -> where it is now."""

REWORDED = frozenset(
    (
        "experimental.pipeline_parallel_microbatches",
        "parallelism.pipeline_parallel_split_points",
        "model.norm_type",
        "float8.enable_float8_linear",
    )
)
"""Those of `MOVED` whose values mean something else now."""
