"""A timeline as text, and the small pipelines that `show schedules` draws."""

import numpy as np
import pytest

from shardwright.errors import UnknownNameError
from shardwright.planner.report.listings import listing
from shardwright.planner.schedules.drawing import drawn
from shardwright.planner.schedules.memory import peak_live
from shardwright.planner.schedules.sample import FRAMEWORKS, KNOWN, sample
from shardwright.planner.schedules.shape import SIMULATED, Shape, order_of
from shardwright.planner.schedules.simulator import simulate
from shardwright.planner.schedules.timing import chunk_times


def lines(shape, column_s=0.5, **options):
    ones = np.ones((1, shape.pp * shape.vpp))
    return drawn(simulate(order_of(shape), chunk_times(ones, ones, ones, pp=shape.pp, **options)), column_s=column_s)


def test_operations_stand_where_they_happen():
    assert lines(Shape(schedule="1f1b", pp=2, vpp=1, micro_batches=3)) == (
        "|F0F1    B0··F2B1··  B2··|",
        "|  F0B0··F1B1··F2B2··    |",
    )


def test_later_chunks_are_small_letters_and_pairs_are_joined():
    shape = Shape(schedule="interleaved-1f1b", pp=1, vpp=2, micro_batches=3, paired=True)
    assert lines(shape, gain=0.5) == ("|F0f0F1+b0f1+B0F2+b1f2+B1b2··B2··|",)


def test_words_that_do_not_fit_are_cut():
    (first, *_) = lines(Shape(schedule="gpipe", pp=2, vpp=1, micro_batches=12), column_s=1.0)
    assert first.startswith("|FFFFFFFFFFFF ")
    assert len(first) == 2 + 13 * 3


@pytest.mark.parametrize("schedule", SIMULATED)
def test_every_known_schedule_has_a_sample(schedule):
    found, shown = sample(schedule), listing("schedules", schedule)["item"]
    assert FRAMEWORKS[schedule]
    assert shown["passes"] == found.made.step_s
    assert 0 < shown["idle_percent"] < 100
    assert len(shown["time"]) == found.shape.pp
    peaks = peak_live(order_of(found.shape)).tolist()
    assert all(max(kept) <= peak <= sum(kept) for kept, peak in zip(shown["kept"].values(), peaks, strict=True))
    widths = {len(line) for line in shown["time"].values()}
    assert widths == {2 + 2 * shown["passes"]}


def test_all_of_them_are_listed():
    assert {one.id for one in KNOWN} == set(SIMULATED) == {item["id"] for item in listing("schedules")["items"]}
    with pytest.raises(UnknownNameError, match="zb-w"):
        sample("zb-w")


def test_weight_gradients_apart_leave_less_idle_time():
    assert sample("zb-h1").idle < sample("1f1b").idle
    assert sample("interleaved-zb").idle < sample("interleaved-1f1b").idle
    assert sample("gpipe").idle == pytest.approx(sample("1f1b").idle)
