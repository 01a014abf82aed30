"""`scontrol show node`: hosts with their accelerators, memory and state.

    NodeName=node01 Arch=x86_64 CoresPerSocket=56
       Gres=gpu:h100:8(S:0-1)   RealMemory=2063937   State=IDLE+DRAIN   Reason=ECC errors [root@2025-01-01T00:00:00]

One paragraph a host, or one line with `-o`. Gres counts accelerators; RealMemory is in MiB. A host whose state has one of
`OUT_OF_USE` is excluded with its reason; hosts without accelerators are left out and said. Source: Slurm documentation,
scontrol(1), NODES - SPECIFICATIONS and node state codes of sinfo(1).
"""

from __future__ import annotations

import re

from shardwright.errors import DamagedFileError
from shardwright.hardware.hostlist import NAME
from shardwright.hardware.readers.base import HostState, Reader, Reading, damaged
from shardwright.hardware.readers.text import counted

TITLE = "scontrol show node"
MIB = 2**20
OUT_OF_USE = (
    "DOWN",
    "DRAIN",
    "DRAINED",
    "DRAINING",
    "FAIL",
    "FAILING",
    "ERROR",
    "NOT_RESPONDING",
    "INVAL",
    "FUTURE",
    "UNKNOWN",
)
_START = re.compile(r"(?m)^[ \t]*NodeName=")
_KEY = re.compile(r"(?:^|\s)([A-Z][A-Za-z/]*)=")
_GRES = re.compile(r"gpu(?::([A-Za-z0-9_.-]+))??(?::([0-9]+))?(?:\(.*?\))?")
_HINT = "give the output of `scontrol show node`"


def _detect(text: str) -> bool:
    return _START.search(text) is not None and "State=" in text


def read(text: str, source: str) -> Reading:
    """The hosts of a file.

    Raises:
        DamagedFileError: a host without state, named twice, or with accelerators that cannot be counted.
    """
    starts = [match.start() for match in _START.finditer(text)]
    hosts: dict[str, HostState] = {}
    without: list[str] = []
    line, seen = 1, 0
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        line, seen = line + text.count("\n", seen, start), start
        state = _host(_values(text[start:end]), source, line)
        if state.host in hosts:
            raise damaged(source, line, f"{state.host} is listed twice", _HINT)
        hosts[state.host] = state
        if not state.gpus:
            without.append(state.host)
    usable = tuple(state for state in hosts.values() if state.gpus)
    if not usable:
        raise DamagedFileError(f"{source} lists {len(hosts)} hosts, none with Gres=gpu", where=source, hint=_HINT)
    notes = [f"{source}: {counted(len(without), 'host')} without GPUs left out, {without[0]} the first"] if without else []
    return Reading(hosts=usable, notes=tuple(notes))


def _values(text: str) -> dict[str, str]:
    matches = list(_KEY.finditer(text))
    ends = [match.start() for match in matches[1:]] + [len(text)]
    return {match.group(1): text[match.end() : end].strip() for match, end in zip(matches, ends, strict=True)}


def _host(values: dict[str, str], source: str, line: int) -> HostState:
    name = values["NodeName"]
    if not NAME.fullmatch(name):
        raise damaged(source, line, f"{name[:40]!r} is no host name", _HINT)
    if "State" not in values:
        raise damaged(source, line, f"{name} has no State: the file ends early", _HINT)
    kind, gpus = _accelerators(values.get("Gres", ""), source, line, name)
    flags = re.split(r"[+]", re.sub(r"[*~#!%$@^-]+$", "", values["State"].split()[0].upper()))
    bad = [flag for flag in flags if flag in OUT_OF_USE]
    if values["State"].split()[0].endswith("*"):
        bad.append("NOT_RESPONDING")
    memory = values.get("RealMemory", "")
    return HostState(
        host=name,
        gpus=gpus,
        gpu_type=kind,
        memory_bytes=int(memory) * MIB if re.fullmatch(r"[1-9][0-9]{0,11}", memory) else None,
        usable=not bad,
        reason=_reason(bad, values.get("Reason", "")),
    )


def _reason(bad: list[str], told: str) -> str:
    if not bad:
        return ""
    plain = re.sub(r"\s*\[[^\]]*\]\s*$", "", told.partition("\n")[0])[:100]
    state = "+".join(bad).lower()
    return f"{state}: {plain}" if plain and plain.isprintable() else state


def _accelerators(gres: str, source: str, line: int, name: str) -> tuple[str, int]:
    """Type and number of a Gres list; 0 without accelerators."""
    total, kinds = 0, set()
    for part in re.split(r",(?![^(]*\))", gres):
        if not part.strip().startswith("gpu"):
            continue
        match = _GRES.fullmatch(part.strip())
        if not match:
            raise damaged(source, line, f"Gres={part.strip()[:40]} of {name} cannot be read", "write gpu:h100:8")
        total += int(match.group(2) or 1)
        kinds.add(match.group(1) or "")
    if len(kinds) > 1:
        kinds.discard("")
    if len(kinds) > 1:
        raise damaged(
            source, line, f"{name} has several kinds of GPU: {', '.join(sorted(kinds))}", "one kind a host is modelled"
        )
    return next(iter(kinds), ""), total


READER = Reader(id="scontrol-node", title=TITLE, detect=_detect, read=read)
