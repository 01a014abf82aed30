"""`calibrate`, and what `--calibration` changes in prices; files alone give the same again."""

import json

import pytest
from nccl_log_texts import log_text, straight_line

JOB = ("llama3.1-8b", "--cluster", "dgx-h100:2", "--seq-len", "4096", "--global-batch", "64")
PLAN = (*JOB, "--tp", "8", "--zero", "1", "--framework", "megatron")
FAST = straight_line(20, 150)
SLOW = straight_line(20, 60)


@pytest.fixture
def log(tmp_path):
    def write(name="run.log", **how):
        path = tmp_path / name
        path.write_text(log_text(**how))
        return path

    return write


@pytest.fixture
def site(shardwright, tmp_path, log):
    """Half of NVLink's speed inside a node, a third of the network's across two."""
    logs = log("in.log", nodes=1, time_us=straight_line(40, 130)), log("across.log", time_us=SLOW)
    done = shardwright("calibrate", "--nccl-tests", *logs, "--cluster", "dgx-h100:2", "-o", tmp_path / "site.json")
    assert done.code == 0
    return tmp_path / "site.json"


def step(done):
    return done.json["predicted"]["step_time_s"]


def test_logs_after_the_option_or_each_with_its_own(shardwright, tmp_path, log):
    a, b = log("a.log"), log("b.log", test="all_gather")
    common = ("--cluster", "dgx-h100:2", "--format", "json")
    one = shardwright("calibrate", "--nccl-tests", a, b, *common, "-o", tmp_path / "c.json")
    two = shardwright("calibrate", "--nccl-tests", a, "--nccl-tests", b, *common, "-o", tmp_path / "c.json")
    assert one.code == two.code == 0
    kinds = [[m["collective"] for m in sorted(done.json["measured"], key=lambda m: m["source"])] for done in (one, two)]
    assert kinds == [["all_reduce", "all_gather"]] * 2
    assert json.loads((tmp_path / "c.json").read_text()) == two.json


def test_half_speed_is_told(shardwright, tmp_path, log):
    path = log(nodes=1, time_us=straight_line(40, 123.4))
    done = shardwright("calibrate", "--nccl-tests", path, "--cluster", "dgx-h200:1", "-o", tmp_path / "c.json")
    assert done.code == 2  # the log names an H100
    done = shardwright("calibrate", "--nccl-tests", path, "--cluster", "dgx-h100:1", "-o", tmp_path / "c.json")
    assert "warning: all-reduce over 8 GPUs of 1 node reaches 216 of 478 GB/s: half speed" in done.err
    assert done.out.splitlines()[1].split()[:2] == ["all-reduce", "scale-up"]


def test_every_format(shardwright, tmp_path, log):
    path = log()
    for form, start in (("json", "{"), ("yaml", "schema_version:"), ("csv", "collective,link"), ("table", "collective")):
        done = shardwright("calibrate", "--nccl-tests", path, "--cluster", "dgx-h100:2", "-o", tmp_path / "c", "--format", form)
        assert done.out.startswith(start)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "no file to write to"),
        (("-o", "."), "is a folder"),
        (("-o", "c.json"), "no log is given"),
        (("-o", "c.json", "--nccl-tests", "none.log"), "no such file"),
        (("-o", "taken.txt", "--nccl-tests", "run.log"), "is no calibration"),
        (("-o", "c.json", "--nccl-tests", "run.log", "--cluster", "dgx-h101:2"), "dgx-h100"),
        (("-o", "nowhere/c.json", "--nccl-tests", "run.log"), "cannot write"),
    ],
)
def test_misuse(shardwright, tmp_path, log, monkeypatch, arguments, told):
    log()
    (tmp_path / "taken.txt").write_text("mine: 1\n")
    monkeypatch.chdir(tmp_path)
    done = shardwright("calibrate", *arguments, "--format", "json")
    assert done.code == 2
    assert done.out == ""
    assert told in f"{done.error['message']} {done.error['hint']}"
    assert not (tmp_path / "c.json").exists()
    assert (tmp_path / "taken.txt").read_text() == "mine: 1\n"


def test_measured_collectives_price_plans(shardwright, site):
    plain = shardwright("estimate", *PLAN, "--format", "json")
    measured = shardwright("estimate", *PLAN, "--calibration", site, "--format", "json")
    assert measured.json["time"]["exposed_tp_s"] > 1.2 * plain.json["time"]["exposed_tp_s"]
    assert measured.json["time"]["compute_s"] == plain.json["time"]["compute_s"]
    assert step(measured) > step(plain)
    assert measured.json["sources"]["collective.tp"] == {"origin": "measured", "source": "site: in.log, across.log"}
    assert measured.json["sources"]["collective.pp"]["origin"] == "transferred"
    assert plain.json["sources"]["collective.tp"]["origin"] == "modelled"
    assert {"key": "calibration.collectives", "value": "site", "origin": "given"} in measured.json["assumptions"]
    assert any("half speed" in text or "% of the speed" in text for text in measured.json["warnings"])


def test_the_file_alone_gives_the_price_again(shardwright, site, tmp_path):
    first = shardwright("estimate", *PLAN, "--calibration", site, "--format", "json")
    saved = tmp_path / "plan.json"
    saved.write_text(first.out)
    site.unlink()
    again = shardwright("estimate", "--plan", saved, "--format", "json")
    assert step(again) == pytest.approx(step(first), rel=1e-9)
    assert again.json["inputs"]["calibration"] == first.json["inputs"]["calibration"]
    assert first.json["inputs"]["calibration"]["name"] == "h100+site"


def test_a_saved_plan_under_a_calibration(shardwright, site, tmp_path):
    saved = tmp_path / "plan.json"
    saved.write_text(shardwright("estimate", *PLAN, "--format", "json").out)
    again = shardwright("estimate", "--plan", saved, "--calibration", site, "--format", "json")
    assert step(again) == pytest.approx(step(shardwright("estimate", *PLAN, "--calibration", site, "--format", "json")))


def test_a_what_if_on_a_link_keeps_the_correction(shardwright, site):
    def exposed(*more):
        return shardwright("estimate", *PLAN, *more, "--format", "json").json["time"]["exposed_tp_s"]

    faster = ("--set", "cluster.scaleup_bytes_per_s=900e9")
    measured = ("--calibration", site)
    assert exposed(*measured, *faster) < exposed(*measured)
    gain = exposed(*measured) / exposed(*measured, *faster)
    assert gain == pytest.approx(exposed() / exposed(*faster), rel=0.15)


def test_searches_use_it_and_say_so(shardwright, site):
    def best(*more):
        done = shardwright("plan", *JOB, "--effort", "scan", "--top", "1", *more, "--format", "json")
        return done.json["plans"][0], done.json["inputs"]["calibration"]

    plain, _ = best()
    measured, held = best("--calibration", site)
    assert measured["predicted"]["step_time_s"] > plain["predicted"]["step_time_s"]
    assert held["inline"]["collectives"]["measured"][0]["source"].startswith("in.log")


def test_another_machine_is_refused(shardwright, site):
    done = shardwright("estimate", "llama3.1-8b", "--cluster", "dgx-a100-80g:2", *JOB[3:], "--calibration", site)
    assert done.code == 2
    assert "was measured on dgx-h100; the cluster has dgx-a100-80g" in done.err


def test_measured_runs_of_that_machine_are_predicted_with_it(shardwright, site, tmp_path):
    rows = "id,source_group,model,node,gpus,tp,pp,dp,micro_batch,global_batch,seq_len,step_time_s,outcome\n"
    for k, node in enumerate(("dgx-h100", "dgx-a100-80g")):
        rows += f"r{k},own,llama3.1-8b,{node},16,8,1,2,1,64,4096,3.0,ok\n"
    runs = tmp_path / "runs.csv"
    runs.write_text(rows)

    def predicted(*more):
        done = shardwright("validate", runs, *more, "--format", "json")
        return [row["predicted_step_time_s"] for row in done.json["rows"]]

    plain, measured = predicted(), predicted("--calibration", site)
    assert None not in plain
    assert measured[0] > plain[0]
    assert measured[1] == plain[1]
