"""Says what is wrong with a trace: an independent reading of the format, which shares no code with what writes it.

check_trace(text) -> Facts       slices nest on every track, flows pair and arrive in slices, counters go forward in time
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

Track = tuple[int, int]


class TraceError(ValueError):
    """What is wrong, and where."""


@dataclass(frozen=True)
class Facts:
    """What a trace says, in seconds.

    Attributes:
        step_s: end of the last slice.
        track_s: sum of the slices of a track that lie in no other slice, by process and name of the track.
        peaks: greatest value of each counter of a process.
        events: number of events.
        flows: number of pairs.
    """

    step_s: float
    track_s: dict[tuple[int, str], float]
    peaks: dict[int, float]
    events: int
    flows: int


def check_trace(text: str) -> Facts:
    """Checks a whole trace; times are read as exact decimals."""
    document = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    events = document["traceEvents"]
    for event in events:
        if event["ph"] not in {"X", "s", "f", "C", "M"}:
            raise TraceError(f"an event of kind {event['ph']}")
        if event["ph"] != "M" and event["ts"] < 0:
            raise TraceError(f"an event before the start: {event}")
    slices = _slices(events)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    if {pid for pid, _ in slices} - processes or set(slices) - set(names):
        raise TraceError("a slice on a track without a name")
    top = {track: _top_level(own) for track, own in slices.items()}
    return Facts(
        step_s=float(max(end for own in slices.values() for _, end in own)) / 1e6,
        track_s={(int(track[0]), names[track]): float(total) / 1e6 for track, total in top.items()},
        peaks=_counters(events),
        events=len(events),
        flows=_flows(events, slices),
    )


def _slices(events: list[dict[str, Any]]) -> dict[Track, list[tuple[Decimal, Decimal]]]:
    found: dict[Track, list[tuple[Decimal, Decimal]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            if event["dur"] < 0:
                raise TraceError(f"a slice that ends before it starts: {event}")
            found[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    return found


def _top_level(slices: list[tuple[Decimal, Decimal]]) -> Decimal:
    """Sum of the outermost slices of a track.

    Raises:
        TraceError: two of its slices overlap without one holding the other.
    """
    total, open_ends = Decimal(0), list[Decimal]()
    for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            raise TraceError(f"slices overlap from {start} to {open_ends[-1]}")
        if not open_ends:
            total += end - start
        open_ends.append(end)
    return total


def _flows(events: list[dict[str, Any]], slices: dict[Track, list[tuple[Decimal, Decimal]]]) -> int:
    ends: dict[str, dict[Any, dict[str, Any]]] = {"s": {}, "f": {}}
    for event in events:
        if event["ph"] in ends:
            key = (event["cat"], event["name"], event["id"])
            if key in ends[event["ph"]]:
                raise TraceError(f"two flows with one id: {event}")
            ends[event["ph"]][key] = event
    if set(ends["s"]) != set(ends["f"]):
        raise TraceError("a flow without its other end")
    starts = {track: {start for start, _ in own} for track, own in slices.items()}
    for key, left in ends["s"].items():
        arrived = ends["f"][key]
        if arrived["ts"] < left["ts"] or arrived["pid"] == left["pid"] or arrived["bp"] != "e":
            raise TraceError(f"a flow that goes back in time, or stays: {left} {arrived}")
        if any(end["ts"] not in starts[end["pid"], end["tid"]] for end in (left, arrived)):
            raise TraceError(f"a flow that meets no slice: {left} {arrived}")
    return len(ends["s"])


def _counters(events: list[dict[str, Any]]) -> dict[int, float]:
    last: dict[int, Decimal] = {}
    peaks: dict[int, float] = {}
    for event in events:
        if event["ph"] == "C":
            pid, value = int(event["pid"]), float(event["args"]["GiB"])
            if event["ts"] <= last.get(pid, Decimal(-1)):
                raise TraceError(f"a counter that goes back in time: {event}")
            last[pid], peaks[pid] = event["ts"], max(peaks.get(pid, 0.0), value)
    return peaks
