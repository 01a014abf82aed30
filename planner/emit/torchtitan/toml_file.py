"""`config.toml` of torchtitan 0.2: sections and keys of its JobConfig, every value of its very type.

Wrong types pass torchtitan's own reader in silence, so they are made right here.
"""

from __future__ import annotations

from typing import Any

from shardwright.planner.emit.base import Request
from shardwright.planner.emit.quoting import toml_text
from shardwright.planner.emit.torchtitan.flavors import Flavor
from shardwright.planner.emit.torchtitan.settings import FLOAT8_RECIPES, parallelism, training

_RECOMPUTE = {"none": "none", "selective": "selective", "full": "full"}
_CONVERTERS = {**dict.fromkeys(FLOAT8_RECIPES, "quantize.linear.float8"), "mxfp8": "quantize.linear.mx"}
_IN_16_BITS = ("output", "router.gate")
"""Modules that stay in 16 bits as they are priced; without naming them torchao converts them too."""


def toml_config(request: Request, flavor: Flavor, *, compiled: bool) -> str:
    """The text of the file."""
    precision = request.training["precision"]
    model: dict[str, Any] = {"name": flavor.family, "flavor": flavor.name}
    if precision in _CONVERTERS:
        model["converters"] = [_CONVERTERS[precision]]
    made: dict[str, Any] = {
        "job": {"description": f"plan {request.plan_id}", "dump_folder": "./outputs"},
        "model": model,
        "optimizer": {"name": "AdamW", "lr": 1e-4},
        "lr_scheduler": {"warmup_steps": min(2, request.launch.steps)},
        "training": {"dataset": "c4_test", **training(request)},
        "parallelism": parallelism(request),
        "activation_checkpoint": _recompute(request.parallel["recompute"]["mode"]),
        "compile": {"enable": compiled},
        "metrics": {"log_freq": 1},
        "checkpoint": {"enable": False},
    }
    if precision in FLOAT8_RECIPES:
        recipe = {"recipe_name": FLOAT8_RECIPES[precision], "filter_fqns": list(_IN_16_BITS)}
        made["quantize"] = {"linear": {"float8": recipe}}
    return toml_text(made)


def _recompute(mode: str) -> dict[str, Any]:
    made = {"mode": _RECOMPUTE[mode]}
    return made | ({"selective_ac_option": "op"} if mode == "selective" else {})
