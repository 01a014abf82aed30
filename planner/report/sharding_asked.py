"""What `shard` is asked on the command line, as the library takes it, and the drawings it writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import InvalidValueError
from shardwright.planner.report import asked
from shardwright.planner.report.failures import UsageError

if TYPE_CHECKING:
    from shardwright.planner.problem import PricingOptions
    from shardwright.planner.search.operators.options import ShardOptions

GIB = 2**30


def job(given: dict[str, Any]) -> dict[str, Any]:
    """Model, cluster, sequence length and one global batch.

    Raises:
        UsageError: one of them is missing.
        InvalidValueError: a range of batches.
    """
    from shardwright.planner.batches import BatchRange

    found = asked.job(given)
    if isinstance(found["global_batch"], BatchRange):
        message = f"a range of batches, {found['global_batch']}"
        raise InvalidValueError(message, where="--global-batch", hint="give one number of sequences")
    return found


def pricing(given: dict[str, Any]) -> PricingOptions:
    """Precision, stack and the like; a sharding is always for throughput."""
    return asked.pricing({"objective": None, **given})


def options(given: dict[str, Any]) -> ShardOptions:
    """Mesh, memory and the like.

    Raises:
        UsageError: no mesh.
        ShardwrightError: a value outside what is allowed.
    """
    from shardwright.planner.search.operators.mesh import parse_mesh
    from shardwright.planner.search.operators.options import ShardOptions

    if given["mesh"] is None:
        raise UsageError("missing --mesh", where="--mesh", hint="such as: --mesh dp=8,tp=8, outermost axis first")
    return ShardOptions(
        mesh=parse_mesh(given["mesh"]),
        memory_bytes=None if given["memory"] is None else given["memory"] * GIB,
        micro_batches=given["micro_batches"],
        in_flight=given["in_flight"],
        recompute=given["recompute"],
    )


def drawing_file(name: str, where: str) -> Path:
    """A file that can be written, looked at before any work is done; it may exist.

    Raises:
        UsageError: no name, a folder, or a folder that is not there.
    """
    path = Path(name)
    if not name or path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{name!r} cannot be written", where=where, hint="name a file in a folder that exists")
    return path


def write_drawing(path: Path, text: str, where: str) -> None:
    """Writes a drawing.

    Raises:
        InvalidValueError: the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidValueError(f"cannot write {path}: {error.strerror}", where=where, hint="name another file") from error
