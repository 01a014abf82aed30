"""The report of `calibrate`, and the file it writes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwright.documents import read_document
from shardwright.errors import ConflictError, InvalidValueError, ShardwrightError
from shardwright.hardware.calibration_fit import CalibrationResult, calibrate
from shardwright.hardware.catalog import load_cluster
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.site_factors import PARTS
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


def calibrated(logs: Sequence[str], cluster: str | None, output: str | None, runs: str | None = None) -> Calibrated:
    """Calibrates a cluster by logs, by measured runs or by both, and writes the file.

    Args:
        logs: paths, or COLLECTIVE=PATH.
        cluster: as `--cluster` names it; None: compared with presets when a plan uses it.
        output: file to write.
        runs: CSV of measured runs on that cluster.

    Raises:
        ShardwrightError: a log, the runs, the cluster or the file cannot be used.
    """
    place = free_file(output)
    machine = None if cluster is None else load_cluster(cluster)
    if runs is None:
        result = calibrate(logs, machine, name=place.stem)
    else:
        known = calibrate(logs, machine, name=place.stem) if logs else None
        result = with_runs(known, runs, machine, place.stem)
    write_calibration(place, result.to_dict())
    return Calibrated(result=result, place=place)


def with_runs(known: CalibrationResult | None, runs: str, machine: Cluster | None, name: str) -> CalibrationResult:
    """A calibration by measured runs, priced with the collectives that logs of the same machine show."""
    from shardwright.planner.site.runs_file import site_of_runs

    made = site_of_runs(runs, name=name, collectives=None if known is None else known.calibration)
    if machine is not None:
        made.calibration.bound(machine)
    if known is None:
        return CalibrationResult(calibration=made.calibration, fits=(), warnings=made.notes)
    return replace(known, calibration=made.calibration, warnings=(*known.warnings, *made.notes))


def free_file(output: str | None) -> Path:
    """The place of a calibration, seen to before any work is done.

    Raises:
        InvalidValueError: none is named, it is a folder, or nothing can be written where it would stand.
        ConflictError: a file that is no calibration stands there.
    """
    if not output:
        raise InvalidValueError("no file to write to is named", where=WHERE, hint="name the calibration: -o site.json")
    place = Path(output)
    if place.is_dir():
        raise InvalidValueError(f"{place} is a folder", where=WHERE, hint="name a file")
    if not (place.parent.is_dir() and os.access(place.parent, os.W_OK)):
        raise _unwritable(
            place,
            f"there is no folder {place.parent}" if not place.parent.is_dir() else f"the folder {place.parent} is read-only",
        )
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
        raise _unwritable(place, error.strerror or str(error)) from error


def _unwritable(place: Path, why: str) -> InvalidValueError:
    return InvalidValueError(f"cannot write {place}: {why}", where=WHERE, hint="name a file in a folder you may write to")


def calibration_parts(document: Mapping[str, Any]) -> list[Any]:
    """Everything `calibrate` shows."""
    collectives = _collective_parts(document) if document["fits"] else []
    return collectives + (_site_parts(document["site"]) if document.get("site") else [])


def _site_parts(site: Mapping[str, Any]) -> list[Any]:
    """The factors of a site, and its runs before and after."""
    shown = table("run", "measured", "modelled", "error", "with factors", "error", left=("run",))
    for run in site["runs"]:
        measured, before, after = (run[f"{name}_step_time_s"] for name in ("measured", "before", "after"))
        shown.add_row(
            run["id"],
            words.seconds(measured),
            words.seconds(before),
            f"{100 * (before / measured - 1):+.1f} %",
            words.seconds(after),
            f"{100 * (after / measured - 1):+.1f} %",
        )
    factors = ", ".join(f"{part} {site[part]:.3f}" for part in PARTS)
    note = "times of this site over modelled times" if len(site["runs"]) > 1 else "one run gives one factor for all parts"
    return [shown, paragraph(f"{factors}: {note}. Errors are of the runs the factors were fitted to.")]


def _collective_parts(document: Mapping[str, Any]) -> list[Any]:
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
