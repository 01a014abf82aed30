"""Different problems have different right answers, and one program finds them all."""

import pytest
from operator_problems import Case, llama, problem_of

from shardwright.planner.search.operators.layouts import BROADCAST, PARTIAL, WHOLE

HEADS = ("qkv.query_raw", "attention", "out_proj")
WIDE = ("gate_up.gate", "gate_up.up", "act", "down")
STREAM = ("input_norm", "attn_residual", "post_norm", "mlp_residual")


def test_ample_batch_and_memory_gives_data_parallelism_alone():
    case = Case(problem_of("llama3.1-8b", "dgx-h100:8", seq_len=8192, batch=64), "dp=8,tp=8")
    assert {case.divides(name) for name in case.names()} == {("batch", "batch")}
    assert case.held("down") == [2, 2]  # sharded over both, as the gathers hide


@pytest.fixture(scope="module")
def one_sequence():
    return problem_of("llama3.1-8b", "dgx-h100:1", seq_len=512, batch=1)


def test_one_sequence_gives_columns_then_rows_and_whole_heads(one_sequence):
    case = Case(one_sequence, "tp=8")
    assert [case.divides(name) for name in HEADS] == [("heads",)] * 3
    assert [case.divides(name) for name in WIDE] == [("ffn",)] * 4
    assert case.reads("gate_up.up", 0) == [BROADCAST]  # columns: the input whole, its gradient in summands
    assert case.writes("down") == [PARTIAL]  # rows: summands
    assert [case.divides(name) for name in STREAM] == [("-",)] * 4


def test_the_same_with_tight_memory_divides_norms_and_residuals_by_sequence(one_sequence):
    ample = Case(one_sequence, "tp=8")
    tight = Case(one_sequence, "tp=8", budget=0.985 * ample.memory_bytes)
    assert [tight.divides(name) for name in HEADS] == [("heads",)] * 3
    assert [tight.divides(name) for name in WIDE] == [("ffn",)] * 4
    assert [tight.divides(name) for name in STREAM] == [("seq",)] * 4
    assert tight.memory_bytes <= 0.985 * ample.memory_bytes
    assert tight.solution.time_s > ample.solution.time_s


def attention_bytes(heads, kv_heads, ranks):
    """What a rank sends around attention forward, in heads of its own part of the sequence.

    Exchange: queries, keys, values there and the output back, (n-1)/n of them. Gather: keys and values to n-1 others.
    """
    share = (ranks - 1) / ranks
    return (2 * heads + 2 * kv_heads) * share, 2 * kv_heads * (ranks - 1)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "seq_len"), [(32, 8, 8, 8192), (32, 2, 4, 8192), (32, 1, 8, 16384), (32, 4, 4, 16384)]
)
def test_sequences_are_exchanged_or_keys_gathered_by_their_bytes(heads, kv_heads, ranks, seq_len):
    cluster = "dgx-h100:1" if ranks == 8 else f"dgx-h100:1x{ranks}"
    case = Case(problem_of(llama(kv_heads=kv_heads), cluster, seq_len=seq_len, batch=1, framework="any"), f"tp={ranks}")
    assert {case.divides(name) for name in (*STREAM, "qkv.query_raw", "qkv.key_raw")} == {("seq",)}
    exchanged, gathered = attention_bytes(heads, kv_heads, ranks)
    assert case.divides("attention") == (("seq",) if gathered < exchanged else ("heads",))
    if gathered < exchanged:
        assert case.reads("attention", 1) == case.reads("attention", 2) == [BROADCAST]


def test_keys_and_values_are_whole_where_there_are_fewer_of_their_heads_than_ranks():
    few = Case(problem_of(llama(kv_heads=2), "dgx-h100:1", seq_len=512, batch=1), "tp=8")
    enough = Case(problem_of(llama(kv_heads=8), "dgx-h100:1", seq_len=512, batch=1), "tp=8")
    assert few.divides("attention") == enough.divides("attention") == ("heads",)
    assert few.reads("attention", 1) == few.reads("attention", 2) == [BROADCAST]
    assert enough.reads("attention", 1) == enough.reads("attention", 2) == [2]


def test_swapping_the_speeds_of_the_axes_swaps_the_answer():
    swapped = ("cluster.scaleup_bytes_per_s=20e9", "cluster.internode_bytes_per_s=3600e9")
    usual = Case(problem_of("llama3.1-8b", "dgx-h100:8", seq_len=2048, batch=1), "dp=8,tp=8")
    other = Case(problem_of("llama3.1-8b", "dgx-h100:8", seq_len=2048, batch=1, overrides=swapped), "dp=8,tp=8")
    for name in ("qkv.query_raw", "attention"):
        assert usual.divides(name) == ("-", "heads")  # the axis inside nodes is fast
        assert other.divides(name) == ("heads", "-")
    for name in (*HEADS, "attn_residual"):  # the output: by heads or by sequence, a matter of 2 %, yet over the fast axis alone
        assert (usual.divides(name)[0], other.divides(name)[1]) == ("-", "-")
        assert "-" not in {usual.divides(name)[1], other.divides(name)[0]}


def test_experts_are_sharded_and_the_router_is_not():
    case = Case(problem_of("mixtral-8x7b", "dgx-h100:8", seq_len=4096, batch=64, framework="any"), "dp=8,tp=8")
    assert all("experts" in case.divides(f"expert_{name}") for name in ("up.expert_gate", "up.expert_up", "down"))
    assert "experts" not in case.divides("dispatch") + case.divides("combine")  # tokens go there and back
    assert case.divides("router") == ("batch", "batch")
    router = case.assembly.tables[case.names().index("router")]
    choice = case.solution.choice[case.names().index("router")]
    assert (router.strategies.parameters[router.strategy[choice], 0] < WHOLE + 1).all()  # used whole on every rank


def test_a_large_vocabulary_gives_a_parallel_head_with_partial_loss():
    case = Case(problem_of("llama3.1-8b", "dgx-h100:1", seq_len=8192, batch=1), "tp=8", whole=True)
    assert case.divides("head") == ("vocab",)
    assert case.divides("loss") == ("vocab",)  # statistics of the softmax are reduced, logits stay where they are
    small = Case(problem_of(llama(vocab=1024), "dgx-h100:1", seq_len=8192, batch=1), "tp=8", whole=True)
    assert small.divides("loss") == ("seq",)
