"""Scripts are read, never run."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reader_scripts import DEEPSEEK, LLAMA, MIXTRAL, SUBMITTED

from shardwright.errors import DamagedFileError, InvalidValueError, ShardwrightError
from shardwright.planner.readers.arithmetic import arithmetic, numbers
from shardwright.planner.readers.launches import slurm_variables, world_size
from shardwright.planner.readers.shell_values import trimmed
from shardwright.planner.readers.shell_walk import Word, directives_of, read_script


def arguments(text: str, defined: dict[str, str] | None = None) -> str:
    return " ".join(word.text for word in read_script(text, "run.sh", defined).arguments)


def words(text: str) -> tuple[Word, ...]:
    return tuple(Word(text=part, line=1) for part in text.split())


@pytest.mark.parametrize(
    ("before", "written", "expected"),
    [
        ("A=4", "$A ${A} \"$A\" '$A'", "4 4 4 $A"),
        ("A=4; B=$A$A", "$B", "44"),
        ('A="--x 1 --y"', "$A", "--x 1 --y"),
        ("", "${A:-5} ${A-6} ${A:+7}", "5 6"),
        ("A=", "${A:-5} ${A-6}", "5"),
        ("A=3", "${A:-5} ${A:+7}", "3 7"),
        ("", "${A:=9} $A", "9 9"),
        ("A=(1 2 'c d')", '${A[@]} ${A[1]} ${#A[@]} "${A[@]}"', "1 2 c d 2 3 1 2 c d"),
        ("A=(1); A+=(2 3)", "${A[*]}", "1 2 3"),
        ("A=12; A+=3", "$A", "123"),
        ("G=8; N=4", "$((G*N)) $(( $G ** 2 - 1 )) $((G % 3 ? 10/3 : 0))", "32 63 3"),
        ("A=path/to/model.json", "${A##*/} ${A%.json} ${A#path/}", "model.json path/to/model to/model.json"),
        ("A=1 # comment", "$A #not this\n#nor this", "1"),
        ("A=$'tab\\there'", '"$A"', "tab\there"),
        ("A=1\nunset A", "${A:-gone}", "gone"),
        ("f() { B=$1; }\nf 7", "$B", "7"),
        ("A=8B\ncase $A in 7B) L=1;; 8?|9B) L=32;; *) L=0;; esac", "$L", "32"),
        ("for A in 3 4; do B=$A; done", "$B", "3"),
        ("A=2\nif [ $A -ge 2 ] && [[ x != y ]]; then B=yes; else B=no; fi", "$B", "yes"),
        ('if [[ -z "$A" || -f x ]]; then B=empty; fi', "$B", "empty"),
        ("A=1; ((A > 0)) && B=more", "$B", "more"),
        ('[ -n "$A" ] || B=unset', "$B", "unset"),
        ("declare -a A=(5 6); local C=7; readonly D=8", "${A[0]} $C $D", "5 7 8"),
        ("A=1 && B=2 || C=3", "$A $B ${C:-none}", "1 2 none"),
        ("A=\\\n5", "$A", "5"),
    ],
)
def test_values_are_told(before: str, written: str, expected: str) -> None:
    assert arguments(f"{before}\npython train.py --a {written}\n") == f"--a {expected}"


def test_a_whole_script_is_followed() -> None:
    script = read_script(LLAMA, "run.sh")
    text = " ".join(word.text for word in script.arguments)
    assert "--num-layers 32 --hidden-size 4096" in text
    assert "--global-batch-size 128" in text
    assert "--sequence-parallel --use-distributed-optimizer --overlap-grad-reduce" in text
    assert "--fp8-format" not in text
    assert script.program == "pretrain_gpt.py"
    assert world_size(script.launcher, script.directives) == 8
    assert script.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_DEBUG": "WARN"}
    assert script.notes == ()
    line = next(word.line for word in script.arguments if word.text == "--swiglu")
    assert LLAMA.splitlines()[line - 1].strip().startswith("--swiglu")


def test_commands_in_texts_and_here_documents_are_found() -> None:
    mixtral = read_script(MIXTRAL, "run.sh", slurm_variables(directives_of(MIXTRAL)))
    assert world_size(mixtral.launcher, mixtral.directives) == 32
    assert "--num-experts 8" in " ".join(word.text for word in mixtral.arguments)
    deepseek = read_script(DEEPSEEK, "run.sh")
    assert "--pipeline-model-parallel-layout Et*3|(tt|)*29,m|L" in " ".join(word.text for word in deepseek.arguments)
    assert world_size(deepseek.launcher, deepseek.directives) == 1024
    assert deepseek.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert deepseek.program == "pretrain_gpt.py"
    sharded = read_script(DEEPSEEK, "run.sh", {"USE_FSDP": "1"})
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in sharded.environment
    assert "--use-megatron-fsdp" in [word.text for word in sharded.arguments]


def test_a_script_that_another_submits_is_read_with_its_variables() -> None:
    script = read_script(SUBMITTED, "run.sh")
    text = " ".join(word.text for word in script.arguments)
    assert text == "--num-layers 32 --hidden-size 4096 --tensor-model-parallel-size 8 --save ${HOME}/x"
    assert world_size(script.launcher, script.directives) == 32
    assert script.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    verbatim = read_script("A=1\nbash <<'EOF'\npython t.py --a $A\nEOF\n", "run.sh")
    assert [word.text for word in verbatim.arguments] == ["--a", "1"]


@pytest.mark.parametrize(
    "hostile",
    [
        "$(touch {mark})",
        "`touch {mark}`",
        '"$(touch {mark})"',
        "<(touch {mark})",
        "${{A:-$(touch {mark})}}",
        "$(( $(touch {mark}) + 1 ))",
        "${{A:=`touch {mark}`}}",
    ],
)
def test_nothing_is_run(tmp_path: Path, hostile: str) -> None:
    mark = tmp_path / "ran"
    text = f"X={hostile.format(mark=mark)}\neval touch {mark}\nbash -c 'touch {mark}'\npython train.py --layers $X --b 1\n"
    script = read_script(text, "run.sh")
    assert not mark.exists()
    told = [word for word in script.arguments if word.text not in {"--layers", "--b", "1"}]
    assert all(word.unknowns for word in told)


def test_what_only_running_could_tell_is_named() -> None:
    text = (
        "N=$(nproc)\nif command -v nvidia-smi; then G=8; else G=1; fi\nsource env.sh\npython t.py --a $N --b $MISSING --c $1\n"
    )
    script = read_script(text, "run.sh")
    unknown = {(part.text, part.line) for word in script.arguments for part in word.unknowns}
    assert unknown == {("$(nproc)", 1), ("$MISSING", 4), ("$1", 4)}
    assert [note.split(":")[1] for note in script.notes] == ["2", "3"]
    told = read_script(text, "run.sh", {"MISSING": "5", "1": "6", "N": "7"})
    assert [word.text for word in told.arguments] == ["--a", "7", "--b", "5", "--c", "6"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('A="never closed\n', 1),
        ("A=1\nB=(1 2\n", 2),
        ("A=1\nB=${C\n", 2),
        ("A=1\n\nif true; then A=2\n", 5),
        ("A=1\nfi\n", 2),
        ("case x in\n a) B=1\n", 4),
        ("f() {\nA=1\n", 4),
        ("A=" + "$(" * 200 + "\n", 1),
        ("A=" + "${B:-" * 60 + "1" + "}" * 60 + "\n", 1),
    ],
)
def test_damaged_scripts_are_refused_with_their_line(text: str, line: int) -> None:
    with pytest.raises(DamagedFileError) as caught:
        read_script(text, "run.sh")
    assert caught.value.where.startswith("run.sh:")
    assert abs(int(caught.value.where.split(":")[1]) - line) <= 1


def test_values_without_end_are_refused() -> None:
    growing = "A=xxxxxxxxxx\n" + "A=$A$A$A$A$A$A$A$A$A$A\n" * 12
    with pytest.raises(DamagedFileError, match="grows beyond"):
        read_script(growing, "run.sh")
    endless = "f() { f; f; }\nf\npython t.py --a 1\n"
    assert arguments(endless) == "--a 1"


@given(st.text("AB=$(){}[]\"'`;|&<>\\ \n\t#!-1+*/:%@?~if then fi do done for in case esac", max_size=120))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        script = read_script(text, "run.sh")
    except ShardwrightError as error:
        fault = error
    else:
        assert isinstance(script.arguments, tuple)
        return
    assert fault.where.startswith("run.sh")


@pytest.mark.parametrize(
    ("launcher", "directives", "ranks"),
    [
        ("torchrun --nproc-per-node 8 --nnodes=2 x", "", 16),
        ("python -m torch.distributed.run --nproc_per_node=4", "", 4),
        ("torchrun --standalone --nproc-per-node gpu", "", None),
        ("torchrun --nnodes 1:4 --nproc-per-node 8", "", None),
        ("torchrun --nnodes $N --nproc-per-node 8", "--nodes 4", 32),
        ("deepspeed --num_nodes 2 --num_gpus 8", "", 16),
        ("deepspeed", "", None),
        ("accelerate launch --num_processes 16 --num_machines 2", "", 16),
        ("srun -N 4 --ntasks-per-node 8", "", 32),
        ("srun -l", "--nodes=2 --ntasks-per-node=4", 8),
        ("srun -n 24", "", 24),
        ("python", "", None),
    ],
)
def test_ranks_of_a_launch_line(launcher: str, directives: str, ranks: int | None) -> None:
    assert world_size(words(launcher), words(directives)) == ranks


@pytest.mark.parametrize(
    ("text", "value"),
    [("2+3*4", 14), ("(2+3)*4", 20), ("2**3**2", 512), ("-7/2", -3), ("-7%3", -1), ("1<2&&2>=2", 1), ("0?1:2", 2), ("010", 8)],
)
def test_arithmetic_is_bash_arithmetic(text: str, value: int) -> None:
    assert arithmetic(text, lambda name: None) == value


@pytest.mark.parametrize("text", ["1/0", "9**99", "9" * 40, "1+", "A", "1 2", "2**-1", "(" * 500 + "1", "__import__('os')"])
def test_other_expressions_are_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        arithmetic(text, lambda name: None)


def test_names_stand_for_expressions_but_not_for_themselves() -> None:
    names = {"A": "B+1", "B": "2", "L": "L"}
    assert arithmetic("A*A", names.get) == 9
    with pytest.raises(InvalidValueError):
        arithmetic("L", names.get)


@pytest.mark.parametrize(
    ("text", "values"),
    [("[0]*3+[1]*2", [0, 0, 0, 1, 1]), ("([0]*1+[1]*1)", [0, 1]), ("[0,1]*2", [0, 1, 0, 1]), ("4", [4]), ("[1, 0]", [1, 0])],
)
def test_lists_of_numbers(text: str, values: list[int]) -> None:
    assert numbers(text) == values


@pytest.mark.parametrize("text", ["[0]*999999+[1]*999999", "exec('x')", "[a]*3", "", "[[0]*3]*2"])
def test_no_lists_of_numbers(text: str) -> None:
    with pytest.raises(InvalidValueError):
        numbers(text)


@pytest.mark.parametrize(
    ("value", "pattern", "operator", "expected"),
    [("a.b.c", ".*", "%", "a.b"), ("a.b.c", ".*", "%%", "a"), ("a.b.c", "*.", "#", "b.c"), ("a.b.c", "*.", "##", "c")],
)
def test_trimming(value: str, pattern: str, operator: str, expected: str) -> None:
    assert trimmed(value, pattern, operator) == expected
