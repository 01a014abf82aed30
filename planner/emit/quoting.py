"""Text put into shell, YAML, TOML, JSON and Python so that it is read back as the very same text, by a library each.

Bash words: `shlex.quote`. YAML: ruamel.yaml. TOML: tomli-w. JSON: json. Python: `repr` of plain values.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from shardwright.documents import yaml_text
from shardwright.errors import InvalidValueError
from shardwright.planner.emit.base import BUNDLE, Word

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def bash_word(word: Word) -> str:
    """A word of a command line; paths below a folder begin with its variable."""
    if not word.root:
        return shlex.quote(word.text)
    name = "bundle" if word.root == BUNDLE else word.root
    return f'"${{{name}}}"/{shlex.quote(word.text)}'


def bash_array(name: str, words: Sequence[Word]) -> str:
    """`name=( … )`, options and their values on one line each."""
    lines: list[list[str]] = []
    for word in words:
        option = not word.root and word.text.startswith("--")
        if option or not lines:
            lines.append([])
        lines[-1].append(bash_word(word))
    return f"{_variable(name)}=(\n" + "".join(f"  {' '.join(line)}\n" for line in lines) + ")\n"


def bash_exports(variables: Mapping[str, str]) -> str:
    """One `export` a variable, in alphabetical order."""
    return "".join(f"export {_variable(name)}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))


def json_text(value: Any) -> str:
    """Indented JSON; no NaN."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def yaml_documents(*documents: Mapping[str, Any]) -> str:
    """YAML documents, separated by `---`."""
    return "---\n".join(yaml_text(document) for document in documents)


def toml_text(value: Mapping[str, Any]) -> str:
    """A TOML document."""
    import tomli_w

    return tomli_w.dumps(value)


def python_text(value: Any) -> str:
    """A Python literal of plain values: text, numbers, None, booleans, and lists, tuples and mappings of them."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{python_text(k)}: {python_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        parts = ", ".join(python_text(v) for v in value)
        return f"[{parts}]" if isinstance(value, list) else f"({parts}{',' if len(value) == 1 else ''})"
    if value is None or isinstance(value, str | bool | int | float):
        return repr(value)
    raise InvalidValueError(f"{type(value).__name__} cannot be written as a Python literal", where="emit")


def comment(text: str) -> str:
    """Text for a `#` comment: one line, nothing that a terminal or a reader would act on."""
    return "".join(c if c.isprintable() else " " for c in text)


def _variable(name: str) -> str:
    if not _VARIABLE.match(name):
        raise InvalidValueError(f"{name!r} is no name of a shell variable", where="emit")
    return name
