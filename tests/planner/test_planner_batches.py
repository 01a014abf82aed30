"""Global batches in tokens and as a range."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidValueError, ShardwrightError
from shardwright.planner.batches import MAX_POINTS, BatchRange, batch_of_tokens, parse_batch
from shardwright.planner.search.batches import merit, plan_range
from shardwright.planner.search.options import SearchOptions
from shardwright.planner.search.run import plan

JOB = {"model": "gpt2", "cluster": "dgx-h100:1x2", "seq_len": 1024}
SEARCH = SearchOptions(top=1, workers=1)


def test_tokens_are_whole_sequences():
    assert batch_of_tokens(4_194_304, 4096) == 1024
    with pytest.raises(InvalidValueError) as caught:
        batch_of_tokens(4_000_000, 4096)
    assert caught.value.where == "--tokens-per-batch"
    assert "3997696 (976 sequences) or 4001792 (977 sequences)" in caught.value.hint
    with pytest.raises(InvalidValueError) as caught:
        batch_of_tokens(100, 4096)
    assert caught.value.hint == "nearest: 4096 (1 sequence)"


@pytest.mark.parametrize(("tokens", "seq_len"), [(0, 4096), (-4096, 4096), (4096, 0)])
def test_tokens_that_cannot_be(tokens, seq_len):
    with pytest.raises(InvalidValueError):
        batch_of_tokens(tokens, seq_len)


def test_parsing():
    assert parse_batch("1024") == 1024
    assert parse_batch("1024..2048") == BatchRange(low=1024, high=2048)


@pytest.mark.parametrize("text", ["", "x", "1.5", "1..", "..4", "1...4", "4..1", "0..4", "1..200000000", "a..b"])
def test_what_is_no_batch(text):
    with pytest.raises(InvalidValueError) as caught:
        parse_batch(text)
    assert caught.value.where == "--global-batch"
    assert caught.value.hint


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(1, 2048))
def test_points_lie_within_and_hold_the_ends(low, more, gpus):
    made = BatchRange(low=low, high=low + more).points(gpus)
    assert made == tuple(sorted(set(made)))
    assert (made[0], made[-1]) == (low, low + more)
    assert len(made) <= MAX_POINTS
    multiples = (low + more) // gpus - (low - 1) // gpus
    assert sum(1 for batch in made if batch % gpus == 0) >= min(multiples, MAX_POINTS - 2)


def test_points_by_hand():
    assert BatchRange(low=1024, high=2048).points(256) == (1024, 1280, 1536, 1792, 2048)
    assert BatchRange(low=60, high=200).points(8) == (60, 64, 88, 112, 144, 168, 200)
    assert BatchRange(low=33, high=50).points(1024) == (33, 48, 50)


def test_a_range_gives_the_batch_of_most_throughput():
    made = plan_range(**JOB, batches=BatchRange(low=7, high=16), search=SEARCH)
    each = {b: plan(**JOB, global_batch=b, search=SEARCH) for b in BatchRange(low=7, high=16).points(2)}
    best = max(each, key=lambda b: merit(each[b]))
    assert made.data["training"]["global_batch"] == best
    assert made.data["plans"] == each[best].data["plans"]
    listed = {row["key"]: (row["value"], row["origin"]) for row in made.data["assumptions"]}
    assert listed["global_batch.range"] == ("7..16", "given")
    assert listed["global_batch.tried"] == (" ".join(map(str, each)), "inferred")
    assert listed["global_batch"] == (best, "inferred")


def test_nothing_fits_any_batch():
    job = {"model": "llama3.1-70b", "cluster": "dgx-h100:1x2", "seq_len": 1024}
    made = plan_range(**job, batches=BatchRange(low=2, high=4), search=SEARCH)
    assert made.exit_code == 1
    assert made.data["training"]["global_batch"] == 2


def test_no_batch_can_be_planned():
    with pytest.raises(ShardwrightError):
        plan_range(**{**JOB, "model": "no-such-model"}, batches=BatchRange(low=2, high=4), search=SEARCH)
