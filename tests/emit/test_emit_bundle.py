"""Bundles: written whole or not at all, read back as they were meant, started as they say."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from emit_plans import emitted, plan
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError, UnknownNameError, UnsupportedError
from shardwright.planner.emit.base import Word
from shardwright.planner.emit.options import KEYS, launch_options
from shardwright.planner.emit.quoting import bash_array, comment, python_text, toml_text
from shardwright.planner.estimation import estimate_plan
from shardwright.planner.plans import Degrees

HOSTILE = "a'b\"c $(touch pwned) `touch pwned` ; touch pwned\n\\ # {{x}} %s é"


def test_a_bundle_holds_what_it_says_and_its_plan_prices_again(tmp_path: Path) -> None:
    files = emitted(tmp_path / "bundle", plan())
    assert {"README.md", "launch.sh", "check.sh", "check.py", "plan.json", "arguments.json"} <= set(files)
    saved = json.loads(files["plan.json"])
    assert estimate_plan(saved).to_dict()["predicted"] == saved["predicted"]
    assert os.access(tmp_path / "bundle" / "launch.sh", os.X_OK)


def test_an_existing_bundle_is_replaced_only_by_force(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    emitted(folder, plan())
    with pytest.raises(ConflictError, match="holds a bundle already"):
        emitted(folder, plan())
    (folder / "old").write_text("x", encoding="utf-8")
    assert "old" not in emitted(folder, plan(), force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_a_folder_of_somebody_elses_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear", encoding="utf-8")
    with pytest.raises(ConflictError, match="no earlier bundle"):
        emitted(tmp_path, plan(), force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_or_a_link_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link", "file/below"):
        with pytest.raises(InvalidValueError):
            emitted(tmp_path / name, plan(), force=True)


def test_nothing_is_written_when_the_target_cannot_express_the_plan(tmp_path: Path) -> None:
    odd = plan(framework="any", degrees=Degrees(pp=2, schedule="gpipe"))
    with pytest.raises(UnsupportedError, match=r"parallel\.schedule.*gpipe"):
        emitted(tmp_path / "bundle", odd)
    assert not list(tmp_path.iterdir())


def test_an_infeasible_plan_is_refused_by_its_rule(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="not feasible") as caught:
        emitted(tmp_path / "bundle", plan(seq_len=4098, degrees=Degrees(tp=4)))
    assert caught.value.where.startswith("plan: ")


@pytest.mark.parametrize("named", [{"target": "megatorn"}, {"version": "9.9"}, {"launcher": "cron"}])
def test_unknown_words_are_named_with_the_nearest_right_one(tmp_path: Path, named: dict[str, str]) -> None:
    with pytest.raises(UnknownNameError):
        emitted(tmp_path / "bundle", plan(), **named)


def test_hosts_must_be_as_many_as_nodes(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="3 host names for 4 nodes"):
        emitted(tmp_path / "bundle", plan(), launch={"hosts": ("a", "b", "c")})


def _recorded(folder: Path, environment: dict[str, str]) -> tuple[int, list[str], dict[str, str], str]:
    """Runs launch.sh with a torchrun that records its arguments and environment."""
    tools = folder.parent / "tools"
    tools.mkdir(exist_ok=True)
    fake = tools / "torchrun"
    fake.write_text('#!/usr/bin/env bash\nprintf "%s\\0" "$@" >"$RECORD"\nenv -0 >"$RECORD.env"\n', encoding="utf-8")
    fake.chmod(0o755)
    record = folder.parent / "record"
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "RECORD": str(record), **environment}
    done = subprocess.run(["bash", str(folder / "launch.sh")], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.returncode, [], {}, done.stderr
    seen = dict(pair.split("=", 1) for pair in (record.with_suffix(".env")).read_text().split("\0") if "=" in pair)
    return 0, record.read_text().split("\0")[:-1], seen, done.stderr


def test_the_node_script_starts_the_planned_world(tmp_path: Path) -> None:
    files = emitted(tmp_path / "bundle", plan(degrees=Degrees(tp=2)))
    env = {"NODE_RANK": "3", "MASTER_ADDR": "node-0", "MEGATRON_LM": "/opt/mega tron"}
    code, words, seen, _ = _recorded(tmp_path / "bundle", env)
    assert code == 0
    head = ["--nnodes", "4", "--nproc-per-node", "8", "--node-rank", "3", "--master-addr", "node-0", "--master-port", "29500"]
    assert words[: len(head)] == head
    assert words[len(head)] == "/opt/mega tron/pretrain_gpt.py"
    assert words[len(head) + 1 :] == json.loads(files["arguments.json"])
    assert seen["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"MASTER_ADDR": "a", "MEGATRON_LM": "x"}, "NODE_RANK"),
        ({"NODE_RANK": "0", "MEGATRON_LM": "x"}, "MASTER_ADDR"),
        ({"NODE_RANK": "0", "MASTER_ADDR": "a"}, "MEGATRON_LM"),
        ({"NODE_RANK": "0", "MASTER_ADDR": "a", "MEGATRON_LM": "x", "NNODES": "2"}, "planned for 4 nodes"),
    ],
)
def test_the_node_script_refuses_another_world(tmp_path: Path, env: dict[str, str], said: str) -> None:
    emitted(tmp_path / "bundle", plan())
    code, _, _, error = _recorded(tmp_path / "bundle", env)
    assert code != 0
    assert said in error


def test_text_of_users_is_quoted_and_never_run(tmp_path: Path) -> None:
    source = plan()
    source["inputs"]["model"]["name"] = HOSTILE
    files = emitted(tmp_path / "bundle", source, launch={"environment": {"WANDB_NOTES": HOSTILE}})
    env = {"NODE_RANK": "0", "MASTER_ADDR": "a", "MEGATRON_LM": HOSTILE.replace("\n", " ")}
    code, words, seen, _ = _recorded(tmp_path / "bundle", env)
    assert code == 0
    assert seen["WANDB_NOTES"] == HOSTILE
    assert words[10] == env["MEGATRON_LM"] + "/pretrain_gpt.py"
    assert not list(tmp_path.rglob("pwned"))
    assert files["launch.sh"].splitlines()[1].startswith("# a'b")


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20), max_size=4))
def test_bash_reads_back_the_words_it_was_given(words: list[str]) -> None:
    script = bash_array("words", [Word(text=word) for word in words]) + 'printf "%s\\0" "${words[@]}"\n'
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == (words or [""])


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_python_and_toml_read_back_the_text_they_were_given(text: str) -> None:
    import ast
    import tomllib

    assert ast.literal_eval(python_text({"a": [text, (1, None)]})) == {"a": [text, (1, None)]}
    assert tomllib.loads(toml_text({"a": text})) == {"a": text}
    assert "\n" not in comment(text)


@pytest.mark.parametrize(
    "statement", ["", "x", "=3", "port=", "port=0", "port=x", "steps=-1", "kind=job", "env.A B=3", "colour=red"]
)
def test_launch_options_that_cannot_be_are_refused(statement: str) -> None:
    with pytest.raises(ShardwrightError) as caught:
        launch_options([statement])
    assert caught.value.hint


def test_launch_options_are_typed_and_stated_once() -> None:
    made = launch_options(["hosts=a,b c", "port=1", "env.A=b=c", "partition=p"])
    assert (made.hosts, made.port, made.environment, made.partition) == (("a", "b", "c"), 1, {"A": "b=c"}, "p")
    with pytest.raises(ConflictError):
        launch_options(["port=1", "port=2"])
    assert "environment" not in KEYS
