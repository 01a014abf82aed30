import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidValueError
from shardwright.hardware.hostlist import compress, expand

HOSTS = st.from_regex(r"[a-z][a-z0-9-]{0,5}(r[0-9]{1,2}n)?[0-9]{0,4}(-ib)?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[001-003,007],login", ["node001", "node002", "node003", "node007", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("a.b.c,d-1", ["a.b.c", "d-1"]),
    ],
)
def test_host_lists_are_read_as_the_scheduler_reads_them(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("node[1-", "brackets"),
        ("node]1", "brackets"),
        ("node[3-1]", "backwards"),
        ("node[a-b]", "no number"),
        ("node[1-99999999999]", "1,000,000"),
        ("a[0-999]b[0-999]c[0-999]", "1,000,000"),
        ("a,,b", "no host name"),
        ("", "no host name"),
        ("a b", "no host name"),
        ("\x00", "no host name"),
    ],
)
def test_damaged_host_lists_say_why(text: str, reason: str) -> None:
    with pytest.raises(InvalidValueError, match=reason):
        expand(text)


@given(st.lists(HOSTS, min_size=1, max_size=30))
def test_writing_and_reading_keeps_names_and_order(names: list[str]) -> None:
    assert list(expand(compress(names))) == names


def test_long_runs_are_short() -> None:
    names = [f"node{number:05d}" for number in range(10_000)]
    assert compress(names) == "node[00000-09999]"
