"""For every rule of a target: a plan and configuration that keep it, and a change that breaks it."""

DENSE, ROUTED, TIED, LATENT = "llama3.1-8b", "qwen3-30b-a3b", "gpt2", "deepseek-v3"
ONE = {"env.CUDA_DEVICE_MAX_CONNECTIONS": "1"}
E14 = {"decoder_first_pipeline_num_layers": 10, "decoder_last_pipeline_num_layers": 10}
SHARD, GATHER, REDUCE = "use_distributed_optimizer", "overlap_param_gather", "overlap_grad_reduce"
FSDP2 = {
    "use_torch_fsdp2": True,
    "untie_embeddings_and_output_weights": True,
    "gradient_accumulation_fusion": False,
}
FULL = {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 4}
SELECTIVE = {"recompute_granularity": "selective"}
OVERLAP = {"overlap_moe_expert_parallel_comm": True, "moe_token_dispatcher_type": "alltoall", "bf16": True}
GRAPHS = {"cuda_graph_impl": "transformer_engine"}
BATCH = {"train_batch_size": 96, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}

#: rule: (what keeps it, what changes), each a mapping of columns, settings, and `model`
MEGATRON = {
    "megatron-moe-sp": ({"model": ROUTED, "tp": 2, "sp": 1}, {"sp": 0}),
    "megatron-tp-overlap": ({"tp": 2, "sp": 1, "tp_comm_overlap": True}, {"sp": 0}),
    "megatron-sp-alone": ({"tp": 2, "sequence_parallel": True}, {"tp": 1}),
    "megatron-connections": ({"tp": 2, **ONE}, {"env.CUDA_DEVICE_MAX_CONNECTIONS": "8"}),
    "megatron-connections-blackwell": ({"device": 10}, {"tp": 2}),
    "megatron-fsdp-connections": (ONE, {"use_megatron_fsdp": True}),
    "megatron-fsdp-tp": ({"use_megatron_fsdp": True}, {"tp": 2}),
    "megatron-rank-order": ({"model": ROUTED, "use_tp_pp_dp_mapping": True, "ep": 2}, {"pp": 2}),
    "megatron-optimizer-instances": ({"num_distributed_optimizer_instances": 2, SHARD: True}, {"pp": 32, "tp": 3}),
    "megatron-optimizer-instances-alone": ({SHARD: True}, {"num_distributed_optimizer_instances": 2, SHARD: False}),
    "megatron-weight-shards": ({"tp": 2, "tensor_parallel_num_weight_shards": 4}, {"tensor_parallel_num_weight_shards": 5}),
    "megatron-weight-shards-world": ({"tensor_parallel_num_weight_shards": 4}, {"tensor_parallel_num_weight_shards": 5}),
    "megatron-weight-shards-checkpoint": ({"tensor_parallel_num_weight_shards": 2}, {"ckpt_format": "zarr"}),
    "megatron-kv-heads": ({"tp": 8}, {"tp": 16}),
    "megatron-qkv-width": ({"tp": 2}, {"tp": 5}),
    "megatron-linear-heads": ({"model": "linear", "tp": 2}, {"tp": 3}),
    "megatron-linear-cp": ({"model": "linear"}, {"cp": 2}),
    "megatron-linear-heads-cp": ({"model": "linear", "cp": 2}, {"cp": 3}),
    "megatron-head-size": ({"model": "odd-heads", "kv_channels": 128}, {"kv_channels": None}),
    "megatron-positions": ({"max_position_embeddings": 4096}, {"max_position_embeddings": 2048}),
    "megatron-vocabulary": ({"padded_vocab_size": 50304, "tp": 2}, {"padded_vocab_size": 50257}),
    "megatron-cp-sizes": ({"cp": 4, "hierarchical_context_parallel_sizes": [2, 2]}, {"cp": 2}),
    "megatron-cp-hierarchy": ({"cp": 4}, {"cp_comm_type": ["a2a+p2p"]}),
    "megatron-cp-kinds": ({"cp": 2, "cp_comm_type": ["p2p"]}, {"cp_comm_type": ["p2p", "a2a"]}),
    "megatron-cp-heads": ({"cp": 8, "cp_comm_type": ["a2a"]}, {"cp": 16}),
    "megatron-hybrid-cp": ({"hybrid_context_parallel": True}, {"pp": 2}),
    "megatron-hybrid-cp-loss": (
        {"hybrid_context_parallel": True, "calculate_per_token_loss": True},
        {"calculate_per_token_loss": False},
    ),
    "megatron-hybrid-cp-even": ({"hybrid_context_parallel": True}, {"pp": 32}),
    "megatron-mla-groups": ({"multi_latent_attention": True}, {"group_query_attention": True}),
    "megatron-mla-rope": ({"multi_latent_attention": True}, {"rotary_interleaved": True}),
    "megatron-mla-fusion": ({"multi_latent_attention": True, "mla_down_proj_fusion": True}, {"multi_latent_attention": False}),
    # --- pipeline
    "megatron-split-ways": ({"num_virtual_stages_per_pipeline_rank": 2}, {"num_layers_per_virtual_pipeline_stage": 2}),
    "megatron-split-flags": ({"pp": 4}, {"pp": 12}),
    "megatron-layers-even": ({"pp": 4}, {"pp": 6}),
    "megatron-layers-virtual": ({"pp": 4, "vpp": 2}, {"vpp": 3}),
    "megatron-ends-virtual-size": (E14 | {"pp": 4}, {"num_layers_per_virtual_pipeline_stage": 2, "vpp": 2}),
    "megatron-ends-alone": (E14 | {"pp": 4}, {"pp": 1}),
    "megatron-ends-positive": (E14 | {"pp": 4}, {"decoder_last_pipeline_num_layers": 0}),
    "megatron-ends": (E14 | {"pp": 4}, {"decoder_first_pipeline_num_layers": 9}),
    "megatron-ends-virtual": (E14 | {"pp": 4, "vpp": 2}, {"vpp": 4}),
    "megatron-ends-counted": (E14 | {"pp": 4}, {"account_for_loss_in_pipeline_split": True}),
    "megatron-layout-alone": ({"pp": 2, "pipeline_model_parallel_layout": "Et*16|t*16L"}, E14),
    "megatron-layout": (
        {"pp": 2, "pipeline_model_parallel_layout": "Et*15|t*17L"},
        {"pipeline_model_parallel_layout": "Et*15|t*16L"},
    ),
    "megatron-virtual-alone": ({"pp": 2, "vpp": 2, "num_virtual_stages_per_pipeline_rank": 2}, {"pp": 1}),
    "megatron-virtual-sends": ({"pp": 2, "vpp": 2}, {"overlap_p2p_comm": False}),
    "megatron-sends-alone": ({"pp": 2, "vpp": 2, "align_param_gather": True}, {"vpp": 1}),
    "megatron-group": (
        {"pp": 4, "vpp": 2, "microbatch_group_size_per_vp_stage": 4},
        {"microbatch_group_size_per_vp_stage": 3},
    ),
    "megatron-defer-embedding": ({"pp": 2, "defer_embedding_wgrad_compute": True}, {"pp": 1}),
    "megatron-hybrid-pattern": ({"pp": 2, "hybrid_layer_pattern": "M*|M*"}, {"pp": 3}),
    "megatron-hybrid-alone": ({"hybrid_layer_pattern": "M*|M*"}, {"num_virtual_stages_per_pipeline_rank": 2}),
    "megatron-mtp-positions": ({"mtp_num_layers": 1, "position_embedding_type": "rope"}, {"position_embedding_type": "alibi"}),
    "megatron-mtp-context": ({"mtp_num_layers": 1}, {"cp": 2}),
    "megatron-mtp-mixing": ({"mtp_hsm": True, "mtp_num_layers": 2}, {"mtp_num_layers": 1}),
    "megatron-hyper-connections": ({"enable_mhc_connections": True}, {"pp": 2}),
    # --- experts
    "megatron-experts-none": ({"model": ROUTED, "ep": 2}, {"num_experts": 0}),
    "megatron-expert-ffn": ({"model": ROUTED, "moe_ffn_hidden_size": 768}, {"model": DENSE}),
    "megatron-expert-ffn-default": (
        {"model": ROUTED, "num_experts": 128, "moe_ffn_hidden_size": 768},
        {"moe_ffn_hidden_size": None},
    ),
    "megatron-dispatcher": ({"model": ROUTED}, {"moe_token_dispatcher_type": "broadcast"}),
    "megatron-dispatcher-backend": (
        {"moe_enable_deepep": True, "moe_token_dispatcher_type": "flex"},
        {"moe_token_dispatcher_type": "alltoall"},
    ),
    "megatron-dispatcher-two": ({"moe_enable_deepep": True}, {"moe_flex_dispatcher_backend": "hybridep"}),
    "megatron-dispatcher-padding": (
        {"moe_enable_deepep": True, "moe_token_dispatcher_type": "flex"},
        {"moe_pad_expert_input_to_capacity": True},
    ),
    "megatron-dispatcher-hybrid": (
        {"model": ROUTED, "ep": 8, "moe_dispatcher": "deepep"},
        {"moe_dispatcher": "hybridep"},
    ),
    "megatron-dispatcher-ranks": (
        {"model": ROUTED, "ep": 2, "moe_enable_deepep": True, "moe_token_dispatcher_type": "flex"},
        {"ep": 1},
    ),
    "megatron-shared-overlap": (
        {"moe_shared_expert_overlap": True, "moe_token_dispatcher_type": "alltoall"},
        {"moe_token_dispatcher_type": "flex"},
    ),
    "megatron-shared-overlap-flex": (
        {"moe_shared_expert_overlap": True, "moe_token_dispatcher_type": "flex"},
        {"moe_token_dispatcher_type": "allgather"},
    ),
    "megatron-shared-bias": ({"model": LATENT, "add_bias_linear": False}, {"add_bias_linear": True}),
    "megatron-shared-recompute": (
        {"moe_shared_expert_overlap": True, **SELECTIVE},
        {"recompute_modules": ["shared_experts"]},
    ),
    "megatron-capacity": ({"moe_expert_capacity_factor": 1.0}, {"moe_router_load_balancing_type": "sinkhorn"}),
    "megatron-capacity-padding": (
        {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True},
        {"moe_expert_capacity_factor": None},
    ),
    "megatron-dispatcher-lengths": (
        {"model": ROUTED, "variable_seq_lengths": True, "moe_token_dispatcher_type": "alltoall"},
        {"moe_token_dispatcher_type": "allgather"},
    ),
    "megatron-expert-bias-etp": ({"model": ROUTED, "tp": 2, "etp": 1}, {"etp": 2}),
    "megatron-router-topk": ({"model": ROUTED, "moe_router_topk": 2}, {"moe_router_topk": 1}),
    "megatron-router-bias": (
        {"moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid"},
        {"moe_router_score_function": "softmax"},
    ),
    "megatron-router-bias-score": (
        {"moe_router_enable_expert_bias": True, "moe_router_score_function": "sqrtsoftplus"},
        {"moe_router_score_function": "softmax"},
    ),
    "megatron-router-groups": (
        {"model": ROUTED, "moe_router_group_topk": 4, "moe_router_num_groups": 8},
        {"moe_router_num_groups": 7},
    ),
    "megatron-router-losses": (
        {"moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"], "moe_aux_loss_coeff": [0.1, 0.2]},
        {"moe_aux_loss_coeff": [0.1]},
    ),
    "megatron-grouped-gemm": ({"moe_grouped_gemm": True}, {"device": 7}),
    "megatron-grouped-gemm-dtype": ({"moe_grouped_gemm": True, "bf16": True}, {"bf16": False}),
    "megatron-ep-overlap": ({"model": ROUTED, "ep": 2, **OVERLAP}, {"pp": 2}),
    "megatron-ep-overlap-dispatcher": (OVERLAP, {"moe_token_dispatcher_type": "allgather"}),
    "megatron-ep-overlap-alone": (OVERLAP, FULL),
    "megatron-ep-overlap-mtp": (OVERLAP | {"pp": 2, "mtp_num_layers": 1}, {"pp": 1}),
    "megatron-delay-wgrad": (OVERLAP | {"delay_wgrad_compute": True}, {"overlap_moe_expert_parallel_comm": False}),
    # --- recomputing, offloading, graphs
    "megatron-recompute-kind": (SELECTIVE, {"recompute_granularity": "some"}),
    "megatron-recompute-full": (FULL, {"recompute_method": None}),
    "megatron-recompute-selective": (SELECTIVE, {"recompute_num_layers": 2}),
    "megatron-recompute-modules": (SELECTIVE, {"recompute_modules": ["core_attn", "head"]}),
    "megatron-recompute-activation": (
        {**SELECTIVE, "recompute_modules": ["moe_act"], "moe_grouped_gemm": True},
        {"moe_grouped_gemm": False},
    ),
    "megatron-recompute-latent": (
        {**SELECTIVE, "recompute_modules": ["mla_up_proj", "mlp"], "multi_latent_attention": True},
        {"multi_latent_attention": False},
    ),
    "megatron-recompute-fp8": (
        {**SELECTIVE, "recompute_modules": ["layernorm"], "fp8": "e4m3", "fp8_recipe": "tensorwise"},
        {"fp8_recipe": "delayed"},
    ),
    "megatron-recompute-hyper": (
        {**SELECTIVE, "recompute_modules": ["mhc"], "enable_mhc_connections": True},
        {"enable_mhc_connections": False},
    ),
    "megatron-distribute": ({"tp": 2, **FULL, "distribute_saved_activations": True}, {"sp": 1}),
    "megatron-offload": ({"cpu_offloading_num_layers": 4}, {"cpu_offloading_num_layers": 32}),
    "megatron-offload-fine": (
        {"fine_grained_activation_offloading": True, "env.NVTE_CPU_OFFLOAD_V1": "1"},
        {"env.NVTE_CPU_OFFLOAD_V1": None},
    ),
    "megatron-offload-modules": (
        {"fine_grained_activation_offloading": True, "offload_modules": ["core_attn", "attn_proj"]},
        {"offload_modules": ["attn_proj"]},
    ),
    "megatron-offload-recompute": (
        {"fine_grained_activation_offloading": True, "offload_modules": ["moe_act"], **SELECTIVE},
        {"recompute_modules": ["moe"]},
    ),
    "megatron-graphs-recompute": (FULL, GRAPHS),
    "megatron-graphs-moe": (GRAPHS, {"cuda_graph_scope": ["moe", "moe_router"]}),
    "megatron-graphs-dropout": (GRAPHS | SELECTIVE | {"attention_dropout": 0.0}, {"attention_dropout": 0.1}),
    "megatron-graphs-nan": (
        {"cuda_graph_impl": "local", "check_for_nan_in_loss_and_grad": True},
        {"cuda_graph_scope": ["full_iteration"]},
    ),
    "megatron-graphs-segments": (GRAPHS, {"env.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    # --- optimizer, FSDP, precision
    "megatron-gather-sharded": ({GATHER: True, REDUCE: True, SHARD: True}, {SHARD: False}),
    "megatron-gather-strategy": ({}, {"data_parallel_sharding_strategy": "optim_grads_params"}),
    "megatron-gather-reduce": ({GATHER: True, REDUCE: True}, {REDUCE: False}),
    "megatron-gather-step": (
        {"overlap_param_gather_with_optimizer_step": True, SHARD: True, GATHER: True, "ckpt_format": "torch"},
        {"ckpt_format": "torch_dist"},
    ),
    "megatron-gather-step-virtual": ({"pp": 2, "vpp": 2, "overlap_param_gather_with_optimizer_step": True}, {"vpp": 1}),
    "megatron-fsdp2-degrees": (FSDP2, {"pp": 2}),
    "megatron-fsdp2": (FSDP2, {"gradient_accumulation_fusion": True}),
    "megatron-fsdp-format": ({"use_megatron_fsdp": True, "ckpt_format": "fsdp_dtensor"}, {"ckpt_format": "torch_dist"}),
    "megatron-fsdp-sharding": (
        {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim"},
        {"data_parallel_sharding_strategy": "no_shard"},
    ),
    "megatron-fsdp-optimizer": ({"use_megatron_fsdp": True}, {"optimizer": "muon"}),
    "megatron-fsdp-v1": ({"use_megatron_fsdp": True, SHARD: True}, {SHARD: False}),
    "megatron-fsdp-v2": ({"use_megatron_fsdp": True, "megatron_fsdp_version": 2}, {SHARD: True}),
    "megatron-fsdp-meta": (
        {"use_megatron_fsdp": True, "init_model_with_meta_device": True},
        {"data_parallel_sharding_strategy": "no_shard"},
    ),
    "megatron-custom-fsdp": ({"use_custom_fsdp": True, SHARD: True}, {SHARD: False}),
    "megatron-format-dcp": ({"ckpt_format": "torch_dcp", "use_torch_fsdp2": True}, {"tp": 2}),
    "megatron-format-fsdp": ({"ckpt_format": "fsdp_dtensor", "use_megatron_fsdp": True}, {"use_megatron_fsdp": False}),
    "megatron-offload-optimizer": (
        {"use_precision_aware_optimizer": True},
        {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": False},
    ),
    "megatron-optimizer-dtypes": ({"main_grads_dtype": "fp32"}, {"main_grads_dtype": "bf16"}),
    "megatron-precision-aware": ({"use_precision_aware_optimizer": True, SHARD: True}, {"optimizer": "sgd"}),
    "megatron-muon": ({"optimizer": "muon"}, {"use_torch_fsdp2": True}),
    "megatron-muon-overlap": ({"optimizer": "muon"}, {REDUCE: True}),
    "megatron-muon-layers": ({"optimizer": "muon"}, {SHARD: True}),
    "megatron-gloo": ({"use_gloo_process_groups": False, SHARD: True}, {"ckpt_format": "torch"}),
    "megatron-fake-flex": ({"fake_process_group": True}, {"moe_token_dispatcher_type": "flex"}),
    "megatron-half": ({"bf16": True}, {"fp16": True}),
    "megatron-quarter": ({"fp8": "e4m3"}, {"fp4": "e2m1"}),
    "megatron-gather-dtype": ({"fp8_param_gather": True, "fp8": "e4m3"}, {"fp8": None}),
    "megatron-gather-fp8": ({"fp8_param_gather": True, SHARD: True}, {SHARD: False}),
    "megatron-reuse-buffer": (
        {"reuse_grad_buf_for_mxfp8_param_ag": True, "fp8_param_gather": True},
        {"fp8_param_gather": False},
    ),
    "megatron-user-buffers": ({"nccl_ub": True}, {"env.PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "megatron-buckets": ({"ddp_num_buckets": 4}, {"ddp_bucket_size": 40_000_000}),
    "megatron-token-loss": ({"calculate_per_token_loss": True}, {"ddp_average_in_collective": True}),
    # --- training
    "megatron-eval-batch": ({"eval_global_batch_size": 192}, {"eval_global_batch_size": 100}),
    "megatron-batch-schedule": ({"global_batch_size": 96}, {"step_batch_size_schedule": "96,192"}),
    "megatron-counting": ({"train_iters": 100, "lr_decay_iters": 100}, {"lr_decay_samples": 1000}),
    "megatron-warmup": ({"lr_warmup_iters": 10}, {"lr_warmup_fraction": 0.01}),
    "megatron-least-rate": ({"lr": 1e-4, "min_lr": 1e-5}, {"min_lr": 1e-3}),
    "megatron-save": ({"save": "folder", "save_interval": 100}, {"save_interval": None}),
    "megatron-data": ({"mock_data": True}, {"data_path": ["0.5", "corpus"]}),
}

BRIDGE = {
    "bridge-lengths": ({"model.seq_length": 4096, "dataset.sequence_length": 4096}, {"dataset.sequence_length": 2048}),
    "bridge-fsdp-kinds": ({"ddp.use_megatron_fsdp": True}, {"dist.use_torch_fsdp2": True}),
    "bridge-fsdp-format": ({"ddp.use_megatron_fsdp": True}, {"checkpoint.save": "folder"}),
    "bridge-fsdp-order": ({"ddp.use_megatron_fsdp": True}, {"dist.use_tp_pp_dp_mapping": True}),
    "bridge-async-save": ({"checkpoint.save": "folder", "checkpoint.async_save": True}, {"checkpoint.ckpt_format": "zarr"}),
    "bridge-training": ({"train.train_iters": 100}, {"train.train_samples": 1000}),
    "bridge-scheduler": ({"scheduler.lr_decay_iters": 100}, {"scheduler.lr_warmup_samples": 10}),
    "bridge-vocabulary": (
        {"model.should_pad_vocab": True, "model.vocab_size": 50257, "tp": 2},
        {"model.should_pad_vocab": False},
    ),
}

TITAN = {
    "torch-kv-heads": ({"tp": 8}, {"tp": 16}),
    "torch-vocabulary": ({"tp": 2}, {"tp": 5}),
    "torchtitan-whole-loss": ({}, {"loss_chunks": 8}),
    "torchtitan-loss-chunks": ({"cp": 2, "loss_chunks": 8}, {"loss_chunks": 7}),
    "torchtitan-cp-comm": ({"cp": 2, "cp_comm": "allgather"}, {"cp_comm": "a2a"}),
    "torchtitan-dispatcher": (
        {"model": ROUTED, "zero": 3, "ep": 8, "moe_dispatcher": "deepep"},
        {"moe_dispatcher": "hybridep"},
    ),
    "torchtitan-ep": ({"model": ROUTED, "zero": 3, "ep": 8}, {"dp_replicate": 24}),
    "torchtitan-etp-none": ({"model": ROUTED, "zero": 3, "ep": 2, "tp": 2, "etp": 1}, {"etp": 2}),
    "torchtitan-sequence": ({"tp": 2, "sp": 1, "cp": 2}, {"cp": 3}),
    "torchtitan-tokens": ({"tp": 2, "sp": 1, "cp": 2}, {"cp": 3}),
    "torchtitan-ddp": ({"zero": 0, "dp_replicate": 96}, {"tp": 2}),
    "torchtitan-tied": ({"model": TIED}, {"pp": 2}),
    "torch-bubble": ({"pp": 2, "zero": 3, "global_batch": 96}, {"pp": 16, "tp": 1, "micro_batches": 4}),
    "torchtitan-world": ({"parallelism.data_parallel_shard_degree": 96}, {"parallelism.data_parallel_shard_degree": 48}),
    "torchtitan-batch": ({"training.local_batch_size": 1, "training.global_batch_size": 96}, {"training.local_batch_size": 5}),
    "torchtitan-step-tokens": (
        {"training.num_tokens_per_microbatch_per_dp_rank": 4096, "training.num_tokens_per_train_step": 393_216},
        {"training.num_tokens_per_train_step": 400_000},
    ),
    "torchtitan-pp-batch": (
        {"pp": 2, "training.local_batch_size": 8, "parallelism.pipeline_parallel_microbatch_size": 2},
        {"parallelism.pipeline_parallel_microbatch_size": 3},
    ),
    "torchtitan-graphs": ({"training.disable_cuda_graphs": False}, {"pp": 2}),
    "torchtitan-graphs-experts": ({"model": ROUTED, "training.disable_cuda_graphs": False}, {"ep": 2}),
    "torchtitan-stages": (
        {"pp": 2, "parallelism.pipeline_parallel_layers_per_stage": 17},
        {"parallelism.pipeline_parallel_layers_per_stage": 14},
    ),
    "torchtitan-stages-rank": (
        {"pp": 2, "parallelism.pipeline_parallel_layers_per_stage": 17},
        {"parallelism.pipeline_parallel_layers_per_stage": 9},
    ),
    "torchtitan-weights": ({"pp": 4}, {"parallelism.pipeline_parallel_first_stage_less_layers": 12}),
    "torchtitan-async-tp": (
        {"compile.enable": True, "parallelism.enable_async_tensor_parallel": True},
        {"compile.enable": False},
    ),
    "torchtitan-memory-budget": ({"activation_checkpoint.mode": "full"}, {"activation_checkpoint.mode": "memory_budget"}),
}

DEEPSPEED = {
    "deepspeed-dispatcher": ({"model": ROUTED, "ep": 8, "moe_dispatcher": "alltoall"}, {"moe_dispatcher": "deepep"}),
    "deepspeed-batch": (BATCH, {"gradient_accumulation_steps": 2}),
    "deepspeed-batch-missing": ({"train_batch_size": 96}, {"train_batch_size": None}),
    "deepspeed-stage": ({"zero_optimization.stage": 3}, {"zero_optimization.stage": 4}),
    "deepspeed-key": ({"zero_optimization.stage": 1}, {"zero_optimisation.stage": 1}),
    "deepspeed-auto": (BATCH, {"train_batch_size": "auto"}),
    "deepspeed-half": ({"bf16.enabled": True}, {"fp16.enabled": True}),
    "deepspeed-masters": (
        {"bf16.bf16_master_weights_and_grads": True, "zero_optimization.stage": 1},
        {"zero_optimization.stage": 0},
    ),
    "deepspeed-offload-part": (
        {"zero_optimization.stage": 3, "zero_optimization.offload_optimizer.ratio": 0.5},
        {"zero_optimization.stage": 2},
    ),
    "deepspeed-offload-device": (
        {"zero_optimization.offload_optimizer.device": "cpu"},
        {"zero_optimization.offload_optimizer.device": "disk"},
    ),
    "deepspeed-offload-parameters": (
        {"zero_optimization.stage": 3, "zero_optimization.offload_param.device": "cpu"},
        {"zero_optimization.stage": 2},
    ),
    "deepspeed-sum": ({"gradient_allreduce_op": "sum"}, {"zero_optimization.stage": 3}),
    "deepspeed-sequence-heads": ({"sequence_parallel_size": 4}, {"sequence_parallel_size": 3}),
}

LAUNCH = {"launched-world": ({"launch.world_size": 96}, {"launch.world_size": 1})}

#: rules of degrees: (what keeps it, what changes); schedules and recomputing by name
DEGREES = {
    "megatron": {
        "whole-loss": ({"micro_batch": 2}, {"loss_chunks": 4}),
        "megatron-zero": ({"zero": 1}, {"zero": 2}),
        "megatron-offload-layers": ({"offload": "activations=0.5"}, {"pp": 2}),
        "megatron-offload-states": ({"zero": 1, "offload": "optimizer"}, {"zero": 0}),
        "megatron-schedule": ({"pp": 2, "vpp": 2, "schedule": "interleaved-1f1b"}, {"schedule": "zb-v"}),
    },
    "torchrun": {
        "torch-loss-chunks": ({"loss_chunks": 4}, {"pp": 2}),
        "torch-offload": ({"zero": 3, "offload": "optimizer,parameters"}, {"offload": "optimizer"}),
        "torch-zero": ({"zero": 3}, {"zero": 1}),
        "torch-1f1b": ({"pp": 2}, {"pp": 4, "micro_batches": 3}),
        "torch-split-backward": ({"pp": 2, "vpp": 2, "zero": 2, "schedule": "zb-v"}, {"zero": 3}),
        "torch-zb-h1": ({"pp": 4, "micro_batches": 8, "schedule": "zb-h1"}, {"micro_batches": 9}),
    },
    "torchtitan": {
        "torchtitan-zb-h1": ({"pp": 2}, {"schedule": "zb-h1"}),
        "torch-split-backward": ({"pp": 2, "vpp": 2, "zero": 2, "schedule": "dualpipe-v"}, {"zero": 3}),
        "torchtitan-sp": ({"tp": 2, "sp": 1}, {"sp": 0}),
        "torchtitan-etp": ({"tp": 4, "etp": 4}, {"etp": 2}),
        "torch-recompute": ({"recompute": "full"}, {"recompute": "full-half"}),
    },
    "deepspeed": {
        "whole-loss": ({}, {"loss_chunks": 2}),
        "deepspeed-axes": ({}, {"cp": 2}),
        "deepspeed-offload-activations": ({"offload": "optimizer"}, {"offload": "activations"}),
        "deepspeed-offload-zero": ({"offload": "optimizer"}, {"offload": "optimizer=0.5"}),
        "deepspeed-pipeline": ({"pp": 2}, {"zero": 2}),
    },
}

EXAMPLES = {
    "megatron": MEGATRON | LAUNCH | DEGREES["megatron"],
    "megatron-bridge": BRIDGE,
    "torchtitan": TITAN | DEGREES["torchtitan"],
    "torchrun": DEGREES["torchrun"],
    "deepspeed": DEEPSPEED | LAUNCH | DEGREES["deepspeed"],
}
