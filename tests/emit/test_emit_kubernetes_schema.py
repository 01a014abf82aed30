"""Kubernetes documents against a schema of what the API server accepts, and changes of them that it refuses."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from emit_plans import emitted, plan
from ruamel.yaml import YAML

from shardwright.planner.plans import Degrees

SCHEMA = json.loads(Path(__file__).with_name("kubernetes_schema.json").read_text(encoding="utf-8"))
TARGETS = {"megatron": "megatron", "megatron-bridge": "megatron", "torchtitan": "torchtitan", "torchrun": "pytorch"}


def accepted(document: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(document)


def documents(folder: Path, target: str = "megatron", cluster: str = "dgx-h100:4", **launch: Any) -> list[dict[str, Any]]:
    launch = {"image": "registry.example/train:1", "namespace": "lab", **launch}
    source = plan(framework=TARGETS[target], cluster=cluster, degrees=Degrees(tp=2, zero=3))
    files = emitted(folder / "bundle", source, target=target, launcher="kubernetes", launch=launch)
    return list(YAML(typ="safe").load_all(files["job.yaml"]))


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("cluster", ["dgx-h100:4", "dgx-h100:1"])
def test_documents_are_accepted(tmp_path: Path, target: str, kind: str, cluster: str) -> None:
    made = documents(tmp_path, target, cluster, kind=kind)
    assert [document["kind"].lower() for document in made] == ["configmap", kind]
    for document in made:
        jsonschema.validate(document, SCHEMA["$defs"][document["kind"]] | {"$defs": SCHEMA["$defs"]})


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("pytorchjob", ("spec", "nprocPerNode"), 8),
        ("pytorchjob", ("spec", "pytorchReplicaSpecs", "Master", "restartPolicy"), "Sometimes"),
        ("pytorchjob", ("spec", "nprocsPerNode"), "8"),
        ("trainjob", ("spec", "trainer", "numProcPerNode"), "8"),
        ("trainjob", ("spec", "podTemplateOverrides"), []),
        ("trainjob", ("metadata", "name"), "7b-run"),
    ],
)
def test_what_the_operators_refuse_is_noticed(tmp_path: Path, kind: str, path: tuple[str, ...], value: object) -> None:
    document = documents(tmp_path, kind=kind)[1]
    assert accepted(document)
    changed = copy.deepcopy(document)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert not accepted(changed)


def test_files_in_the_config_map_can_be_read(tmp_path: Path) -> None:
    documents(tmp_path)
    text = (tmp_path / "bundle" / "job.yaml").read_text(encoding="utf-8")
    assert "launch.sh: |\n    #!/usr/bin/env bash\n" in text
    assert "\n      --tensor-model-parallel-size 2\n" in text
