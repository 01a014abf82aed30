"""Whatever is done to a dump: it is read, or refused by one of our errors with the file's name; never anything else."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_dumps import iblinkinfo, ibnetdiscover, nccl_dump, provider_file, rocm, scontrol, simple_matrix, tree_conf

from shardwright.errors import ShardwrightError
from shardwright.hardware.readers import TopoOptions, read_text
from shardwright.hardware.readers.combine import combine

HOSTS = ("n1", "n2", "n3")
MODEL = "switches:\n  s: {switches: [a]}\nblocks:\n  - {switch: a, nodes: ['n[1-3]']}\n"
DUMPS = {
    "matrix": simple_matrix(),
    "blanks": simple_matrix(sep=" "),
    "rocm": rocm(4),
    "xml": nccl_dump(),
    "provider": provider_file(),
    "tree": tree_conf(),
    "blocks": "BlockName=a Nodes=n[1-3]\nBlockSizes=3\n",
    "yaml": MODEL,
    "hosts": scontrol(HOSTS),
    "fabric": ibnetdiscover(HOSTS),
    "links": iblinkinfo(HOSTS),
}
DUMP = st.sampled_from(sorted(DUMPS))


def survives(text: str) -> None:
    """Reads a text and makes a cluster of it, or sees it refused as it should be."""
    try:
        draft = combine([read_text(text, "dump")], TopoOptions())
    except ShardwrightError as error:
        fault: ShardwrightError | None = error
    else:
        fault = None
        assert draft.data["groups"]
    assert fault is None or (fault.exit_code == 2 and fault.where and fault.message)


@settings(max_examples=150)
@given(DUMP, st.floats(0, 1))
def test_cut_short(name: str, where: float) -> None:
    survives(DUMPS[name][: int(where * len(DUMPS[name]))])


@settings(max_examples=100)
@given(DUMP, st.randoms(use_true_random=False))
def test_lines_shuffled_lost_or_twice(name: str, chance: random.Random) -> None:
    lines = DUMPS[name].split("\n")
    start = chance.randrange(len(lines))
    part = lines[start : start + 6]
    chance.shuffle(part)
    survives("\n".join([*lines[:start], *part, *chance.choices(lines, k=2), *lines[start + 6 :]]))


@settings(max_examples=200)
@given(DUMP, st.randoms(use_true_random=False), st.text(max_size=6))
def test_characters_changed(name: str, chance: random.Random, other: str) -> None:
    text = DUMPS[name]
    start = chance.randrange(len(text))
    survives(text[:start] + other + text[start + chance.randrange(8) :])


@given(st.lists(DUMP, min_size=2, max_size=3))
def test_formats_run_together(names: list[str]) -> None:
    survives("\n".join(DUMPS[name] for name in names))


@settings(max_examples=50)
@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    survives(text)


@pytest.mark.parametrize(
    "text",
    [
        "GPU0" * 100_000,
        "\t" * 100_000,
        "<system>" + "<pci/>" * 300_000 + "</system>",
        "SwitchName=a Nodes=n[1-999999999999]\n",
        "SwitchName=" + "a" * 100_000 + " Nodes=n1\n",
        "\n".join(f"SwitchName=s{i} Switches=s{i + 1}" for i in range(3000)) + "\nSwitchName=s3000 Nodes=n1\n",
        "==(" * 50_000 + ")==>",
        "[1]" * 50_000,
        "switches:\n  a: {switches: [" + "b, " * 10_000 + "b]}\nblocks:\n - {switch: b, nodes: [n1]}\n",
        'Switch\t999999999 "S-1"\t# "x" port\n' + '[1]\t"S-1"[2]\t# "x" lid 1 4xHDR\n' * 1000,
        "\x00\x01\x02" * 1000,
    ],
    ids=range(11),
)
def test_huge_or_binary(text: str) -> None:
    survives(text)
