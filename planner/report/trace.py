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

from shardwright.errors import InvalidValueError, UnsupportedError
from shardwright.planner.plan_records import degrees_of
from shardwright.planner.plans import FloatArray
from shardwright.planner.problem import problem_from_inputs
from shardwright.planner.schedules.orders import BACKWARD, FORWARD, INPUT, WEIGHT
from shardwright.planner.schedules.timeline import Event, Transfer
from shardwright.planner.simulation import AXES, StepTimeline, step_timeline

TRACKS = ("compute", *AXES, "dp")
"""Tracks of a stage: computing, then what each axis adds to a pass, in that order."""

DATA, SENDS = TRACKS.index("dp"), TRACKS.index("pp")
LETTERS = {FORWARD: "F", BACKWARD: "B", INPUT: "I", WEIGHT: "W"}
WHERE = "--trace"
GIB = 2**30

MOST_OPERATIONS = 500_000
"""Passes of a step that are drawn at most; 64 stages of 256 micro-batches have 32,768."""

Slice = tuple[int, int, int]
"""Track, start and end, nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passes:
    """Where the slices of each pass stand.

    Attributes:
        from_end: how long before the end of a pass each axis' part starts, by phase, nanoseconds, [chunks, axes].
        sending: start of what a pass sends with, and its track, by (phase forward, chunk, micro-batch).
    """

    from_end: Mapping[int, FloatArray]
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


def timeline_of(estimate: Mapping[str, Any]) -> StepTimeline:
    """The step of a priced plan, from its record alone.

    Raises:
        InvalidValueError: the plan has no price, or no known order of operations.
        UnsupportedError: it has too many operations.
    """
    parallel = estimate["parallel"]
    if estimate["predicted"] is None:
        raise InvalidValueError("the plan has no price, hence no step", where=WHERE, hint="mend its violations first")
    operations = 2 * parallel["pp"] * parallel["vpp"] * parallel["micro_batches"]
    if operations > MOST_OPERATIONS:
        message = f"a step of {operations:,} passes is too long to draw; {MOST_OPERATIONS:,} are the most"
        raise UnsupportedError(message, where=WHERE, hint="give a larger micro-batch, or a smaller global batch")
    try:
        return step_timeline(problem_from_inputs(estimate["inputs"], world_size=parallel["world_size"]), degrees_of(estimate))
    except InvalidValueError as error:
        error.where = error.where or WHERE
        raise


def trace_text(estimate: Mapping[str, Any], step: StepTimeline) -> str:
    """The trace as JSON text, an event a line."""
    events = [json.dumps(event, separators=(",", ":")) for event in _names(estimate, step)]
    backward = _from_end(step.passes.backward_s)
    nothing = np.zeros_like(backward)
    from_end = {FORWARD: _from_end(step.passes.forward_s), BACKWARD: backward, INPUT: backward, WEIGHT: nothing}
    passes = _Passes(from_end=from_end, sending={})
    for rank in range(step.timeline.pp):
        events += _rank_events(step, passes, rank)
        events += _counter(estimate, step, rank)
    events += _flows(step, passes)
    told = {
        "program": "shardwright",
        "model": estimate["model"]["name"],
        "cluster": estimate["cluster"]["name"],
        "step_time_s": estimate["predicted"]["step_time_s"],
    }
    head = '{"displayTimeUnit":"ms","otherData":' + json.dumps(told) + ',"traceEvents":[\n'
    return head + ",\n".join(events) + "\n]}\n"


def _from_end(parts_s: FloatArray) -> FloatArray:
    """Time from the start of each part to the end of the last one, nanoseconds, [chunks, axes]."""
    return np.asarray(np.cumsum(parts_s[:, ::-1], axis=1)[:, ::-1] * 1e9)


def _names(estimate: Mapping[str, Any], step: StepTimeline) -> Iterator[dict[str, Any]]:
    used = [index for index, track in enumerate(TRACKS) if index == 0 or _is_used(step, track)]
    for stage in estimate["stages"]:
        pid = stage["index"]
        spans = ", ".join(f"{span[0]}-{span[1]}" for span in stage["layers"] if span)
        held = "".join(f", {name}" for name in stage["holds"] if name in {"embedding", "head"})
        name = f"stage {pid}: layers {spans}{held}"
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        for tid in used:
            label = "compute" if tid == 0 else f"{TRACKS[tid]} exchange"
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": label}}


def _is_used(step: StepTimeline, track: str) -> bool:
    if track == "dp":
        return any(step.tails.data_s)
    if track == "pp" and step.tied_s > 0:
        return True
    axis = AXES.index(track)
    return bool(step.passes.forward_s[:, axis].any() or step.passes.backward_s[:, axis].any())


def _rank_events(step: StepTimeline, passes: _Passes, rank: int) -> list[str]:
    made: list[str] = []
    free = 0.0
    for event in step.timeline.of_rank(rank):
        free = max(free, event.end_s)
        made += _pass_events(step, passes, event)
    own = step.tails
    tails = ((DATA, "exchange of states", own.data_s), (0, "update", own.update_s))
    start = free * 1e9
    for tid, name, seconds in tails:
        end = start + seconds[rank] * 1e9
        made += _slice(name, rank, (tid, round(start), round(end)))
        start = end
    if step.tied_s > 0 and rank in {0, step.timeline.stage_rank[-1]}:
        span = (SENDS, round(step.timeline.step_s * 1e9), round(step.step_s * 1e9))
        made += _slice("tied embeddings", rank, span)
    return made


def _pass_events(step: StepTimeline, passes: _Passes, event: Event) -> list[str]:
    start, last = event.start_s * 1e9, event.end_s * 1e9
    parts = passes.from_end[event.phase][event.stage].tolist()
    marks = [round(start), *(round(max(last - part, start)) for part in parts), round(last)]
    slices = [(tid, marks[tid], marks[tid + 1]) for tid in range(len(marks) - 1)]
    name = f"{LETTERS[event.phase]}{event.micro_batch}"
    chunk = f',"chunk":{event.stage // step.timeline.pp}' if step.timeline.vpp > 1 else ""
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
    starts = {(e.phase == FORWARD, e.stage, e.micro_batch): e for e in step.timeline.events if e.phase != WEIGHT}
    for number, sent in enumerate(step.timeline.transfers):
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
    live = [(round(found.time_s * 1e9), sum(found.chunks)) for found in step.timeline.live(rank)]
    most = max(count for _, count in live)
    made = []
    for place, (time, count) in enumerate(live):
        if place + 1 < len(live) and live[place + 1][0] == time:
            continue  # only what holds from an instant on
        size = (held + kept * count / most) / GIB
        made.append(f'{{"ph":"C","name":"memory","pid":{rank},"ts":{_us(time)},"args":{{"GiB":{size:.4f}}}}}')
    return made
