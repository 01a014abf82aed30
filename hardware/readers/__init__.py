"""Topology dumps to a cluster: each format in a module of its own, told apart by content, joined into one cluster YAML.

topo(files, options) -> Draft      what `shardwright topo FILES... -o cluster.yaml` calls
read_text(text, source)       -> Reading    one text
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from shardwright import documents
from shardwright.errors import DamagedFileError, InvalidValueError, ShardwrightError, UnsupportedError
from shardwright.hardware.readers.base import Reading
from shardwright.hardware.readers.combine import TopoOptions, combine
from shardwright.hardware.readers.draft import Draft
from shardwright.hardware.readers.registry import READERS
from shardwright.hardware.readers.text import plain

__all__ = ["READERS", "Draft", "Reading", "TopoOptions", "read_text", "topo"]

LIMIT_BYTES = 64 * 2**20
MAX_FILES = 10_000
_NOT_TOPOLOGY = (
    (re.compile(r"(?m)^#? *nThread|algbw\s+busbw"), "a log of nccl-tests", "give it to calibrate --nccl-tests"),
    (re.compile(r"(?m)^groups:"), "a cluster YAML already", "give it to plan --cluster"),
    (re.compile(r'(?m)^\s*"(?:model_type|architectures)"\s*:'), "the configuration of a model", "give it to plan as MODEL"),
    (re.compile(r"(?m)^NVIDIA-SMI |\| NVIDIA-SMI"), "the overview of nvidia-smi", "run `nvidia-smi topo -m` instead"),
)


def topo(files: Sequence[str], options: TopoOptions | None = None) -> Draft:
    """The cluster that some dumps describe together.

    Args:
        files: paths, or ``-`` for standard input.
        options: what the user adds to them.

    Raises:
        DamagedFileError: a file that cannot be read, with line and reason.
        UnsupportedError: a file of no known format.
        ConflictError: files that contradict each other.
    """
    if not files:
        raise InvalidValueError("no file is given", where="FILES", hint="give at least one topology dump")
    if len(files) > MAX_FILES:
        raise InvalidValueError(f"{len(files)} files", where="FILES", hint=f"give at most {MAX_FILES:,}")
    return combine([read_text(_content(name), _shown(name)) for name in files], options or TopoOptions())


def read_text(text: str, source: str) -> Reading:
    """What one text teaches; `source` names it in messages.

    Raises:
        DamagedFileError: it cannot be read, with line and reason.
        UnsupportedError: it is of no known format.
    """
    clean = plain(text)
    reader = next((reader for reader in READERS if reader.detect(clean)), None)
    if reader is None:
        raise _unknown_format(clean, source)
    try:
        return reader.read(clean, source)
    except ShardwrightError as error:
        if source not in error.where:
            error.where = f"{source}: {error.where}" if error.where else source
        raise


def _unknown_format(text: str, source: str) -> ShardwrightError:
    for pattern, what, hint in _NOT_TOPOLOGY:
        if pattern.search(text[:200_000]):
            return UnsupportedError(f"{source} is {what}, not a topology", where=source, hint=hint)
    known = "; ".join(reader.title for reader in READERS)
    return UnsupportedError(f"{source} is of no known format", where=source, hint=f"known are: {known}")


def _content(name: str) -> str:
    if name != "-":
        return documents.read_text(Path(name), limit_bytes=LIMIT_BYTES)
    raw = sys.stdin.buffer.read(LIMIT_BYTES + 1)
    if len(raw) > LIMIT_BYTES:
        raise DamagedFileError(f"standard input holds more than {LIMIT_BYTES // 2**20} MiB", where="standard input")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedFileError("standard input is not UTF-8 text", where="standard input") from error


def _shown(name: str) -> str:
    return "standard input" if name == "-" else Path(name).name
