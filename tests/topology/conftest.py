"""Runs `shardwright` in this process."""

import pytest

from shardwright import cli


@pytest.fixture
def shardwright(capsys):
    """Calls a command line; gives exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            cli.main([str(a) for a in arguments])
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        assert isinstance(left.value.code, int)
        return left.value.code, shown.out, shown.err

    return call
