"""Memory of stages against arithmetic by hand and published formulas."""

import pytest

from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions

BF16, FP32, ADAM = 2, 4, 12
HIDDEN, FFN, VOCAB, LAYERS = 4096, 11008, 32000, 32
LLAMA2_7B = 6_738_415_616


def record(model, cluster, seq_len, batch, degrees, **options):
    made = estimate(model, cluster, seq_len=seq_len, global_batch=batch, degrees=degrees, options=PricingOptions(**options))
    return made.to_dict()


def stages(*given, **options):
    return [stage["memory"] for stage in record(*given, **options)["stages"]]


@pytest.mark.parametrize(
    ("zero", "sharded"),
    [(0, (1, 1, 1)), (1, (1, 1, 8)), (2, (1, 8, 8)), (3, (8, 8, 8))],
    ids=["zero0", "zero1", "zero2", "zero3"],
)
def test_states_of_a_dense_model_on_eight_gpus(zero, sharded):
    (memory,) = stages("llama2-7b", "dgx-h100:1", 4096, 64, Degrees(zero=zero))
    parameters, gradients, optimizer = sharded
    assert memory["parameters_bytes"] == BF16 * LLAMA2_7B // parameters
    assert memory["gradients_bytes"] == FP32 * LLAMA2_7B // gradients
    assert memory["optimizer_bytes"] == ADAM * LLAMA2_7B // optimizer


def test_states_are_sharded_over_the_ranks_of_one_replica():
    (memory,) = stages("llama2-7b", "dgx-h100:2", 4096, 64, Degrees(zero=3, dp_replicate=2))
    assert memory["parameters_bytes"] == BF16 * LLAMA2_7B // 8
    (shared,) = stages("llama2-7b", "dgx-h100:2", 4096, 64, Degrees(zero=3, cp=2))
    assert shared["parameters_bytes"] == BF16 * LLAMA2_7B // 16


@pytest.mark.parametrize("zero", [0, 1])
def test_states_of_tensor_parallel_stages(zero):
    first, last = stages("llama2-7b", "dgx-h100:1", 4096, 64, Degrees(tp=2, pp=2, zero=zero))
    layer = (4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN) // 2 + 2 * HIDDEN
    table = VOCAB * HIDDEN // 2
    held = {"first": 16 * layer + table, "last": 16 * layer + table + HIDDEN}
    shards = 2 if zero else 1
    for memory, parameters in ((first, held["first"]), (last, held["last"])):
        assert memory["parameters_bytes"] == BF16 * parameters
        assert memory["gradients_bytes"] == FP32 * parameters
        assert memory["optimizer_bytes"] == ADAM * parameters // shards


def test_uneven_layers_hold_as_many_parameters_as_they_have():
    counts = (10, 9, 8, 5)
    found = stages("llama2-7b", "dgx-h100:1", 4096, 64, Degrees(pp=4, zero=0, layers_per_stage=counts))
    layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN + 2 * HIDDEN
    ends = (VOCAB * HIDDEN, 0, 0, VOCAB * HIDDEN + HIDDEN)
    assert [m["parameters_bytes"] for m in found] == [BF16 * (n * layer + end) for n, end in zip(counts, ends, strict=True)]
    assert sum(m["parameters_bytes"] for m in found) == BF16 * LLAMA2_7B


def test_experts_are_divided_by_ep_and_sharded_over_their_own_replicas():
    experts = 48 * 128 * 3 * 2048 * 768
    whole = record("qwen3-30b-a3b", "dgx-h100:2", 4096, 32, Degrees(zero=0))["stages"][0]["memory"]["parameters_bytes"]
    dense = whole // BF16 - experts
    assert 0 < dense < 2e9
    (memory,) = stages("qwen3-30b-a3b", "dgx-h100:2", 4096, 32, Degrees(ep=4, zero=1))
    assert memory["parameters_bytes"] == BF16 * (dense + experts // 4)
    assert memory["optimizer_bytes"] == pytest.approx(ADAM * (dense / 16 + experts / 4 / 4), abs=2)
    (split,) = stages("qwen3-30b-a3b", "dgx-h100:2", 4096, 32, Degrees(tp=2, ep=8, etp=1, zero=0))
    assert split["parameters_bytes"] < BF16 * (dense + experts // 8)


def test_tied_embeddings_count_once_on_one_stage_and_on_both_ends_of_two():
    table = 50304 * 768
    (one,) = stages("gpt2", "dgx-h100:1", 1024, 64, Degrees(zero=0))
    first, last = stages("gpt2", "dgx-h100:1", 1024, 64, Degrees(pp=2, zero=0))
    assert first["parameters_bytes"] + last["parameters_bytes"] - one["parameters_bytes"] == BF16 * table


@pytest.mark.parametrize(("dtype", "width"), [("fp32", 4), ("bf16", 2)])
def test_gradients_take_the_bytes_of_their_type(dtype, width):
    (memory,) = stages("llama2-7b", "dgx-h100:1", 4096, 64, Degrees(zero=0), grad_dtype=dtype)
    assert memory["gradients_bytes"] == width * LLAMA2_7B


# --- activations: arXiv 2205.05198, table 2; a sequence of s, b of them, hidden h, a heads, tensor parallel t

S, B, H, A, T, L = 2048, 4, 6144, 64, 8, 48
SBH = S * B * H
SCORES = 5 * A * S * S * B / T
WITHIN = 2e-3
"""The formulas leave out biases, statistics of the norms and positions."""


def activations(recompute, *, sequence_parallel, stack="megatron-2022"):
    degrees = Degrees(tp=T, micro_batch=B, recompute=recompute, sequence_parallel=sequence_parallel)
    options = {"framework": "megatron", "stack": stack}
    passes = ("stack.casts_gradients=false",)  # fp32 gradients of whole states would make the update the fullest instant
    (memory,) = stages("megatron-22b", "dgx-a100-80g:1", S, B, degrees, overrides=passes, **options)
    return memory["activations_bytes"]


def layer_bytes(*, sequence_parallel):
    return (34 * SBH / T if sequence_parallel else SBH * (10 + 24 / T)) + SCORES


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_activations_are_those_of_korthikanti_et_al(sequence_parallel):
    split = T if sequence_parallel else 1
    layer = layer_bytes(sequence_parallel=sequence_parallel)
    ends = 5 * SBH / split  # dropout after the embedding, input of the last norm and of the head
    none = activations("none", sequence_parallel=sequence_parallel)
    selective = activations("selective", sequence_parallel=sequence_parallel)
    full = activations("full", sequence_parallel=sequence_parallel)
    assert none == pytest.approx(L * layer + ends, rel=WITHIN)
    assert selective == pytest.approx(L * (layer - SCORES) + SCORES + ends, rel=WITHIN)
    kept = 2 * SBH / split
    assert full == pytest.approx(L * kept + (layer - kept) + ends, rel=WITHIN)


def test_sequence_parallelism_and_selective_recompute_save_what_the_paper_says():
    plain, lean = activations("none", sequence_parallel=False), activations("selective", sequence_parallel=True)
    assert lean / plain == pytest.approx(34 / T / ((10 + 24 / T) + 5 * A * S / (H * T)), rel=0.1)


def test_a_fused_core_keeps_no_scores():
    fused = activations("none", sequence_parallel=True, stack="megatron-core")
    assert fused < activations("none", sequence_parallel=True) - 0.9 * L * SCORES


def piped(schedule, *, vpp=1, count=16, pp=4):
    degrees = Degrees(tp=1, pp=pp, vpp=vpp, micro_batch=1, zero=0, schedule=schedule)
    return [m["activations_bytes"] for m in stages("llama2-7b", "dgx-h100:1x4", 4096, count, degrees)]


def test_1f1b_keeps_as_many_micro_batches_as_stages_follow():
    kept = piped("1f1b")
    inner = kept[2] / 2
    assert kept[1] == pytest.approx(3 * inner, rel=1e-6)
    assert kept[0] == pytest.approx(4 * inner, rel=5e-3)
    assert kept[3] == pytest.approx(inner, rel=5e-2)
    assert piped("1f1b", count=2)[1] == pytest.approx(2 * inner, rel=1e-6)


def test_gpipe_keeps_all_micro_batches():
    inner = piped("1f1b")[2] / 2
    assert piped("gpipe")[1:3] == pytest.approx([16 * inner] * 2, rel=1e-6)


def test_interleaving_keeps_the_published_factor_more():
    pp, vpp = 4, 2
    plain, interleaved = piped("1f1b")[0], piped("interleaved-1f1b", vpp=vpp)[0]
    assert interleaved / plain == pytest.approx(1 + (pp - 1) / (pp * vpp), rel=1e-3)


def test_logits_follow_the_micro_batch_and_the_schedule():
    def last(**changed):
        degrees = Degrees(pp=4, zero=0, **changed)
        return stages("llama2-7b", "dgx-h100:1x4", 4096, 16, degrees)[-1]["logits_bytes"]

    assert last() == 4096 * VOCAB * 6
    assert last(micro_batch=2) == 2 * last()
    assert last(schedule="gpipe") == 16 * last()


@pytest.mark.parametrize(("beside", "pipelined"), [(0, 0), (1, 4)])
def test_the_reserve_holds_context_communicators_slack_and_margin(beside, pipelined):
    degrees = Degrees(tp=2, pp=2)
    overrides = (f"stack.communicators_beside={beside}", f"stack.communicators_pipelined={pipelined}")
    plain = record("llama2-7b", "dgx-h100:1", 4096, 64, degrees, overrides=overrides)
    stack = plain["inputs"]["calibration"]["inline"]["stack"]
    for stage in plain["stages"]:
        memory = stage["memory"]
        allocated = memory["total_bytes"] - memory["reserve_bytes"]
        fixed = stack["context_bytes"] + (3 + beside + pipelined) * stack["nccl_bytes_per_group"]
        assert memory["reserve_bytes"] == pytest.approx(fixed + stack["allocator_slack"] * allocated, abs=1)
    margin = record("llama2-7b", "dgx-h100:1", 4096, 64, degrees, memory_margin_gib=3, overrides=overrides)
    assert margin["memory"]["peak_bytes"] == plain["memory"]["peak_bytes"] + 3 * 2**30
    assert margin["memory"]["meters"] == plain["memory"]["meters"]


@pytest.mark.parametrize(("degrees", "opened"), [(Degrees(tp=8), 2), (Degrees(tp=4), 3), (Degrees(tp=4, pp=2), 7)])
def test_the_pipeline_engine_of_deepspeed_opens_communicators_where_there_are_pipelines(degrees, opened):
    plan = record("llama2-7b", "dgx-a100-80g:1", 2048, 64, degrees, stack="megatron-deepspeed")
    memory, stack = plan["stages"][0]["memory"], plan["inputs"]["calibration"]["inline"]["stack"]
    allocated = memory["total_bytes"] - memory["reserve_bytes"]
    fixed = memory["reserve_bytes"] - stack["allocator_slack"] * allocated - stack["context_bytes"]
    assert fixed / stack["nccl_bytes_per_group"] == pytest.approx(opened)


def test_full_sharding_needs_room_for_two_gathered_layers():
    (memory,) = stages("llama2-7b", "dgx-h100:1", 4096, 64, Degrees(zero=3), framework="pytorch")
    layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN + 2 * HIDDEN
    assert memory["buffers_bytes"] >= 2 * BF16 * layer


def buffers(grad_dtype, **changes):
    """Buffers of llama2-7b under full sharding, and of its logits."""
    sets = ("stack.blas_workspaces=0", *(f"stack.{name}={value}" for name, value in changes.items()))
    options = {"framework": "pytorch", "grad_dtype": grad_dtype, "overrides": sets}
    (memory,) = stages("llama2-7b", "dgx-h100:1", 4096, 64, Degrees(zero=3), **options)
    return memory["buffers_bytes"], memory["logits_bytes"]


def test_embedding_and_head_stay_gathered_beside_two_layers():
    layer, ends = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN + 2 * HIDDEN, 2 * 32000 * HIDDEN + HIDDEN
    held, logits = buffers("bf16", logit_saved_bytes=100)
    assert logits > 0  # the loss is the fullest instant
    assert held == BF16 * (2 * layer + ends)
    assert buffers("bf16", logit_saved_bytes=100, keeps_ends_gathered="false")[0] == 2 * BF16 * layer


def test_gradients_of_a_layer_stand_twice_while_its_backward_pass_runs():
    layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN + 2 * HIDDEN
    narrow, wide = (buffers(dtype, logit_saved_bytes=0)[0] for dtype in ("bf16", "fp32"))
    assert wide - narrow == 2 * layer
    assert narrow - buffers("bf16", logit_saved_bytes=100)[0] > 2 * BF16 * layer  # and gradients of activations
