"""Launch files of plans on mixed nodes: the order of hosts is kept or the launch is refused."""

from dataclasses import replace

import mixed_clusters as clusters
import pytest

from shardwright.errors import UnsupportedError
from shardwright.hardware.cluster import Cluster
from shardwright.planner.emit.emission import emit
from shardwright.planner.emit.options import LaunchOptions
from shardwright.planner.estimation import estimate
from shardwright.planner.plans import Degrees

NAMED = (("h1", "h2"), ("a1",))


def plan_on(cluster):
    degrees = Degrees(tp=8, pp=3, micro_batch=1, layers_per_stage=(12, 12, 8))
    return estimate("llama3.1-8b", cluster, seq_len=4096, global_batch=64, degrees=degrees).to_dict()


def named() -> Cluster:
    plain = clusters.cluster_of(("dgx-h100", 2), ("dgx-a100-80g", 1))
    groups = tuple(replace(group, hosts=hosts) for group, hosts in zip(plain.groups, NAMED, strict=True))
    return replace(plain, groups=groups)


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "torchrun"])
def test_torchrun_says_which_node_rank_is_which_kind(tmp_path, target):
    emit(plan_on(clusters.cluster_of(("dgx-h100", 2), ("dgx-a100-80g", 1))), target=target, folder=tmp_path / "out")
    told = (tmp_path / "out" / "README.md").read_text()
    assert "node ranks 0-1 dgx-h100, node rank 2 dgx-a100-80g" in told


def test_slurm_needs_the_hosts(tmp_path):
    plan = plan_on(clusters.cluster_of(("dgx-h100", 2), ("dgx-a100-80g", 1)))
    with pytest.raises(UnsupportedError, match="Slurm numbers nodes by name") as told:
        emit(plan, target="megatron", folder=tmp_path / "out", launcher="slurm")
    assert "hosts" in (told.value.hint or "")
    emit(plan, target="megatron", folder=tmp_path / "out", launcher="slurm", options=LaunchOptions(hosts=("z", "y", "x")))
    assert (tmp_path / "out" / "hosts.txt").read_text() == "z\ny\nx\n"


def test_slurm_takes_the_hosts_of_the_file_in_rank_order(tmp_path):
    emit(plan_on(named()), target="megatron", folder=tmp_path / "out", launcher="slurm")
    assert (tmp_path / "out" / "hosts.txt").read_text() == "h1\nh2\na1\n"
    assert "--distribution=arbitrary" in (tmp_path / "out" / "job.sbatch").read_text()


def test_kubernetes_cannot_keep_the_order(tmp_path):
    with pytest.raises(UnsupportedError, match="Kubernetes choose the node"):
        emit(
            plan_on(named()),
            target="megatron",
            folder=tmp_path / "out",
            launcher="kubernetes",
            options=LaunchOptions(image="image:1"),
        )


def test_nodes_of_different_sizes_have_no_launch(tmp_path):
    cluster = clusters.cluster_of(("dgx-h100", 1), ("hgx-h100-4", 2))
    plan = estimate("llama3.1-8b", cluster, seq_len=4096, global_batch=64, degrees=Degrees(tp=4, pp=2)).to_dict()
    assert plan["expressible_by"] == []
    with pytest.raises(UnsupportedError, match="mixes GPUs a node"):
        emit(plan, target="megatron", folder=tmp_path / "out")


def test_equal_nodes_in_two_groups_launch_as_one(tmp_path):
    for name, groups in (("one", [("dgx-h100", 2)]), ("two", [("dgx-h100", 1), ("dgx-h100", 1)])):
        degrees = Degrees(tp=8, pp=2, micro_batch=1)
        plan = estimate("llama3.1-8b", clusters.cluster_of(*groups), seq_len=4096, global_batch=64, degrees=degrees)
        emit(plan.to_dict(), target="megatron", folder=tmp_path / name, launcher="slurm")
    for file in ("README.md", "job.sbatch", "launch.sh"):
        assert (tmp_path / "one" / file).read_text() == (tmp_path / "two" / file).read_text()
