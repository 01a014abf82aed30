"""How Megatron splits layers over pipeline chunks, for every way it has of being told.

    even                layers / pp on every rank                          (with embedding or loss counted as a layer:
                        the units divide, and the first or last chunk holds one layer less)
    first and last      those counts, the rest / (pp - 1 or - 2) between
    layout              as the string says (`planner.layouts`)
    virtual stages      a rank's layers / vpp in each of its chunks        vpp given, or a rank's layers / layers a chunk

`stage_chunks` gives layers of each chunk, or refuses what cannot be split so and says what could. Versions of Megatron before
`validate_args` looked dropped the layers that were left over and trained another model.

Sources: Megatron-LM `validate_args`, Megatron-Core `get_num_layers_to_build`.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.planner.layouts import WHERE as LAYOUT
from shardwright.planner.layouts import check_layout, layout_of, parse_layout

_ACCOUNT = "--account-for-embedding-in-pipeline-split, --account-for-loss-in-pipeline-split"
_FIRST, _LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
_PER_STAGE, _PER_RANK = "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFlags:
    """Megatron's ways of saying how layers are split, as its arguments name them.

    Attributes:
        first, last: `--decoder-first-pipeline-num-layers` and `--decoder-last-pipeline-num-layers`.
        embedding, loss: `--account-for-embedding-in-pipeline-split` and `--account-for-loss-in-pipeline-split`.
        layers_per_virtual_stage: `--num-layers-per-virtual-pipeline-stage`.
        virtual_stages_per_rank: `--num-virtual-stages-per-pipeline-rank`.
        layout: `--pipeline-model-parallel-layout`.
    """

    first: int | None = None
    last: int | None = None
    embedding: bool = False
    loss: bool = False
    layers_per_virtual_stage: int | None = None
    virtual_stages_per_rank: int | None = None
    layout: str | None = None


def stage_chunks(flags: SplitFlags, *, layers: int, mtp_layers: int = 0, pp: int) -> tuple[int, ...]:
    """Layers of each chunk as Megatron builds them, pp·vpp numbers in the order the layers run.

    Raises:
        ConflictError: flags that exclude each other, or layers that cannot be split so (versions before 0.12 dropped the rest).
        InvalidValueError: a layout that cannot be read, or a count below 1.
    """
    _check_exclusive(flags)
    if flags.layout is not None:
        layout = parse_layout(flags.layout)
        check_layout(layout, layers=layers, mtp_layers=mtp_layers, pp=pp)
        return layout.chunks
    by_rank = _uneven(flags, layers, pp) if flags.first or flags.last else _even(flags, layers, pp)
    vpp = _virtual(flags, by_rank, pp)
    for rank, held in enumerate(by_rank):
        if held % vpp:
            message = f"{held} layers of rank {rank} in {vpp} virtual stages"
            raise ConflictError(message, where=_virtual_flag(flags), hint=f"use {_nearest_divisors(held, vpp)} a rank")
    chunks = [held // vpp for _ in range(vpp) for held in by_rank]
    chunks[0] -= flags.embedding
    chunks[-1] -= flags.loss
    return tuple(chunks)


def _check_exclusive(flags: SplitFlags) -> None:
    given = {
        _PER_STAGE: flags.layers_per_virtual_stage is not None,
        _PER_RANK: flags.virtual_stages_per_rank is not None,
        LAYOUT: flags.layout is not None,
    }
    named = [name for name, is_given in given.items() if is_given]
    if len(named) > 1:
        raise ConflictError(f"{' and '.join(named)} exclude each other", where=named[-1], hint="keep one of them")
    uneven = flags.first is not None or flags.last is not None
    counted = flags.embedding or flags.loss
    others = [name for name, is_given in ((f"{_FIRST} / {_LAST}", uneven), (_ACCOUNT, counted)) if is_given]
    if len(others) > 1 or (others and flags.layout is not None):
        both = [*others, LAYOUT][:2]
        raise ConflictError(f"{' and '.join(both)} exclude each other", where=both[1], hint="keep one of them")
    if uneven and flags.layers_per_virtual_stage is not None:
        hint = f"say the virtual stages by {_PER_RANK}"
        raise ConflictError(f"{_PER_STAGE} with {_FIRST} / {_LAST}", where=_PER_STAGE, hint=hint)
    for name, value in (
        (_FIRST, flags.first),
        (_LAST, flags.last),
        (_PER_STAGE, flags.layers_per_virtual_stage),
        (_PER_RANK, flags.virtual_stages_per_rank),
    ):
        if value is not None and value < 1:
            raise InvalidValueError(f"{name} {value}", where=name, hint="give 1 or more")


def _even(flags: SplitFlags, layers: int, pp: int) -> list[int]:
    units = layers + flags.embedding + flags.loss
    if units % pp == 0:
        return [units // pp] * pp
    counted = f" and {flags.embedding + flags.loss} counted as layers" if units > layers else ""
    message = f"{layers} layers{counted} do not divide over pp {pp} ({units % pp} would be left over)"
    raise ConflictError(message, where="--pipeline-model-parallel-size", hint=f"use {_even_remedy(layers, pp)}")


def _even_remedy(layers: int, pp: int) -> str:
    """A split that holds all layers: a layout with the larger chunks in the middle, where embedding and loss are not."""
    base, more = divmod(layers, pp)
    if base == 0:
        return f"pp {layers} or less"
    first = (pp - more) // 2
    chunks = tuple(base + (first <= stage < first + more) for stage in range(pp))
    return f"{LAYOUT} '{layout_of(chunks)}', or {_nearest_divisors(layers, pp, 'pp')}"


def _uneven(flags: SplitFlags, layers: int, pp: int) -> list[int]:
    ends = [count for count in (flags.first, flags.last) if count is not None]
    left, stages = layers - sum(ends), pp - len(ends)
    where = _FIRST if flags.first is not None else _LAST
    if pp == 1:
        raise ConflictError(f"{where} with pp 1", where=where, hint="drop it, or use pp above 1")
    if stages == 0 and left:
        message = f"{ends[0]} and {ends[1]} layers on two stages are not the model's {layers}"
        raise ConflictError(message, where=where, hint=f"give numbers that sum to {layers}")
    if stages and (left <= 0 or left % stages):
        message = f"{left} layers are left for the other {stages} stages"
        raise ConflictError(message, where=where, hint=_uneven_remedy(flags, layers, stages))
    middle = [left // stages] * stages if stages else []
    return [*([flags.first] if flags.first else []), *middle, *([flags.last] if flags.last else [])]


def _uneven_remedy(flags: SplitFlags, layers: int, stages: int) -> str:
    """The nearest count on the first stage (or the last, where it alone is given) that leaves a multiple of the others."""
    name, given, other = (_FIRST, flags.first, flags.last or 0) if flags.first else (_LAST, flags.last or 0, 0)
    legal = [count for count in range(1, layers - other) if (layers - other - count) % stages == 0]
    if not legal:
        return "use fewer stages"
    best = min(legal, key=lambda count: (abs(count - (given or 0)), count))
    return f"use {name} {best}"


def _virtual(flags: SplitFlags, by_rank: list[int], pp: int) -> int:
    per_stage = flags.layers_per_virtual_stage
    if per_stage is None:
        vpp = flags.virtual_stages_per_rank or 1
    elif by_rank[0] % per_stage:
        message = f"{by_rank[0]} layers of a rank in virtual stages of {per_stage}"
        raise ConflictError(message, where=_PER_STAGE, hint=f"use {_nearest_divisors(by_rank[0], per_stage)}")
    else:
        vpp = by_rank[0] // per_stage
    if vpp > 1 and pp == 1:
        raise ConflictError(f"{vpp} virtual stages with pp 1", where=_virtual_flag(flags), hint="drop it, or use pp above 1")
    return vpp


def _virtual_flag(flags: SplitFlags) -> str:
    return _PER_STAGE if flags.layers_per_virtual_stage is not None else _PER_RANK


def _nearest_divisors(number: int, wanted: int, name: str = "") -> str:
    found = sorted(sorted((d for d in range(1, number + 1) if number % d == 0), key=lambda d: (abs(d - wanted), d))[:2])
    return f"{name} {' or '.join(map(str, found))}".strip()
