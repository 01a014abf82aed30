"""Values of knobs: one, a list, a range, `auto`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.planner.sweep import knobs


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8", (8,)),
        (8, (8,)),
        ("4,1,2", (1, 2, 4)),
        ([4, "1,2"], (1, 2, 4)),
        ("8..64x2", (8, 16, 32, 64)),
        ("8..63x2", (8, 16, 32)),
        ("8..24+8", (8, 16, 24)),
        ("1,8..16x2,16", (1, 8, 16)),
        ("7..7+1", (7,)),
        ("1e3", (1000,)),
        ("3..81x3", (3, 9, 27, 81)),
    ],
)
def test_numbers(text, values):
    assert knobs.numbers(text, "--nodes") == values


def test_shares_need_not_be_whole():
    assert knobs.shares("0.25..1x2", "--batch-per-gpu") == (0.25, 0.5, 1.0)
    assert knobs.shares("0.1..0.3+0.1", "--batch-per-gpu")[0] == 0.1


def test_words_keep_their_order():
    assert knobs.words(["b,a", "b"], "--node") == ("b", "a")
    assert knobs.words("auto", "--node") is None
    assert knobs.numbers("auto", "--nodes") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "1,,2",
        "0",
        "-1",
        "1.5",
        "x",
        "8..4x2",
        "8..4+1",
        "1..8",
        "1..8x1",
        "1..8x0",
        "1..8+0",
        "1..",
        "..8x2",
        "nan",
        "1e99",
    ],
)
def test_what_is_no_number_is_refused_with_its_place(text):
    with pytest.raises(InvalidValueError) as fault:
        knobs.numbers(text, "--nodes")
    assert fault.value.where == "--nodes"
    assert fault.value.hint


def test_an_empty_list_is_refused():
    with pytest.raises(InvalidValueError, match="no values"):
        knobs.numbers([], "sweep.yaml:3: nodes")


def test_too_many_values_are_refused():
    with pytest.raises(InvalidValueError, match="more than"):
        knobs.numbers("1..1000000+1", "--nodes")


def test_auto_stands_alone():
    with pytest.raises(ConflictError, match="auto beside 4"):
        knobs.numbers("auto,4", "--nodes")


@given(low=st.integers(1, 1000), count=st.integers(1, 60), by=st.integers(1, 50))
def test_a_range_of_steps_is_what_python_counts(low, count, by):
    high = low + by * count
    assert knobs.numbers(f"{low}..{high}+{by}", "x") == tuple(range(low, high + 1, by))
