"""The folder `plan -o DIR` writes: `result.json`, `plans.csv`, `README.txt`; and `hosts.txt`, `ranks.json` of placed plans.

A new folder appears complete or not at all (written beside its place, then renamed); in a folder that holds an
earlier result each file is replaced in one step, `result.json` last, and other files are left alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwright.documents import rounded
from shardwright.errors import ConflictError, InvalidValueError
from shardwright.planner.report import rows
from shardwright.planner.report.output import json_text, render
from shardwright.planner.report.style import Style

RESULT = "result.json"
HOSTS, RANKS = "hosts.txt", "ranks.json"
WHERE = "-o"


def check_folder(folder: Path) -> None:
    """Sees to it, before any work is done, that a result may be written there.

    Raises:
        InvalidValueError: it is a file, or cannot be looked at.
        ConflictError: it holds other things than an earlier result.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise InvalidValueError(f"{folder} is a file", where=WHERE, hint="name a folder; it is made if need be")
        above = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        if not (above.is_dir() and os.access(above, os.W_OK)):
            raise _unusable(folder, PermissionError(0, f"{above} is no folder that can be written to"))
        taken = folder.is_dir() and any(folder.iterdir()) and not (folder / RESULT).is_file()
    except OSError as error:
        raise _unusable(folder, error) from error
    if taken:
        raise ConflictError(
            f"{folder} is not empty and holds no earlier result", where=WHERE, hint="name a new or empty folder"
        )


def write_result(folder: Path, result: Mapping[str, Any]) -> tuple[Path, ...]:
    """Writes the three files.

    Returns:
        their paths.

    Raises:
        InvalidValueError: the folder cannot be written.
        ConflictError: it holds other things than an earlier result.
    """
    check_folder(folder)
    texts = _texts(result)
    try:
        _write(folder, texts)
    except OSError as error:
        raise _unusable(folder, error) from error
    return tuple(folder / name for name in texts)


def _texts(result: Mapping[str, Any]) -> dict[str, str]:
    plain = rounded(result)
    return {
        **_placed(plain),
        "plans.csv": rows.csv_text(rows.plan_rows(plain), rows.plan_columns(plain)),
        "README.txt": _readme(plain),
        RESULT: json_text(plain),
    }


def _placed(result: Mapping[str, Any]) -> dict[str, str]:
    """The hosts of the first plan in rank order, and the ranks of each."""
    plans = result["plans"]
    placement = plans[0].get("placement") if plans else None
    if placement is None:
        return {}
    each = -(-plans[0]["parallel"]["world_size"] // len(placement["hosts"]))
    ranks = [{"host": host, "ranks": f"{i * each}-{(i + 1) * each - 1}"} for i, host in enumerate(placement["hosts"])]
    made = {"order": placement["order"], "ranks_per_host": each, "hosts": ranks}
    return {HOSTS: "".join(f"{host}\n" for host in placement["hosts"]), RANKS: json_text(made)}


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    home = folder if folder.is_dir() else folder.parent
    home.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".shardwright-", dir=home))
    try:
        draft.chmod(0o755)
        for name, text in texts.items():
            (draft / name).write_text(text, encoding="utf-8")
        if home is folder:
            for name in {HOSTS, RANKS} - set(texts):  # of an earlier result
                (folder / name).unlink(missing_ok=True)
            for name in texts:
                (draft / name).replace(folder / name)
        else:
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _unusable(folder: Path, error: OSError) -> InvalidValueError:
    return InvalidValueError(
        f"cannot write {folder}: {error.strerror or error}", where=WHERE, hint="name a folder you may write to"
    )


_README = """\
Parallelism plans by shardwright.

result.json  everything: inputs, ranked plans, search account (schema: shardwright schema plan-result)
plans.csv    one row a ranked plan
hosts.txt    hosts of the first plan in rank order, ranks.json the ranks of each; only where the cluster names hosts
README.txt   this text

Price a plan again from this folder alone:

    shardwright estimate --plan {name} --rank 1


"""


def _readme(result: Mapping[str, Any]) -> str:
    return _README.format(name=RESULT) + render(result, "table", Style())
