"""Kubernetes: one file with a ConfigMap that holds the bundle and a PyTorchJob or TrainJob that runs it.

Both operators tell a pod its place by the variables torchrun reads (PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR,
PET_MASTER_PORT); `launch.sh` gets them under its own names. GPUs are asked for whole, shared memory is a memory-backed folder
(NCCL and data loaders need more than the 64 MiB of a container's own).

Source: Kubeflow training operator v1 (PyTorchJob `kubeflow.org/v1`, nprocPerNode is text) and Kubeflow trainer (TrainJob
`trainer.kubeflow.org/v1alpha1` of release 2.2, where runtimePatches took the place of podTemplateOverrides; numProcPerNode is
a number), https://github.com/kubeflow/trainer. Names begin with a letter: both operators make services of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shardwright.errors import InvalidValueError
from shardwright.planner.emit.base import File, Launcher, Program, Request
from shardwright.planner.emit.launchers.node import LAUNCH, node_script
from shardwright.planner.emit.quoting import json_text, yaml_documents

MANIFEST = "job.yaml"
FOLDER = "/etc/shardwright"
MAX_BYTES = 1_000_000
_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?\Z")
_GPU = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
_START = (
    'export NNODES="$PET_NNODES" NODE_RANK="$PET_NODE_RANK" MASTER_ADDR="$PET_MASTER_ADDR" MASTER_PORT="$PET_MASTER_PORT"; '
    f"exec bash {FOLDER}/{LAUNCH}"
)


def _files(request: Request, program: Program) -> Mapping[str, File]:
    name = _job_name(request)
    held = _held(request, program)
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(request, f"{name}-files"),
        "data": {key: text for key, _, text in held},
    }
    job = _train_job(request, name, held) if request.launch.kind == "trainjob" else _pytorch_job(request, name, held)
    return {MANIFEST: File(text=yaml_documents(config, job))}


_Held = list[tuple[str, str, str]]


def _held(request: Request, program: Program) -> _Held:
    """Files the pods need: (key, path, text)."""
    texts = {path: file.text for path, file in program.files.items()} | {LAUNCH: node_script(request, program).text}
    texts["environment.json"] = json_text(dict(sorted(program.environment.items())))
    if sum(len(text.encode()) for text in texts.values()) > MAX_BYTES:
        message = "the files of the bundle are too large for a ConfigMap (1 MB)"
        raise InvalidValueError(message, where="--launcher", hint="put them on a shared volume and use the launcher torchrun")
    return [(path.replace("/", "__"), path, text) for path, text in sorted(texts.items())]


def _metadata(request: Request, name: str) -> dict[str, Any]:
    space = request.launch.namespace
    return {"name": name} | ({"namespace": _label("namespace", space)} if space is not None else {})


def _container(request: Request) -> dict[str, Any]:
    image = request.launch.image
    if image is None:
        message = "the launcher kubernetes needs the image to run"
        raise InvalidValueError(message, where="--launch image", hint="add --launch image=NAME:TAG")
    name, count = _GPU[request.machines.vendor], request.machines.gpus_per_node
    return {
        "name": "pytorch",
        "image": image,
        "command": ["bash", "-c", _START],
        "resources": {"limits": {name: count}, "requests": {name: count}},
        "volumeMounts": [{"name": "bundle", "mountPath": FOLDER}, {"name": "shm", "mountPath": "/dev/shm"}],
    }


def _volumes(name: str, held: _Held) -> list[dict[str, Any]]:
    items = [{"key": key, "path": path} for key, path, _ in held]
    return [
        {"name": "bundle", "configMap": {"name": f"{name}-files", "items": items}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]


def _pytorch_job(request: Request, name: str, held: _Held) -> dict[str, Any]:
    nodes = request.machines.nodes
    counts = {"Master": 1} | ({"Worker": nodes - 1} if nodes > 1 else {})
    replicas = {role: _replicas(request, name, held, count) for role, count in counts.items()}
    spec = {"nprocPerNode": str(request.machines.gpus_per_node), "pytorchReplicaSpecs": replicas}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": _metadata(request, name), "spec": spec}


def _replicas(request: Request, name: str, held: _Held, count: int) -> dict[str, Any]:
    pod = {"spec": {"containers": [_container(request)], "volumes": _volumes(name, held)}}
    return {"replicas": count, "restartPolicy": "OnFailure", "template": pod}


def _train_job(request: Request, name: str, held: _Held) -> dict[str, Any]:
    container = _container(request)
    trainer = {
        "image": container["image"],
        "command": container["command"],
        "numNodes": request.machines.nodes,
        "numProcPerNode": request.machines.gpus_per_node,
        "resourcesPerNode": container["resources"],
    }
    mounts = {"containers": [{"name": "node", "volumeMounts": container["volumeMounts"]}], "volumes": _volumes(name, held)}
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer, "runtimePatches": [_patch(mounts)]}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(request, name),
        "spec": spec,
    }


def _patch(pod: dict[str, Any]) -> dict[str, Any]:
    """A change of the runtime's pods, under the name of who makes it."""
    template = {"template": {"spec": {"template": {"spec": pod}}}}
    jobs = [{"name": "node"} | template]
    return {"manager": "shardwright", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}


def _job_name(request: Request) -> str:
    """The name asked for, or the model's made a DNS label."""
    if request.launch.job_name is not None:
        return _label("job_name", request.launch.job_name)
    made = re.sub(r"[^a-z0-9]+", "-", request.spec.name.lower()).strip("-")[:40].strip("-")
    return made if made[:1].isalpha() else f"training-{made}".strip("-")


def _label(key: str, text: str) -> str:
    if not _LABEL.match(text):
        hint = "lower-case letters, digits and -, a letter first, at most 52 of them (a DNS label)"
        raise InvalidValueError(f"{key} {text!r} is no name in Kubernetes", where=f"--launch {key}", hint=hint)
    return text


KUBERNETES = Launcher(
    id="kubernetes",
    says="a ConfigMap and a PyTorchJob or TrainJob",
    files=_files,
    command=lambda request: f"kubectl apply -f {MANIFEST}",
)
