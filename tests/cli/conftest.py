"""Runs command lines in this process and shows what a caller of the program would see."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_jobs import JOB

from shardwright import cli


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        """The last line of standard error as the error record."""
        error: dict[str, str] = json.loads(self.err.strip().splitlines()[-1])["error"]
        return error


@pytest.fixture
def shardwright(capsys):
    def call(*arguments: object) -> Done:
        with pytest.raises(SystemExit) as left:
            cli.main([str(a) for a in arguments])
        shown = capsys.readouterr()
        code = left.value.code
        assert isinstance(code, int)
        assert "Traceback" not in shown.err
        return Done(code=code, out=shown.out, err=shown.err)

    return call


@pytest.fixture(scope="session")
def saved_result(tmp_path_factory) -> Path:
    """A result of `plan`, in a folder."""
    folder = tmp_path_factory.mktemp("result") / "out"
    with pytest.raises(SystemExit) as left:
        cli.main(["plan", *JOB, "--top", "3", "-o", str(folder), "--format", "json"])
    assert left.value.code == 0
    return folder
