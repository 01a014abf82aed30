"""Which ranks form which group: our meshes, and Megatron-Core's RankGenerator in its default order."""

import math
import random

import numpy as np
import pytest

from shardwright.hardware.mesh import DeviceMesh

pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]

ORDER = "tp-cp-ep-dp-pp"
MESHES = 50
MOST_RANKS = 8192
FACTORS = (1, 2, 3, 4, 5, 8, 16)


@pytest.fixture(scope="module")
def generator():
    return pytest.importorskip("megatron.core.parallel_state").RankGenerator


def random_degrees(number):
    """Degrees of a mesh of at most `MOST_RANKS` ranks whose stages hold whole expert groups."""
    draw = random.Random(number)
    while True:
        tp, cp, pp, dp, etp, ep = (draw.choice(FACTORS) * draw.choice((1, 1, 2, 7)) for _ in range(6))
        stage = tp * cp * dp
        if stage * pp <= MOST_RANKS and stage % (etp * ep) == 0 and ep * etp > 1:
            return {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "etp": etp, "ep": ep, "edp": stage // (etp * ep)}


def groups_over(mesh, *names):
    """The groups over several axes together: the ranks that differ in nothing else, by their lowest rank."""
    grid = np.arange(mesh.size).reshape(mesh.shape)
    at = [index for index, (name, _) in enumerate(mesh.axes) if name in names]
    rest = [index for index in range(len(mesh.axes)) if index not in at]
    return grid.transpose(*rest, *at).reshape(-1, math.prod(mesh.shape[index] for index in at)).tolist()


@pytest.mark.parametrize("number", range(MESHES))
def test_groups_are_megatrons(generator, number):
    d = random_degrees(number)
    dense = generator(tp=d["tp"], ep=1, dp=d["dp"], pp=d["pp"], cp=d["cp"], order=ORDER)
    ours = DeviceMesh(axes=tuple((axis, d[axis]) for axis in ("pp", "dp", "cp", "tp")))
    for axis in ("tp", "cp", "dp", "pp"):
        assert ours.groups(axis).tolist() == dense.get_ranks(axis), (d, axis)
    for axes in (("dp", "cp"), ("tp", "pp"), ("tp", "cp"), ("tp", "dp", "cp")):
        assert groups_over(ours, *axes) == dense.get_ranks("-".join(axes)), (d, axes)


@pytest.mark.parametrize("number", range(MESHES))
def test_expert_groups_are_megatrons(generator, number):
    d = random_degrees(number)
    routed = generator(tp=d["etp"], ep=d["ep"], dp=d["edp"], pp=d["pp"], cp=1, order=ORDER)
    ours = DeviceMesh(axes=tuple((axis, d[axis]) for axis in ("pp", "edp", "ep", "etp")))
    for axis, theirs in (("etp", "tp"), ("ep", "ep"), ("edp", "dp"), ("pp", "pp")):
        assert ours.groups(axis).tolist() == routed.get_ranks(theirs), (d, axis)
    assert groups_over(ours, "etp", "ep") == routed.get_ranks("tp-ep")


@pytest.mark.parametrize("number", range(0, MESHES, 5))
def test_attention_and_experts_share_their_pipelines(generator, number):
    d = random_degrees(number)
    dense = generator(tp=d["tp"], ep=1, dp=d["dp"], pp=d["pp"], cp=d["cp"], order=ORDER)
    routed = generator(tp=d["etp"], ep=d["ep"], dp=d["edp"], pp=d["pp"], cp=1, order=ORDER)
    assert dense.get_ranks("pp") == routed.get_ranks("pp")


def test_meshes_are_large_and_different():
    found = [random_degrees(number) for number in range(MESHES)]
    sizes = [d["tp"] * d["cp"] * d["pp"] * d["dp"] for d in found]
    assert max(sizes) > 4096
    assert len({tuple(d.values()) for d in found}) == MESHES
