"""Which models torchtitan holds ready: a flavor of one of its families, known by the model's shape and not by its name.

A plan's model is a flavor if its specification equals that of the preset beside it, all but name, source, notes and context
length (which torchtitan takes from the job).

Source: `torchtitan/models/*/__init__.py` and `config_registry.py` of https://github.com/pytorch/torchtitan (0.2.2, 0.3.0, main
of 2026-08-21).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from shardwright.models.catalog import load_model
from shardwright.models.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A model of torchtitan.

    Attributes:
        family: `[model] name` of 0.2, and the package below `torchtitan.models`.
        name: the flavor.
        base: configuration function of 0.3 whose fields are changed; empty where there is none with the same vocabulary.
        preset: the preset that has its shape.
    """

    family: str
    name: str
    base: str
    preset: str


_FLAVORS = (
    Flavor(family="llama3", name="8B", base="llama3_8b", preset="llama3.1-8b"),
    Flavor(family="llama3", name="70B", base="llama3_70b", preset="llama3.1-70b"),
    Flavor(family="llama3", name="405B", base="llama3_70b", preset="llama3.1-405b"),
    Flavor(family="qwen3", name="0.6B", base="qwen3_0_6b", preset="qwen3-0.6b"),
    Flavor(family="qwen3", name="1.7B", base="qwen3_1_7b", preset="qwen3-1.7b"),
    Flavor(family="qwen3", name="4B", base="qwen3_14b", preset="qwen3-4b"),
    Flavor(family="qwen3", name="8B", base="qwen3_14b", preset="qwen3-8b"),
    Flavor(family="qwen3", name="14B", base="qwen3_14b", preset="qwen3-14b"),
    Flavor(family="qwen3", name="32B", base="qwen3_32b", preset="qwen3-32b"),
    Flavor(family="qwen3", name="30B-A3B", base="qwen3_30b_a3b", preset="qwen3-30b-a3b"),
    Flavor(family="qwen3", name="235B-A22B", base="qwen3_30b_a3b", preset="qwen3-235b-a22b"),
    Flavor(family="deepseek_v3", name="16B", base="deepseek_v3_16b", preset="deepseek-v2-lite"),
    Flavor(family="deepseek_v3", name="236B", base="deepseek_v3_16b", preset="deepseek-v2"),
    Flavor(family="deepseek_v3", name="671B", base="deepseek_v3_671b", preset="deepseek-v3"),
    Flavor(family="gpt_oss", name="20b", base="gpt_oss_20b", preset="gpt-oss-20b"),
    Flavor(family="gpt_oss", name="120b", base="gpt_oss_120b", preset="gpt-oss-120b"),
)
FLAVOR_PRESETS = tuple(flavor.preset for flavor in _FLAVORS)
"""All presets that have a flavor."""


def flavor_of(spec: ModelSpec) -> Flavor | None:
    """The flavor with this shape; None where torchtitan holds none ready. Multi-token prediction is no part of the shape."""
    shape = _shape(spec)
    return next((flavor for flavor in _FLAVORS if _shape(_preset(flavor.preset)) == shape), None)


def preset_of(family: str, flavor: str) -> str | None:
    """The preset that has the shape of a flavor; None where there is none."""
    return next((f.preset for f in _FLAVORS if (f.family, f.name) == (family, flavor)), None)


def flavors_of(family: str) -> tuple[str, ...]:
    """Flavors of a family that are known, or the families where it is none of them."""
    return tuple(f.name for f in _FLAVORS if f.family == family) or tuple(sorted({f.family for f in _FLAVORS}))


def flavor_names() -> str:
    """All presets that have a flavor, for messages."""
    return ", ".join(FLAVOR_PRESETS)


@functools.cache
def _preset(name: str) -> ModelSpec:
    return load_model(name).spec


def _shape(spec: ModelSpec) -> ModelSpec:
    return replace(spec, name="shape", source="", notes=(), max_positions=1, mtp_layers=0)
