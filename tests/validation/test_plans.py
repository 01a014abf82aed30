"""From the remaining columns to cluster, precision, sharding, recompute, batch and stages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import row

from shardwright.errors import ConflictError, InvalidValueError, UnsupportedError
from shardwright.hardware.catalog import load_device
from shardwright.planner.runs.plan import (
    batch_of,
    cluster_of,
    data_parallel,
    precision_of,
    recompute_of,
    sharding_of,
    split_of,
)
from shardwright.planner.runs.stack import blanks_of, profile_of
from shardwright.planner.stacks import load_stack

CORE = load_stack("megatron-core")
H100, A100, V100, B200 = (load_device(d) for d in ("h100-sxm5-80g", "a100-sxm4-80g", "v100-sxm2-32g", "b200-sxm-180g"))


@pytest.mark.parametrize(
    ("gpus", "per_node", "nodes"), [(16, 8, 2), (4, 8, 1), (12, 8, 2), (20, 5, 4), (16, None, 2), (3, 3, 1)]
)
def test_clusters_have_the_gpus_used(gpus, per_node, nodes):
    cluster, notes = cluster_of(row(gpus=gpus, gpus_per_node=per_node))
    assert cluster.gpus == gpus
    assert cluster.nodes == nodes
    assert notes == ()


@pytest.mark.parametrize(("gpus", "block"), [(8, 72), (72, 72), (256, 64), (128, 64), (1024, 64), (144, 72)])
def test_a_job_over_several_domains_gets_equal_blocks(gpus, block):
    cluster, notes = cluster_of(row(node="gb200-nvl72", gpus=gpus, gpus_per_node=4))
    assert cluster.node.scaleup_domain_gpus == block
    assert bool(notes) == (block != 72)


def test_unknown_nodes_and_blank_gpus():
    with pytest.raises(UnsupportedError):
        cluster_of(row(gpus=None))


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("BF16", "bf16"), ("BF16 (pure)", "bf16"), ("FP16", "fp16"), ("FP8", "fp8-delayed"), ("FP8-CS", "fp8-tensorwise"),
        ("FP8-MX", "mxfp8"), ("MXFP8", "mxfp8"), ("NVFP4 (+FP8 attn where configured)", "nvfp4"),
        ("fp8 rowwise", "fp8-rowwise"), ("FP8 tensorwise", "fp8-tensorwise"),
        ("Transformer Engine FP8", "fp8-delayed"), ("mixed bf16", "bf16"), ("fp8-rowwise-gw-hp", "fp8-rowwise-gw-hp"),
        ('FP16/BF16 mixed ("half precision")', "fp16"), ("FP8(float8 linear)+BF16", "fp8-delayed"), ("FP32", "fp32"),
    ],
)  # fmt: skip
def test_precision_words(text, precision):
    assert precision_of(row(precision=text), H100, CORE) == (precision, ())


@pytest.mark.parametrize(
    ("stack", "precision"),
    [("megatron-core", "fp8-delayed"), ("megatron-core-2026", "fp8-tensorwise"), ("torchtitan", "fp8-tensorwise")],
)
def test_8_bits_without_a_recipe_are_scaled_as_the_stack_does(stack, precision):
    assert precision_of(row(precision="FP8"), H100, load_stack(stack)) == (precision, ())


def test_blank_precision_is_named():
    assert precision_of(row(precision=""), H100, CORE) == ("bf16", ("precision=bf16",))
    assert precision_of(row(precision=""), V100, CORE)[0] == "fp16"
    assert precision_of(row(precision=""), B200, load_stack("mlperf-nemo"))[0] == "fp8-delayed"
    assert precision_of(row(precision=""), H100, load_stack("mlperf-nemo"))[0] == "bf16"
    with pytest.raises(UnsupportedError):
        precision_of(row(precision="int3"), H100, CORE)


@pytest.mark.parametrize(
    ("text", "zero", "replicas"),
    [
        ("ddp", 0, 1), ("plain DP", 0, 1), ("ZeRO-1 (distributed optimizer)", 1, 1),
        ("zero0", 0, 1), ("zero1", 1, 1), ("dist-opt", 1, 1), ("zero2", 2, 1), ("zero3", 3, 1), ("fsdp", 3, 1),
        ("fsdp2", 3, 1), ("fsdp(full_shard)", 3, 1), ("hsdp", 3, 4), ("hsdp (replicas 2 x fsdp 128)", 3, 2),
        ("zero1 over all DP", 1, 1), ("zero1 in groups of 8", 1, 2), ("zero1-like (BF16Optimizer)", 1, 1),
    ],
)  # fmt: skip
def test_sharding_words(text, zero, replicas):
    found, notes = sharding_of(row(zero_or_fsdp=text, gpus_per_node=4, tp=1), CORE, 16)
    assert (found.zero, found.replicas) == (zero, replicas)
    assert bool(notes) == (text == "hsdp")


def test_sharding_defaults_and_refusals():
    assert sharding_of(row(zero_or_fsdp=""), CORE, 16) == (sharding_of(row(), CORE, 16)[0], ("zero=1",))
    assert sharding_of(row(), CORE, 1)[0].zero == 0
    assert sharding_of(row(zero_or_fsdp="zero1-like (BF16Optimizer)"), CORE, 4)[0].grad_dtype == "fp32"
    assert sharding_of(row(precision="BF16 (pure)"), CORE, 4)[0].grad_dtype == "bf16"
    with pytest.raises(UnsupportedError):
        sharding_of(row(zero_or_fsdp="by hand"), CORE, 4)
    with pytest.raises(InvalidValueError):
        sharding_of(row(zero_or_fsdp="hsdp (replicas 3)"), CORE, 16)


@pytest.mark.parametrize(
    ("text", "stack", "mode", "share", "modules"),
    [
        ("none", "megatron-core", "none", 1, None),
        ("no", "megatron-core", "none", 1, None),
        ("uniform, 1 layer", "megatron-core", "full", 1, None),
        ("attention selective", "megatron-core", "selective", 1, None),
        ("full", "megatron-core", "full", 1, None),
        ("full:None:Nonelayers", "megatron-core", "full", 1, None),
        ("selective", "megatron-core", "selective", 1, None),
        ("selective:layernorm+moe_act", "megatron-core", "selective", 1, ("layernorm", "moe_act")),
        ("selective (attention)", "megatron-2022", "selective", 1, ("core_attn",)),
        ("selective (every other layer)", "torchtitan", "full", 0.5, None),
        ("selective (every 4 layers)", "torchtitan", "full", 0.25, None),
        ("selective (per op)", "torchtitan", "selective", 1, None),
        ("selective (save_dot_with_context_except_mlp)", "jax", "selective", 1, ("layernorm", "mlp", "mlp_act")),
        ("", "megatron-core", "none", 1, None),
        ("", "torchtitan", "selective", 1, None),
        ("", "jax", "fits", 1, None),
    ],
)
def test_recompute_words(text, stack, mode, share, modules):
    found, notes = recompute_of(row(recompute=text), load_stack(stack))
    assert (found.mode, found.layer_share, found.modules) == (mode, share, modules)
    assert bool(notes) == (text == "")


def test_hardware_flops_tell_how_many_layers_are_recomputed():
    found, _ = recompute_of(
        row(recompute="selective", mfu_reported=43.0, flops_definition_note="HFU=47%"), load_stack("fms-fsdp")
    )
    assert found.mode == "full"
    assert found.layer_share == pytest.approx(3 * (47 / 43 - 1))
    plain, _ = recompute_of(row(recompute="selective", mfu_reported=46.0, notes="HFU=46"), load_stack("fms-fsdp"))
    assert plain.mode == "selective"


def test_unknown_recompute_is_refused():
    with pytest.raises(UnsupportedError):
        recompute_of(row(recompute="sometimes"), CORE)


def test_data_parallel_degree():
    assert data_parallel(row()) == 4
    assert data_parallel(row(gpus=1, tp=None, pp=None)) == 1
    with pytest.raises(ConflictError):
        data_parallel(row(gpus=16, tp=8, pp=4))
    with pytest.raises(UnsupportedError):
        data_parallel(row(tp=None, pp=None, dp=None))


@given(batch=st.integers(1, 4096), micro=st.integers(1, 16), dp=st.integers(1, 64))
def test_batches_keep_the_identity(batch, micro, dp):
    found, notes = batch_of(row(global_batch=batch, micro_batch=micro), CORE, 7e9, dp)
    assert found.sequences % (dp * micro) == 0
    assert found.sequences * found.scale == pytest.approx(batch)
    assert bool(notes) == (batch % (dp * micro) != 0)


def test_blank_micro_batch_divides_the_batch():
    old = load_stack("megatron-2021")
    assert batch_of(row(micro_batch=None, global_batch=512), old, 7e9, 32)[0].micro_batch == 4
    assert batch_of(row(micro_batch=None, global_batch=96), old, 7e9, 32)[0].micro_batch == 3
    assert batch_of(row(micro_batch=None, global_batch=512), old, 500e9, 32)[0].micro_batch == 1
    found, notes = batch_of(row(micro_batch=None, global_batch=None), load_stack("fms-fsdp"), 7e9, 128)
    assert (found.sequences, notes) == (256, ("micro_batch=2", "global_batch=256"))


@given(layers=st.integers(1, 200), stages=st.integers(1, 64))
def test_splits_sum_to_the_layers(layers, stages):
    found = split_of(layers, stages)
    if found is None:
        assert layers % stages == 0 or layers < stages
        return
    assert sum(found) == layers
    assert len(found) == stages
    assert max(found) - min(found) <= 1


def test_embedding_and_head_count_as_layers():
    assert split_of(126, 16) == (7, *[8] * 14, 7)
    assert split_of(94, 8) == (11, *[12] * 6, 11)
    assert split_of(61, 2) == (31, 30)
    assert split_of(30, 4) == (7, 8, 8, 7)


@pytest.mark.parametrize(
    ("cells", "field", "value"),
    [
        ({"notes": "Table 3; eager; seq 8192"}, "elementwise_factor", 3.0),
        ({"notes": "asyncTP; torch.compile", "framework": "torchtitan"}, "tp_exposed", 0.5),
        ({"notes": "recipe: cuda_graph=full_iteration:[],dispatcher=x"}, "moe_host_forward_s", 0.0),
        ({"notes": "recipe: cuda_graph=transformer_engine:['attn', 'moe_router']"}, "moe_host_forward_s", 0.6e-3),
        ({"notes": "recipe: dispatcher=x,a2a_overlap=True"}, "ep_exposed", 0.4),
        ({"notes": "x;TP_COMM_OVERLAP=False,FP8_DPA=0"}, "tp_exposed", 0.6),
        ({"notes": "x;TP_COMM_OVERLAP=1,FP8_DPA=True"}, "attention_backend", "fp8"),
        ({"notes": "export CUDA_LAUNCH_BLOCKING=1; 2nd iteration", "framework": "Megatron-DeepSpeed"}, "launches_block", True),
    ],
)
def test_notes_name_switches(cells, field, value):
    stack, notes = profile_of(row(**cells), H100)
    assert getattr(stack, field) == value
    assert any(note.startswith(f"stack.{field}=") for note in notes)


def test_words_inside_other_words_are_no_switches():
    assert profile_of(row(notes="an eagerly awaited run; cuda_graph=None; CUDA_LAUNCH_BLOCKING=0"), H100)[1] == ()


def test_old_devices_write_their_scores():
    stack, notes = profile_of(row(framework="torchtitan"), V100)
    assert (stack.id, stack.fused_attention) == ("torchtitan", False)
    assert "attention=unfused" in notes


@pytest.mark.parametrize(
    ("framework", "device", "stack"),
    [("Megatron-LM", V100, "megatron-2021"), ("Megatron-LM", A100, "megatron-core"), ("Megatron-LM v3", V100, "megatron-2022")],
)
def test_old_devices_ran_megatron_before_transformer_engine(framework, device, stack):
    assert profile_of(row(framework=framework), device)[0].id == stack


@pytest.mark.parametrize(
    ("cells", "stack"),
    [
        ({"framework": "", "zero_or_fsdp": "fsdp2"}, "pytorch-fsdp2"),
        ({"framework": "home-made", "zero_or_fsdp": "fsdp"}, "pytorch-fsdp1"),
        ({"framework": "home-made", "tp": 8}, "megatron-core"),
        ({"framework": "home-made", "zero_or_fsdp": "zero2", "tp": 1, "pp": 1}, "deepspeed"),
        ({"framework": "home-made", "zero_or_fsdp": "", "tp": 1, "pp": 1}, "pytorch-fsdp2"),
    ],
)
def test_unknown_frameworks_are_told_by_how_they_shard(cells, stack):
    found, notes = profile_of(row(**cells), A100)
    assert found.id == stack
    assert f"stack={stack}" in notes


def test_blanks_of_unlisted_profiles_are_plain():
    assert blanks_of(load_stack("pytorch-fsdp2")) == blanks_of(CORE)


@pytest.mark.parametrize(
    ("text", "stack", "pp", "share"),
    [
        ("full:block:20layers", "megatron-core", 1, 0.625), ("full:block:8layers", "megatron-core", 2, 0.5),
        ("full:uniform:99layers", "megatron-core", 1, 1.0), ("full:None:Nonelayers", "megatron-core", 1, 1.0),
        ("full:None:Nonelayers", "megatron-core-rocm", 1, 21 / 80),
    ],
)  # fmt: skip
def test_full_recomputing_of_counted_layers(text, stack, pp, share):
    found, notes = recompute_of(row(recompute=text, layers=32, pp=pp), load_stack(stack))
    assert (found.mode, found.layer_share) == ("full", share)
    assert bool(notes) == (stack == "megatron-core-rocm")


def test_a_stack_whose_scripts_name_no_precision_trains_in_whole_words():
    stack = load_stack("megatron-deepspeed-eager-softmax")
    assert precision_of(row(precision=""), H100, stack) == ("tf32", ("precision=tf32",))
    assert precision_of(row(precision=""), V100, stack) == ("fp32", ("precision=fp32",))
    assert precision_of(row(precision="BF16"), H100, stack) == ("bf16", ())


@pytest.mark.parametrize(("model", "fused"), [("GPT3-126M", False), ("GPT3-5B", True)])
def test_models_named_as_run_without_flash_attention_write_their_scores(model, fused):
    run = row(model=model, framework="Paxml/JAX-Toolbox", notes="remat not stated; 126M without flash attention")
    stack, notes = profile_of(run, H100)
    assert stack.fused_attention is fused
    assert stack.attention_backend == ("cudnn" if fused else "unfused")
    assert ("attention=unfused" in notes) is not fused


@pytest.mark.parametrize(
    ("notes", "device", "precision"),
    [
        ("TP_COMM_OVERLAP=1,FP8_DPA=1", H100, "fp8-delayed"), ("FP8_PARAMS=True", H100, "fp8-delayed"),
        ("FP8_DPA=0", H100, "bf16"), ("FP8_DPA=1", A100, "bf16"), ("", H100, "bf16"),
    ],
)  # fmt: skip
def test_parts_in_8_bits_tell_the_recipe_where_the_column_is_blank(notes, device, precision):
    assert precision_of(row(precision="", notes=notes), device, CORE) == (precision, (f"precision={precision}",))
