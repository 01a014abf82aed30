"""Slurm scripts and Kubernetes documents: they start the planned world, and what cannot be said there is refused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from emit_plans import emitted, plan
from ruamel.yaml import YAML

from shardwright.errors import InvalidValueError

HOSTS = ("n3", "n1", "n2", "n0")


def documents(files: dict[str, str]) -> list[dict[str, Any]]:
    return list(YAML(typ="safe").load_all(files["job.yaml"]))


def kubernetes(folder: Path, **launch: Any) -> list[dict[str, Any]]:
    launch = {"image": "registry.example/megatron:1", "environment": {"MEGATRON_LM": "/opt/megatron"}, **launch}
    return documents(emitted(folder, plan(), launcher="kubernetes", launch=launch))


def started(folder: Path, nodes: int) -> list[dict[str, str]]:
    """Submits job.sbatch to a shell, with an srun that runs one task a node and a torchrun that records its environment."""
    tools = folder.parent / "tools"
    tools.mkdir()
    srun = '#!/usr/bin/env bash\necho "$@" >"$TOOLS/said"\nwhile [[ $1 == --* ]]; do shift; done\n'
    srun += f'for i in $(seq 0 {nodes - 1}); do SLURM_PROCID=$i "$@" || exit 1; done\n'
    torchrun = '#!/usr/bin/env bash\nenv -0 >"$TOOLS/env.$NODE_RANK"\n'
    scontrol = "#!/usr/bin/env bash\nprintf 'first\\nsecond\\n'\n"
    for name, text in {"srun": srun, "torchrun": torchrun, "scontrol": scontrol}.items():
        (tools / name).write_text(text, encoding="utf-8")
        (tools / name).chmod(0o755)
    env = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "TOOLS": str(tools),
        "SLURM_SUBMIT_DIR": str(folder),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_JOB_NODELIST": "n[0-3]",
        "MEGATRON_LM": "/opt/megatron",
    }
    subprocess.run(["bash", str(folder / "job.sbatch")], env=env, check=True, capture_output=True)
    return [
        dict(pair.split("=", 1) for pair in (tools / f"env.{rank}").read_text().split("\0") if "=" in pair)
        for rank in range(nodes)
    ]


def test_slurm_starts_every_node_with_its_rank(tmp_path: Path) -> None:
    emitted(tmp_path / "bundle", plan(), launcher="slurm")
    seen = started(tmp_path / "bundle", 4)
    assert [env["NODE_RANK"] for env in seen] == ["0", "1", "2", "3"]
    assert {env["MASTER_ADDR"] for env in seen} == {"first"}


def test_slurm_keeps_the_order_of_the_placement(tmp_path: Path) -> None:
    files = emitted(tmp_path / "bundle", plan(), launcher="slurm", launch={"hosts": HOSTS})
    assert files["hosts.txt"].split() == list(HOSTS)
    seen = started(tmp_path / "bundle", 4)
    assert {env["MASTER_ADDR"] for env in seen} == {"n3"}
    assert {env["SLURM_HOSTFILE"] for env in seen} == {str(tmp_path / "bundle" / "hosts.txt")}
    assert "--distribution=arbitrary" in (tmp_path / "tools" / "said").read_text(encoding="utf-8")


def test_slurm_directives(tmp_path: Path) -> None:
    launch = {"partition": "gpu", "account": "lab", "time": "1-00:00:00", "job_name": "run_1"}
    text = emitted(tmp_path / "bundle", plan(), launcher="slurm", launch=launch)["job.sbatch"]
    directives = {line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")}
    assert directives == {
        *("--job-name=run_1", "--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8", "--exclusive"),
        *("--partition=gpu", "--account=lab", "--time=1-00:00:00"),
    }


@pytest.mark.parametrize("launch", [{"partition": "a b"}, {"account": "x\n#SBATCH -x"}, {"time": "soon"}, {"qos": "$(id)"}])
def test_slurm_refuses_what_a_directive_cannot_hold(tmp_path: Path, launch: dict[str, str]) -> None:
    with pytest.raises(InvalidValueError, match=next(iter(launch))):
        emitted(tmp_path / "bundle", plan(), launcher="slurm", launch=launch)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("hosts", [("a;b", "n1", "n2", "n3"), ("-x", "n1", "n2", "n3")])
def test_host_names_are_checked(tmp_path: Path, hosts: tuple[str, ...]) -> None:
    with pytest.raises(InvalidValueError, match="no host name"):
        emitted(tmp_path / "bundle", plan(), launcher="slurm", launch={"hosts": hosts})


def test_a_pytorch_job_has_the_planned_world(tmp_path: Path) -> None:
    config, job = kubernetes(tmp_path / "bundle")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert (job["kind"], job["spec"]["nprocPerNode"]) == ("PyTorchJob", "8")
    assert {role: r["replicas"] for role, r in replicas.items()} == {"Master": 1, "Worker": 3}
    pod = replicas["Worker"]["template"]["spec"]
    assert pod["containers"][0]["name"] == "pytorch"
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}
    held = {item["key"] for item in pod["volumes"][0]["configMap"]["items"]}
    assert held == set(config["data"])
    assert pod["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]


def test_a_train_job_has_the_planned_world(tmp_path: Path) -> None:
    _, job = kubernetes(tmp_path / "bundle", kind="trainjob")
    trainer = job["spec"]["trainer"]
    assert (job["kind"], trainer["numNodes"], trainer["numProcPerNode"]) == ("TrainJob", 4, 8)


def test_the_pods_run_what_the_bundle_holds(tmp_path: Path) -> None:
    config, _ = kubernetes(tmp_path / "bundle")
    assert config["data"]["launch.sh"] == (tmp_path / "bundle" / "launch.sh").read_text(encoding="utf-8")


def test_kubernetes_needs_an_image_and_plain_names(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="image"):
        kubernetes(tmp_path / "a", image=None)
    with pytest.raises(InvalidValueError, match="job_name"):
        kubernetes(tmp_path / "b", job_name="Not A Name")


def test_hostile_text_stays_text_in_kubernetes(tmp_path: Path) -> None:
    text = "a: [b]\n- c # d\n---\n{{x}} 'q' \"r\" é"
    config, job = kubernetes(tmp_path / "bundle", image=text, environment={"NOTE": text})
    assert job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["image"] == text
    assert "a: [b]" in config["data"]["launch.sh"]
