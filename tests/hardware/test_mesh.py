import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidValueError, UnknownNameError
from shardwright.hardware.mesh import DeviceMesh, format_ranks, parse_ranks

NAMES = ("pp", "dp", "cp", "ep", "tp")
MESHES = st.lists(st.integers(1, 5), min_size=1, max_size=5).map(lambda s: DeviceMesh(axes=tuple(zip(NAMES, s, strict=False))))


def test_strides_follow_the_order_of_axes() -> None:
    mesh = DeviceMesh(axes=(("pp", 2), ("dp", 4), ("tp", 8)))
    assert (mesh.size, mesh.shape) == (64, (2, 4, 8))
    assert [mesh.stride(n) for n in ("pp", "dp", "tp")] == [32, 8, 1]
    assert mesh.groups("dp")[1].tolist() == [1, 9, 17, 25]
    assert format_ranks(mesh.ranks(pp=1)) == "32-63"
    assert mesh.coordinates(45) == {"pp": 1, "dp": 1, "tp": 5}


@given(MESHES, st.data())
def test_groups_agree_with_coordinates(mesh: DeviceMesh, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([n for n, _ in mesh.axes]))
    groups = mesh.groups(name)
    assert sorted(groups.ravel().tolist()) == list(range(mesh.size))
    assert groups[:, 0].tolist() == sorted(groups[:, 0].tolist())
    for group in groups:
        places = [mesh.coordinates(int(r)) for r in group]
        assert [p[name] for p in places] == list(range(mesh.axis_size(name)))
        assert len({tuple(v for k, v in p.items() if k != name) for p in places}) == 1
        assert set(np.diff(group).tolist()) <= {mesh.stride(name)}


@given(MESHES, st.data())
def test_ranks_are_those_with_the_coordinates(mesh: DeviceMesh, data: st.DataObject) -> None:
    wanted = {n: data.draw(st.integers(0, s - 1)) for n, s in mesh.axes if data.draw(st.booleans())}
    expected = [r for r in range(mesh.size) if all(mesh.coordinates(r)[n] == v for n, v in wanted.items())]
    assert mesh.ranks(**wanted).tolist() == expected


def test_unknown_axes_and_coordinates_are_refused() -> None:
    mesh = DeviceMesh(axes=(("pp", 2), ("tp", 4)))
    with pytest.raises(UnknownNameError):
        mesh.stride("dp")
    with pytest.raises(InvalidValueError, match="4"):
        mesh.ranks(tp=4)
    with pytest.raises(InvalidValueError, match="distinct"):
        DeviceMesh(axes=(("tp", 2), ("tp", 2)))
    with pytest.raises(InvalidValueError, match="0"):
        DeviceMesh(axes=(("tp", 0),))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([0, 1], "0-1"),
        ([0, 8], "0,8"),
        (range(8), "0-7"),
        ([0, 1, 2, 3, 8, 9, 10, 11], "0-3,8-11"),
        (range(0, 512, 8), "0-504:8"),
        ([3, 2, 1, 1], "1-3"),
        ([0, 4, 8, 9, 10], "0-8:4,9-10"),
        ([0, 2, 7, 20, 21, 22], "0,2,7,20-22"),
    ],
)
def test_ranges(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text


@given(st.sets(st.integers(0, 300)))
def test_ranges_read_back(ranks: set[int]) -> None:
    assert parse_ranks(format_ranks(ranks)).tolist() == sorted(ranks)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1000))
def test_a_strided_group_is_one_range(size: int, stride: int, start: int) -> None:
    text = format_ranks(range(start, start + size * stride, stride))
    assert text.count(",") <= (1 if size == 2 else 0)


@pytest.mark.parametrize("text", ["a", "1-", "1:2", "-3", "1-2:0", "1,,2", "1-99999999999999"])
def test_bad_ranges_are_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        parse_ranks(text)


def test_large_meshes_are_cheap() -> None:
    mesh = DeviceMesh(axes=(("pp", 16), ("dp", 1024), ("tp", 8)))
    assert mesh.size == math.prod(mesh.shape) == 131072
    assert format_ranks(mesh.ranks(tp=0)) == "0-131064:8"
