"""The report of `calibrate`, and the file it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.documents import read_document
from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError
from shardwright.hardware.calibration_fit import CalibrationResult, calibrate
from shardwright.hardware.catalog import load_cluster
from shardwright.planner.report import words
from shardwright.planner.report.output import json_text
from shardwright.planner.report.style import paragraph, table

WHERE = "-o"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """A calibration that was written.

    Attributes:
        result: what was found.
        place: where it was written to.
    """

    result: CalibrationResult
    place: Path

    @property
    def exit_code(self) -> int:
        """As the result's."""
        return self.result.exit_code

    @property
    def remarks(self) -> tuple[str, ...]:
        """Lines for standard error."""
        return (*(f"warning: {text}" for text in self.result.warnings), f"wrote {self.place}")

    def to_dict(self) -> dict[str, Any]:
        """The document that is printed and written."""
        return self.result.to_dict()


def calibrated(logs: Sequence[str], cluster: str | None, output: str | None) -> Calibrated:
    """Calibrates a cluster by logs and writes the file.

    Args:
        logs: paths, or COLLECTIVE=PATH.
        cluster: as `--cluster` names it; None: compared with presets when a plan uses it.
        output: file to write.

    Raises:
        ShardwrightError: a log, the cluster or the file cannot be used.
    """
    place = free_file(output)
    machine = None if cluster is None else load_cluster(cluster)
    result = calibrate(logs, machine, name=place.stem)
    write_calibration(place, result.to_dict())
    return Calibrated(result=result, place=place)


def free_file(output: str | None) -> Path:
    """The place of a calibration, seen to before any work is done.

    Raises:
        InvalidValueError: none is named, or it is a folder.
        ConflictError: a file that is no calibration stands there.
    """
    if not output:
        raise InvalidValueError("no file to write to is named", where=WHERE, hint="name the calibration: -o site.json")
    place = Path(output)
    if place.is_dir():
        raise InvalidValueError(f"{place} is a folder", where=WHERE, hint="name a file")
    if place.exists():
        try:
            earlier = read_document(place).data.get("kind") == "calibration"
        except ShardwrightError:
            earlier = False
        if not earlier:
            raise ConflictError(f"{place} exists and is no calibration", where=WHERE, hint="name a new file")
    return place


def write_calibration(place: Path, document: Mapping[str, Any]) -> None:
    """Writes the file, in one step.

    Raises:
        InvalidValueError: it cannot be written.
    """
    draft = place.with_name(f".{place.name}.draft")
    try:
        draft.write_text(json_text(document), encoding="utf-8")
        draft.replace(place)
    except OSError as error:
        message = f"cannot write {place}: {error.strerror or error}"
        raise InvalidValueError(message, where=WHERE, hint="name a file in a folder you may write to") from error


def calibration_parts(document: Mapping[str, Any]) -> list[Any]:
    """Everything `calibrate` shows."""
    columns = ("collective", "link", "GPUs", "nodes", "sizes", "latency", "expected", "GB/s", "exp.", "off by", "left")
    shown = table(*columns, left=("collective", "link"))
    for fit in document["fits"]:
        shown.add_row(
            fit["collective"].replace("_", "-"),
            fit["link"] or words.UNKNOWN,
            words.count(fit["ranks"]),
            words.count(fit["nodes"]),
            words.count(fit["sizes"]),
            words.seconds(fit["latency_s"]),
            words.seconds(fit["expected_latency_s"]),
            _rate(fit["bus_bytes_per_s"]),
            _rate(fit["expected_bus_bytes_per_s"]),
            words.percent(fit["preset_error"]),
            words.percent(fit["held_out_error"]),
        )
    node = document["node"]
    against = "presets were not compared: no --cluster" if node is None else f"expected: the presets of {node['id']}"
    return [
        shown,
        paragraph(
            f"GB/s: bus bandwidth of the largest message, as nccl-tests counts. {against}. off by: median error of the "
            "presets on the measured sizes; left: what remains on sizes that were left out of the fit."
        ),
    ]


def _rate(bytes_per_s: float | None) -> str:
    return words.UNKNOWN if bytes_per_s is None else words.digits(bytes_per_s / 1e9)
