"""From the word a user writes to a `ModelGraph`: a preset id, an alias, or the path of a file.

`model_ids` lists the presets without reading them. `load_model` takes, in this order, a preset id or alias
(``meta-llama/Llama-3.1-8B`` for ``llama3.1-8b``), a ``config.json`` or a folder holding one, a model YAML, a graph file (ONNX
or torch.export; `models.traced`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from shardwright.documents import Document, parse_yaml, read_document
from shardwright.errors import ConflictError, DamagedFileError, ShardwrightError, UnsupportedError, unknown_name
from shardwright.models.graph import ModelGraph
from shardwright.models.spec import ModelSpec
from shardwright.models.transformer import build_graph

PRESETS = "presets"
GRAPH_SUFFIXES = (".onnx", ".pt2")
FILE_SUFFIXES = (".json", ".yaml", ".yml", *GRAPH_SUFFIXES)
ALIASES: Mapping[str, str] = {
    "gpt2small": "gpt2",
    "gpt3": "gpt3-175b",
    "mtnlg530b": "megatron-530b",
}


def model_ids() -> tuple[str, ...]:
    """Ids of all presets, sorted; no file is read."""
    names = (entry.name for entry in files("shardwright.models").joinpath(PRESETS).iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def load_model(text: str, *, dims: Sequence[str] = (), declared: Sequence[str] = ()) -> ModelGraph:
    """The model a user names.

    Args:
        text: preset id or alias, path of a ``config.json``, of a folder holding one, of a model YAML or of a graph file.
        dims: sizes of dynamic dims of a graph file, ``batch=32``.
        declared: unknown operators of a graph file, ``MyOp=elementwise``.

    Raises:
        UnknownNameError: neither a preset nor a file.
        DamagedFileError: a file that cannot be read.
        InvalidValueError, ConflictError, UnsupportedError: what it says cannot be used.
    """
    preset, path = find_preset(text), _existing(text)
    if preset is None and path is not None and path.suffix.lower() in GRAPH_SUFFIXES:
        from shardwright.models.traced.reading import read_graph, read_options

        return read_graph(path, read_options(dims, declared))
    if dims or declared:
        option = "--dim" if dims else "--declare"
        raise ConflictError(f"{option} goes with a graph file, not with {text[:60]}", where=option, hint=f"drop {option}")
    if preset is not None:
        return build_graph(load_preset(preset))
    if path is None:
        raise unknown_name("model", text, model_ids(), where="MODEL")
    return build_graph(load_spec(path))


def model_from_dict(data: Mapping[str, Any]) -> ModelGraph:
    """The model of a full spec, or of a graph, as stored in ``inputs.model`` of a result."""
    if data.get("kind") is not None:
        from shardwright.models.traced.document import from_document, is_document

        if is_document(data):
            return from_document(data)
    return build_graph(ModelSpec.from_dict(data))


def find_preset(text: str) -> str | None:
    """The preset id that an id or alias means, or None."""
    ids = model_ids()
    if text in ids:
        return text
    key = _squeezed(text)
    return {_squeezed(name): name for name in ids}.get(key) or ALIASES.get(key)


@lru_cache(maxsize=64)
def load_preset(model_id: str) -> ModelSpec:
    """The spec of a preset.

    Raises:
        UnknownNameError: there is no preset of that id.
    """
    if model_id not in model_ids():
        raise unknown_name("model preset", model_id, model_ids(), where="MODEL")
    name = f"{model_id}.yaml"
    source = files("shardwright.models").joinpath(PRESETS, name).read_text(encoding="utf-8")
    return _placed(parse_yaml(source, f"preset {model_id}"))


def load_spec(path: Path) -> ModelSpec:
    """The spec of a ``config.json`` (or a folder holding one) or of a model YAML."""
    if path.is_dir():
        return _spec_from_config(_config_in(path))
    if path.suffix.lower() == ".json":
        return _spec_from_config(path)
    if path.suffix.lower() in GRAPH_SUFFIXES:
        raise UnsupportedError(
            f"{path} is a graph, not an architecture", where=str(path), hint="give a config.json or a model YAML"
        )
    return _placed(read_document(path))


def _placed(document: Document) -> ModelSpec:
    """The spec of a document; the key of an error becomes ``file:line: key``."""
    try:
        return ModelSpec.from_dict(document.data)
    except ShardwrightError as error:
        if not error.where.startswith(document.source):
            error.where = document.place(*filter(None, error.where.split(".")))
        raise


def _squeezed(text: str) -> str:
    """Lower case, without organisation, separators and words that do not change the architecture.

    A later version (``v0.3``, ``-2507``) is another model and stays.
    """
    name = text.lower().rsplit("/", 1)[-1]
    name = re.sub(r"^meta[-_]", "", name)
    name = re.sub(r"[-_](hf|base|instruct|chat|v0\.1)(?=[-_]|$)", "", name)
    return re.sub(r"[-_ ]", "", name)


def _existing(text: str) -> Path | None:
    if not text.strip():
        return None
    try:
        path = Path(text).expanduser()
        return path if path.exists() or path.suffix.lower() in FILE_SUFFIXES else None
    except (OSError, ValueError, RuntimeError):
        return None


def _config_in(folder: Path) -> Path:
    path = folder / "config.json"
    if not path.is_file():
        raise DamagedFileError(
            f"{folder} holds no config.json", where=str(folder), hint="give a model folder, a config.json or a model YAML"
        )
    return path


def _spec_from_config(path: Path) -> ModelSpec:
    from shardwright.models.huggingface import read_config

    return read_config(path)
