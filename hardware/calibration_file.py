"""Calibrations as files: what `calibrate -o` writes and `--calibration` reads.

The records of `calibrations.schema` give the shape with the place of every mistake; range checks of the machine are those of
`Node`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.documents import Document, read_document, validate
from shardwright.errors import DamagedFileError, ShardwrightError
from shardwright.hardware.calibration import Calibration, Series
from shardwright.hardware.catalog import node_from_dict
from shardwright.hardware.site_factors import SiteFactors

if TYPE_CHECKING:
    from shardwright.hardware.calibrations.schema import Measured


def load_calibration(path: Path) -> Calibration:
    """The calibration of a file.

    Raises:
        DamagedFileError: it cannot be read, or is something else.
        InvalidValueError, UnknownNameError: a value or key that cannot be, with its line.
    """
    document = read_document(path)
    if document.data.get("kind") != "calibration":
        hint = "give what `calibrate -o` wrote"
        raise DamagedFileError(f"{path} is no calibration", where=document.place("kind"), hint=hint)
    return _read(document)


def calibration_from_dict(data: Mapping[str, Any]) -> Calibration:
    """The calibration of `Calibration.to_dict`.

    Raises:
        InvalidValueError, UnknownNameError: a value or key that cannot be.
    """
    return _read(Document(data=dict(data), source="calibration", text=""))


def _read(document: Document) -> Calibration:
    from shardwright.hardware.calibrations.schema import CalibrationFile

    checked = validate(CalibrationFile, document)
    try:
        node = None if checked.node is None else node_from_dict(checked.node.model_dump(exclude_unset=True))
    except ShardwrightError as error:
        error.where = document.place("node", *error.where.split("."))
        raise
    site = None if checked.site is None else SiteFactors.from_dict(checked.site.model_dump())
    return Calibration(name=checked.name, node=node, series=tuple(_series(m) for m in checked.measured), site=site)


def _series(m: Measured) -> Series:
    return Series(
        kind=m.collective,
        ranks=m.ranks,
        ranks_per_node=m.ranks_per_node,
        device=m.device,
        message_bytes=tuple(m.message_bytes),
        time_s=tuple(m.time_s),
        source=m.source,
    )
