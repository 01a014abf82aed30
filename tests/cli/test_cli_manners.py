"""Manners: where things are printed, exit codes, and one shape for every error."""

import json
import os
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer
from cli_jobs import JOB

import shardwright as package
from shardwright import cli
from shardwright.errors import LimitReachedError
from shardwright.planner.report import failures

ROOT = Path(__file__).parents[2]
PLAN, ESTIMATE = ("plan", *JOB), ("estimate", *JOB)


def program(*arguments, **environment):
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], env=env, capture_output=True, text=True, timeout=120, check=False
    )


# --- help --------------------------------------------------------------------------------------------


def test_no_arguments_is_help_on_standard_output(shardwright):
    done = shardwright()
    assert done.code == 0
    assert done.err == ""
    assert done.out == shardwright("--help").out
    assert all(name in done.out for name in ("plan", "estimate", "validate", "show", "schema", "Exit codes"))


def test_what_commands_do_is_told_in_full(shardwright):
    listed = shardwright("--help").out.partition("Commands:")[2].partition("Exit codes")[0]
    assert len(listed.split("\n")) > len(cli.COMMANDS)
    assert "..." not in listed


@pytest.mark.parametrize("command", [command.__name__ for command in cli.COMMANDS])
def test_each_command_has_help(shardwright, command):
    done = shardwright(command, "--help")
    assert done.code == 0
    assert done.err == ""
    assert done.out == shardwright(command, "-h").out
    assert max(map(len, done.out.splitlines())) <= 80
    assert f"Example:\n  shardwright {command} " in done.out


@pytest.mark.parametrize("command", [command.__name__ for command in cli.COMMANDS])
def test_the_example_of_a_command_is_one_of_its_lines(command):
    """Every option of the example is known and every argument in place; nothing is run."""
    made = typer.main.get_command(cli.app).commands[command]
    words = shlex.split(made.epilog)
    assert words[:2] == ["shardwright", command]
    assert made.make_context(command, words[2:]).params


def test_arguments_are_named_as_they_are_written(shardwright):
    assert "explain [OPTIONS] RESULT\n" in shardwright("explain", "--help").out
    assert "sweep [OPTIONS] [MODEL...]\n" in shardwright("sweep", "--help").out


def test_a_missing_argument_is_answered_with_an_example(shardwright):
    done = shardwright("emit", "out", "-o", "launch")
    assert (done.code, done.out) == (2, "")
    assert "such as: shardwright emit out --target megatron" in done.err


# --- bad input ---------------------------------------------------------------------------------------

NEAREST = {
    "model": (("plan", "lama3.1-8b", *JOB[1:]), "unknown-name", "MODEL", "llama3.1-8b"),
    "node": ((*PLAN[:2], "--cluster", "dgx-h1000:1", *JOB[3:]), "unknown-name", "--cluster", "dgx-h100"),
    "part of a node": ((*PLAN[:2], "--cluster", "h100:1", *JOB[3:]), "unknown-name", "--cluster", "dgx-h100"),
    "command": (("plam",), "unknown-name", "shardwright", "plan"),
    "option": (("plan", "--gobal-batch", 3), "unknown-name", "shardwright plan", "--global-batch"),
    "degree of a search": ((*PLAN, "--tp", 4), "unknown-name", "shardwright plan", "--fix tp=N"),
    "pieces in a search": ((*PLAN, "--loss-chunks", 4), "unknown-name", "shardwright plan", "--fix loss_chunks=N"),
    "switch of a search": ((*PLAN, "--moe-dispatcher", "deepep"), "unknown-name", "shardwright plan", "--fix moe_dispatcher="),
    "host in a search": ((*PLAN, "--offload", "optimizer"), "unknown-name", "shardwright plan", "--fix offload="),
    "format": (("show", "models", "--format", "jsom"), "unknown-name", "--format", "json"),
    "kind": (("show", "modles"), "unknown-name", "show", "models"),
    "name": (("show", "devices", "h100-sxm5-90g"), "unknown-name", "", "h100-sxm5-80g"),
    "rule": (("show", "rules", "kv-head"), "unknown-name", "show rules", "kv-heads"),
    "schema": (("schema", "plan-reslt"), "unknown-name", "NAME", "plan-result"),
    "effort": ((*PLAN, "--effort", "proof"), "unknown-name", "--effort", "prove"),
    "objective": ((*PLAN, "--objective", "thruput"), "unknown-name", "--objective", "throughput"),
    "framework": ((*PLAN, "--framework", "megatorn"), "unknown-name", "--framework", "megatron"),
    "precision": ((*PLAN, "--precision", "bfloat16"), "unknown-name", "--precision", "bf16"),
    "optimizer": ((*PLAN, "--optimizer", "adamw-8bit"), "unknown-name", "--optimizer", "adam-8bit"),
    "gradient": ((*PLAN, "--grad-dtype", "fp23"), "unknown-name", "--grad-dtype", "fp32"),
    "stack": ((*PLAN, "--stack", "megatron-cor"), "unknown-name", "--stack", "megatron-core"),
    "meter": ((*PLAN, "--memory-meter", "reservd"), "unknown-name", "--memory-meter", "reserved"),
    "what-if": ((*PLAN, "--set", "cluster.memry_bytes=1"), "unknown-name", "--set cluster.memry_bytes", "memory_bytes"),
    "recompute": ((*ESTIMATE, "--recompute", "ful"), "unknown-name", "--recompute", "full"),
    "schedule": ((*ESTIMATE, "--pp", 2, "--schedule", "1f1c"), "unknown-name", "--schedule", "1f1b"),
    "fit": (("validate", "x.csv", "--fit", "al"), "unknown-name", "--fit", "all"),
}

REFUSED = {
    "no model": ("plan", "--cluster", "dgx-h100:1"),
    "no cluster": ("plan", "llama3.1-8b", "--seq-len", 8, "--global-batch", 8),
    "no kind": ("show",),
    "two models": ("plan", "llama3.1-8b", *JOB),
    "text for a number": ("plan", "llama3.1-8b", "--cluster", "dgx-h100:1", "--seq-len", "8k", "--global-batch", 8),
    "negative batch": (*PLAN[:-1], -8),
    "no batch": (*PLAN[:-1], 0),
    "huge batch": (*PLAN[:-1], 10**30),
    "no value": ("plan", "llama3.1-8b", "--cluster"),
    "top 0": (*PLAN, "--top", 0),
    "tie too wide": (*PLAN, "--tie", 50),
    "tie not a number": (*PLAN, "--tie", "nan"),
    "margin not a number": (*PLAN, "--memory-margin", "nan"),
    "negative margin": (*PLAN, "--memory-margin", -1),
    "no such count": (*PLAN, "--gpus", 9),
    "cluster without count": ("plan", "llama3.1-8b", "--cluster", "dgx-h100", *JOB[3:]),
    "no such file": ("plan", "missing/config.json", *JOB[1:]),
    "price of an estimate unknown": ("estimate", "llama3.1-8b", "--cluster", "dgx-b200:1", *JOB[3:], "--objective", "cost"),
    "price without value": (*PLAN, "--price", "dgx-h100"),
    "price of another node": (*PLAN, "--price", "dgx-a100-80g=1"),
    "price no number": (*PLAN, "--price", "dgx-h100=cheap"),
    "price of nothing": (*PLAN, "--price", "dgx-h100=0"),
    "power unknown": (*PLAN, "--set", "operation.pue=0.5"),
    "fix without value": (*PLAN, "--fix", "tp"),
    "fix empty": (*PLAN, "--fix", ""),
    "fix unknown": (*PLAN, "--fix", "ttp=4"),
    "fix no number": (*PLAN, "--fix", "tp=four"),
    "fix that cannot be": (*PLAN, "--fix", "tp=0"),
    "what-if without value": (*PLAN, "--set", "cluster.memory_bytes"),
    "degree 0": (*ESTIMATE, "--tp", 0),
    "negative degree": (*ESTIMATE, "--pp", -2),
    "zero 4": (*ESTIMATE, "--zero", 4),
    "rank without plan": (*ESTIMATE, "--rank", 1),
    "cp comm unknown": (*ESTIMATE, "--cp", 2, "--cp-comm", "ring"),
    "offload of an unknown part": (*ESTIMATE, "--offload", "optimiser"),
    "offload of more than all": (*ESTIMATE, "--offload", "optimizer=1.5"),
    "offload twice": (*ESTIMATE, "--offload", "optimizer,optimizer=0.5"),
    "offload fixed to nothing known": ("plan", *JOB, "--fix", "offload=host"),
    "cp comm unpriced": (*ESTIMATE, "--cp", 2, "--cp-comm", "a2a+p2p"),
    "layers no numbers": (*ESTIMATE, "--layers-per-stage", "a,b"),
    "layers do not sum": (*ESTIMATE, "--pp", 2, "--layers-per-stage", "1,2"),
    "plan missing": ("estimate", "--plan", "missing.json"),
    "runs missing": ("validate", "missing.csv"),
    "no dispatcher": (*ESTIMATE, "--moe-dispatcher", ""),
    "skew below the mean": (*ESTIMATE, "--routing-skew", 0.5),
    "skew not a number": (*ESTIMATE, "--routing-skew", "nan"),
    "no pieces": (*ESTIMATE, "--loss-chunks", 0),
    "pieces without end": (*ESTIMATE, "--loss-chunks", 10**30),
    "more than all offloaded": (*ESTIMATE, "--offload", "optimizer=2"),
    "nothing and something offloaded": (*ESTIMATE, "--offload", "none,optimizer"),
    "fitted factor not a number": (*ESTIMATE, "--set", "fit.streams=true"),
    "fitted factor out of range": (*ESTIMATE, "--set", "fit.streams=1e9"),
}

REFUSED |= {
    "result unnamed": ("explain", ""),
    "plan unnamed": ("estimate", "--plan", ""),
    "bundle unnamed": ("emit", "x.json", "--target", "megatron", "-o", ""),
    "no days": ("size", "gpt2", "--tokens", "1T", "--days", 0, "--seq-len", 512, "--global-batch", 8),
    "no such node type": ("size", "gpt2", "--tokens", "1T", "--days", 1, "--seq-len", 512, "--global-batch", 8, "--node", "x"),
}

CONFLICTS = {
    "option twice": ("estimate", *JOB, "--tp", 2, "--tp=4"),
    "sequence twice": (*PLAN, "--seq-len", 4096),
    "on and off": (*ESTIMATE, "--sequence-parallel", "--no-sequence-parallel"),
    "fixed twice": (*PLAN, "--fix", "tp=4", "--fix", "tp=8"),
    "fixed twice by two names": (*PLAN, "--fix", "zero=1,zero_stage=2"),
    "set twice": (*PLAN, "--set", "model.layers=2", "--set", "model.layers=3"),
    "plan and degree": ("estimate", "--plan", "x.json", "--tp", 2),
    "plan and model": ("estimate", "llama3.1-8b", "--plan", "x.json"),
    "plan and sequence": ("estimate", "--plan", "x.json", "--seq-len", 8),
    "plan and precision": ("estimate", "--plan", "x.json", "--precision", "bf16"),
    "plan and switch": ("estimate", "--plan", "x.json", "--no-sequence-parallel"),
}


@pytest.mark.parametrize("name", NEAREST)
def test_a_wrong_word_gets_the_nearest_right_one(shardwright, name):
    arguments, code, where, word = NEAREST[name]
    done = shardwright(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert f"  hint: did you mean {word}" in done.err or word in done.err.partition("  hint: ")[2]
    if name != "format":
        error = shardwright(*arguments, "--format", "json").error
        assert error["code"] == code
        assert error["where"].startswith(where)


@pytest.mark.parametrize("name", [*REFUSED, *CONFLICTS])
def test_misuse_is_refused_with_a_reason(shardwright, name):
    arguments = {**REFUSED, **CONFLICTS}[name]
    done = shardwright(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert len(done.err) > 30
    as_json = shardwright(*arguments, "--format", "json")
    assert as_json.code == 2
    assert as_json.out == ""
    assert as_json.error.keys() == {"code", "message", "where", "hint"}
    assert as_json.error["code"] not in {"error", "internal"}
    assert as_json.error["message"]
    assert as_json.error["where"]


@pytest.mark.parametrize("given", ["2.5", "nan", "1e3", "many"])
def test_what_was_given_for_a_number_is_told(shardwright, given):
    error = shardwright(*ESTIMATE, "--loss-chunks", given, "--format", "json").error
    assert given in error["message"]
    assert error["where"] == "--loss-chunks"


@pytest.mark.parametrize("given", ["true", "null", "text", "[1]", "0", "1e9"])
def test_a_fitted_factor_is_told_as_it_was_given(shardwright, given):
    error = shardwright(*ESTIMATE, "--set", f"fit.streams={given}", "--format", "json").error
    assert error["message"] == f"fit.streams is {given}"
    assert error["where"] == "--set fit.streams"


def test_axes_are_fixed_in_the_spelling_of_options(shardwright):
    names = ("micro-batch=2", "micro_batch=2")
    fixed = [shardwright(*PLAN, "--effort", "scan", "--top", 1, "--fix", f"tp=1,{name}", "--format", "json") for name in names]
    first, second = (done.json for done in fixed)
    assert first["plans"] == second["plans"]
    assert first["search"]["space"]["micro_batch"] == [2]


@pytest.mark.parametrize("name", CONFLICTS)
def test_two_sources_for_one_value_are_a_conflict(shardwright, name):
    assert shardwright(*CONFLICTS[name], "--format", "json").error["code"] == "conflict"


def test_the_same_value_twice_is_no_conflict(shardwright):
    assert shardwright(*ESTIMATE, "--tp", 2, "--tp=2").code == 0


@pytest.mark.parametrize(
    "text", ["", "{", '{"model_type": "llama", "hidden_size": NaN', "[]", "\x00", '{"kind": "plan-result"}']
)
def test_damaged_files_are_refused_with_their_name(shardwright, tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    for arguments in (("plan", path, *JOB[1:]), ("estimate", "--plan", path)):
        done = shardwright(*arguments, "--format", "json")
        assert done.code == 2
        assert done.out == ""
        assert str(path) in done.error["where"]


def test_a_rank_that_is_not_there(shardwright, saved_result):
    error = shardwright("estimate", "--plan", saved_result, "--rank", 9, "--format", "json").error
    assert error["where"] == "--rank"
    assert error["hint"] == "it has 1 to 3"


# --- what is no misuse -------------------------------------------------------------------------------


def raising(exception):
    def search(*_, **__):
        raise exception

    return search


def test_a_bug_is_one_line_without_traceback(shardwright, monkeypatch):
    monkeypatch.setattr("shardwright.planner.search.run.plan", raising(ZeroDivisionError("by\nzero")))
    done = shardwright(*PLAN)
    assert done.code == 2
    assert done.out == ""
    assert done.err.splitlines()[0] == "error: this is a bug in shardwright: ZeroDivisionError: by zero"
    assert shardwright(*PLAN, "--format", "json").error["code"] == "internal"


def test_a_bug_shows_its_place_on_demand(monkeypatch, capsys):
    monkeypatch.setenv("SHARDWRIGHT_DEBUG", "1")
    monkeypatch.setattr("shardwright.planner.search.run.plan", raising(ZeroDivisionError()))
    assert cli.run([str(a) for a in PLAN]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_interrupted_is_130(shardwright, monkeypatch):
    monkeypatch.setattr("shardwright.planner.search.run.plan", raising(KeyboardInterrupt()))
    done = shardwright(*PLAN, "--format", "json")
    assert done.code == 130
    assert done.error["code"] == "interrupted"


def test_a_limit_without_result_is_3(shardwright, monkeypatch):
    monkeypatch.setattr("shardwright.planner.search.run.plan", raising(LimitReachedError("out of time")))
    done = shardwright(*PLAN, "--format", "json")
    assert done.code == 3
    assert done.error["code"] == "limit-reached"


def test_a_range_of_batches_calls_the_search_there_is(shardwright, monkeypatch):
    """Imported here first, so that a search replaced by another test cannot stay in the module of ranges."""
    import_module("shardwright.planner.search.batches")
    monkeypatch.setattr("shardwright.planner.search.run.plan", raising(LimitReachedError("out of time")))
    done = shardwright("plan", "gpt2", "--cluster", "dgx-h100:1", "--seq-len", 1024, "--global-batch", "16..32")
    assert done.code == 3
    assert "out of time" in done.err


def test_an_interrupted_search_still_shows_its_best(shardwright, monkeypatch, saved_result):
    class Best:
        exit_code = 0

        def to_dict(self):
            data = json.loads((saved_result / "result.json").read_text())
            data["search"]["stopped"] = "interrupted"
            return data

    monkeypatch.setattr("shardwright.planner.search.run.plan", lambda **_: Best())
    done = shardwright(*PLAN)
    assert done.code == 130
    assert "stopped early: interrupted" in done.out


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        (["--format", "json"], "json"),
        (["--format=yaml"], "yaml"),
        (["--format", "csv", "--format", "json"], "json"),
        (["--format"], ""),
        ([], ""),
    ],
)
def test_the_format_of_a_broken_command_line(arguments, form):
    assert failures.wanted_format(arguments) == form


# --- as a program ------------------------------------------------------------------------------------

LOADED = """
import contextlib, io, sys
from shardwright.cli import run
with contextlib.redirect_stdout(io.StringIO()):
    assert run({arguments!r}) == 0
print("\\n".join(sys.modules))
"""


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], {"numpy", "networkx", "pydantic", "rich", "ruamel.yaml", "shardwright.planner.problem"}),
        (["--version"], {"numpy", "networkx", "rich", "ruamel.yaml"}),
        (["plan", "--help"], {"numpy", "networkx", "rich", "ruamel.yaml", "shardwright.planner.problem"}),
        (["estimate", "--help"], {"numpy", "networkx", "rich", "ruamel.yaml", "shardwright.planner.problem"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_help_loads_nothing_slow(arguments, unwanted):
    done = program("-c", LOADED.format(arguments=arguments))
    assert done.returncode == 0, done.stderr
    assert unwanted & set(done.stdout.split()) == set()


def test_module_and_exit_code():
    done = program("-m", "shardwright", "show", "nonsense", "--format", "json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert json.loads(done.stderr)["error"]["code"] == "unknown-name"


def test_a_reader_that_goes_away_is_no_error():
    script = f"{sys.executable} -m shardwright show nodes --format json | head -c 10; exit ${{PIPESTATUS[0]}}"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    assert done.returncode == 0


def test_terminals_without_unicode_get_ascii():
    done = program("-m", "shardwright", *ESTIMATE, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "####" in done.stdout


# --- the façade --------------------------------------------------------------------------------------


def test_the_facade_names_what_it_offers():
    assert set(package.__all__) == set(dir(package))
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'plam'"):
        _ = package.plam


def test_the_facade_prices_as_the_program_does(shardwright):
    price = package.estimate("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64, degrees=package.Degrees(tp=2))
    done = shardwright(*ESTIMATE, "--tp", 2, "--format", "json")
    assert done.json["predicted"]["step_time_s"] == pytest.approx(price.to_dict()["predicted"]["step_time_s"], rel=1e-11)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_told():
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "shardwright", "show", "targets", "--format", "json"]
        done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert json.loads(done.stderr)["error"]["where"] == "standard output"


@pytest.mark.parametrize(("closed", "code"), [(">&-", 0), ("2>&-", 0)])
def test_closed_streams_are_no_error(closed, code):
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    script = f"{sys.executable} -m shardwright show targets {closed}"
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code
    assert done.stderr == ""


LONG, STEERING = "x" * 5000, "\x1b[31mred\u202e.json\nerror: another"


@pytest.mark.parametrize(
    "command",
    [
        ("explain", LONG),
        ("compare", LONG, LONG),
        ("report", LONG, "-o", "r.html"),
        ("emit", LONG, "--target", "megatron", "-o", "out"),
        ("estimate", "--plan", LONG),
        ("validate", LONG),
        ("calibrate", "--nccl-tests", LONG, "-o", "c.json", "--cluster", "dgx-h100:1"),
        (*ESTIMATE, "--trace", LONG),
        (*PLAN, "-o", LONG),
    ],
)
def test_a_name_too_long_for_the_machine_is_misuse(shardwright, command):
    done = shardwright(*command, "--format", "json")
    assert (done.code, done.out) == (2, "")
    assert done.error["code"] in ("damaged-file", "invalid-value")
    assert len(done.error["where"]) <= len(LONG)


def test_what_the_machine_refuses_is_told_in_short():
    told = failures.fault_of(OSError(36, "File name too long", LONG))
    assert (told.code, told.exit_code) == ("invalid-value", 2)
    assert "File name too long" in told.message
    assert len(told.message) < 200


@pytest.mark.parametrize("command", [("explain",), ("compare", STEERING), ("validate",), ("show", "models")])
def test_errors_do_not_steer_the_terminal(shardwright, command):
    done = shardwright(*command, STEERING)
    assert done.code == 2
    assert "\\x1b[31mred" in done.err
    assert not {"\x1b", "\u202e"} & set(done.err)
    assert sum(line.startswith("error:") for line in done.err.splitlines()) == 1


@pytest.mark.parametrize(
    "command", [(*PLAN, "-o"), ("tune", "x.json", "--measured", "1=3", "-o"), ("calibrate", "x.log", "-o")]
)
def test_a_place_that_cannot_be_written_is_refused_before_any_work(shardwright, tmp_path, monkeypatch, command):
    """Else what was found would be lost; the inputs, which are not there, have not been looked at."""
    monkeypatch.setattr("shardwright.planner.search.run.plan", raising(AssertionError("searched")))
    (tmp_path / "file").write_text("")
    done = shardwright(*command, tmp_path / "file" / "out", "--format", "json")
    assert (done.code, done.out) == (2, "")
    assert done.error["where"] == "-o"
    assert "cannot write" in done.error["message"]


def test_one_of_a_thing_is_told_in_the_singular(shardwright):
    one = ("estimate", "gpt2", "--cluster", "dgx-h100:1x1", "--seq-len", 512, "--global-batch", 1, "--set", "model.layers=1")
    told = " ".join(shardwright(*one).out.split())
    assert "1 GPU, 1 node" in told
    assert "1 layer; 1 sequence of 512 tokens" in told
    assert "1 micro-batch of 1" in told
