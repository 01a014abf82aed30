"""What was learned, as the content of a cluster YAML with what stays open named.

Draft      the content, notes, and `Unknown`s: key, reason, how to supply it
text       YAML with the unknowns as comments on top
summary    a few lines for people
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from shardwright.documents import yaml_text
from shardwright.errors import InvalidValueError
from shardwright.hardware.catalog import FILE_SUFFIXES
from shardwright.hardware.hostlist import expand
from shardwright.hardware.readers.text import counted

WIDTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Something that the files do not say.

    Attributes:
        key: the field of the cluster YAML.
        reason: what is missing.
        remedy: how to supply it.
    """

    key: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}; {self.remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A cluster as far as it is known.

    Attributes:
        data: content of the cluster YAML; unknown fields are null.
        unknown: what is open.
        notes: what was repaired, left out, assumed, or taken from a preset.
    """

    data: Mapping[str, Any]
    unknown: tuple[Unknown, ...]
    notes: tuple[str, ...]

    def messages(self) -> list[str]:
        """What to tell beside the result: notes, and a warning for everything that is open."""
        lines = [*(f"note: {note}" for note in self.notes), *(f"warning: {item}" for item in self.unknown)]
        return [fill(line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) for line in lines]

    def text(self) -> str:
        """The YAML file."""
        head = ["# Read by shardwright topo."]
        if self.unknown:
            head += ["# Not known (null below):", *(f"#   {_one_line(str(item))}" for item in self.unknown)]
        return "\n".join(head) + "\n" + yaml_text(self.data, compact=True)

    def summary(self) -> str:
        """A few lines: nodes, GPUs, islands, rails, network."""
        lines = [f"{self.data['name']}: {counted(sum(g['count'] for g in self.data['groups']), 'node')}"]
        for group in self.data["groups"]:
            lines += [f"  {line}" for line in _group_lines(group)]
        if "network" in self.data:
            lines += [f"  {line}" for line in _network_lines(self.data["network"])]
        if self.data.get("excluded"):
            lines.append(f"  excluded: {counted(len(self.data['excluded']), 'node')}")
        return "\n".join(lines) + "\n"


def write_draft(draft: Draft, output: str, files: Sequence[str]) -> None:
    """Writes the YAML file; one that exists is replaced, an input never.

    Raises:
        InvalidValueError: the name does not end as a cluster file does, is that of an input, or cannot be written.
    """
    path = Path(output)
    if path.suffix.lower() not in FILE_SUFFIXES[:2]:
        raise InvalidValueError(f"{output!r} is no name of a cluster YAML", where="-o", hint="end it in .yaml")
    try:
        if any(name != "-" and path.exists() and path.samefile(name) for name in files):
            raise InvalidValueError(f"{output} is one of the inputs", where="-o", hint="name another file")
        path.write_text(draft.text(), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            f"cannot write {output}: {error}", where="-o", hint="name a file in a folder that exists"
        ) from error


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _group_lines(group: Mapping[str, Any]) -> list[str]:
    node = group["node"]
    if node is None:
        return [f"{group['count']} x node not known"]
    if isinstance(node, str):
        return [f"{group['count']} x {node}"]
    layout = node.get("layout") or {}
    device = node.get("device") or ("as " + node["base"] if "base" in node else "device not known")
    gpus = counted(node["gpus"], "GPU") if node.get("gpus") else "GPUs not known"
    lines = [f"{group['count']} x {gpus}, {device}"]
    islands = layout.get("islands")
    if islands and all(len(island) == 1 for island in islands):
        lines.append("  no scale-up links")
    elif islands:
        rate = "" if "base" in node and "scaleup_bytes_per_s" not in node else _rate(node.get("scaleup_bytes_per_s"), "a GPU")
        lines.append("  islands " + " ".join(_set(island) for island in islands) + rate)
    if layout.get("sockets"):
        lines.append("  sockets " + " ".join(_set(socket) for socket in layout["sockets"]))
    lines += [
        f"  rail {rail}: {nic['name']}"
        + (f" for GPU {_set(nic['gpus'])}" if nic["gpus"] else "")
        + _rate(nic["bytes_per_s"], "")
        for rail, nic in enumerate(layout.get("nics") or ())
    ]
    if layout.get("idle_nics"):
        lines.append("  no rail: " + ", ".join(layout["idle_nics"]))
    return lines


def _set(numbers: list[int]) -> str:
    runs: list[str] = []
    for number in numbers:
        last = runs[-1].split("-") if runs else []
        if last and int(last[-1]) == number - 1:
            runs[-1] = f"{last[0]}-{number}"
        else:
            runs.append(str(number))
    return "{" + ",".join(runs) + "}"


def _rate(rate: float | None, each: str) -> str:
    return ", rate not known" if rate is None else f", {rate / 1e9:g} GB/s {each}".rstrip()


def _network_lines(network: Mapping[str, Any]) -> list[str]:
    lines = []
    tiers: dict[int, int] = {}
    for switch in network.get("switches", ()):
        tiers[switch["tier"]] = tiers.get(switch["tier"], 0) + 1
    if tiers:
        lines.append("switches " + ", ".join(f"{count} in tier {tier}" for tier, count in sorted(tiers.items())))
    if network.get("blocks"):
        sizes = sorted({len(expand(block["hosts"])) for block in network["blocks"]})
        lines.append(f"{len(network['blocks'])} blocks of " + ", ".join(map(str, sizes)) + " nodes")
    return lines
