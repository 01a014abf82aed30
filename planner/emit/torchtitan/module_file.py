"""`shardwright_plan.py` for torchtitan 0.3 and later: a configuration function that changes a stock configuration.

    torchrun … -m torchtitan.train --module shardwright_plan --config planned

torchtitan imports the module by its name, so the folder of the bundle must be on PYTHONPATH. Numbers and names are written as
Python literals.
"""

from __future__ import annotations

from shardwright.planner.emit.base import Request
from shardwright.planner.emit.quoting import comment, python_text
from shardwright.planner.emit.torchtitan.flavors import Flavor
from shardwright.planner.emit.torchtitan.settings import FLOAT8_RECIPES, parallelism, training

MODULE, FUNCTION = "shardwright_plan", "planned"

_TEXT = '''\
"""{title}"""

from torchtitan.components.loss import ChunkedLossWrapper{quantizing}
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.{family} import model_registry
from torchtitan.models.{family}.config_registry import {base}

PARALLELISM = {parallelism}
TRAINING = {training}


def {function}():
    config = {base}()
    config.model_spec = model_registry({flavor}{converters})
    for section, values in ((config.parallelism, PARALLELISM), (config.training, TRAINING)):
        for key, value in values.items():
            if not hasattr(section, key):
                raise AttributeError(f"this torchtitan has no setting {{key}}: write the files for its own release")
            setattr(section, key, value)
    whole = getattr(config.loss, "loss_fn", config.loss)
    config.loss = {loss}
    config.activation_checkpoint = {recompute}
    config.compile.enable = {compiled}
    return config
'''

_RECOMPUTE = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}


_QUANTIZING = "\nfrom torchtitan.components.quantization import Float8LinearConverter"
_HEAD = ["lm_head"]
"""Modules that stay in 16 bits as they are priced."""


def module_config(request: Request, flavor: Flavor, *, compiled: bool) -> str:
    """The text of the module."""
    return _TEXT.format(
        title=comment(f"Plan {request.plan_id} as a configuration of torchtitan {request.version}.").replace('"', "'"),
        family=flavor.family,
        base=flavor.base,
        flavor=python_text(flavor.name),
        quantizing=_QUANTIZING if request.training["precision"] in FLOAT8_RECIPES else "",
        converters=_converters(request.training["precision"], compiled=compiled),
        function=FUNCTION,
        parallelism=_mapping(parallelism(request)),
        training=_mapping(training(request)),
        loss=_loss(request.parallel["loss_chunks"]),
        recompute=_RECOMPUTE[request.parallel["recompute"]["mode"]],
        compiled=python_text(compiled),
    )


def _converters(precision: str, *, compiled: bool) -> str:
    """The argument of the registry that makes linear layers of 8 bits."""
    if precision not in FLOAT8_RECIPES:
        return ""
    words = {"recipe_name": FLOAT8_RECIPES[precision], "filter_fqns": _HEAD, "model_compile_enabled": compiled}
    return f", converters=[Float8LinearConverter.Config({', '.join(f'{k}={python_text(v)}' for k, v in words.items())})]"


def _loss(pieces: int) -> str:
    """The loss of the stock configuration, whole or in pieces (stock configurations have eight)."""
    return "whole" if pieces == 1 else f"ChunkedLossWrapper.Config(num_chunks={python_text(pieces)}, loss_fn=whole)"


def _mapping(values: dict[str, object]) -> str:
    """A dict literal, one key a line."""
    return "{\n" + "".join(f"    {python_text(key)}: {python_text(value)},\n" for key, value in values.items()) + "}"
