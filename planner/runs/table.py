"""Measured training runs: one CSV row to one `RunRow`.

    id, model, node, ...        what ran           (text)
    tp, pp, global_batch, ...   how it was split   (whole numbers, blank = the source does not say)
    step_time_s, ...            what was measured  (numbers, blank = not measured)

`read_runs` reads a file; every value that cannot be used is named with its line and its column. A column may
be left out (all its cells count as blank) unless it is one of `REQUIRED`. Nothing here interprets a cell
beyond its type: `runs.model` and `runs.plan` do.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright.documents import read_text
from shardwright.errors import DamagedFileError, InvalidValueError, unknown_name

TEXTS = (
    "id", "source", "framework", "model", "gpu", "interconnect", "precision", "zero_or_fsdp", "recompute", "offload",
    "flops_definition_note", "notes", "source_group", "node", "gpu_preset",
)  # fmt: skip
COUNTS = (
    "layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "experts", "topk", "seq_len", "global_batch",
    "micro_batch", "gpus", "gpus_per_node", "tp", "pp", "vp", "cp", "ep", "etp", "dp", "scaleup_gpus",
)  # fmt: skip
NUMBERS = (
    "params_b", "active_params_b", "tokens_per_s_per_gpu", "step_time_s", "tflops_per_gpu_reported", "mfu_reported",
    "peak_mem_gib", "internode_GBps",
)  # fmt: skip
WORDS: Mapping[str, tuple[str, ...]] = {
    "seq_parallel": ("yes", "no"),
    "outcome": ("ok", "oom"),
    "memory_meter": ("allocated", "reserved", "device"),
    "config_complete": ("yes", "no"),
    "node_assumed": ("yes", "no"),
}
COLUMNS = (*TEXTS, *COUNTS, *NUMBERS, *WORDS)
REQUIRED = ("id", "model", "node", "gpus", "seq_len", "global_batch")

OTHER_MARKS = (";", "\t", "|")
"""What else spreadsheets put between cells."""

LIMIT_BYTES = 64_000_000
LARGEST_COUNT = 10**12
LARGEST_NUMBER = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One measured run; the fields are the columns, None (numbers) or "" (text) where a cell is blank.

    Attributes:
        line: line of the file the row ends on.
        params_b, active_params_b: parameters in 1e9.
        peak_mem_gib: highest memory reading of any GPU, GiB, read from `memory_meter`.
        internode_GBps: one-way network bandwidth of a node, 1e9 bytes/s.
    """

    line: int
    id: str
    model: str
    node: str
    source: str = ""
    framework: str = ""
    gpu: str = ""
    interconnect: str = ""
    precision: str = ""
    zero_or_fsdp: str = ""
    recompute: str = ""
    offload: str = ""
    flops_definition_note: str = ""
    notes: str = ""
    source_group: str = ""
    gpu_preset: str = ""
    layers: int | None = None
    hidden: int | None = None
    ffn: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    vocab: int | None = None
    experts: int | None = None
    topk: int | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    gpus: int | None = None
    gpus_per_node: int | None = None
    tp: int | None = None
    pp: int | None = None
    vp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    dp: int | None = None
    scaleup_gpus: int | None = None
    params_b: float | None = None
    active_params_b: float | None = None
    tokens_per_s_per_gpu: float | None = None
    step_time_s: float | None = None
    tflops_per_gpu_reported: float | None = None
    mfu_reported: float | None = None
    peak_mem_gib: float | None = None
    internode_GBps: float | None = None  # noqa: N815 - the column's name
    seq_parallel: str = ""
    outcome: str = "ok"
    memory_meter: str = ""
    config_complete: str = ""
    node_assumed: str = ""


def read_runs(path: str | Path) -> tuple[RunRow, ...]:
    """The rows of a CSV file of measured runs.

    Args:
        path: a file with a header line naming columns of `COLUMNS`.

    Raises:
        DamagedFileError: no such file, no text, no CSV, no commas, no rows, or a row of another length than the header.
        UnknownNameError: a column that is none of `COLUMNS`.
        InvalidValueError: a required column missing, a column or an id given twice, or a cell of the wrong type.
    """
    place = Path(path)
    text = read_text(place, limit_bytes=LIMIT_BYTES).removeprefix("\ufeff")
    lines = _records(text, str(place))
    _, header = next(lines, (1, []))
    names = _header(header, str(place))
    rows = tuple(
        _row(dict(zip(names, cells, strict=True)), line, str(place)) for line, cells in _full(lines, names, str(place))
    )
    if not rows:
        raise DamagedFileError(f"{place} has a header and no runs", where=str(place), hint="one line a run is wanted")
    _refuse_repeated(rows, str(place))
    return rows


def _records(text: str, source: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DamagedFileError(f"{source} is not CSV: {error}", where=f"{source}:{max(reader.line_num, 1)}") from error
        if cells:
            yield reader.line_num, cells


def _header(cells: Sequence[str], source: str) -> tuple[str, ...]:
    names = tuple(cell.strip() for cell in cells)
    where = f"{source}:1"
    if len(names) == 1 and any(mark in names[0] for mark in OTHER_MARKS):
        raise DamagedFileError(
            f"{source} is not separated by commas", where=where, hint="write it as CSV, a comma between cells"
        )
    for name in names:
        if name not in COLUMNS:
            raise unknown_name("column", name, COLUMNS, where=where)
        if names.count(name) > 1:
            raise InvalidValueError(f"the column {name!r} is given twice", where=where, hint="keep one of them")
    absent = [name for name in REQUIRED if name not in names]
    if absent:
        raise InvalidValueError(
            f"the column {absent[0]!r} is missing",
            where=where,
            hint="needed are " + ", ".join(REQUIRED) + "; cells may be blank",
        )
    return names


def _full(lines: Iterator[tuple[int, list[str]]], names: Sequence[str], source: str) -> Iterator[tuple[int, list[str]]]:
    for line, cells in lines:
        if len(cells) != len(names):
            raise DamagedFileError(
                f"the row has {len(cells)} cells, the header names {len(names)} columns",
                where=f"{source}:{line}",
                hint="a cell with a comma in it must be quoted",
            )
        yield line, cells


def _row(cells: Mapping[str, str], line: int, source: str) -> RunRow:
    values: dict[str, str | int | float] = {}
    for name, cell in cells.items():
        text = cell.strip()
        if text:
            values[name] = _value(name, text, f"{source}:{line}: {name}")
    for name in ("id", "model", "node"):
        if name not in values:
            raise InvalidValueError(f"the cell {name!r} is blank", where=f"{source}:{line}: {name}", hint="every run needs one")
    return RunRow(line=line, **values)  # type: ignore[arg-type]


def _value(name: str, text: str, where: str) -> str | int | float:
    if name in COUNTS:
        return _count(text, where)
    if name in NUMBERS:
        return _number(text, where)
    if name in WORDS and text not in WORDS[name]:
        raise InvalidValueError(f"{text[:40]!r} is not known here", where=where, hint="give " + ", ".join(WORDS[name]))
    return text


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= LARGEST_NUMBER:
        raise InvalidValueError(
            f"{text[:40]!r} is no number above 0{_at_most(value, LARGEST_NUMBER)}",
            where=where,
            hint="leave the cell blank if it is unknown",
        )
    return value


def _count(text: str, where: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (1 <= value <= LARGEST_COUNT and value.is_integer()):
        raise InvalidValueError(
            f"{text[:40]!r} is no whole number above 0{_at_most(value, LARGEST_COUNT)}",
            where=where,
            hint="leave the cell blank if it is unknown",
        )
    return int(value)


def _at_most(value: float, largest: float) -> str:
    """The upper limit in words, where it is what a value misses."""
    return f" and up to {largest:g}" if value > largest else ""


def _refuse_repeated(rows: Sequence[RunRow], source: str) -> None:
    seen: dict[str, int] = {}
    for row in rows:
        first = seen.setdefault(row.id, row.line)
        if first != row.line:
            raise InvalidValueError(
                f"the id {row.id!r} stands on the lines {first} and {row.line}",
                where=f"{source}:{row.line}: id",
                hint="ids are unique",
            )
