"""Every emitted script is sound: bash parses it, and shellcheck has nothing to say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from emit_plans import emitted, plan

from shardwright.planner.plans import Degrees

TARGETS = {
    "megatron": ("megatron", Degrees(tp=2, zero=3)),
    "megatron-bridge": ("megatron", Degrees(tp=2, zero=3)),
    "torchtitan": ("torchtitan", Degrees(tp=2, zero=3)),
    "torchrun": ("pytorch", Degrees(tp=2, zero=3)),
    "deepspeed": ("deepspeed", Degrees(zero=3)),
}
LAUNCHES: tuple[dict[str, Any], ...] = (
    {"launcher": "torchrun"},
    {"launcher": "slurm"},
    {"launcher": "slurm", "launch": {"hosts": ("n1", "n2", "n3", "n4"), "environment": {"NOTE": "a 'b' $(c) \"d\" `e`\n;f"}}},
    {"launcher": "kubernetes", "launch": {"image": "registry.example/train:1", "kind": "trainjob"}},
)


def scripts(folder: Path) -> list[str]:
    found = sorted(str(path) for path in folder.rglob("*") if path.suffix in {".sh", ".sbatch"})
    assert {"launch.sh", "check.sh"} <= {Path(name).name for name in found}
    return found


@pytest.mark.parametrize(
    "named", LAUNCHES, ids=lambda named: f"{named['launcher']}-{len(named)}-{len(named.get('launch', {}))}"
)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("cluster", ["dgx-h100:4", "dgx-h100:1"])
def test_scripts_are_sound(tmp_path: Path, target: str, named: dict[str, Any], cluster: str) -> None:
    if cluster == "dgx-h100:1" and "hosts" in named.get("launch", {}):
        return
    framework, degrees = TARGETS[target]
    source = plan(cluster=cluster, framework=framework, degrees=degrees)
    emitted(tmp_path / "bundle", source, target=target, **named)
    for script in scripts(tmp_path / "bundle"):
        done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        if shutil.which("shellcheck"):
            # SC2016: text of users that looks like an expansion stays text, on purpose
            command = ["shellcheck", "--severity=style", "--exclude=SC2016", script]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout
