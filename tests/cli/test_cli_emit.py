"""`emit` from the command line: what it prints, what it refuses, and that nothing is written when it refuses."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys

import jsonschema
import pytest

from shardwright.planner.schema import json_schema


@pytest.fixture(scope="module")
def saved(saved_result):
    """The result as data."""
    return json.loads((saved_result / "result.json").read_text(encoding="utf-8"))


def test_json_yaml_and_csv_say_the_same(shardwright, saved_result, tmp_path):
    made = {
        form: shardwright("emit", saved_result, "--target", "torchrun", "-o", tmp_path / form, "--format", form)
        for form in ("json", "yaml", "csv", "table")
    }
    assert {done.code for done in made.values()} == {0}
    data = made["json"].json
    jsonschema.validate(data, json_schema("emission"))
    assert data["files"] == sorted(p.relative_to(tmp_path / "json").as_posix() for p in (tmp_path / "json").rglob("*"))
    assert [row["file"] for row in csv.DictReader(io.StringIO(made["csv"].out))] == data["files"]
    assert "kind: emission" in made["yaml"].out
    assert "check.sh" in made["table"].out
    assert all(len(line) <= 80 for line in made["table"].out.splitlines())


@pytest.mark.parametrize("name", ["missing", "unknown", "type"])
def test_the_schema_refuses_another_document(shardwright, saved_result, tmp_path, name):
    data = shardwright("emit", saved_result, "--target", "torchrun", "-o", tmp_path / "b", "--format", "json").json
    changes = {"missing": lambda d: d.pop("plan_id"), "unknown": lambda d: d.update(x=1), "type": lambda d: d.update(nodes="1")}
    changes[name](data)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, json_schema("emission"))


BAD = {
    "rank": (("--rank", "99"), "--rank", "1 to "),
    "target": (("--target", "megatorn"), "--target", "megatron"),
    "version": (("--target", "megatron", "--target-version", "0.3"), "--target-version", "0.1"),
    "launcher": (("--launcher", "slrum"), "--launcher", "slurm"),
    "launch key": (("--launch", "partitoin=gpu"), "--launch", "partition"),
    "launch value": (("--launch", "port=none"), "--launch", "from 1 to 65535"),
    "launch twice": (("--launch", "port=1", "--launch", "port=2"), "--launch", "keep one"),
    "no image": (("--launcher", "kubernetes"), "--launch image", "image="),
    "hosts": (("--launch", "hosts=a,b"), "--launch hosts", "name 1"),
    "format": (("--format", "xml"), "--format", "yaml"),
}


@pytest.mark.parametrize("name", BAD)
def test_misuse_is_named_with_the_way_out(shardwright, saved_result, tmp_path, name):
    extra, where, hint = BAD[name]
    target = () if "--target" in extra else ("--target", "torchrun")
    form = () if "--format" in extra else ("--format", "json")
    done = shardwright("emit", saved_result, *target, *extra, *form, "-o", tmp_path / "bundle")
    assert (done.code, done.out) == (2, "")
    assert not (tmp_path / "bundle").exists()
    said = done.error if form else {"where": done.err, "hint": done.err}
    assert where in said["where"]
    assert hint in said["hint"] + said.get("message", "")


def test_a_damaged_result_is_named_with_its_place(shardwright, saved_result, tmp_path):
    whole = (saved_result / "result.json").read_text(encoding="utf-8")
    texts = {
        "cut": whole[: len(whole) // 2],
        "other": '{"kind": "emission"}',
        "empty": "",
        "key": whole.replace('"seq_len"', '"seq_lne"'),
    }
    for name, text in texts.items():
        path = tmp_path / f"{name}.json"
        path.write_text(text, encoding="utf-8")
        done = shardwright("emit", path, "--target", "torchrun", "-o", tmp_path / "bundle", "--format", "json")
        assert (done.code, done.out) == (2, ""), name
        assert str(path) in done.error["where"] + done.error["message"], name
        assert done.error["hint"], name
    assert not (tmp_path / "bundle").exists()


def test_a_missing_result_is_named(shardwright, tmp_path):
    done = shardwright("emit", tmp_path / "none.json", "--target", "torchrun", "-o", tmp_path / "bundle", "--format", "json")
    assert done.code == 2
    assert "none.json" in done.error["message"] + done.error["where"]


def test_folders_are_replaced_only_where_they_may_be(shardwright, saved_result, tmp_path):
    command = ("emit", saved_result, "--target", "torchrun", "--format", "json", "-o")
    own, file = tmp_path / "own", tmp_path / "file"
    own.mkdir()
    (own / "thesis.tex").write_text("dear", encoding="utf-8")
    file.write_text("x", encoding="utf-8")
    assert "no earlier bundle" in shardwright(*command, own, "--force").error["message"]
    assert "no folder" in shardwright(*command, file, "--force").error["message"]
    assert shardwright(*command, tmp_path / "bundle").code == 0
    again = shardwright(*command, tmp_path / "bundle")
    assert (again.code, "--force" in again.error["hint"]) == (2, True)
    assert shardwright(*command, tmp_path / "bundle", "--force").code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "file", "own"]


def test_what_the_target_cannot_say_names_the_field(shardwright, saved, tmp_path):
    odd = saved["plans"][0]
    odd = {**saved, "plans": [odd], "inputs": json.loads(json.dumps(saved["inputs"]))}
    odd["inputs"]["model"]["logits_softcap"] = True
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(odd), encoding="utf-8")
    done = shardwright("emit", path, "--target", "torchrun", "-o", tmp_path / "bundle", "--format", "json")
    assert done.code == 2
    assert (done.error["code"], done.error["where"]) == ("unsupported", "model.logits_softcap")
    assert not (tmp_path / "bundle").exists()


def test_an_infeasible_plan_is_refused(shardwright, tmp_path):
    job = ("llama3.1-70b", "--cluster", "dgx-h100:1", "--seq-len", "8192", "--global-batch", "64", "--format", "json")
    (tmp_path / "plan.json").write_text(shardwright("estimate", *job).out, encoding="utf-8")
    done = shardwright("emit", tmp_path / "plan.json", "--target", "torchrun", "-o", tmp_path / "b", "--format", "json")
    assert done.code == 2
    assert "not feasible" in done.error["message"]


def test_a_plan_comes_through_a_pipe(saved_result, tmp_path):
    command = [sys.executable, "-m", "shardwright", "emit", "-", "--target", "torchrun", "-o", str(tmp_path / "b")]
    text = (saved_result / "result.json").read_text(encoding="utf-8")
    done = subprocess.run([*command, "--format", "json"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"]
    assert json.loads((tmp_path / "b" / "plan.json").read_text(encoding="utf-8"))["kind"] == "estimate"
    broken = subprocess.run([*command, "--force"], input="{", capture_output=True, text=True, check=False)
    assert (broken.returncode, broken.stdout) == (2, "")
    assert "standard input" in broken.stderr


@pytest.mark.parametrize("target", ["megatron", "torchrun", "torchtitan", "megatron-bridge", "deepspeed"])
def test_show_names_what_a_target_cannot(shardwright, target):
    item = shardwright("show", "targets", target, "--format", "json").json["item"]
    assert item["cannot"]
    assert item["launchers"] == ["torchrun", "slurm", "kubernetes"]
    assert item["versions"]
    shown = shardwright("show", "targets", target).out
    assert all(f"cannot.{field}" in shown for field in item["cannot"])


def test_the_function_is_on_the_facade(saved_result, tmp_path):
    import shardwright

    options = shardwright.LaunchOptions(steps=3)
    made = shardwright.emit(saved_result, target="torchrun", folder=tmp_path / "b", options=options)
    assert made.to_dict()["kind"] == "emission"
    assert json.loads((tmp_path / "b" / "config.yaml").read_text(encoding="utf-8"))["job"]["steps"] == 3


def test_a_refusal_names_the_plan_and_the_targets_that_can_be_written(shardwright, saved_result, saved, tmp_path):
    plans = saved["plans"]
    target = next(name for name in ("megatron", "torchrun", "deepspeed") if name not in plans[0]["expressible_by"])
    able = [plan["rank"] for plan in plans if target in plan["expressible_by"]]
    done = shardwright("emit", saved_result, "--target", target, "-o", tmp_path / "refused")
    assert (done.code, done.out) == (2, "")
    assert f"write this one for {' or '.join(plans[0]['expressible_by'])}" in done.err
    assert (f"take --rank {able[0]}, which {target} can express" in done.err) == bool(able)
    if able:
        assert shardwright("emit", saved_result, "--rank", able[0], "--target", target, "-o", tmp_path / "made").code == 0
