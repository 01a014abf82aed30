"""Sweeps as a whole: the same as `plan`, resumable, in the same bytes whoever evaluates the points."""

import json
import os
import signal
import time
from pathlib import Path

import jsonschema
import pytest
from sweep_cases import FIXED, SMALL, quick, request_of, started, stored, without_run

from shardwright import PricingOptions, SearchOptions, plan, sweep
from shardwright.documents import digest, rounded
from shardwright.errors import LimitReachedError
from shardwright.hardware import fabric
from shardwright.hardware.kernel_fits import load_fit
from shardwright.models.catalog import load_preset
from shardwright.planner.cost import pipelines
from shardwright.planner.report.style import Style
from shardwright.planner.report.sweep_output import sweep_chunks
from shardwright.planner.schema import json_schema
from shardwright.planner.sweep.engines import base, local
from shardwright.planner.sweep.engines.local import LocalEngine
from shardwright.planner.sweep.evaluate import evaluated
from shardwright.planner.sweep.points import points_of, prepared
from shardwright.planner.sweep.request import POINT_SECONDS
from shardwright.planner.sweep.run import run_sweep

JOB = {name: value for name, value in SMALL.items() if name != "nodes"}


def text_of(result, form="json"):
    return "".join(sweep_chunks(result, form, Style()))


def points_in(result):
    return without_run(text_of(result))[1]


def inline(request, **more):
    return run_sweep(request, engine=LocalEngine(workers=1), **more)


# --- points ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effort", ["scan", "search"])
def test_a_point_is_what_plan_finds(effort):
    options = PricingOptions(framework="megatron", precision="fp16")
    found = sweep(**JOB, nodes=2, framework="megatron", precision="fp16", search=quick(effort=effort, top=3), workers=1)
    point = next(found.records())
    how = SearchOptions(effort=effort, fix=FIXED, effort_s=POINT_SECONDS if effort == "search" else None)
    made = plan("gpt2", "dgx-h100:2", seq_len=1024, global_batch=256, options=options, search=how).data
    plain = rounded(made)
    assert [point["best"], *point["others"]] == plain["plans"][:3]
    assert point["result_digest"] == digest({key: plain[key] for key in ("inputs", "search", "plans")})
    assert point["search"]["best_step_time_s"] == plain["search"]["best_step_time_s"]


def test_points_without_a_plan_say_why():
    found = sweep(
        "llama3.1-405b", node="dgx-h100", nodes="1", seq_len=8192, global_batch="8,1", search=quick(fix={}), workers=1
    )
    records = list(found.records())
    assert found.exit_code == 1
    assert [record["status"] for record in records] == ["infeasible", "infeasible"]
    assert "GiB of 79.6 a device" in records[1]["reason"]


def test_points_that_cannot_be_priced_stand_beside_others():
    found = sweep(
        "gpt2",
        node="dgx-h100,dgx1-v100-32g",
        nodes=1,
        seq_len=1024,
        global_batch=64,
        precision="bf16",
        search=quick(),
        workers=1,
    )
    records = list(found.records())
    assert [record["status"] for record in records] == ["ok", "error"]
    assert "cannot train in bf16" in records[1]["reason"]
    assert found.exit_code == 0


def test_a_batch_that_no_plan_can_divide_is_infeasible():
    found = sweep(
        "gpt2", node="dgx-h100", nodes="1,3", seq_len=1024, global_batch=1, search=quick(fix={"tp": "1", **FIXED}), workers=1
    )
    records = list(found.records())
    assert {record["status"] for record in records} == {"infeasible"}
    assert "no plan keeps all rules" in records[0]["reason"]


def test_a_bug_spoils_its_own_point(monkeypatch):
    request = request_of(nodes=1)
    payload = prepared(points_of(request)[0], request).payload
    monkeypatch.setattr("shardwright.planner.sweep.evaluate.plan_problem", lambda *_, **__: 1 / 0)
    assert json.loads(evaluated(payload))["reason"].startswith("internal error: ZeroDivisionError")


def test_the_document_keeps_its_schema():
    data = json.loads(text_of(inline(request_of(nodes="1,2", top=2))))
    jsonschema.validate(data, json_schema("sweep-result"))
    assert data["points"][0]["others"][0]["rank"] == 2


def test_pieces_make_the_document():
    found = inline(request_of(nodes="1,2,4"))
    assert json.loads(text_of(found)) == rounded(found.to_dict())
    assert text_of(found, "csv").count("\n") == 4
    assert text_of(found, "table").startswith("Sweep of 3 points")


def test_points_share_presets_and_shapes_with_their_neighbours():
    """Nothing that does not depend on the point is read or built again: presets, fits, curves, steps of unequal chunks."""
    kept = (load_preset, load_fit, fabric._preset, pipelines._repeating)

    def misses():
        return [function.cache_info().misses for function in kept]

    inline(request_of(nodes="8", fix={"tp": "1"}))
    before = misses()
    inline(request_of(nodes="8", fix={"tp": "1"}, global_batch=512, precision="fp16"))
    assert misses() == before
    assert pipelines._repeating.cache_info().hits > 0


# --- the store ------------------------------------------------------------------------------------------


def test_a_store_is_gone_on_from(tmp_path):
    path = tmp_path / "s.db"
    first = inline(request_of(nodes="1,2"), store=path)
    again = inline(request_of(nodes="1,2,4"), store=path)
    assert (first.run["computed"], again.run["computed"], again.run["reused"]) == (2, 1, 2)
    assert points_in(again) == points_in(inline(request_of(nodes="1,2,4")))


def test_changed_inputs_are_evaluated_anew(tmp_path):
    path = tmp_path / "s.db"
    inline(request_of(), store=path)
    other = inline(request_of(set="cluster.internode_bytes_per_s=1e9"), store=path)
    assert (other.run["computed"], other.run["reused"]) == (3, 0)
    back = inline(request_of(), store=path)
    assert (back.run["computed"], back.run["reused"]) == (0, 3)


def test_equal_points_are_evaluated_once():
    found = inline(request_of(nodes="1", global_batch="256", tokens_per_batch="262144"))
    assert len(found.points) == 2
    assert found.run["computed"] == 2
    assert len(set(found.digests)) == 1


SWEEP = ("gpt2", "--node", "dgx-h100,dgx-a100-80g", "--nodes", "1..16x2", "--seq-len", "1024", "--global-batch", "1024")
SWEEP += ("--effort", "scan", "--format", "json")


def test_killed_and_started_again_it_ends_with_the_same_bytes(tmp_path):
    path = tmp_path / "s.db"
    killed = started(*SWEEP, "--workers", "2", "--store", path)
    until = time.monotonic() + 120
    while stored(path) < 3 and time.monotonic() < until and killed.poll() is None:
        time.sleep(0.02)
    workers = children_of(killed.pid)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert workers
    while any(map(is_running, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_running, workers))
    kept = stored(path)
    assert 3 <= kept < 10
    again = started(*SWEEP, "--workers", "2", "--store", path)
    out, _ = again.communicate(timeout=240)
    run, data = without_run(out)
    assert again.returncode == 0
    assert (run["reused"], run["computed"]) == (kept, 10 - kept)
    undisturbed, _ = started(*SWEEP, "--workers", "1").communicate(timeout=240)
    assert data == without_run(undisturbed)[1]
    assert json.dumps(data) == json.dumps(without_run(undisturbed)[1])


def children_of(pid):
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and state_of(entry.name)[1:2] == [str(pid)]
    ]


def is_running(pid):
    return state_of(pid)[:1] not in ([], ["Z"])


def state_of(pid):
    """State, parent and more of a process; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def test_two_sweeps_share_one_store(tmp_path):
    path = tmp_path / "s.db"
    both = [started(*SWEEP, "--workers", "1", "--store", path) for _ in range(2)]
    outs = [process.communicate(timeout=240)[0] for process in both]
    first, second = (without_run(out) for out in outs)
    assert first[1] == second[1]
    assert stored(path) == 10
    assert first[0]["computed"] + second[0]["computed"] >= 10


def test_interrupted_it_shows_what_is_finished(tmp_path):
    path = tmp_path / "s.db"
    process = started(*SWEEP, "--workers", "2", "--store", path)
    until = time.monotonic() + 120
    while stored(path) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    data = json.loads(out)
    assert data["stopped"] == "interrupted"
    assert 2 <= len(data["points"]) < data["asked"] == 10
    assert stored(path) == len(data["points"])


def test_an_interrupt_of_the_whole_group_while_workers_start_is_clean(tmp_path):
    """A terminal interrupts all processes of a command at once."""
    process = started(*SWEEP, "--workers", "2", "--store", tmp_path / "s.db", start_new_session=True)
    until = time.monotonic() + 60
    while not children_of(process.pid) and time.monotonic() < until:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert out == "" or json.loads(out)["stopped"] == "interrupted"


# --- engines --------------------------------------------------------------------------------------------


def test_the_number_of_workers_changes_nothing():
    request = request_of(nodes="1,2,4,8")
    assert points_in(run_sweep(request, engine=LocalEngine(workers=3))) == points_in(inline(request))


def test_a_lost_worker_costs_its_point_only_a_repeat(monkeypatch):
    request = request_of(nodes="1,2,4,8")
    give, victims = local._give, []

    def give_and_kill(workers, worker, task):
        give(workers, worker, task)
        if task is not None and len(victims) < 2:
            victims.append(worker.process.pid)
            os.kill(worker.process.pid, signal.SIGKILL)

    monkeypatch.setattr(local, "_give", give_and_kill)
    found = run_sweep(request, engine=LocalEngine(workers=2))
    assert len(victims) == 2
    assert points_in(found) == points_in(inline(request))


def test_a_point_that_costs_every_worker_stops_the_sweep(monkeypatch, tmp_path):
    give = local._give

    def give_and_kill(workers, worker, task):
        give(workers, worker, task)
        if task is not None:
            os.kill(worker.process.pid, signal.SIGKILL)

    monkeypatch.setattr(local, "_give", give_and_kill)
    with pytest.raises(LimitReachedError, match=f"{base.MAX_LOSSES} workers"):
        run_sweep(request_of(nodes="1"), engine=LocalEngine(workers=2), store=tmp_path / "s.db")


def test_no_more_tasks_are_out_than_there_are_workers():
    request = request_of(nodes="1..8+1")
    drawn, done = [], []

    def tasks():
        for point in points_of(request):
            drawn.append(point)
            yield prepared(point, request)

    for result in LocalEngine(workers=2).results(tasks()):
        done.append(result)
        assert len(drawn) - len(done) <= 2
    assert len(done) == 8


def test_progress_is_told():
    events = []
    inline(request_of(), on_progress=events.append)
    assert [event.done for event in events][-1] == 3
    assert all(event.points == 3 for event in events)
