"""`check.py` of a bundle for Megatron-LM: its own parser, validators and layer split on the emitted argument list."""

from __future__ import annotations

from shardwright.planner.emit.base import Check
from shardwright.planner.emit.templating import template

MEGATRON_CHECK = Check(
    script=template("megatron_check.py"), needs="PyTorch, the requirements of Megatron-LM, and MEGATRON_LM set to its checkout"
)
