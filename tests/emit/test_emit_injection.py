"""Text of users in every target under every launcher: it comes back as it went in, and nothing of it is run."""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from emit_plans import emitted, plan
from ruamel.yaml import YAML

from shardwright.errors import InvalidValueError
from shardwright.planner.emit.registry import LAUNCHERS, TARGETS

HOSTILE = {
    "quotes": "a'b\"c`touch pwned`",
    "shell": "$(touch pwned); touch pwned & | > pwned #",
    "lines": "first\nsecond: [x]\n---\n- third\n#SBATCH --exclusive\n```\n",
    "yaml": "{{x}}: &a *b !!python/object:os.system ['touch pwned'] %YAML @at",
    "toml": "\"\"\"\n[job]\nx = '''y''' \\u0041 \\",
    "python": "' + __import__('os').system('touch pwned') + '\\x41 %s {0}",
    "unicode": "é\u2028\u202e\u0007 ü",
}
_FRAMEWORK = {"torchrun": "pytorch", "megatron-bridge": "megatron"}
_SHELLS = (".sh", ".sbatch")


def hostile(folder: Path, target: str, launcher: str, text: str) -> dict[str, str]:
    source = plan(framework=_FRAMEWORK.get(target, target), cluster="dgx-h200:4")
    source["inputs"]["model"]["name"] = text
    launch: dict[str, Any] = {"environment": {"NOTE": text}}
    if launcher == "kubernetes":
        launch["image"] = text
    return emitted(folder, source, target=target, launcher=launcher, launch=launch)


def parsed(files: dict[str, str]) -> dict[str, Any]:
    """Every file as its own reader takes it; shell and Python are only checked."""
    made: dict[str, Any] = {}
    for name, text in files.items():
        if name.endswith((".json", "config.yaml")):
            made[name] = json.loads(text)
        elif name.endswith(".yaml"):
            made[name] = list(YAML(typ="safe").load_all(text))
        elif name.endswith(".toml"):
            made[name] = tomllib.loads(text)
        elif name.endswith(".py"):
            ast.parse(text, name)
        elif name.endswith(_SHELLS):
            subprocess.run(["bash", "-n"], input=text.encode(), check=True, capture_output=True)
    return made


def started(folder: Path) -> dict[str, str]:
    """The environment that torchrun is started in by launch.sh."""
    tools = folder.parent / "tools"
    tools.mkdir()
    (tools / "torchrun").write_text('#!/usr/bin/env bash\nenv -0 >"$RECORD"\n', encoding="utf-8")
    (tools / "torchrun").chmod(0o755)
    record = folder.parent / "record"
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "RECORD": str(record), "NODE_RANK": "0", "MASTER_ADDR": "a"}
    env["MEGATRON_LM"] = "/opt/$(touch pwned) 'x'"
    subprocess.run(["bash", str(folder / "launch.sh")], env=env, check=True, cwd=folder.parent, capture_output=True)
    return dict(pair.split("=", 1) for pair in record.read_text(encoding="utf-8").split("\0") if "=" in pair)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("target", TARGETS)
def test_text_comes_back_and_nothing_is_run(tmp_path: Path, target: str, kind: str) -> None:
    text = HOSTILE[kind]
    folder = tmp_path / "a $(touch pwned) 'folder'"
    made = parsed(hostile(folder, target, "torchrun", text))
    assert made["plan.json"]["inputs"]["model"]["name"] == text
    assert started(folder)["NOTE"] == text
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("launcher", [name for name in LAUNCHERS if name != "torchrun"])
def test_launchers_keep_it_text(tmp_path: Path, launcher: str, kind: str) -> None:
    text = HOSTILE[kind]
    files = hostile(tmp_path / "bundle", "torchrun", launcher, text)
    made = parsed(files)
    if launcher == "kubernetes":
        config, job = made["job.yaml"]
        assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["image"] == text
        assert config["data"]["launch.sh"] == files["launch.sh"]
    else:
        directives = [line for line in files["job.sbatch"].splitlines() if line.startswith("#SBATCH")]
        assert all(shlex.split(line, comments=False)[1:] == [line.split(" ", 1)[1]] for line in directives)
        assert directives.count("#SBATCH --exclusive") == 1


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("target", TARGETS)
def test_a_readme_holds_it_on_one_line(tmp_path: Path, target: str, kind: str) -> None:
    text = hostile(tmp_path / "bundle", target, "torchrun", HOSTILE[kind])["README.md"]
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert heads[0].endswith("4 x 8 GPUs")
    assert [line.strip("# ") for line in heads[1:]] == ["Check", "Start", "Notes"][: len(heads) - 1]


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_host_names_are_names(tmp_path: Path, launcher: str, kind: str) -> None:
    source = plan(cluster="dgx-h200:1", framework="pytorch")
    launch = {"hosts": (HOSTILE[kind],), "image": "x"}
    with pytest.raises(InvalidValueError, match="no host name"):
        emitted(tmp_path / "bundle", source, target="torchrun", launcher=launcher, launch=launch)
    assert not list(tmp_path.iterdir())
