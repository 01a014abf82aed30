"""Configurations that users of training frameworks asked about, each with the answer that maintainers gave or arithmetic gives.

Every case is described by itself: what was tried, what is right, and what a planner must say.
"""

import json
import re

import pytest

from shardwright.models.catalog import load_model, model_from_dict
from shardwright.planner.estimation import Estimate, estimate_degrees
from shardwright.planner.layouts import check_layout, parse_layout
from shardwright.planner.plans import Degrees
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.readers.estimating import estimate_file
from shardwright.planner.rules.base import facts_of
from shardwright.planner.rules.checking import violations
from shardwright.planner.rules.megatron.attention import padded_vocabulary
from shardwright.planner.rules.megatron.pipeline import end_counts, written_layout
from shardwright.planner.settling import settle

ONE = {"env.CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def problem_of(model, cluster, batch, framework="any", version=None, seq_len=4096):
    options = PricingOptions(framework=framework, target_version=version)
    return build_problem(model, cluster, seq_len=seq_len, global_batch=batch, options=options)


def settled(problem, settings=None, **degrees):
    return settle(problem, Degrees(**degrees), settings)


def broken(problem, settings=None, **degrees):
    return {v["rule"]: v for v in settled(problem, settings, **degrees).violations}


def numbers(text):
    return [int(word) for word in re.findall(r"\d+", text)]


def model_with(model, **changes):
    return model_from_dict(load_model(model).spec.to_dict() | changes)


# --- batches and ranks


def test_seven_gpus_of_a_node_name_the_nearest_batches():
    """One of eight GPUs is broken: micro-batch 2 on 7 GPUs takes batches that are multiples of 14, not 256."""
    problem = problem_of("llama3.1-8b", "dgx-h100:1x7", 256)
    found = broken(problem, micro_batch=2, zero=3)["batch-dp"]
    assert numbers(found["remedy"]) == [252, 266]
    for batch in (252, 266):
        assert broken(problem_of("llama3.1-8b", "dgx-h100:1x7", batch), micro_batch=2, zero=3) == {}


def test_a_batch_is_divided_by_dp_times_micro_batch():
    """64 is a multiple of a micro-batch of 8 and of dp 16, and yet 16 ranks cannot share it eight sequences at a time."""
    found = broken(problem_of("llama3.1-8b", "dgx-h100:2", 64), micro_batch=8)
    assert set(found) == {"batch-micro"}
    assert "128" in found["batch-micro"]["message"]


def test_a_deepspeed_batch_identity_holds_for_the_launched_world():
    """Micro-batch 4, 8 steps and batch 256 are right for 8 ranks; a launcher that starts one trains something else."""
    problem = problem_of("llama3.1-8b", "dgx-h100:1", 256, "deepspeed")
    said = {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8}
    plan = {"micro_batch": 4, "zero": 3}
    assert broken(problem, said | {"launch.world_size": 8}, **plan) == {}
    assert set(broken(problem, said | {"launch.world_size": 1}, **plan)) == {"launched-world"}
    assert set(broken(problem, said | {"gradient_accumulation_steps": 4}, **plan)) == {"deepspeed-batch"}


def test_too_few_micro_batches_to_interleave_are_told_in_words():
    """pp 6 with virtual stages and three micro-batches: the message says how many it takes."""
    problem = problem_of("gpt3-175b", "dgx-h100:6", 24, "megatron")
    found = broken(problem, pp=6, vpp=2, micro_batch=1)
    assert set(found) == {"interleaved-batch"}
    assert "at least 6" in found["interleaved-batch"]["message"]
    assert broken(problem_of("gpt3-175b", "dgx-h100:6", 48, "megatron"), pp=6, vpp=2, micro_batch=1) == {}


def test_interleaving_over_two_stages_needs_overlapped_sends():
    problem = problem_of("llama3.1-8b", "dgx-h100:1", 64, "megatron")
    assert broken(problem, {}, pp=2, vpp=2) == {}
    found = broken(problem, {"overlap_p2p_comm": False}, pp=2, vpp=2)
    assert set(found) == {"megatron-virtual-sends"}
    assert broken(problem, {"overlap_p2p_comm": False}, pp=4, vpp=2) == {}


def test_fewer_micro_batches_than_stages_are_legal_with_a_large_bubble():
    problem = problem_of("llama3.1-8b", "dgx-h100:1", 4, "torchtitan")
    made = settled(problem, pp=4, schedule="gpipe", micro_batch=1, tp=1, zero=3)
    assert made.violations == []
    assert any("large bubble" in text for text in made.warnings)


# --- layers and stages


def test_46_layers_on_four_stages_need_an_uneven_split_and_64_gpus():
    """GLM-4.5-Air, tp 8, pp 4, ep 16, etp 1: 46 does not divide by 4; 11, 12, 12, 11 does it; 32 GPUs are too few."""
    plan = {"tp": 8, "pp": 4, "ep": 16, "etp": 1, "micro_batch": 2}
    problem = problem_of("glm-4.5-air", "dgx-h100:8", 16, "megatron")
    assert "megatron-layers-even" in broken(problem, ONE, **plan)
    assert end_counts(46, 4, 1) == (11, 11)
    for first, last in ((11, 11), (10, None)):
        ends = {"decoder_first_pipeline_num_layers": first, "decoder_last_pipeline_num_layers": last}
        quiet = {"add_bias_linear": False, "kv_channels": 128}
        assert broken(problem, ONE | quiet | {k: v for k, v in ends.items() if v}, **plan) == {}
    small = broken(problem_of("glm-4.5-air", "dgx-h100:4", 16, "megatron"), **plan)
    assert "expert-mesh" in small


def test_30_layers_on_four_stages_are_never_28():
    """A release dropped two of them without a word: refused as it stands, planned with a split that sums to 30."""
    model = model_with("llama3.1-8b", layers=30)
    problem = problem_of(model, "dgx-h100:1", 64, "megatron")
    found = broken(problem, {}, pp=4)
    assert set(found) == {"megatron-layers-even"}
    assert "2 would be left over" in found["megatron-layers-even"]["message"]
    made = Estimate(data=estimate_degrees(problem, Degrees(pp=4)))
    assert made.feasible
    held = [last - first + 1 for stage in made.to_dict()["stages"] for first, last in stage["layers"]]
    assert sorted(held) == [7, 7, 8, 8]


def test_94_layers_fill_96_chunks_with_embedding_and_loss_counted():
    """Qwen3-235B on pp 32 with three virtual stages is legal only because embedding and loss count as layers."""
    problem = problem_of("qwen3-235b-a22b", "dgx-h100:128", 1024, "megatron")
    plan = {"pp": 32, "vpp": 3, "tp": 1, "ep": 8, "etp": 1}
    counted = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    virtual = {"num_virtual_stages_per_pipeline_rank": 3}
    chunks = (0, *([1] * 94), 0)
    assert broken(problem, virtual | counted, layers_per_stage=chunks, **plan) == {}
    assert "megatron-layers-even" in broken(problem, virtual, **plan)
    old = problem_of("qwen3-235b-a22b", "dgx-h100:128", 1024, "megatron", "0.12")
    assert broken(old, layers_per_stage=chunks, **plan) == {}


@pytest.mark.parametrize("layers", [43, 61, 78])
@pytest.mark.parametrize("pp", [2, 4, 8, 16])
@pytest.mark.parametrize("vpp", [1, 2])
def test_odd_numbers_of_layers_have_a_layout_for_any_pipeline(layers, pp, vpp):
    """The layout that a remedy names holds every layer, and the multi-token prediction together with the loss."""
    text = written_layout(layers, pp, vpp, 1)
    layout = parse_layout(text)
    check_layout(layout, layers=layers, mtp_layers=1, pp=pp)
    assert layout.stages[-1].endswith("mL")


def test_weights_of_embedding_and_head_stay_below_a_stage():
    """torchtitan counts embedding and output as layers: a weight above a stage's layers would leave it less than nothing."""
    model = model_with("llama3.1-8b", layers=16)
    problem = problem_of(model, "dgx-h100:1", 64, "torchtitan", "0.2")
    first, last = (f"parallelism.pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last"))
    less = {first: 4, last: 1}
    assert broken(problem, less, pp=4, zero=3) == {}
    heavy = less | {first: 7}
    assert set(broken(problem, heavy, pp=4, zero=3)) == {"torchtitan-weights"}
    assert "layers-stages" in broken(problem_of(model_with("llama3.1-8b", layers=6), "dgx-h100:1", 64), pp=8)


def test_seven_layers_over_two_stages_are_three_and_four():
    model = model_with("llama3.1-8b", layers=7)
    problem = problem_of(model, "dgx-h100:1", 64, "megatron")
    ends = {"decoder_first_pipeline_num_layers": 3, "decoder_last_pipeline_num_layers": 4}
    assert "megatron-layers-even" in broken(problem, {}, pp=2)
    assert broken(problem, ends, pp=2) == {}
    assert "megatron-ends" in broken(problem, ends | {"decoder_last_pipeline_num_layers": 3}, pp=2)
    assert broken(problem, layers_per_stage=(3, 4), pp=2) == {}
    assert end_counts(7, 2, 1) == (4, 3)


# --- heads, vocabulary, sequence and experts


def test_two_key_value_heads_on_tp_4_depend_on_the_framework():
    """torchtitan needs tp to divide them, Megatron replicates them since 0.16; latent attention has as many as heads."""
    model = model_with("llama3.1-8b", kv_heads=2)
    plan = {"tp": 4, "zero": 3}
    assert "torch-kv-heads" in broken(problem_of(model, "dgx-h100:1", 64, "torchtitan"), **plan)
    assert broken(problem_of(model, "dgx-h100:1", 64, "megatron"), tp=4) == {}
    assert "megatron-kv-heads" in broken(problem_of(model, "dgx-h100:1", 64, "megatron", "0.15"), tp=4)
    latent = broken(problem_of("deepseek-v3", "dgx-h100:16", 128, "torchtitan"), tp=4, zero=3)
    assert "torch-kv-heads" not in latent


@pytest.mark.parametrize(("tp", "legal"), [(2, True), (4, True), (8, False)])
def test_four_key_value_heads_end_at_tp_4_where_they_are_not_replicated(tp, legal):
    for framework, version in (("megatron", "0.12"), ("torchtitan", "0.2")):
        problem = problem_of("qwen3-235b-a22b", "dgx-h100:8", 64, framework, version)
        assert any("kv-heads" in rule for rule in broken(problem, tp=tp, zero=1, etp=1)) is not legal


@pytest.mark.parametrize(
    ("vocabulary", "padded"),
    [
        (50257, (50304, 50432, 50688, 51200)),
        (128256, (128256, 128256, 128512, 129024)),
        (151936, (151936, 152064, 152064, 152576)),
    ],
)
def test_vocabularies_are_padded_to_multiples_of_128_tp(vocabulary, padded):
    assert tuple(padded_vocabulary(vocabulary, tp, 128) for tp in (1, 2, 4, 8)) == padded


def test_an_unpadded_vocabulary_is_refused_and_padded_by_the_remedy():
    problem = problem_of("gpt2", "dgx-h100:1", 64, "megatron", seq_len=1024)
    found = broken(problem, ONE | {"padded_vocab_size": 50257}, tp=2)
    assert set(found) == {"megatron-vocabulary"}
    assert "50432" in found["megatron-vocabulary"]["remedy"]


def test_sequence_parallelism_is_needed_by_experts_alone():
    """Experts with tensor parallelism need it; a dense model does not; with tp 1 it is switched off, not refused."""
    routed = problem_of("mixtral-8x7b", "dgx-h100:1", 64, "megatron")
    assert "megatron-moe-sp" in broken(routed, tp=2, ep=2, etp=1, sequence_parallel=False)
    assert broken(routed, tp=2, ep=2, etp=1) == {}
    dense = problem_of("llama3.1-8b", "dgx-h100:1", 64, "megatron")
    assert broken(dense, ONE, tp=2, sequence_parallel=False) == {}
    alone = settled(dense, {"sequence_parallel": True}, tp=1, sequence_parallel=True)
    assert alone.violations == []
    assert alone.shown["sp"] == 0


def test_expert_and_context_parallelism_go_together():
    """Attention and experts use different groups of ranks: ep is no factor of the attention's world."""
    problem = problem_of("qwen3-30b-a3b", "dgx-h100:2", 64, "megatron", seq_len=8192)
    assert broken(problem, ONE, cp=4, ep=16, etp=1, tp=1) == {}


def test_the_product_of_expert_degrees_is_printed_with_its_factors():
    """World 4, tp 1, pp 2, ep 2, etp 1 is legal; what was really set, ep 4, is shown factor by factor."""
    problem = problem_of("qwen3-30b-a3b", "dgx-h100:1x4", 64, "megatron")
    assert broken(problem, tp=1, pp=2, ep=2, etp=1) == {}
    message = broken(problem, tp=1, pp=2, ep=4, etp=1)["expert-mesh"]["message"]
    assert "1·4 = 4" in message
    assert "1·1·2" in message


@pytest.mark.parametrize(("ep", "rule"), [(3, "experts-ep"), (16, "expert-mesh"), (8, None), (2, None)])
def test_expert_parallelism_is_a_size_of_a_group_not_a_number_of_experts(ep, rule):
    """128 experts on 8 ranks: ep divides both, and is no larger than the world."""
    problem = problem_of("qwen3-30b-a3b", "dgx-h100:1", 64)
    found = broken(problem, ep=ep, etp=1)
    assert (rule in found) if rule else found == {}


def test_context_parallelism_divides_the_sequence_in_pairs():
    problem = problem_of("llama3.1-8b", "dgx-h100:2", 64, seq_len=4100)
    assert "sequence-cp" in broken(problem, cp=8)
    assert broken(problem_of("llama3.1-8b", "dgx-h100:2", 64, seq_len=4098), tp=2) == {}
    assert "sequence-sp" in broken(problem_of("llama3.1-8b", "dgx-h100:2", 64, seq_len=4098), tp=4)


def test_sequence_parallelism_over_heads_divides_the_heads():
    deepspeed = problem_of("llama3.1-8b", "dgx-h100:3", 96, "deepspeed")
    said = {"train_micro_batch_size_per_gpu": 1}
    assert broken(deepspeed, said | {"sequence_parallel_size": 4}, zero=3) == {}
    assert "deepspeed-sequence-heads" in broken(deepspeed, said | {"sequence_parallel_size": 3}, zero=3)
    megatron = problem_of("llama3.1-8b", "dgx-h100:4", 64, "megatron", seq_len=32768)
    assert broken(megatron, ONE | {"cp_comm_type": ["a2a"], "max_position_embeddings": 32768}, cp=8) == {}
    assert "megatron-cp-heads" in broken(megatron, ONE | {"cp_comm_type": ["a2a"], "max_position_embeddings": 32768}, cp=16)


@pytest.mark.parametrize(("zero", "legal"), [(0, True), (1, True), (2, False), (3, False)])
def test_deepspeed_pipelines_take_zero_1_at_most_and_say_why(zero, legal):
    found = broken(problem_of("llama3.1-8b", "dgx-h100:1", 64, "deepspeed"), pp=2, zero=zero)
    assert ("deepspeed-pipeline" not in found) is legal
    if not legal:
        assert "across micro-batches" in found["deepspeed-pipeline"]["message"]
        assert "several times pp" in found["deepspeed-pipeline"]["remedy"]


# --- the same, read from a user's own arguments

MODEL = (
    "--hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --ffn-hidden-size 14336 --swiglu "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights "
    "--seq-length 4096 --max-position-embeddings 4096 --vocab-size 128256 --micro-batch-size 1 --global-batch-size 64 --bf16 "
)


@pytest.mark.parametrize(
    ("arguments", "rule", "remedy"),
    [
        ("--num-layers 30 --pipeline-model-parallel-size 4", "megatron-layers-even", "--pipeline-model-parallel-layout"),
        ("--num-layers 7 --pipeline-model-parallel-size 2", "megatron-layers-even", "pp 1 or 7"),
        (
            "--num-layers 32 --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 "
            "--no-overlap-p2p-communication",
            "megatron-virtual-sends",
            "leave out --no-overlap-p2p-communication",
        ),
        ("--num-layers 32 --tp-comm-overlap", "megatron-tp-overlap", "leave out --tp-comm-overlap"),
        (
            "--num-layers 32 --use-distributed-optimizer --overlap-param-gather",
            "megatron-gather-reduce",
            "give --overlap-grad-reduce",
        ),
        ("--num-layers 32 --recompute-granularity full", "megatron-recompute-full", "--recompute-method uniform"),
    ],
)
def test_arguments_are_read_and_every_fault_named(tmp_path, arguments, rule, remedy):
    path = tmp_path / "arguments.json"
    path.write_text(json.dumps((MODEL + arguments).split()), encoding="utf-8")
    made = estimate_file("megatron", path, "dgx-h100:1")
    found = {v["rule"]: v for v in made.to_dict()["violations"]}
    assert set(found) - {"memory"} == {rule}
    assert remedy in found[rule]["remedy"]
    assert made.exit_code == 1


def test_uneven_ends_are_read_and_priced(tmp_path):
    ends = "--num-layers 7 --pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 3"
    path = tmp_path / "arguments.json"
    path.write_text(json.dumps((MODEL + ends + " --decoder-last-pipeline-num-layers 4").split()), encoding="utf-8")
    made = estimate_file("megatron", path, "dgx-h100:1")
    assert made.feasible
    assert [stage["layers"] for stage in made.to_dict()["stages"]] == [[[0, 2]], [[3, 6]]]


def test_one_call_serves_readers_and_proofs():
    """`violations` takes a candidate, facts and settings alone, whatever reads them."""
    problem = problem_of("llama3.1-8b", "dgx-h100:1", 64)
    candidate = settle(problem, Degrees(tp=2, pp=2)).row
    found = violations(candidate, facts_of(problem), ONE | {"decoder_first_pipeline_num_layers": 10}, "megatron", "0.16")
    assert [(v.rule, v.severity) for v in found] == []
    found = violations(candidate, facts_of(problem), {"decoder_first_pipeline_num_layers": 0}, "megatron", "0.16")
    assert {v.rule for v in found} == {"megatron-ends-positive", "megatron-connections"}
