"""Reads the output of nccl-tests (and rccl-tests): one `LogTable` per table of a log.

A log holds one or several runs. A run names its collective ("Collective test starting: all_reduce_perf", or a command line),
lists its ranks with host and device, then prints one row a message size:

    size count type [redop] [root]   time algbw busbw #wrong   time algbw busbw #wrong       (out of place, in place)

with time in microseconds. mpirun, srun and kubectl may put a rank or a pod before each line; lines of one such tag are read
as one stream. What a log leaves out follows from its figures where it can: the number of ranks n from busbw/algbw = c(n)
(2(n-1)/n all-reduce, (n-1)/n gather, scatter and all-to-all), the collective from `redop` and c(n) or from the file's name.

Times are the out-of-place ones, as published tables give them; where only the in-place half has figures, those. A bus
bandwidth above the line rate is no fault: all-reduce on two nodes and in-switch reduction send less than the ring it counts.
A row that contradicts itself, or is cut off with others after it, is a damaged log.

    read_log -> _streams -> _Reader (line by line) -> _table (ranks, collective) -> LogTable

Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md, for the columns and the bus factors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardwright.documents import read_text
from shardwright.errors import ConflictError, DamagedFileError, InvalidValueError, ShardwrightError, unknown_name

LOG_LIMIT_BYTES = 64 * 2**20
TESTS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send",
}
"""Tests that are read, and the kind of collective they time."""

OTHER_TESTS = ("broadcast", "reduce", "gather", "scatter", "hypercube", "alltoallv")
COLUMNS = ("size", "count", "type", "redop", "root")
_HALF = 4  # time, algbw, busbw, wrong
_DECIMALS = 0.01  # GB/s: bandwidths are printed to two decimals, and two of them are divided
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.,]+(?:Z|[+-]\d\d:?\d\d)?\s+")
_TAG = re.compile(r"(\[[^\]\s]{1,200}\](?:<std(?:out|err)>)?:?|[\w./-]{1,200}:(?=\s)|[\w./-]{1,200}\s+\|)\s?")
_STARTING = re.compile(r"#\s*Collective test starting:\s*(\w+?)_perf")
_CONCLUDED = re.compile(r"#\s*(?:Collective test concluded|Out of bounds values|Avg bus bandwidth)")
_COMMAND = re.compile(r"(?:^|[\s/])([a-z_]+)_perf(?:_mpi)?(?:\s|$)")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*\S)?")
_NAMED = re.compile(r"([a-z_]+)=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTable:
    """One table: a collective over one group of ranks.

    Attributes:
        kind: as in `shardwright.hardware.collectives.KINDS`.
        ranks: ranks of the group.
        ranks_per_node: ranks on each host; None where the log lists no hosts.
        device: the device as the log names it; empty where it does not.
        message_bytes: as nccl-tests counts, ascending.
        time_s: of one collective.
        source: file and line of the first row.
    """

    kind: str
    ranks: int
    ranks_per_node: int | None
    device: str
    message_bytes: tuple[float, ...]
    time_s: tuple[float, ...]
    source: str

    @property
    def nodes(self) -> int | None:
        """Hosts, where the log lists them."""
        return None if self.ranks_per_node is None else self.ranks // self.ranks_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What a log holds: its tables, and what was left out of them and why."""

    tables: tuple[LogTable, ...]
    notes: tuple[str, ...]


def bus_factor(kind: str, ranks: float) -> float:
    """The factor c(n) = busbw / algbw of nccl-tests."""
    if kind == "send":
        return 1.0
    return (2.0 if kind == "all_reduce" else 1.0) * (ranks - 1) / ranks


def read_log(given: str) -> Log:
    """The tables of a log.

    Args:
        given: its path, or ``COLLECTIVE=PATH`` where neither the log nor its name says which collective was run.

    Raises:
        DamagedFileError: it cannot be read, a row contradicts itself or is cut off, or there is no table in it.
        InvalidValueError: the collective or the number of ranks cannot be told.
        UnknownNameError: a collective there is none of.
    """
    path, kind = _named(given)
    streams = _streams(read_text(path, limit_bytes=LOG_LIMIT_BYTES))
    readers = [_read(str(path), lines) for lines in streams.values()]
    tables: list[LogTable] = []
    notes = [note for reader in readers for note in reader.notes]
    for run in (run for reader in readers for run in reader.runs if run.rows):
        if run.test in OTHER_TESTS and kind is None:
            notes.append(f"{run.place}: {run.test} is not used: plans have none")
            continue
        tables.append(_table(run, kind or _kind_of(run, path.name)))
    if not tables:
        raise _no_table(str(path), notes)
    return Log(tables=tuple(tables), notes=tuple(notes))


def _named(given: str) -> tuple[Path, str | None]:
    match = _NAMED.fullmatch(given)
    if not match or Path(given).exists():
        return Path(given), None
    word = match.group(1)
    kinds = {**TESTS, **{kind: kind for kind in TESTS.values()}}
    if word not in kinds:
        raise unknown_name("collective", word, kinds, where="--nccl-tests")
    return Path(match.group(2)), kinds[word]


def _no_table(source: str, notes: Sequence[str]) -> ShardwrightError:
    if notes:
        return DamagedFileError(f"{source} holds no row that can be used: {notes[0]}", where=source, hint="give another log")
    hint = "give what all_reduce_perf and its like print (size, count, type, redop, root, time, ...)"
    return DamagedFileError(f"{source} holds no table of nccl-tests", where=source, hint=hint)


def _streams(text: str) -> dict[str, list[tuple[int, str]]]:
    """Numbered lines by the tag that a launcher put before them, without tag, time stamp and terminal escapes."""
    found: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        plain = _STAMP.sub("", _ESCAPE.sub("", line).lstrip("\ufeff"), count=1) if line else line
        tag = _TAG.match(plain)
        rest = plain[tag.end() :] if tag else plain
        found.setdefault(tag.group(1) if tag else "", []).append((number, _STAMP.sub("", rest, count=1)))
    return found


@dataclass(slots=True, kw_only=True)
class _Run:
    """A table while it is read."""

    source: str
    test: str | None
    hosts: list[str]
    device: str
    columns: tuple[str, ...]
    line: int = 0
    redop: str = "none"
    rows: list[tuple[float, float, float]] = field(default_factory=list)  # message bytes, seconds, busbw/algbw

    @property
    def place(self) -> str:
        return f"{self.source}:{self.line}"


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Walks the lines of one stream."""

    source: str
    runs: list[_Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    test: str | None = None
    hosts: list[str] = field(default_factory=list)
    device: str = ""
    columns: tuple[str, ...] = COLUMNS
    open: bool = False
    cut: int | None = None

    def line(self, number: int, text: str) -> None:
        words = text.split()
        if not words:
            return
        if words[0].startswith("#"):
            self._comment(text, words)
        elif len(words) > 2 and words[0].isdigit() and words[1].isdigit() and words[2][:1].isalpha():
            self._row(number, words)
        elif command := _COMMAND.search(text):
            self.test, self.open = command.group(1), False

    def _comment(self, text: str, words: list[str]) -> None:
        if started := _STARTING.match(text):
            self.test, self.open = started.group(1), False
        elif "Using devices" in text:
            self.hosts, self.device, self.open = [], "", False
        elif rank := _RANK.match(text):
            self.hosts.append(rank.group(2))
            self.device = rank.group(3) or self.device
        elif "time" in words and ("size" in words or "bytes" in words):
            self.columns, self.open = tuple(words[1 : words.index("time")]), False
        elif _CONCLUDED.match(text):
            self.open = False

    def _row(self, number: int, words: list[str]) -> None:
        if self.cut is not None and self.open:
            raise self._cut_off(self.cut)
        if not self.open:
            self.finish()
            run = _Run(source=self.source, test=self.test, hosts=self.hosts, device=self.device, columns=self.columns)
            self.runs.append(run)
            self.open = True
        run = self.runs[-1]
        run.line = run.line or number
        figures = words[len(run.columns) :]
        if len(figures) < _HALF:
            self.cut = number
            return
        if "redop" in run.columns or "op" in run.columns:
            run.redop = words[3]
        size = float(words[0])
        time = _half(figures[:_HALF], size, f"{self.source}:{number}") or (
            _half(figures[_HALF:], size, f"{self.source}:{number}") if len(figures) > 2 * _HALF - 1 else None
        )
        bad = sum(int(w) for w in (figures[3], *figures[7:8]) if w.isdigit())
        if bad:
            self.notes.append(f"{self.source}:{number}: {bad} wrong values in the result: the row is left out")
        elif time is not None and size > 0:
            run.rows.append((size, *time))

    def finish(self) -> None:
        if self.cut is not None:
            self.notes.append(f"{self.source}:{self.cut}: the last row is cut off: left out")
            self.cut = None

    def _cut_off(self, number: int) -> DamagedFileError:
        return DamagedFileError(
            "a row of the table is cut off, with rows after it",
            where=f"{self.source}:{number}",
            hint="give the log as nccl-tests wrote it, or drop the table",
        )


def _read(source: str, lines: Sequence[tuple[int, str]]) -> _Reader:
    reader = _Reader(source=source)
    for number, text in lines:
        reader.line(number, text)
    reader.finish()
    return reader


def _half(words: Sequence[str], size: float, place: str) -> tuple[float, float] | None:
    """Seconds and busbw/algbw of one half of a row; None where it holds no figures."""
    if words[0] == "N/A":
        return None
    try:
        time_us, algbw, busbw = (float(word) for word in words[:3])
    except ValueError as error:
        message = f"{' '.join(words[:3])!r} are no time and bandwidths"
        raise DamagedFileError(message, where=place, hint="give the log as nccl-tests wrote it") from error
    if not 0 < time_us < 1e12:
        raise DamagedFileError(f"a time of {words[0]} us", where=place, hint="give the log as nccl-tests wrote it")
    expected = size / time_us * 1e-3
    if abs(expected - algbw) > 0.006 + 0.02 * algbw:
        message = f"{size:.0f} bytes in {time_us:g} us are {expected:.2f} GB/s; the row says {words[1]}"
        raise DamagedFileError(message, where=place, hint="columns are missing or were edited; give the log as it was written")
    return time_us * 1e-6, busbw / algbw if algbw >= 1.0 else 0.0


def _kind_of(run: _Run, name: str) -> str:
    """The collective of a table: as the log says, else from `redop` and busbw/algbw, else from the name of the file."""
    if run.test is not None:
        if run.test in TESTS:
            return TESTS[run.test]
        raise unknown_name("test of nccl-tests", run.test, TESTS, where=run.place)
    factor = _factor(run)
    if run.redop not in {"none", "-1"} and factor:
        return "all_reduce" if factor > 1.005 or len(run.hosts) == 2 else "reduce_scatter"
    flat = re.sub(r"[^a-z]", "", name.lower())
    named = [kind for test, kind in TESTS.items() if test.replace("_", "") in flat]
    if len(named) == 1:
        return named[0]
    message = "the log does not say which collective was run, and several look like this"
    raise InvalidValueError(message, where=run.place, hint="say it: --nccl-tests all_gather=LOG (or alltoall=LOG, ...)")


def _factor(run: _Run) -> float:
    """busbw/algbw of the row with the largest message, where rounding matters least; 0 if no row tells."""
    return next((factor for _, _, factor in sorted(run.rows, reverse=True) if factor), 0.0)


def _table(run: _Run, kind: str) -> LogTable:
    per_host = Counter(run.hosts)
    ranks = len(run.hosts) or _ranks(run, kind)
    if ranks < 2:
        hint = "nccl-tests was built without MPI, or run on one GPU; build it with MPI=1"
        raise InvalidValueError("a single rank took part: nothing was exchanged", where=run.place, hint=hint)
    if len(set(per_host.values())) > 1:
        uneven = ", ".join(f"{count} on {host}" for host, count in sorted(per_host.items())[:4])
        message = f"hosts hold different numbers of ranks ({uneven})"
        raise InvalidValueError(message, where=run.place, hint="run the test with the same number of ranks on each host")
    _check_factor(run, kind, ranks)
    rows = sorted((size, time) for size, time, _ in run.rows)
    return LogTable(
        kind=kind,
        ranks=ranks,
        ranks_per_node=next(iter(per_host.values()), None),
        device=run.device,
        message_bytes=tuple(size for size, _ in rows),
        time_s=tuple(time for _, time in rows),
        source=f"{Path(run.source).name}:{run.line}",
    )


def _ranks(run: _Run, kind: str) -> int:
    """The number of ranks that busbw/algbw states: n = 1/(1 - f), where two printed decimals do settle it."""
    factor = _factor(run) / (2.0 if kind == "all_reduce" else 1.0)
    algbw = max((size / time for size, time, known in run.rows if known), default=1e9) / 1e9
    if kind != "send" and 0 < factor < 1:
        ranks = 1.0 / (1.0 - factor)
        if ranks**2 * _DECIMALS / algbw < 0.5:
            return round(ranks)
    hint = "give the whole output of nccl-tests, with the lines that list ranks and hosts"
    raise InvalidValueError("the log does not say how many ranks took part", where=run.place, hint=hint)


def _check_factor(run: _Run, kind: str, ranks: int) -> None:
    factor, expected = _factor(run), bus_factor(kind, ranks)
    if factor and abs(factor - expected) > 0.02 + 0.02 * expected:
        message = f"busbw is {factor:.3f} times algbw; {kind} over {ranks} ranks has {expected:.3f}"
        raise ConflictError(message, where=run.place, hint="does the list of ranks belong to this table?")
