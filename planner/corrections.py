"""What a calibration corrects on the cluster of a problem."""

from __future__ import annotations

from pathlib import Path

from shardwright.errors import ConflictError
from shardwright.hardware.calibration import Calibration, Corrections
from shardwright.hardware.cluster import Cluster

WHERE = "--calibration"


def corrections_from(given: str | Path | Calibration | None, cluster: Cluster) -> Corrections | None:
    """What a calibration corrects on a cluster; None without one.

    Raises:
        DamagedFileError: the file is no calibration.
        ConflictError: it was measured on another machine, or the cluster mixes several.
    """
    if given is None:
        return None
    if cluster.mixed:
        hint = "plan a part of one kind of node with it, or leave the calibration out"
        raise ConflictError("a calibration speaks of one kind of node; this cluster mixes several", where=WHERE, hint=hint)
    if not isinstance(given, Calibration):
        from shardwright.hardware.calibration_file import load_calibration

        given = load_calibration(Path(given))
    return Corrections.of(given.bound(cluster))
