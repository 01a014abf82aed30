"""All launch targets and launchers, one line each."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.planner.emit.base import Launcher, Target
from shardwright.planner.emit.bridge.target import MEGATRON_BRIDGE
from shardwright.planner.emit.deepspeed.target import DEEPSPEED
from shardwright.planner.emit.launchers.kubernetes import KUBERNETES
from shardwright.planner.emit.launchers.slurm import SLURM
from shardwright.planner.emit.launchers.torchrun import TORCHRUN
from shardwright.planner.emit.megatron.target import MEGATRON
from shardwright.planner.emit.torchrun.target import TORCH
from shardwright.planner.emit.torchtitan.target import TORCHTITAN

TARGETS: Mapping[str, Target] = {target.id: target for target in (MEGATRON, TORCH, TORCHTITAN, MEGATRON_BRIDGE, DEEPSPEED)}
LAUNCHERS: Mapping[str, Launcher] = {launcher.id: launcher for launcher in (TORCHRUN, SLURM, KUBERNETES)}
