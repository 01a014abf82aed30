"""Megatron's layout strings, which say what each pipeline chunk holds, read and written.

A layout string says, chunk by chunk in the order the layers run, what each holds: `E` the embedding, `t` a decoder layer,
`m` a multi-token-prediction block, `L` head and loss; `|` ends a chunk, `x*n` repeats one character, `(...)*n` a group,
commas are for the eye. Chunk v·pp + r is the v-th of rank r.

    Et*3|(tt|)*29m|L       32 chunks: Ettt, 29 times tt, m, L

    parse_layout   text -> Layout          format_layout  Layout -> the shortest text whose groups are whole chunks
    layout_of      layers of each chunk -> Layout (embedding first; MTP and loss last)
    check_layout   what Megatron demands of a layout

Source: Megatron-Core 0.13 and later, PipelineParallelLayerLayout (`--pipeline-model-parallel-layout`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from shardwright.errors import ConflictError, InvalidValueError

EMBEDDING, LAYER, MTP, LOSS = "E", "t", "m", "L"
UNITS = (EMBEDDING, LAYER, MTP, LOSS)
MAX_TEXT = 100_000
MAX_UNITS = 100_000
_LONGEST_PERIOD = 64
_COUNT = re.compile(r"\*([0-9]+)")
WHERE = "--pipeline-model-parallel-layout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What every pipeline chunk holds.

    Attributes:
        stages: one text of `UNITS` a chunk, in the order the layers run.
    """

    stages: tuple[str, ...]

    @property
    def chunks(self) -> tuple[int, ...]:
        """Decoder layers of each chunk."""
        return tuple(stage.count(LAYER) for stage in self.stages)

    @property
    def layers(self) -> int:
        """Decoder layers in all."""
        return sum(self.chunks)

    @property
    def mtp_layers(self) -> int:
        """Multi-token-prediction blocks in all."""
        return sum(stage.count(MTP) for stage in self.stages)

    @property
    def mtp_stage(self) -> int | None:
        """The chunk with the multi-token-prediction blocks; None without any."""
        return next((index for index, stage in enumerate(self.stages) if MTP in stage), None)

    def __str__(self) -> str:
        return format_layout(self)


def parse_layout(text: str, *, where: str = WHERE) -> Layout:
    """The layout of a string.

    Args:
        text: as `--pipeline-model-parallel-layout` takes it.
        where: the place errors name, followed by the position of the character (from 1).

    Raises:
        InvalidValueError: a character, group or count that is none, or more units than any model has.
    """
    if len(text) > MAX_TEXT:
        raise InvalidValueError(f"a layout of {len(text)} characters", where=where, hint=f"at most {MAX_TEXT:,} are read")
    if not text.strip(", "):
        raise InvalidValueError("the layout is empty", where=where, hint="write it as Et*3|(tt|)*4tL")
    return Layout(stages=tuple(_Reader(text, where).units().split("|")))


class _Reader:
    """One walk over a layout string; `place[i]` is where character i stood before the commas were dropped."""

    def __init__(self, text: str, where: str) -> None:
        kept = [(index + 1, character) for index, character in enumerate(text) if character != ","]
        self.text = "".join(character for _, character in kept)
        self.place = [index for index, _ in kept] + [len(text) + 1]
        self.where = where
        self.at = 0

    def units(self, *, inside: bool = False) -> str:
        """The unrolled text up to the end, or up to the group's `)`."""
        made: list[str] = []
        size = 0
        while self.at < len(self.text) and not (inside and self.text[self.at] == ")"):
            made.append(self._item(inside))
            size += len(made[-1])
            if size > MAX_UNITS:
                raise self._fault(f"more than {MAX_UNITS:,} layers and chunks", "is a count too large?", self.at - 1)
        return "".join(made)

    def _item(self, inside: bool) -> str:
        start, character = self.at, self.text[self.at]
        if character == "(":
            return self._group(start, inside)
        if character not in (*UNITS, "|"):
            raise self._fault(f"{character!r} is no part of a layout", _meant(character), start)
        self.at += 1
        return self._repeated(character, start)

    def _group(self, start: int, inside: bool) -> str:
        if inside:
            raise self._fault("a group inside a group", "Megatron unrolls one level; write the inner one out", start)
        self.at += 1
        held = self.units(inside=True)
        if self.at == len(self.text):
            raise self._fault("the group is not closed", "add )*n", start)
        self.at += 1
        if not held:
            raise self._fault("the group is empty", "write what it repeats, as (tt|)*4", start)
        if _COUNT.match(self.text, self.at) is None:
            raise self._fault("the group has no count", "write (...)*n", self.at - 1)
        return self._repeated(held, start)

    def _repeated(self, held: str, start: int) -> str:
        if self.text[self.at : self.at + 1] != "*":
            return held
        found = _COUNT.match(self.text, self.at)
        if found is None or len(found[1]) > len(str(MAX_UNITS)):
            raise self._fault("the repetition has no count that can be used", "write a whole number after *", self.at)
        self.at = found.end()
        if self.text[self.at : self.at + 1] == "*":
            raise self._fault("a repetition of a repetition", "multiply the counts", self.at)
        if len(held) * int(found[1]) > MAX_UNITS:
            raise self._fault(f"more than {MAX_UNITS:,} layers and chunks", "is a count too large?", start)
        return held * int(found[1])

    def _fault(self, message: str, hint: str, at: int) -> InvalidValueError:
        return InvalidValueError(message, where=f"{self.where}: character {self.place[at]}", hint=hint)


def _meant(character: str) -> str:
    known = "E embedding, t layer, m multi-token prediction, L loss, | end of a chunk"
    near = [unit for unit in UNITS if unit.lower() == character.lower()]
    return f"did you mean {near[0]}? ({known})" if near else f"known: {known}"


def layout_of(chunks: tuple[int, ...], *, mtp_layers: int = 0) -> Layout:
    """The layout of a split: embedding before the first layers, multi-token prediction and loss after the last.

    Args:
        chunks: layers of each chunk, in the order they run.
        mtp_layers: multi-token-prediction blocks, which stay with the loss.
    """
    stages = [LAYER * layers for layers in chunks]
    stages[0] = EMBEDDING + stages[0]
    stages[-1] += MTP * mtp_layers + LOSS
    return Layout(stages=tuple(stages))


def format_layout(layout: Layout) -> str:
    """The shortest string of a layout whose groups are whole chunks; `parse_layout` reads it back.

    best(i) = the shortest text of chunks i …, of the texts that begin with one chunk, or with n >= 2 repetitions of the
    next p chunks.
    """
    written = [_stage_text(stage) for stage in layout.stages]
    closed = len(written) - 1  # the last chunk has no `|`, so it is in no group
    best = [""] * closed + [written[-1]]
    for start in reversed(range(closed)):
        texts = [f"{written[start]}|{best[start + 1]}"]
        texts += [f"({group})*{count}{best[end]}" for group, count, end in _groups(written, start, closed)]
        best[start] = min(texts, key=len)
    return best[0]


def _groups(written: list[str], start: int, closed: int) -> Iterator[tuple[str, int, int]]:
    """Repetitions that begin at a chunk: (text of one, how often, first chunk after them), longest first."""
    for period in range(1, min(_LONGEST_PERIOD, (closed - start) // 2) + 1):
        one = written[start : start + period]
        count = 1
        while start + (count + 1) * period <= closed and written[start + count * period : start + (count + 1) * period] == one:
            count += 1
        text = "".join(f"{stage}|" for stage in one)
        yield from ((text, n, start + n * period) for n in range(count, 1, -1))


def _stage_text(stage: str) -> str:
    return re.sub(r"(.)\1{2,}", lambda run: f"{run[1]}*{len(run[0])}", stage)


def check_layout(layout: Layout, *, layers: int, mtp_layers: int, pp: int, where: str = WHERE) -> None:
    """What Megatron demands of a layout.

    Raises:
        ConflictError: the first of its demands that is not met, with what to change.
    """
    order, count = "".join(layout.stages), len(layout.stages)
    if count % pp:
        raise ConflictError(
            f"{count} chunks for pp {pp}", where=where, hint=f"write a multiple of {pp} chunks, or use {_near(count, pp)}"
        )
    for unit, name in ((EMBEDDING, "embedding"), (LOSS, "loss")):
        if order.count(unit) != 1:
            raise ConflictError(f"{order.count(unit)} times {unit} ({name})", where=where, hint=f"write {unit} once")
    if not order.startswith(EMBEDDING) or not order.endswith(LOSS):
        raise ConflictError("the layout does not begin with E and end with L", where=where, hint="put E first and L last")
    if layout.layers != layers:
        hint = f"write {LAYER} {layers} times in all"
        raise ConflictError(f"the layout has {layout.layers} layers; the model has {layers}", where=where, hint=hint)
    _check_mtp(layout, mtp_layers, pp, where)


def _near(count: int, pp: int) -> str:
    divisors = [d for d in range(1, count + 1) if count % d == 0]
    return f"pp {min(divisors, key=lambda d: (abs(d - pp), d))}"


def _check_mtp(layout: Layout, mtp_layers: int, pp: int, where: str) -> None:
    """All blocks in one chunk, after all layers, the last chunk of a rank other than the first."""
    order, count = "".join(layout.stages), len(layout.stages)
    if layout.mtp_layers != mtp_layers:
        message = f"the layout has {layout.mtp_layers} multi-token-prediction blocks; the model has {mtp_layers}"
        raise ConflictError(message, where=where, hint=f"write {MTP} {mtp_layers} times")
    stage = layout.mtp_stage
    if stage is None:
        return
    if LAYER in order[order.index(MTP) :]:
        raise ConflictError("a layer stands after multi-token prediction", where=where, hint="put m after the last t")
    if layout.stages[stage].count(MTP) != mtp_layers:
        raise ConflictError("multi-token prediction is spread over chunks", where=where, hint="put all m into one chunk")
    if stage < count - pp or (stage % pp == 0 and pp > 1):
        message = f"multi-token prediction is in chunk {stage + 1} of {count}"
        hint = f"put it into one of the last {pp - 1} chunks, as before the loss: mL"
        raise ConflictError(message, where=where, hint=hint)
