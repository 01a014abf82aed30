"""How jobs scale: knees, gains, and what must hold of prices over the number of nodes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright import Degrees, PricingOptions, estimate
from shardwright.planner.sweep.scaling import CLEAR, Measures, Series, doubling_gain, knee_of

NODES = (1, 2, 4, 8, 16, 32, 64)
NO_OVERLAP = ("stack.dp_exposed_floor=1",)
"""All exchange of gradients is exposed."""


def point(nodes, tokens_per_s, **degrees):
    return Measures(
        nodes=nodes,
        gpus=8 * nodes,
        step_s=1.0,
        tokens_per_s=tokens_per_s,
        mfu=0.4,
        exposed_share=0.1,
        headroom_bytes=0,
        usd=None,
        joules=None,
        degrees={"tp": 1, "dp": 8 * nodes, **degrees},
    )


def curve(gain_before, gain_beyond, at, last=12):
    """Sizes whose throughput grows by one factor a doubling up to a size, and by another beyond it."""
    made, rate = [], 1000.0
    for power in range(last):
        made.append(point(2**power, rate))
        rate *= 1 + (gain_before if 2**power < at else gain_beyond)
    return made


@pytest.mark.parametrize(("before", "beyond", "at"), [(0.98, 0.31, 64), (1.0, 0.0, 8), (0.95, 0.6, 512)])
def test_a_knee_is_found_where_it_is(before, beyond, at):
    knee = knee_of(curve(before, beyond, at))
    assert (knee.nodes, knee.gpus) == (at, 8 * at)
    assert knee.before == pytest.approx(before)
    assert knee.beyond == pytest.approx(beyond)


@given(before=st.floats(0.0, 1.0), drop=st.floats(0.0, 1.0), power=st.integers(1, 10))
def test_a_knee_is_told_only_where_it_is_clear(before, drop, power):
    beyond = before * (1 - drop)
    knee = knee_of(curve(before, beyond, 2**power))
    if before - beyond < CLEAR - 1e-6:
        assert knee is None
    if before - beyond > CLEAR + 1e-6:
        assert knee.nodes == 2**power


def test_few_sizes_have_no_knee():
    assert knee_of(curve(1.0, 0.0, 2, last=3)) is None
    assert knee_of([]) is None


def test_gains_are_those_of_a_doubling():
    assert doubling_gain(point(1, 100.0), point(2, 150.0)) == pytest.approx(0.5)
    assert doubling_gain(point(1, 100.0), point(4, 400.0)) == pytest.approx(1.0)
    assert doubling_gain(point(96, 100.0), point(144, 100.0 * 1.5)) == pytest.approx(1.0)


def test_efficiency_and_changes_are_against_the_right_size():
    names = ("cp", "pp", "vpp", "ep", "etp", "zero_stage", "micro_batch", "schedule", "recompute")
    rest = dict.fromkeys(names, 1)
    series = Series(key={}, sizes=(point(2, 100.0, **rest), point(4, 180.0, **{**rest, "pp": 2})))
    assert series.efficiency(0) == 1.0
    assert series.efficiency(1) == pytest.approx(0.9)
    assert series.changed(0) == {}
    assert series.changed(1) == {"pp": [1, 2], "dp": [16, 32]}


# --- prices over the number of nodes ---------------------------------------------------------------------


def priced(model, node, seq_len, batch, nodes, *overrides):
    """Step time and its parts of plain data parallelism without overlap."""
    options = PricingOptions(framework="megatron", overrides=(*NO_OVERLAP, *overrides))
    plan = Degrees(zero=0, micro_batch=1)
    made = estimate(model, f"{node}:{nodes}", seq_len=seq_len, global_batch=batch, degrees=plan, options=options).to_dict()
    return made["predicted"]["step_time_s"], made["time"]


@pytest.mark.parametrize(
    ("model", "node", "seq_len", "batch"),
    [
        ("gpt2", "dgx-h100", 1024, 4096),
        ("gpt2", "dgx-a100-80g", 1024, 8192),
        ("llama3.1-8b", "dgx-h100", 8192, 512),
        ("llama3.1-8b", "dgx-h100", 2048, 512),
        ("llama3.1-8b", "dgx-a100-80g", 4096, 2048),
        ("llama3.1-8b", "p5.48xlarge", 4096, 1024),
    ],
)
def test_data_parallelism_without_overlap_is_a_over_n_plus_b(model, node, seq_len, batch):
    times = np.array([priced(model, node, seq_len, batch, nodes)[0] for nodes in NODES])
    columns = np.stack([1 / np.array(NODES), np.ones(len(NODES))], axis=1)
    solved = np.linalg.lstsq(columns / times[:, None], np.ones(len(NODES)), rcond=None)[0]
    errors = columns @ solved / times - 1
    assert solved[0] > 0
    assert solved[1] > 0
    assert np.abs(errors).max() < 0.01


def test_the_wall_of_communication():
    """100 ms of computing with 5 ms of exchange; shared out to 10 ms each, the exchange stays and is a third of the step.

    The rate between nodes is set so that the exchange is a twentieth of the computing on 32 nodes. A ring over n nodes sends
    (n - 1) / n of the gradients each way, so that even on 32 nodes it takes nearly as long as on 320.
    """
    job = ("llama3.1-8b", "dgx-h100", 4096, 20480)
    rate = 400e9
    for _ in range(20):  # its time is not quite proportional to 1 / rate: curves of collectives
        _, few = priced(*job, 32, f"cluster.internode_bytes_per_s={rate!r}")
        rate *= few["exposed_dp_s"] / (few["compute_s"] / 20)
    assert few["exposed_dp_s"] / few["compute_s"] == pytest.approx(1 / 20, rel=1e-3)
    step, many = priced(*job, 320, f"cluster.internode_bytes_per_s={rate!r}")
    assert many["compute_s"] == pytest.approx(few["compute_s"] / 10, rel=1e-6)
    assert many["exposed_dp_s"] == pytest.approx(few["exposed_dp_s"], rel=0.05)
    share = many["exposed_dp_s"] / (many["compute_s"] + many["exposed_dp_s"])
    assert share == pytest.approx(1 / 3, rel=0.03)
    assert math.isclose(sum(many.values()), step, rel_tol=1e-9)
