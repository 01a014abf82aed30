"""Each command does what it says, end to end."""

import csv
import io
import json

import jsonschema
import pytest
from cli_jobs import JOB, TOO_LARGE

from shardwright.documents import parse_yaml
from shardwright.planner.schema import json_schema, schema_names


def keeps_schema(name, data):
    jsonschema.Draft202012Validator(json_schema(name)).validate(data)


def step_time(done):
    return done.json["predicted"]["step_time_s"]


# --- plan --------------------------------------------------------------------------------------------


def test_plan_prints_one_document_and_nothing_else(shardwright):
    done = shardwright("plan", *JOB, "--top", 2, "--format", "json")
    assert done.code == 0
    assert done.err == ""
    keeps_schema("plan-result", done.json)
    assert [p["rank"] for p in done.json["plans"]] == [1, 2]


def test_estimate_prices_what_is_offloaded(shardwright):
    plain, hosted = (shardwright("estimate", *JOB, "--offload", text, "--format", "json") for text in ("none", "optimizer=0.5"))
    keeps_schema("estimate", hosted.json)
    assert hosted.json["parallel"]["offload"] == {"activations": 0.0, "optimizer": 0.5, "parameters": 0.0}
    assert plain.json["memory"]["host_peak_bytes"] is None
    assert hosted.json["memory"]["host_peak_bytes"] > 0
    assert hosted.json["memory"]["peak_bytes"] < plain.json["memory"]["peak_bytes"]


def test_plan_table_names_model_machine_and_account(shardwright):
    done = shardwright("plan", *JOB, "--effort", "scan")
    assert done.code == 0
    assert done.out.startswith("llama3.1-8b on dgx-h100:1: 8 GPUs, 1 node\n")
    assert "candidates =" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_plan_holds_what_is_fixed(shardwright):
    done = shardwright("plan", *JOB, "--fix", "tp=2", "--fix", "pp=2,tp=2", "--format", "json")
    assert {(p["parallel"]["tp"], p["parallel"]["pp"]) for p in done.json["plans"]} == {(2, 2)}


def test_plan_of_what_cannot_fit_is_a_no_with_near_misses(shardwright):
    done = shardwright("plan", *TOO_LARGE, "--format", "json")
    assert done.code == 1
    keeps_schema("plan-result", done.json)
    assert done.json["plans"] == []
    assert done.json["near_misses"][0]["shortage_bytes"] > 0
    assert "Nothing fits" in shardwright("plan", *TOO_LARGE).out


def test_plan_csv_and_yaml(shardwright):
    rows = list(csv.DictReader(io.StringIO(shardwright("plan", *JOB, "--top", 3, "--format", "csv").out)))
    assert [row["rank"] for row in rows] == ["1", "2", "3"]
    document = parse_yaml(shardwright("plan", *JOB, "--top", 1, "--format", "yaml").out, "out")
    keeps_schema("plan-result", document.data)


def test_plan_writes_its_folder_and_says_so_on_standard_error(shardwright, tmp_path):
    done = shardwright("plan", *JOB, "--top", 1, "-o", tmp_path / "out", "--format", "json")
    assert done.code == 0
    assert "result.json" in done.err
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == done.json


def test_plan_refuses_a_foreign_folder_before_it_searches(shardwright, tmp_path, monkeypatch):
    monkeypatch.setattr("shardwright.planner.search.run.plan", lambda **_: pytest.fail("searched"))
    (tmp_path / "mine").write_text("x")
    done = shardwright("plan", *JOB, "-o", tmp_path)
    assert done.code == 2
    assert done.out == ""


def test_the_first_gpus_only(shardwright):
    done = shardwright("plan", *JOB, "--gpus", 4, "--format", "json")
    assert done.json["cluster"]["gpus"] == 4


# --- estimate ----------------------------------------------------------------------------------------


def test_estimate_prices_one_plan(shardwright):
    done = shardwright("estimate", *JOB, "--tp", 2, "--format", "json")
    assert done.code == 0
    keeps_schema("estimate", done.json)
    assert done.json["parallel"]["tp"] == 2


def test_estimate_table_reads_at_80_columns(shardwright):
    done = shardwright("estimate", *JOB, "--tp", 2, "--pp", 2, "--vpp", 2, "--recompute", "full")
    assert "Time of one step" in done.out
    assert "Memory of each stage" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_estimate_of_what_does_not_fit_is_a_no_with_a_remedy(shardwright):
    done = shardwright("estimate", *TOO_LARGE, "--tp", 8, "--format", "json")
    assert done.code == 1
    assert [v["rule"] for v in done.json["violations"]] == ["memory"]
    assert done.json["violations"][0]["remedy"]


def test_estimate_of_impossible_degrees_lists_every_violation(shardwright):
    done = shardwright("estimate", *JOB, "--tp", 3, "--format", "json")
    assert done.code == 1
    keeps_schema("estimate", done.json)
    assert len(done.json["violations"]) > 1
    table = shardwright("estimate", *JOB, "--tp", 3)
    assert table.code == 1
    assert "Cannot run" in table.out


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_saved_plan_prices_the_same_anywhere(shardwright, saved_result, tmp_path, monkeypatch, rank):
    monkeypatch.chdir(tmp_path)
    done = shardwright("estimate", "--plan", saved_result, "--rank", rank, "--format", "json")
    saved = json.loads((saved_result / "result.json").read_text())
    assert step_time(done) == pytest.approx(saved["plans"][rank - 1]["predicted"]["step_time_s"], rel=1e-9)


def test_an_estimate_is_a_plan_too(shardwright, tmp_path):
    first = shardwright("estimate", *JOB, "--tp", 2, "--micro-batch", 2, "--recompute", "selective", "--format", "json")
    path = tmp_path / "plan.json"
    path.write_text(first.out)
    again = shardwright("estimate", "--plan", path, "--format", "json")
    assert again.json["parallel"] == first.json["parallel"]
    assert step_time(again) == pytest.approx(step_time(first), rel=1e-9)


def test_plans_are_read_from_standard_input(shardwright, saved_result, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO((saved_result / "result.json").read_text()))
    assert shardwright("estimate", "--plan", "-", "--format", "json").code == 0


def test_what_if_on_the_network(shardwright):
    job = ("llama3.1-70b", "--cluster", "dgx-h100:4", "--seq-len", 4096, "--global-batch", 64, "--tp", 8)
    fast = shardwright("estimate", *job, "--format", "json")
    slow = shardwright("estimate", *job, "--set", "cluster.internode_bytes_per_s=2e9", "--format", "json")
    assert step_time(slow) > step_time(fast)
    assert {"key": "set.cluster.internode_bytes_per_s", "value": "2e9", "origin": "given"} in slow.json["assumptions"]


def test_what_if_on_a_saved_plan(shardwright, saved_result):
    done = shardwright("estimate", "--plan", saved_result, "--set", "cluster.memory_bytes=10e9", "--format", "json")
    assert done.code == 1
    assert done.json["memory"]["capacity_bytes"] == 10_000_000_000


# --- show, schema, version ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["models", "nodes", "devices", "targets", "rules", "stacks", "schedules"])
@pytest.mark.parametrize("form", ["table", "json", "yaml", "csv"])
def test_show_lists_every_kind(shardwright, kind, form):
    done = shardwright("show", kind, "--format", form)
    assert done.code == 0
    assert done.err == ""
    assert len(done.out.splitlines()) > 3
    if form == "json":
        ids = [item["id"] for item in done.json["items"]]
        assert len(set(ids)) > 3
        full = shardwright("show", kind, ids[0], "--format", "json")
        assert full.code == 0
        assert full.json["item"]


def test_show_tables_never_cut_a_name(shardwright):
    for kind in ("models", "nodes", "devices", "rules", "stacks"):
        ids = [item["id"] for item in shardwright("show", kind, "--format", "json").json["items"]]
        shown = [line.split()[0] for line in shardwright("show", kind).out.splitlines() if line[:1].strip()]
        assert shown == ["id", *ids]


def test_show_a_rule_of_several_cases(shardwright):
    done = shardwright("show", "rules", "no-effect")
    assert "cases.2.says" in done.out
    assert done.code == 0


def test_show_one_model(shardwright):
    item = shardwright("show", "models", "llama3.1-8b", "--format", "json").json["item"]
    assert item["parameters"] == 8_030_261_248


@pytest.mark.parametrize("name", schema_names())
def test_schema_prints_a_schema(shardwright, name):
    done = shardwright("schema", name)
    jsonschema.Draft202012Validator.check_schema(done.json)
    assert parse_yaml(shardwright("schema", name, "--format", "yaml").out, "out").data == done.json


def test_version(shardwright):
    done = shardwright("--version")
    assert done.code == 0
    assert done.out.startswith("shardwright ")


# --- validate ----------------------------------------------------------------------------------------

RUNS = """\
id,source_group,model,node,gpus,tp,pp,dp,micro_batch,global_batch,seq_len,framework,precision,step_time_s,outcome
a,mine,llama3.1-8b,dgx-h100,8,2,1,4,1,64,8192,torchtitan,bf16,7.0,ok
b,mine,no-such-model,dgx-h100,8,2,1,4,1,64,8192,torchtitan,bf16,7.0,ok
"""


def test_validate_reports_scored_and_skipped(shardwright, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(RUNS)
    done = shardwright("validate", path, "--format", "json")
    assert done.code == 0
    keeps_schema("validation", done.json)
    assert [row["status"] for row in done.json["rows"]] == ["ok", "skipped"]
    table = shardwright("validate", path)
    assert "Skipped" in table.out
    assert "mine" in table.out


# --- whatever is asked, the record is valid, the table fits and the saved plan is the same plan ---------

DEEPSEEK = ("deepseek-v3", "--cluster", "gb200-nvl72:64", "--seq-len", 4096, "--global-batch", 4096)
MIXTRAL = ("mixtral-8x7b", "--cluster", "dgx-a100-80g:8", "--seq-len", 4096, "--global-batch", 512)
SEVEN = ("llama2-7b", "--cluster", "dgx-a100-80g:1x7", "--seq-len", 4096, "--global-batch", 56)


@pytest.mark.parametrize(
    "arguments",
    [
        (*DEEPSEEK, "--pp", 16, "--ep", 8, "--recompute", "full", "--recompute-layers", 2, "--framework", "megatron"),
        (*DEEPSEEK, "--ep", 64, "--zero", 3, "--framework", "torchtitan"),
        (*MIXTRAL, "--tp", 2, "--ep", 8, "--etp", 1, "--pp", 2, "--vpp", 2),
        (*MIXTRAL, "--tp", 4, "--cp", 2, "--dp-replicate", 2, "--zero", 2),
        (*SEVEN, "--zero", 0, "--no-sequence-parallel"),
        (*SEVEN, "--pp", 7, "--layers-per-stage", "4,5,5,5,5,5,3", "--recompute", "selective"),
    ],
    ids=lambda a: " ".join(map(str, a[7:])),
)
def test_estimates_of_all_kinds(shardwright, tmp_path, arguments):
    done = shardwright("estimate", *arguments, "--format", "json")
    assert done.code in {0, 1}
    keeps_schema("estimate", done.json)
    assert max(map(len, shardwright("estimate", *arguments).out.splitlines())) <= 80
    path = tmp_path / "plan.json"
    path.write_text(done.out)
    again = shardwright("estimate", "--plan", path, "--format", "json")
    assert again.json["parallel"] == done.json["parallel"]
    assert step_time(again) == pytest.approx(step_time(done), rel=1e-9)


def test_plans_with_experts_fit_into_80_columns(shardwright):
    done = shardwright("plan", *MIXTRAL, "--fix", "tp=2", "--top", 20)
    assert done.code == 0
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:1] == ["20"] for line in lines)
