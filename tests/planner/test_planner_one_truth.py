"""One price for a plan: in a scan of all, in a batch of its own, folded or not, with any number of workers."""

import numpy as np
import planner_problems as problems
import pytest

from shardwright.documents import canonical_json, rounded
from shardwright.planner.cost.memory import PARTS
from shardwright.planner.cost.pricing import TIME_PARTS, price
from shardwright.planner.estimation import estimate_degrees
from shardwright.planner.schedules.registry import SCHEDULE_IDS
from shardwright.planner.search import scan as scan_module
from shardwright.planner.search.options import Progress, SearchOptions
from shardwright.planner.search.run import plan
from shardwright.planner.search.scan import scan

CLOSE = 1e-9
ZB_H1 = SCHEDULE_IDS.index("zb-h1")
NAMES = ("dense-7", "torch-8", "torch-moe-16", "mtp-64", "dense-1000")


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=CLOSE, atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_estimates_of_single_plans_are_the_prices_of_the_scan(name):
    problem, made = problems.problem_of(name), problems.scan_of(name)
    rows = problems.some_rows(made, 10 if name == "mtp-64" else 25)
    folded = problems.priced(problem, made.batch.take(rows), made.splits, exact=True)
    for place, row in enumerate(rows):
        record = estimate_degrees(problem, problems.degrees_at(made, row))
        close(record["predicted"]["step_time_s"], folded.step_s[place])
        assert record["memory"]["peak_bytes"] == made.peak_bytes[row]
        close([record["time"][part] for part in TIME_PARTS], [folded.parts[part][place] for part in TIME_PARTS])
        assert (record["memory"]["peak_bytes"] <= record["memory"]["capacity_bytes"]) == made.fits[row]
        assert {v["rule"] for v in record["violations"]} <= {"memory"}


@pytest.mark.parametrize("exact", [False, True], ids=["chains", "exact"])
@pytest.mark.parametrize("name", NAMES)
def test_plans_priced_one_by_one_and_unfolded_agree(name, exact):
    problem, made = problems.problem_of(name), problems.scan_of(name)
    batch = made.batch.take(problems.some_rows(made, 300 if exact else 1000, seed=11))
    together = problems.priced(problem, batch, made.splits, exact=exact)
    context, key = problems.context_for(problem, batch, made.splits, every_rank=True)
    for index in range(0, len(batch), 10):
        if not exact and batch.schedule[index] == ZB_H1:
            continue
        one = price(context, batch.take(slice(index, index + 1)), key[index : index + 1], exact=exact)
        close(one.step_s[0], together.step_s[index])
        assert one.peak_bytes[0] == together.peak_bytes[index]
        close([one.parts[part][0] for part in TIME_PARTS], [together.parts[part][index] for part in TIME_PARTS])
    batch = batch.take(np.flatnonzero(exact | (batch.schedule != ZB_H1)))  # its chains are those of one rank of each run
    context, key = problems.context_for(problem, batch, made.splits, every_rank=True)
    unfolded, together = price(context, batch, key, exact=exact), problems.priced(problem, batch, made.splits, exact=exact)
    close(unfolded.step_s, together.step_s)
    np.testing.assert_array_equal(unfolded.peak_bytes, together.peak_bytes)
    for part in TIME_PARTS:
        close(unfolded.parts[part], together.parts[part])
    at = np.arange(len(batch))
    for part in PARTS:
        mine = getattr(unfolded.memory, part)[at, unfolded.peak_run]
        np.testing.assert_array_equal(mine, getattr(together.memory, part)[at, together.peak_run])


@pytest.mark.parametrize(("name", "chunk"), [("dense-7", 7), ("dense-8-odd", 177), ("dense-8", 1000)])
def test_the_size_of_chunks_changes_nothing(name, chunk, monkeypatch):
    monkeypatch.setattr(scan_module, "CHUNK", chunk)
    made = scan(problems.problem_of(name), problems.legal_of(name), workers=2)
    np.testing.assert_array_equal(made.step_s, problems.scan_of(name).step_s)
    np.testing.assert_array_equal(made.peak_bytes, problems.scan_of(name).peak_bytes)


def printed(model, cluster, seq_len, batch, workers):
    search = SearchOptions(workers=workers)
    data = plan(model, cluster, seq_len=seq_len, global_batch=batch, search=search).to_dict()
    run = data.pop("run")
    assert run["wall_s"] > 0
    return canonical_json(rounded(data))


@pytest.mark.parametrize("name", ["dense-8", "moe-16"])
def test_the_result_is_the_same_bytes_with_any_number_of_workers(name):
    one = printed(*problems.CASES[name], workers=1)
    assert one == printed(*problems.CASES[name], workers=2)
    assert one == printed(*problems.CASES[name], workers=4)


def test_progress_ends_at_all_candidates_and_never_goes_back():
    events: list[Progress] = []
    model, cluster, seq_len, batch = problems.CASES["dense-8"]
    result = plan(model, cluster, seq_len=seq_len, global_batch=batch, on_progress=events.append)
    explored = [event.explored for event in events]
    best = [event.best_step_time_s for event in events if event.best_step_time_s is not None]
    assert explored == sorted(explored)
    assert explored[-1] == events[-1].candidates == result.data["search"]["candidates"]
    assert best == sorted(best, reverse=True)
    assert best[-1] == result.data["search"]["best_step_time_s"]
