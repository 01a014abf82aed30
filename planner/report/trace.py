"""One step as a trace that Perfetto and chrome://tracing open: `estimate --trace FILE`.

    write_trace(estimate, path)      the whole file, or none

A process is a pipeline stage; its tracks are computing and one for each axis that has exposed exchange. A pass is its computing
followed by what each axis adds to it; what computation hides is not drawn. Flows go from a send to the pass that needs it. The
counter `memory` is that of the stage's fullest rank: what it holds throughout, and activations of the micro-batches it keeps,

    memory(t) = total − activations + activations · kept(t) / most kept

so that its greatest value is the stage's peak. Times are whole nanoseconds; the last slice ends with the printed step. Format:
Chrome trace events (JSON), "X" slices, "s"/"f" flows, "C" counters, "M" names.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.errors import InvalidValueError
from shardwright.planner.explanation.timelines import TRACKS, StepTimeline, timeline_of
from shardwright.planner.plans import FloatArray
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, WEIGHT
from shardwright.planner.schedules.timeline import Event, Transfer

NAMED_TRACKS = (*TRACKS, "dp")
DATA = NAMED_TRACKS.index("dp")
SENDS = NAMED_TRACKS.index("pp")
LETTERS = {FORWARD: "F", BACKWARD: "B", INPUT: "I", WEIGHT: "W"}
WHERE = "--trace"
GIB = 2**30

Slice = tuple[int, int, int]
"""Track, start and end, nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passes:
    """Where the slices of each pass stand.

    Attributes:
        ends: end of each track's part of a pass after its start, by phase, nanoseconds as floats, [chunks, tracks].
        sending: start of what a pass sends with, and its track, by (phase forward, chunk, micro-batch).
    """

    ends: Mapping[int, FloatArray]
    sending: dict[tuple[bool, int, int], tuple[int, int]]


def write_trace(estimate: Mapping[str, Any], path: str | Path) -> Path:
    """Writes the trace of a priced plan; a file that stood there is replaced in one step.

    Args:
        estimate: an ESTIMATE with its inputs, as `estimate --format json` prints it.
        path: where to.

    Raises:
        InvalidValueError: the plan has no price, or the file cannot be written.
        UnsupportedError: no order of operations is known for it.
    """
    place = Path(path)
    check_place(place)
    text = trace_text(estimate, timeline_of(estimate))
    try:
        _replace(place, text)
    except OSError as error:
        raise _unwritable(place, error.strerror or str(error)) from error
    return place


def check_place(place: Path) -> None:
    """Sees to it, before any work is done, that a trace may be written there.

    Raises:
        InvalidValueError: it is a folder, or is in none that can be written to.
    """
    if place.is_dir():
        raise _unwritable(place, "it is a folder")
    if not place.parent.is_dir():
        raise _unwritable(place, f"there is no folder {place.parent}")
    if not os.access(place.parent, os.W_OK):
        raise _unwritable(place, f"the folder {place.parent} cannot be written to")


def _unwritable(place: Path, why: str) -> InvalidValueError:
    return InvalidValueError(f"cannot write {place}: {why}", where=WHERE, hint="name a file in a folder you may write to")


def _replace(place: Path, text: str) -> None:
    descriptor, draft = tempfile.mkstemp(prefix=".shardwright-", dir=place.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(text)
        Path(draft).chmod(0o644)
        Path(draft).replace(place)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def trace_text(estimate: Mapping[str, Any], step: StepTimeline) -> str:
    """The trace as JSON text, an event a line."""
    events = [json.dumps(event, separators=(",", ":")) for event in _names(estimate, step)]
    ends = {phase: np.cumsum(parts, axis=1) * 1e9 for phase, parts in step.passes.items()}
    passes = _Passes(ends=ends, sending={})
    for rank in range(step.made.pp):
        events += _rank_events(step, passes, rank)
        events += _counter(estimate, step, rank)
    events += _flows(step, passes)
    told = {
        "program": "shardwright",
        "model": estimate["model"]["name"],
        "cluster": estimate["cluster"]["name"],
        "step_time_s": estimate["predicted"]["step_time_s"],
        "critical_stage": step.critical,
    }
    head = '{"displayTimeUnit":"ms","otherData":' + json.dumps(told) + ',"traceEvents":[\n'
    return head + ",\n".join(events) + "\n]}\n"


def _names(estimate: Mapping[str, Any], step: StepTimeline) -> Iterator[dict[str, Any]]:
    used = [index for index, track in enumerate(NAMED_TRACKS) if index == 0 or _is_used(step, track, index)]
    for stage in estimate["stages"]:
        pid = stage["index"]
        spans = ", ".join(f"{span[0]}-{span[1]}" for span in stage["layers"] if span)
        held = "".join(f", {name}" for name in stage["holds"] if name in {"embedding", "head"})
        name = f"stage {pid}: layers {spans}{held}"
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        for tid in used:
            label = "compute" if tid == 0 else f"{NAMED_TRACKS[tid]} exchange"
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": label}}


def _is_used(step: StepTimeline, track: str, index: int) -> bool:
    if track == "dp":
        return bool(step.exchange_s.any())
    tied = track == "pp" and step.tied_s > 0
    return tied or any(bool(parts[:, index].any()) for parts in step.passes.values())


def _rank_events(step: StepTimeline, passes: _Passes, rank: int) -> list[str]:
    made: list[str] = []
    free = 0.0
    for event in step.made.of_rank(rank):
        free = max(free, event.end_s)
        made += _pass_events(step, passes, event)
    tails = ((DATA, "exchange of states", step.exchange_s), (0, "update", step.update_s), (0, "wait", step.waiting_s))
    start = free * 1e9
    for tid, name, seconds in tails:
        end = start + float(seconds[rank]) * 1e9
        made += _slice(name, rank, (tid, round(start), round(end)))
        start = end
    if step.tied_s > 0 and rank in {0, step.made.stage_rank[-1]}:
        span = (SENDS, round(step.made.step_s * 1e9), round(step.step_s * 1e9))
        made += _slice("tied embeddings", rank, span)
    return made


def _pass_events(step: StepTimeline, passes: _Passes, event: Event) -> list[str]:
    start, bounds = event.start_s * 1e9, passes.ends[event.phase][event.stage].tolist()
    last = event.end_s * 1e9
    marks = [round(start), *(round(min(start + bound, last)) for bound in bounds)]
    marks[-1] = round(last)
    slices = [(tid, marks[tid], marks[tid + 1]) for tid in range(len(TRACKS))]
    name = f"{LETTERS[event.phase]}{event.micro_batch}"
    chunk = f',"chunk":{event.stage // step.made.pp}' if step.made.vpp > 1 else ""
    arguments = f',"args":{{"micro_batch":{event.micro_batch}{chunk}}}'
    made = _slice(name, event.rank, slices[0], arguments)
    for span in slices[1:]:
        made += _slice(name, event.rank, span)
    if event.phase != WEIGHT:
        key = (event.phase == FORWARD, event.stage, event.micro_batch)
        passes.sending[key] = _sender(slices)
    return made


def _sender(slices: Sequence[Slice]) -> tuple[int, int]:
    """Track and start of the slice a message leaves with: the send, or the last part of the pass."""
    present = [span for span in slices if span[2] > span[1]] or [slices[0]]
    return present[-1][0], present[-1][1]


def _slice(name: str, pid: int, span: Slice, more: str = "") -> list[str]:
    """A slice; none where it takes no time, but for passes, which flows arrive at."""
    tid, start, end = span
    if end <= start and not more:
        return []
    return [f'{{"ph":"X","name":"{name}","pid":{pid},"tid":{tid},"ts":{_us(start)},"dur":{_us(end - start)}{more}}}']


def _us(nanoseconds: int) -> str:
    """Microseconds, exactly."""
    whole, rest = divmod(nanoseconds, 1000)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def _flows(step: StepTimeline, passes: _Passes) -> Iterator[str]:
    """From what a pass sends with to the pass of the neighbouring chunk that needs it."""
    starts = {(e.phase == FORWARD, e.stage, e.micro_batch): e for e in step.made.events if e.phase != WEIGHT}
    for number, sent in enumerate(step.made.transfers):
        forward = sent.phase == FORWARD
        tid, left = passes.sending[forward, sent.stage, sent.micro_batch]
        arrival = round(starts[forward, sent.stage + (1 if forward else -1), sent.micro_batch].start_s * 1e9)
        yield from _flow(number, sent, (tid, left), arrival)


def _flow(number: int, sent: Transfer, leaves: tuple[int, int], arrival: int) -> Iterator[str]:
    name = "F" if sent.phase == FORWARD else "B"
    head = f'"name":"{name}","cat":"pp","id":{number}'
    yield f'{{"ph":"s",{head},"pid":{sent.source},"tid":{leaves[0]},"ts":{_us(leaves[1])}}}'
    yield f'{{"ph":"f","bp":"e",{head},"pid":{sent.target},"tid":0,"ts":{_us(arrival)}}}'


def _counter(estimate: Mapping[str, Any], step: StepTimeline, rank: int) -> list[str]:
    memory = estimate["stages"][rank]["memory"]
    held, kept = memory["total_bytes"] - memory["activations_bytes"], memory["activations_bytes"]
    live = [(round(found.time_s * 1e9), sum(found.chunks)) for found in step.made.live(rank)]
    most = max(count for _, count in live)
    made = []
    for place, (time, count) in enumerate(live):
        if place + 1 < len(live) and live[place + 1][0] == time:
            continue  # only what holds from an instant on
        size = (held + kept * count / most) / GIB
        made.append(f'{{"ph":"C","name":"memory","pid":{rank},"ts":{_us(time)},"args":{{"GiB":{size:.4f}}}}}')
    return made
