"""`nvidia-smi topo -m`: the matrix of connections between GPUs and network cards of one machine.

            GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity
    GPU0     X      NV12    PXB     0-31            0
    GPU1    NV12     X      SYS     32-63           1
    NIC0    PXB     SYS      X

Cells: X itself; NV# a bonded set of # NVLinks; PIX, PXB, PHB, NODE, SYS as in `shardwright.hardware.readers.rails` (SOC is
the old word for SYS). The matrix is symmetric, so a cell that was lost is taken from its mirror, and cells that have grown
together (``NV12NV12``) are taken apart (`_cells`, `_completed`); what stays unclear is named by line and cell. The PCIe
matrix (`-mp`) hides NVLinks and is refused: its legend has no NV#.

    read -> _table (rows of cells) -> _matrix (square, symmetric) -> _machine (islands, sockets, rails)

Source: NVIDIA System Management Interface, the legend that the tool prints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.errors import DamagedFileError, UnsupportedError
from shardwright.hardware.readers.base import Machine, Reader, Reading, damaged
from shardwright.hardware.readers.links import islands_of
from shardwright.hardware.readers.rails import groups_of, rails
from shardwright.hardware.readers.text import by_host
from shardwright.hardware.topology_records import Groups, NodeLayout

TOOL = "nvidia-smi topo -m"
MAX_DEVICES = 256
_AGAIN = f"run `{TOOL} > topo.txt` again and give that file"
_CELL = re.compile(r"NV[0-9]{1,2}|X|SYS|NODE|PHB|PXB|PIX|SOC")
_FUSED = re.compile(f"(?:{_CELL.pattern})+")
_A_ROW = re.compile(
    r"(?m)^[^\w\n]{0,80}(?:[\w.-]{1,100}: )?[^\w\n]{0,80}GPU[0-9]+[ \t].*\b(?:X|NV[0-9]+|SYS|PHB|NODE|PIX|PXB|SOC)\b"
)
_GPU = re.compile(r"GPU[0-9]+")
_HEADER = re.compile(r"\s*GPU[0-9]+")
_LEGEND = re.compile(r"\s*(?:Legend:|NIC Legend:|X\s+=|SYS\s+=|NODE\s+=|PHB\s+=|PXB\s+=|PIX\s+=|NV#\s+=|SOC\s+=)")
_NIC_NAME = re.compile(r"\s*(NIC[0-9]+):\s*(\S+)\s*")
_TAIL = re.compile(r"CPU\s*Affinity|NUMA\s*Affinity|GPU\s*NUMA\s*ID")
_MIRRORED_WORDS: Mapping[str, str] = {"SOC": "SYS"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A row of the table: line, name, cells as far as given (None = empty), and what follows them."""

    line: int
    name: str
    cells: list[str | None]
    rest: tuple[str, ...] = ()
    spoiled: bool = False  # cells are missing and nothing says which


def _detect(text: str) -> bool:
    head = text[:20_000]
    has_rows = _A_ROW.search(head)
    return has_rows is not None and "XGMI" not in head and "(Topology)" not in head


def read(text: str, source: str) -> Reading:
    """The machines of a file: one, or one a host where each line names its host.

    Raises:
        UnsupportedError: the matrix of `-mp`.
        DamagedFileError: a line or cell that cannot be read.
    """
    if re.search(r"nvidia-smi\s+topo\s+-mp", text):
        raise _pcie_matrix(source)
    made = [_machine(part, source, host) for host, part in by_host(text).items()]
    return Reading(machines=tuple(machine for machine, _ in made), notes=tuple(note for _, notes in made for note in notes))


def _pcie_matrix(source: str) -> UnsupportedError:
    message = f"{source} holds the PCIe matrix (topo -mp), which hides NVLinks"
    return UnsupportedError(message, where=source, hint=f"run `{TOOL}` instead")


def _machine(text: str, source: str, host: str | None) -> tuple[Machine, list[str]]:
    lines = text.split("\n")
    notes: list[str] = []
    names, rows = _table(lines, source, notes)
    has_legend = any(_LEGEND.match(line) for line in lines)
    if has_legend and not any("NV#" in line for line in lines) and not any("NV" in str(c) for row in rows for c in row.cells):
        raise _pcie_matrix(source)
    cells = _matrix(names, rows, source, notes)
    gpus = [index for index, name in enumerate(names) if _GPU.fullmatch(name)]
    cards = [index for index in range(len(names)) if index not in gpus]
    if not has_legend and not any("NV" in cells[a][b] for a in gpus for b in gpus) and len(gpus) > 1:
        notes.append(f"{source}: no NVLink and no legend; if this is the output of `topo -mp`, run `{TOOL}` instead")
    between = [[cells[a][b] for b in gpus] for a in gpus]
    links = [[_links(word) for word in row] for row in between]
    islands = islands_of(links)
    sockets = _sockets(rows, names, gpus) or _sockets_by_distance(between)
    labels = _card_names(lines)
    card_names = [labels.get(names[card], names[card]) for card in cards]
    nics, idle = rails(card_names, [[cells[card][gpu] for gpu in gpus] for card in cards], sockets)
    layout = NodeLayout(
        islands=islands.groups,
        link_counts=islands.counts,
        pcie_switches=_pcie_switches(between, [[cells[card][gpu] for gpu in gpus] for card in cards]),
        sockets=sockets,
        nics=nics,
        idle_nics=idle,
    )
    machine = Machine(
        layout=layout,
        gpus=len(gpus),
        source=f"{TOOL} ({source})",
        host=host,
        link_kind="nvlink",
        links=tuple(tuple(row) for row in links),
        links_of_gpu=islands.links_of_gpu,
        direct=islands.direct,
    )
    return machine, notes


def _links(word: str) -> int:
    return int(word[2:]) if word.startswith("NV") else 0


def _card_names(lines: Sequence[str]) -> dict[str, str]:
    """NIC0 -> mlx5_0, where the NIC legend is there."""
    return {match.group(1): match.group(2) for line in lines if (match := _NIC_NAME.fullmatch(line))}


# --- rows of cells ------------------------------------------------------------------------------------------------


def _table(lines: Sequence[str], source: str, notes: list[str]) -> tuple[list[str], list[_Row]]:
    """Names of the columns, and the rows.

    Raises:
        DamagedFileError: no header, a row that is missing, named twice, or not readable.
    """
    start, names = _header(lines, source, notes)
    rows: dict[str, _Row] = {}
    for number in range(start + 1, len(lines)):
        line = lines[number]
        if not line.strip():
            continue
        if _LEGEND.match(line):
            break
        name = line.replace("\t", " ").split()[0]
        if name not in names:
            if len(rows) == len(names):
                break
            raise _strange_line(line, name, source, number + 1)
        if name in rows:
            if len(rows) == len(names):
                notes.append(f"{source}:{number + 1}: a second matrix follows; only the first one is used")
                break
            raise damaged(source, number + 1, f"row {name} stands there twice, first in line {rows[name].line}", _AGAIN)
        rows[name] = _row(line, number + 1, name, len(names), source, notes)
    missing = [name for name in names if name not in rows]
    gpus_missing = [name for name in missing if _GPU.fullmatch(name)]
    if gpus_missing or (missing and len(missing) < sum(not _GPU.fullmatch(name) for name in names)):
        last = max((row.line for row in rows.values()), default=start + 1)
        raise damaged(source, last, f"row {missing[0]} is missing: the output ends early", _AGAIN)
    return names, [rows.get(name) or _Row(line=start + 1, name=name, cells=[None] * len(names)) for name in names]


def _header(lines: Sequence[str], source: str, notes: list[str]) -> tuple[int, list[str]]:
    for number, line in enumerate(lines):
        head = _TAIL.split(line)[0]
        if not _HEADER.match(head):
            continue
        words = head.split()
        names = [name for word in words for name in _names_in(word)]
        if len(names) > 1 and len(words) > 1 and _CELL.fullmatch(words[1]):
            continue  # a row, not the header
        if len(names) != len(words):
            notes.append(f"{source}:{number + 1}: names of columns that had grown together were taken apart")
        if len(set(names)) != len(names) or len(names) > MAX_DEVICES:
            raise damaged(source, number + 1, "the header names a device twice, or too many devices", _AGAIN)
        return number, names
    raise DamagedFileError(f"{source} has no header that names GPU0, GPU1, ...", where=source, hint=_AGAIN)


def _names_in(word: str) -> list[str]:
    """One name, or several that have grown together (GPU0GPU1)."""
    if len(re.findall(r"GPU[0-9]|NIC[0-9]|mlx[0-9]", word)) < 2:
        return [word]
    return re.findall(r"GPU[0-9]+|NIC[0-9]+|mlx[0-9]+_[0-9]+", word)


def _strange_line(line: str, name: str, source: str, number: int) -> DamagedFileError:
    if _FUSED.fullmatch(name):
        hint = "widen the terminal, or write the output into a file"
        return damaged(source, number, "a row was wrapped: the line starts with a cell", hint)
    shown = name if len(name) <= 30 else name[:27] + "..."
    return damaged(source, number, f"{shown!r} is no row of the header", _AGAIN)


def _row(line: str, number: int, name: str, width: int, source: str, notes: list[str]) -> _Row:
    text = line.strip()[len(name) :]
    if "\t" in text:
        fields = [field.strip() for field in text.lstrip(" ").removeprefix("\t").split("\t")]
        found = _tabbed(fields, number, name, width, source, notes)
        if found is not None:
            return found
    return _blank_aligned(text.split(), number, name, width, source, notes)


def _tabbed(fields: list[str], line: int, name: str, width: int, source: str, notes: list[str]) -> _Row | None:
    """A row whose cells are told apart by tabs; an empty field is a lost cell. None where the fields do not fit."""
    cells: list[str | None] = []
    used = 0
    for field in fields:
        if len(cells) >= width:
            break
        used += 1
        parts = _apart(field)
        if field and parts is None:
            return None
        if parts is not None and len(parts) > 1:
            notes.append(f"{source}:{line}: {field!r} in row {name} was taken apart into {' '.join(parts)}")
        cells += list(parts) if parts else [None]
    if len(cells) != width:
        return None
    if None in cells:
        notes.append(f"{source}:{line}: empty cells of row {name} were taken from their mirror")
    return _Row(line=line, name=name, cells=cells, rest=tuple(f for f in fields[used:] if f))


def _blank_aligned(words: list[str], line: int, name: str, width: int, source: str, notes: list[str]) -> _Row:
    cells: list[str | None] = []
    rest: list[str] = []
    for position, word in enumerate(words):
        parts = _apart(word)
        if parts is None or len(cells) >= width:
            rest = words[position:]
            break
        if len(parts) > 1:
            notes.append(f"{source}:{line}: {word!r} in row {name} was taken apart into {' '.join(parts)}")
        cells += parts
    if len(cells) > width:
        raise damaged(source, line, f"row {name} has {len(cells)} cells for {width} columns", _AGAIN)
    if rest and len(cells) < width and not re.match(r"[0-9]|N/A", rest[0]):
        column = len(cells) + 1
        raise damaged(source, line, f"cell {column} of row {name} is {rest[0][:20]!r}", _AGAIN)
    return _Row(line=line, name=name, cells=cells, rest=tuple(rest), spoiled=len(cells) < width)


def _apart(field: str) -> list[str] | None:
    """The cells of a field: one, or several that have grown together; None if it holds anything else."""
    if not _FUSED.fullmatch(field.replace(" ", "")):
        return None
    return [_MIRRORED_WORDS.get(word, word) for word in _CELL.findall(field)]


# --- the square ---------------------------------------------------------------------------------------------------


def _matrix(names: Sequence[str], rows: Sequence[_Row], source: str, notes: list[str]) -> list[list[str]]:
    """All cells, lost ones taken from their mirror.

    Raises:
        DamagedFileError: a cell and its mirror disagree, both are lost, or X does not stand on the diagonal.
    """
    square: list[list[str | None]] = [list(row.cells) if not row.spoiled else [None] * len(names) for row in rows]
    for index, row in enumerate(rows):
        if row.spoiled:
            square[index] = _completed(index, row, square, names, source)
            notes.append(f"{source}:{row.line}: row {row.name} lacks cells; they were taken from column {row.name}")
    return [[_checked(a, b, square, names, rows, source) for b in range(len(names))] for a in range(len(names))]


def _completed(
    index: int, row: _Row, square: Sequence[Sequence[str | None]], names: Sequence[str], source: str
) -> list[str | None]:
    """A row that lacks cells, from its column: every cell it has must appear there in the same order."""
    mirror = ["X" if other == index else square[other][index] for other in range(len(names))]
    position = 0
    for cell in row.cells:
        while position < len(mirror) and mirror[position] != cell:
            position += 1
        if position == len(mirror):
            reason = (
                f"row {row.name} has {len(row.cells)} cells for {len(names)} columns, and they do not match column {row.name}"
            )
            raise damaged(source, row.line, reason, _AGAIN)
        position += 1
    if None in mirror:
        lost = names[mirror.index(None)]
        reason = f"row {row.name} has {len(row.cells)} cells for {len(names)} columns; cell {row.name}/{lost} is lost"
        raise damaged(source, row.line, reason, _AGAIN)
    return list(mirror)


def _checked(
    a: int, b: int, square: Sequence[Sequence[str | None]], names: Sequence[str], rows: Sequence[_Row], source: str
) -> str:
    cell, mirror = square[a][b], square[b][a]
    place = f"cell {names[a]}/{names[b]}"
    if a == b:
        if cell not in ("X", None):
            raise damaged(source, rows[a].line, f"{place} is {cell}, not X: cells of the row are shifted", _AGAIN)
        return "X"
    found = cell if cell is not None else mirror
    if found is None:
        raise damaged(source, rows[a].line, f"{place} is empty, and so is its mirror", _AGAIN)
    if found == "X":
        raise damaged(source, rows[a].line, f"{place} is X, which stands for a device and itself", _AGAIN)
    if cell is not None and mirror is not None and cell != mirror:
        reason = f"{place} is {cell}, but {names[b]}/{names[a]} in line {rows[b].line} is {mirror}"
        raise damaged(source, rows[a].line, reason, _AGAIN)
    return found


# --- sockets and switches -----------------------------------------------------------------------------------------


def _sockets(rows: Sequence[_Row], names: Sequence[str], gpus: Sequence[int]) -> Groups | None:
    """GPUs by the affinity columns: NUMA node where it is a number, else the list of CPUs; None where they are lost."""
    labels = []
    for index in gpus:
        rest = rows[index].rest
        numa = next((word for word in rest[1:] if word.isdigit()), None)
        labels.append(numa if numa is not None else (rest[0] if rest else None))
    if None in labels or any(label == "N/A" for label in labels):
        return None
    groups: dict[str | None, list[int]] = {}
    for gpu, label in enumerate(labels):
        groups.setdefault(label, []).append(gpu)
    return tuple(tuple(group) for group in groups.values())


def _sockets_by_distance(between: Sequence[Sequence[str]]) -> Groups | None:
    """GPUs within NODE of each other; None where NVLinks hide the distance of some pair."""
    if any(word.startswith("NV") for row in between for word in row):
        return None
    return groups_of(between, "NODE")


def _pcie_switches(between: Sequence[Sequence[str]], to_cards: Sequence[Sequence[str]]) -> Groups | None:
    """GPUs below one PCIe switch, told by each other (PIX, PXB) or by a card below the same switch.

    NVLinks hide the distance between two GPUs; where no card tells it either, the groups are not known.
    """
    near = ("PIX", "PXB")
    size = len(between)
    shared = [[between[a][b] in near for b in range(size)] for a in range(size)]
    for row in to_cards:
        under = [gpu for gpu, word in enumerate(row) if word in near]
        for a in under:
            for b in under:
                shared[a][b] = a != b
    hidden = any(word.startswith("NV") for row in between for word in row)
    if hidden and not any(word in near for row in to_cards for word in row):
        return None
    return groups_of([["PIX" if joined else "SYS" for joined in row] for row in shared], "PIX")


READER = Reader(id="nvidia-smi-topo", title=TOOL, detect=_detect, read=read)
