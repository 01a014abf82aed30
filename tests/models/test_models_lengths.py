"""Packed documents: attention, spread and files, against hand arithmetic and a simulation."""

import json
import random

import pytest

from shardwright.errors import DamagedFileError, InvalidValueError
from shardwright.models.catalog import load_model
from shardwright.models.job import TrainingJob
from shardwright.models.length_files import read_lengths
from shardwright.models.lengths import Lengths, packed_flops_per_token

MIXED = Lengths(rows=((512, 1000), (2048, 200), (8192, 20)))


def test_moments_by_hand():
    made = Lengths(rows=((1, 2), (4, 1)))
    assert (made.documents, made.tokens, made.longest) == (3, 6, 4)
    assert made.mean == 2
    assert made.attended == 18 / 6  # 1 + 1 + 16 over 6


@pytest.mark.parametrize("convention", ["full", "causal"])
@pytest.mark.parametrize("model", ["llama3.1-8b", "deepseek-v3", "qwen3-30b-a3b", "mistral-7b"])
def test_equal_documents_cost_what_sequences_of_their_length_cost(model, convention):
    graph = load_model(model)
    for length in (512, 8192):
        packed = packed_flops_per_token(graph, 8192, convention, Lengths(rows=((length, 7),)))
        assert packed == pytest.approx(graph.flops_per_token(length, convention), rel=1e-12)


def test_flops_follow_the_sum_of_squares():
    graph = load_model("llama3.1-8b")
    attention = 3 * 32 * 2 * 32 * 2 * 128  # a key: forward and backward, layers, products, heads, sizes of query and value
    dense = graph.flops_per_token(8192) - attention * 8192
    assert packed_flops_per_token(graph, 8192, "full", MIXED) == pytest.approx(dense + attention * MIXED.attended)
    job = TrainingJob(graph=graph, seq_len=8192, global_batch=2, lengths=MIXED)
    assert job.flops_per_step() == pytest.approx(16384 * packed_flops_per_token(graph, 8192, "full", MIXED))


def test_no_imbalance_where_nothing_varies():
    assert Lengths(rows=((4096, 10),)).packing().imbalance(dp=64, cp=8, tokens=8192, micro_batches=4) == 1
    assert MIXED.packing().imbalance(dp=1, cp=1, tokens=8192, micro_batches=4) == 1


def test_imbalance_grows_with_ranks_and_shrinks_with_tokens():
    packing = MIXED.packing()

    def factor(**change):
        return packing.imbalance(**{"dp": 8, "cp": 1, "tokens": 1e6, "micro_batches": 4, **change})

    assert 1 < factor() < factor(dp=64) < factor(dp=64, cp=4) <= packing.limit
    assert factor(micro_batches=16) < factor() < factor(tokens=1e5)
    assert packing.imbalance(dp=10**6, cp=1, tokens=1.0, micro_batches=1) == packing.limit == 8192 / MIXED.attended


def test_spread_agrees_with_packing_at_random():
    draw, tokens, ranks = random.Random(1), 200_000, 8
    lengths, counts = zip(*MIXED.rows, strict=True)

    def squares():
        filled = total = 0
        while filled < tokens:
            length = min(draw.choices(lengths, counts)[0], tokens - filled)
            filled, total = filled + length, total + length**2
        return total

    sums = [[squares() for _ in range(ranks)] for _ in range(400)]
    mean = sum(map(sum, sums)) / (400 * ranks)
    largest = sum(map(max, sums)) / 400
    assert mean == pytest.approx(tokens * MIXED.attended, rel=0.03)
    assert largest / mean == pytest.approx(MIXED.packing().expected_maximum(ranks, tokens), rel=0.03)


# --- records and files -------------------------------------------------------------------------------


def test_round_trip_adds_equal_lengths_up():
    assert Lengths.from_list(MIXED.to_list()) == MIXED
    assert Lengths.from_list([[8, 1], [4, 2], [8, 3]]).rows == ((4, 2), (8, 4))


@pytest.mark.parametrize(
    "data", [[], "x", [[1]], [[0, 1]], [[-1, 1]], [[1, -1]], [[1.5, 1]], [[True, 1]], [[4, 0]], [[1, 2, 3]]]
)
def test_damaged_records(data):
    with pytest.raises(InvalidValueError):
        Lengths.from_list(data)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "512,1000\n2048,200\n8192,20\n"),
        ("a.csv", "length,count\n512,1000\n\n# a note\n2048,200\n8192,20\n"),
        ("a.csv", "Count,Length\n1000,512\n200,2048\n20,8192\n"),
        ("a.txt", "512, 400\n512, 600\n2048, 200\n8192, 20"),
        ("a.json", json.dumps({"512": 1000, "2048": 200, "8192": 20})),
        ("a.json", json.dumps([[512, 1000], [2048, 200], [8192, 20]])),
        ("a.json", json.dumps([{"length": n, "count": c} for n, c in MIXED.rows])),
    ],
)
def test_files(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert read_lengths(path) == MIXED


@pytest.mark.parametrize(
    ("name", "text", "error", "place"),
    [
        ("a.csv", "512,1\n2048\n", DamagedFileError, ":2"),
        ("a.csv", "512,1\nlong,2\n", DamagedFileError, ":2"),
        ("a.csv", "512,1\n1024,1.5\n", DamagedFileError, ":2"),
        ("a.csv", "512,1,1\n", DamagedFileError, ":1"),
        ("a.csv", "512,1\n0,3\n", InvalidValueError, ":2"),
        ("a.csv", "512,1\n64,-3\n", InvalidValueError, ":2"),
        ("a.csv", "length,count\n", DamagedFileError, "a.csv"),
        ("a.csv", "512,0\n64,0\n", InvalidValueError, "--length-histogram"),
        ("a.json", '{"512": 1,\n', DamagedFileError, ":2"),
        ("a.json", "3", DamagedFileError, "a.json"),
        ("a.json", "[" * 100_000, DamagedFileError, "a.json"),
        ("a.json", '{"512": "many"}', DamagedFileError, "entry 1"),
        ("a.json", "[[512, 1], [3]]", DamagedFileError, "entry 2"),
        ("a.json", '[{"length": 512}]', DamagedFileError, "entry 1"),
        ("a.json", "[]", DamagedFileError, "a.json"),
    ],
)
def test_damaged_files(tmp_path, name, text, error, place):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(error) as caught:
        read_lengths(path)
    assert place in caught.value.where
    assert caught.value.hint


def test_a_missing_file(tmp_path):
    with pytest.raises(DamagedFileError):
        read_lengths(tmp_path / "none.csv")


def test_documents_longer_than_a_sequence():
    with pytest.raises(InvalidValueError, match="8,192 tokens in sequences of 4,096"):
        TrainingJob(graph=load_model("llama3.1-8b"), seq_len=4096, global_batch=2, lengths=MIXED)
