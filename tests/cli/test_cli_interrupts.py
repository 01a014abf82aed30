"""Ctrl-C: from the first line of ours on it ends the program quietly, with 130."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}


@pytest.mark.parametrize("wait_s", [0.05, 0.1, 0.15, 0.25])
def test_ctrl_c_while_modules_are_loaded_shows_no_traceback(wait_s):
    """The process tells when it has begun; from then on Ctrl-C at any moment ends it quietly."""
    begun = "import sys, shardwright.__main__ as m; sys.argv[1:] = ['plan', '--help']; print('begun', flush=True); m.main()"
    process = subprocess.Popen(
        [sys.executable, "-c", begun], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    time.sleep(wait_s)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert process.returncode in {0, 130, -signal.SIGINT}  # the last while Python itself ends: shells show 130


def test_ctrl_c_where_nothing_can_be_raised_comes_again():
    """Python swallows what callbacks of weak references and `__del__` raise; the program stops nevertheless."""
    begun = (
        "import os, signal, sys, time\n"
        "import shardwright.__main__ as m, shardwright.cli as cli\n"
        "class Callback:\n"
        "    def __del__(self): os.kill(os.getpid(), signal.SIGINT); [None for _ in range(1000)]\n"
        "def command():\n"
        "    Callback()\n"
        "    time.sleep(30)\n"
        "cli.main = command\n"
        "m.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", begun], env=ENV, capture_output=True, text=True, timeout=25, check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_the_entry_loads_nothing_before_it_can_be_interrupted():
    listed = "import sys; first = set(sys.modules); import shardwright.__main__; print(*sorted(set(sys.modules) - first))"
    done = subprocess.run([sys.executable, "-S", "-c", listed], env=ENV, capture_output=True, text=True, timeout=25, check=True)
    assert set(done.stdout.split()) == {"__future__", "shardwright", "shardwright.__main__"}


def test_ctrl_c_inside_exec_of_text_is_130_too():
    """Dataclasses make their methods so; Python would end by the signal although the interrupt was handled."""
    begun = (
        "import os, signal, shardwright.__main__ as m, shardwright.cli as cli\n"
        "def command():\n"
        "    exec('os.kill(os.getpid(), signal.SIGINT)\\nfor _ in range(1000): pass')\n"
        "cli.main = command\n"
        "m.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", begun], env=ENV, capture_output=True, text=True, timeout=25, check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")
