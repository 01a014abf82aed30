"""The frameworks themselves, asked by the `check.py` of many bundles, accept them.

Installations are named by environment variables, and a test is skipped where its own is unset:

    SHARDWRIGHT_MEGATRON_LM   checkouts of Megatron-LM, separated as in PATH (their requirements: this interpreter's)
    SHARDWRIGHT_TORCHTITAN    folders that hold the package `torchtitan`, separated likewise
    SHARDWRIGHT_BRIDGE        folders that hold the package `megatron.bridge`
    SHARDWRIGHT_PYTHON_…      interpreter for MEGATRON_LM, TORCHTITAN, BRIDGE; this one where it is unset
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from emit_corpus import Tally, megatron_plans, torchtitan_plans, write_bundles

from shardwright.models.catalog import model_ids
from shardwright.planner.emit.torchtitan.flavors import FLAVOR_PRESETS
from shardwright.planner.rules.versions import BRIDGE_CORES, VERSIONS

pytestmark = [pytest.mark.slow]

RUNNER = Path(__file__).with_name("check_runner.py")
BRIDGE_STAND_INS = (
    *("transformer_engine", "transformer_engine_torch", "mamba_ssm", "causal_conv1d", "nvidia_resiliency_ext", "wandb"),
    *("mlflow", "fla", "timm", "open_clip", "qwen_vl_utils", "torchvision", "av", "decord", "PIL", "modelopt", "triton"),
    *("nvidia_modelopt", "megatron.energon"),
)
NO_TE = re.compile(
    r"FusedAdam of TE doesn't support|transformer-engine>=|No module named 'transformer_engine'|'NoneType' and 'Version'"
)
"""What is said where Transformer Engine is not there, and of nothing else."""

LEAST_BUNDLES = 80


def folders(name: str) -> list[Path]:
    """Installations named by an environment variable."""
    return [Path(part) for part in os.environ.get(f"SHARDWRIGHT_{name}", "").split(os.pathsep) if part]


def complaints(
    bundles: Sequence[Path], variable: str, *, stand_ins: Sequence[str] = (), path: Sequence[Path] = (), **environment: str
) -> dict[str, str]:
    """What the framework says against bundles, by name; nothing of those it accepts."""
    jobs = {"bundles": list(map(str, bundles)), "stand_ins": list(stand_ins), "path": list(map(str, path)), "device": True}
    script = bundles[0].parent / "jobs.json"
    script.write_text(json.dumps(jobs), encoding="utf-8")
    python = os.environ.get(f"SHARDWRIGHT_PYTHON_{variable}", sys.executable)
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONWARNINGS"}}
    done = subprocess.run(
        [python, str(RUNNER), str(script)],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=script.parent,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return {Path(folder).name: said for folder, said in found.items() if said and not NO_TE.search(said)}


def reported(framework: str, version: str, tally: Tally, rejected: dict[str, str]) -> None:
    """A line that says what was really exercised, and the verdict."""
    accepted = len(tally.written) - len(rejected)
    sys.stderr.write(
        f"\n{framework} {version}: {accepted} accepted, {len(tally.refused)} refused by us, {len(rejected)} rejected\n"
    )
    assert rejected == {}, sorted(rejected.items())
    assert len(tally.written) >= LEAST_BUNDLES


@functools.cache
def _megatron_corpus() -> tuple:  # type: ignore[type-arg]
    return tuple(megatron_plans(model_ids(), a_model=4, seed=1))


def megatron_release(checkout: Path) -> str:
    """Release of a checkout."""
    text = (checkout / "megatron" / "core" / "package_info.py").read_text(encoding="utf-8")
    return ".".join(re.findall(r"^(?:MAJOR|MINOR) = (\d+)$", text, re.MULTILINE))


@pytest.mark.parametrize("checkout", folders("MEGATRON_LM") or [None], ids=str)
def test_megatron_lm_accepts_every_bundle(tmp_path: Path, checkout: Path | None) -> None:
    if checkout is None:
        pytest.skip("SHARDWRIGHT_MEGATRON_LM names no checkout")
    version = megatron_release(checkout)
    assert version in VERSIONS["megatron"]
    tally = write_bundles(_megatron_corpus(), tmp_path, "megatron", version)
    rejected = complaints([tmp_path / name for name in tally.written], "MEGATRON_LM", MEGATRON_LM=str(checkout))
    reported("Megatron-LM", version, tally, rejected)


def torchtitan_release(folder: Path) -> str:
    """Release of a folder that holds torchtitan; a checkout has none and is `main`."""
    found = [path.name.split("-")[1] for path in folder.glob("torchtitan-*.dist-info")]
    return ".".join(found[0].split(".")[:2]) if found else "main"


@pytest.mark.parametrize("folder", folders("TORCHTITAN") or [None], ids=str)
def test_torchtitan_accepts_every_bundle(tmp_path: Path, folder: Path | None) -> None:
    if folder is None:
        pytest.skip("SHARDWRIGHT_TORCHTITAN names no folder")
    version = torchtitan_release(folder)
    tally = write_bundles(tuple(torchtitan_plans(FLAVOR_PRESETS, a_model=8, seed=1)), tmp_path, "torchtitan", version)
    rejected = complaints([tmp_path / n for n in tally.written], "TORCHTITAN", stand_ins=("triton",), path=[folder])
    reported("torchtitan", version, tally, rejected)


def bridge_release(folder: Path) -> str:
    """Release of a folder that holds Megatron-Bridge."""
    (found,) = folder.glob("megatron_bridge-*.dist-info")
    return ".".join(found.name.split("-")[1].split(".")[:2])


@pytest.mark.parametrize("folder", folders("BRIDGE") or [None], ids=str)
def test_megatron_bridge_accepts_every_bundle(tmp_path: Path, folder: Path | None) -> None:
    if folder is None:
        pytest.skip("SHARDWRIGHT_BRIDGE names no folder")
    version = bridge_release(folder)
    assert version in BRIDGE_CORES
    tally = write_bundles(_megatron_corpus(), tmp_path, "megatron-bridge", version)
    rejected = complaints([tmp_path / n for n in tally.written], "BRIDGE", stand_ins=BRIDGE_STAND_INS, path=[folder])
    reported("Megatron-Bridge", version, tally, rejected)
