"""The pipeline as Megatron arguments, and what of a split they cannot say.

An even split needs the number of virtual stages alone. An uneven one is written as a layout from core 0.13 on; before, only the
first and the last stage may differ from the others (`--decoder-first-pipeline-num-layers`).
"""

from __future__ import annotations

from shardwright.planner.emit.base import Refusal, Request, Word
from shardwright.planner.emit.megatron.arguments import flag, option
from shardwright.planner.emit.megatron.versions import has
from shardwright.planner.layouts import format_layout, layout_of


def pipeline_words(request: Request) -> tuple[Word, ...]:
    """The arguments of the pipeline."""
    parallel = request.parallel
    if parallel["pp"] == 1:
        return option("pipeline-model-parallel-size", 1)
    return (
        *option("pipeline-model-parallel-size", parallel["pp"]),
        *_split_words(request),
        *flag("no-overlap-p2p-communication", parallel["vpp"] > 1 and not parallel["overlap"]["p2p"] and parallel["pp"] > 2),
    )


def pipeline_refusals(request: Request) -> tuple[Refusal, ...]:
    """What of the pipeline an argument list of that release cannot say."""
    if not _written_as_layout(request) or has(request.version, "layout") or _ends_alone(request):
        return ()
    message = (
        f"Megatron {request.version} takes stages that differ only at the first and the last one, not {list(request.chunks)}"
    )
    return (Refusal(field="stages.layers", message=message, remedy="write for 0.13 or later, or plan with --fix split=even"),)


def _split_words(request: Request) -> tuple[Word, ...]:
    if not _written_as_layout(request):
        return option("num-virtual-stages-per-pipeline-rank", request.parallel["vpp"]) if request.parallel["vpp"] > 1 else ()
    if has(request.version, "layout"):
        layout = layout_of(request.chunks, mtp_layers=request.spec.mtp_layers)
        return option("pipeline-model-parallel-layout", format_layout(layout))
    first, last = request.chunks[0], request.chunks[-1]
    rest = option("decoder-last-pipeline-num-layers", last) if request.parallel["pp"] > 2 else ()
    return (*option("decoder-first-pipeline-num-layers", first), *rest)


def _written_as_layout(request: Request) -> bool:
    return request.uneven or (request.spec.mtp_layers > 0 and request.parallel["vpp"] > 1)


def _ends_alone(request: Request) -> bool:
    """Whether only the first and the last of stages without virtual chunks differ from the others."""
    return request.parallel["vpp"] == 1 and len(set(request.chunks[1:-1])) <= 1
