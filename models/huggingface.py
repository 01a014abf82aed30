"""A Hugging Face ``config.json`` as a `ModelSpec`, read as JSON, without transformers and without remote code.

The family is the one of ``model_type``; ``architectures``, where given, must belong to the same family. An
unknown one is refused by name, and so is every key whose name speaks of the architecture and which the family
does not read (`hf_keys.py`). A model with a nested ``text_config`` of a known family is planned as that text
tower; the notes of the spec say so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath

from shardwright.documents import Document, parse_json, read_text
from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError, UnsupportedError
from shardwright.models.checks import name_of_file, shown
from shardwright.models.hf_families import BY_ARCHITECTURE, BY_TYPE, Family
from shardwright.models.hf_fields import Fields
from shardwright.models.hf_keys import is_neutral, may_change_graph
from shardwright.models.spec import ModelSpec

# Step sizes of scans are published as [0.0, Infinity], which is no JSON; they change nothing here.
_UNBOUNDED = re.compile(r'("(?:time_step_limit|mamba_dt_limit)"\s*:\s*\[[^\[\]"]{0,200})\bInfinity\b')

# Vision models whose text fields stand at the top, as published; files that transformers wrote later nest them.
BESIDE_VISION: Mapping[str, str] = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}

# Where an error about a field of the spec stands in the file.
FILE_KEYS: Mapping[str, str] = {
    "kv_heads": "num_key_value_heads",
    "heads": "num_attention_heads",
    "windows": "layer_types",
    "ffn": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "moe.topk": "num_experts_per_tok",
    "moe.groups": "n_group",
    "moe.topk_groups": "topk_group",
    "moe.dense_layers": "first_k_dense_replace",
    "moe.shared_ffn": "n_shared_experts",
}


def read_config(path: Path) -> ModelSpec:
    """The spec of a ``config.json``.

    Raises:
        DamagedFileError: no readable JSON object.
        InvalidValueError, ConflictError: a value that cannot be.
        UnsupportedError: a family, or a key of the architecture, that is not understood.
    """
    content = _UNBOUNDED.sub(r"\g<1>null", read_text(path))
    try:
        document = parse_json(content, str(path))
    except InvalidValueError as error:
        raise _unknown_before(content, str(path)) or error from error
    return spec_from_config(document)


def spec_from_config(document: Document) -> ModelSpec:
    """The spec of a parsed ``config.json``; errors as in `read_config`."""
    try:
        return _spec(document)
    except ShardwrightError as error:
        if error.where != document.source:
            error.where = document.place(*error.where.split("."))
        raise


def _spec(document: Document) -> ModelSpec:
    outer = Fields(data=document.data)
    fields, notes = outer, []
    if _is_wrapper(outer):
        fields = _text_tower(outer)
        notes.append(f"text tower of {_words(outer)} only: its other parts (vision, audio, projectors) are not planned")
    family = _family(fields)
    try:
        arguments = family.read(fields)
        notes += fields.remarks + _leftovers(fields)
        if "quantization_config" in fields.data:
            notes.append("the published weights are quantised; training is planned in the precision asked for")
        return ModelSpec.from_dict({"name": _name(document, fields), **arguments, "notes": notes})
    except ShardwrightError as error:
        error.where = fields.prefix + _key_of(fields, error.where.removeprefix(fields.prefix))
        raise


def _key_of(fields: Fields, where: str) -> str:
    """The key of the file that a field of the spec was read from."""
    if where in fields.data:
        return where
    found = fields.places.get(where) or fields.places.get(where.rpartition(".")[2])
    return found or FILE_KEYS.get(where, where)


def _is_wrapper(fields: Fields) -> bool:
    kind = fields.word("", "model_type")
    return kind not in BY_TYPE and ("text_config" in fields.data or kind in BESIDE_VISION)


def _text_tower(outer: Fields) -> Fields:
    """The fields of the text tower: those nested, where whether embeddings are tied may stand outside, or all but vision's."""
    if "text_config" not in outer.data:
        text = {key: value for key, value in outer.data.items() if not key.startswith("vision_") and key != "architectures"}
        return replace(outer, data=text | {"model_type": BESIDE_VISION[str(outer.data["model_type"])]})
    inner = outer.inner("text_config")
    tied = {key: outer.data[key] for key in ("tie_word_embeddings",) if key in outer.data}
    return replace(inner, data={**tied, **inner.data})


def _family(fields: Fields) -> Family:
    """The family of a configuration.

    Raises:
        UnsupportedError: an unknown one.
        ConflictError: model_type and architectures of different families.
        InvalidValueError: neither is given.
    """
    model_type, architectures = fields.word("", "model_type"), fields.words("architectures") or ()
    by_name = {name: BY_ARCHITECTURE.get(name) for name in architectures}
    if model_type and model_type not in BY_TYPE:
        raise _unknown(fields, "model_type", model_type)
    for name, family in by_name.items():
        if family is None:
            raise _unknown(fields, "architectures", name)
        if model_type and family is not BY_TYPE[model_type]:
            raise ConflictError(
                f"model_type is {model_type!r}, architectures says {name!r}", where=f"{fields.prefix}architectures"
            )
    if model_type:
        return BY_TYPE[model_type]
    found = {id(family): family for family in by_name.values() if family is not None}
    if len(found) != 1:
        raise InvalidValueError(
            "neither model_type nor one architecture is given",
            where=f"{fields.prefix}model_type",
            hint="known: " + ", ".join(BY_TYPE),
        )
    return next(iter(found.values()))


def _unknown(fields: Fields, key: str, value: str) -> UnsupportedError:
    known = sorted(BY_TYPE if key == "model_type" else BY_ARCHITECTURE)
    spelled = next((name for name in known if name.lower() == value.lower()), None)
    described = "describe it by a model YAML (`shardwright schema model`); known: " + ", ".join(known)
    hint = (f"did you mean {spelled}? else " if spelled else "") + described
    return UnsupportedError(f"the architecture {shown(value)} is not modelled", where=fields.prefix + key, hint=hint)


def _unknown_before(content: str, source: str) -> UnsupportedError | None:
    """Of a file with values that no configuration of a known family has, the better reason: its family is not known."""
    found = re.search(r'"model_type"\s*:\s*"([^"\\]{1,60})"', content)
    if found is None or found[1] in BY_TYPE:
        return None
    error = _unknown(Fields(data={}), "model_type", found[1])
    error.where = source
    return error


def _leftovers(fields: Fields) -> list[str]:
    """Notes about keys that were not read.

    Raises:
        UnsupportedError: one that may change the architecture.
    """
    left = {key: value for key, value in fields.data.items() if key not in fields.seen and not is_neutral(key, value)}
    for key in left:
        if may_change_graph(key):
            raise fields.unsupported(
                key, "this key is not understood and may change the architecture", "remove it if it does not"
            )
    shortened = ", ".join(sorted(key[:40] for key in left)[:20])
    return [f"keys that were not read: {shortened}"] if left else []


def _words(fields: Fields) -> str:
    """The wrapper in its own words."""
    given = fields.data.get("model_type") or (fields.words("architectures") or ("this model",))[0]
    return str(given)[:60]


def _name(document: Document, fields: Fields) -> str:
    """From the file: ``X.config.json`` is X, ``X/config.json`` is X, and else the model type."""
    path = PurePath(document.source)
    stem = path.name.removesuffix(".json").removesuffix("config").rstrip(".-_")
    name = stem or path.parent.name or str(fields.data.get("model_type") or "model")
    return name_of_file(name)
