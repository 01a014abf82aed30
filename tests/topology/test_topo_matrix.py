import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from topology_dumps import matrix_words, simple_matrix, topo_matrix

from shardwright.errors import DamagedFileError, ShardwrightError, UnsupportedError
from shardwright.hardware.readers import read_text
from shardwright.hardware.readers.base import Machine


def machine(text: str) -> Machine:
    found = read_text(text, "topo.txt").machines
    assert len(found) == 1
    return found[0]


def outcome(text: str) -> tuple[Machine | None, ShardwrightError | None]:
    try:
        return machine(text), None
    except ShardwrightError as error:
        return None, error


PLAIN = machine(simple_matrix())


def test_islands_rails_sockets() -> None:
    assert PLAIN.layout.islands == ((0, 1, 2, 3),)
    assert [nic.gpus for nic in PLAIN.layout.nics] == [(0,), (1,), (2,), (3,)]
    assert PLAIN.layout.sockets == ((0, 1), (2, 3))
    assert [nic.socket for nic in PLAIN.layout.nics] == [0, 0, 1, 1]
    assert (PLAIN.links_of_gpu, PLAIN.direct) == (12, False)


@pytest.mark.parametrize("how", [{"sep": " "}, {"legend": False}, {"sep": " ", "legend": False}], ids=str)
def test_tabs_or_blanks_with_or_without_legend(how: dict[str, object]) -> None:
    assert machine(simple_matrix(**how)) == PLAIN


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: text.replace("GPU0\tGPU1", "\x1b[4mGPU0\tGPU1", 1).replace("NUMA Affinity", "NUMA Affinity\x1b[0m", 1),
        lambda text: "\x1b[0m" + text.replace("\n", "\x1b[K\r\n"),
        lambda text: "user@host:~$ nvidia-smi topo -m\n" + text,
        lambda text: "\ufeff" + text,
        lambda text: text.replace("GPU0\tGPU1", "^[[4mGPU0\tGPU1", 1),
    ],
)
def test_what_terminals_add_does_no_harm(wrap) -> None:
    assert machine(wrap(simple_matrix())) == PLAIN


def test_lines_with_host_names_give_a_machine_each() -> None:
    lines = simple_matrix(legend=False).splitlines()
    text = "\n".join(f"n{i}: {line}" for line in lines for i in (1, 2))
    found = read_text(text, "all.txt").machines
    assert [m.host for m in found] == ["n1", "n2"]
    assert found[0].layout == found[1].layout == PLAIN.layout


def test_cards_without_gpus_near_are_no_rails() -> None:
    layout = machine(simple_matrix(4, 6)).layout
    assert len(layout.nics) == 4
    assert layout.idle_nics == ("NIC4", "NIC5")


def test_the_legend_names_cards() -> None:
    text = simple_matrix() + "\nNIC Legend:\n\n  NIC0: mlx5_3\n  NIC1: mlx5_bond_0\n"
    assert [nic.name for nic in machine(text).layout.nics] == ["mlx5_3", "mlx5_bond_0", "NIC2", "NIC3"]


def test_rails_in_reverse_order() -> None:
    names, cells = matrix_words(4, 4)
    order = [0, 1, 2, 3, 7, 6, 5, 4]
    turned = [[cells[a][b] for b in order] for a in order]
    assert [nic.name for nic in machine(topo_matrix(names, turned)).layout.nics] == ["NIC3", "NIC2", "NIC1", "NIC0"]


def test_two_gpus_share_a_card_and_gpus_without_one_take_turns() -> None:
    names = ["GPU0", "GPU1", "GPU2", "GPU3", "mlx5_0", "mlx5_1"]
    near = {(0, 4): "PXB", (1, 4): "PXB"}
    cells = [
        ["X" if a == b else near.get((min(a, b), max(a, b)), "NV6" if max(a, b) < 4 else "SYS") for b in range(6)]
        for a in range(6)
    ]
    layout = machine(topo_matrix(names, cells)).layout
    assert [(nic.name, nic.gpus) for nic in layout.nics] == [("mlx5_0", (0, 1, 2, 3))]
    assert layout.idle_nics == ("mlx5_1",)
    near |= {(2, 5): "PIX"}
    cells = [
        ["X" if a == b else near.get((min(a, b), max(a, b)), "NV6" if max(a, b) < 4 else "SYS") for b in range(6)]
        for a in range(6)
    ]
    assert [(nic.name, nic.gpus) for nic in machine(topo_matrix(names, cells)).layout.nics] == [
        ("mlx5_0", (0, 1)),
        ("mlx5_1", (2, 3)),
    ]


def test_four_cards_beside_every_other_gpu() -> None:
    """GPUs 0, 2, 4 and 6 have a card beside them, the others reach one of their socket: two GPUs share each card."""
    names = [*(f"GPU{i}" for i in range(8)), *(f"NIC{i}" for i in range(4))]

    def cell(a: int, b: int) -> str:
        a, b = min(a, b), max(a, b)
        if b < 8:
            return "X" if a == b else "NV12"
        if a < 8:
            return "PIX" if a == 2 * (b - 8) else "NODE" if a // 4 == (b - 8) // 2 else "SYS"
        return "X" if a == b else "NODE" if (a - 8) // 2 == (b - 8) // 2 else "SYS"

    cells = [[cell(a, b) for b in range(12)] for a in range(12)]
    layout = machine(topo_matrix(names, cells, per_socket=4)).layout
    assert [nic.gpus for nic in layout.nics] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert [nic.socket for nic in layout.nics] == [0, 0, 1, 1]


def test_pcie_box() -> None:
    found = machine(simple_matrix(4, 0, links=""))
    assert found.layout.islands == ((0,), (1,), (2,), (3,))
    assert found.layout.sockets == ((0, 1), (2, 3))
    assert found.links_of_gpu is None


def test_a_mesh_without_switch_keeps_its_links() -> None:
    names = [f"GPU{i}" for i in range(4)]
    counts = {(0, 1): 2, (0, 2): 1, (1, 3): 1, (2, 3): 2, (0, 3): 1}
    cells = [
        ["X" if a == b else f"NV{n}" if (n := counts.get((min(a, b), max(a, b)))) else "PHB" for b in range(4)]
        for a in range(4)
    ]
    found = machine(topo_matrix(names, cells))
    assert found.layout.islands == ((0, 1, 2, 3),)
    assert found.layout.link_counts is not None
    assert found.layout.link_counts[1] == (2, 0, 0, 1)
    assert found.direct


@pytest.mark.parametrize(
    ("links", "size", "total", "direct"), [("NV4", 4, 12, True), ("NV6", 4, 18, True), ("NV6", 8, 6, False)]
)
def test_links_pair_by_pair_or_through_a_switch(links: str, size: int, total: int, direct: bool) -> None:
    found = machine(simple_matrix(size, 0, links=links))
    assert (found.links_of_gpu, found.direct, found.layout.link_counts) == (total, direct, None)


# --- damage -------------------------------------------------------------------------------------------------------


def test_the_pcie_matrix_is_refused() -> None:
    text = simple_matrix(links="", nvlink_line=False)
    with pytest.raises(UnsupportedError, match="hides NVLinks") as caught:
        machine(text)
    assert "nvidia-smi topo -m" in caught.value.hint
    with pytest.raises(UnsupportedError, match="hides NVLinks"):
        machine("$ nvidia-smi topo -mp\n" + simple_matrix(links=""))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace("NV12\tNV12", "NV12NV12", 1),
        lambda text: text.replace("SYS\tSYS", "SYSSYS"),
        lambda text: text.replace("GPU0\tGPU1\tGPU2", "GPU0GPU1\tGPU2", 1),
        lambda text: text.replace("\tNV12\tNV12", "\t\tNV12", 1),
        lambda text: text.replace("\tNV12\tNV12\tNV12", "\tNV12\tNV12", 1),
    ],
    ids=["cells", "all cells", "names", "empty", "lost"],
)
def test_cells_that_grew_together_or_got_lost_are_repaired_and_said(spoil) -> None:
    reading = read_text(spoil(simple_matrix()), "topo.txt")
    assert reading.machines[0].layout == PLAIN.layout
    assert "topo.txt:" in reading.notes[0]


@pytest.mark.parametrize("cell", [3, 4, 6])
def test_a_lost_cell_among_blanks_is_found_by_its_column(cell: int) -> None:
    names, cells = matrix_words(4, 4)
    short = [row if index != 1 else row[:cell] + row[cell + 1 :] for index, row in enumerate(cells)]
    reading = read_text(topo_matrix(names, short, sep=" "), "topo.txt")
    assert reading.machines[0].layout.nics == PLAIN.layout.nics
    assert "row GPU1 lacks cells" in reading.notes[0]


@pytest.mark.parametrize(
    ("spoil", "line", "word"),
    [
        (lambda t: t.replace("NV12", "NV8", 1), 2, "GPU0/GPU1 is NV8"),
        (lambda t: t.replace("\tNV12\tNV12", "\tWAT\tNV12", 1), 2, "WAT"),
        (lambda t: "\n".join(t.split("\n")[:3]), 3, "row GPU2 is missing"),
        (lambda t: t.replace("GPU3\tNV12", "GPU2\tNV12", 1), 5, "twice"),
        (lambda t: t.replace("GPU2\tNV12", "GPU9\tNV12", 1), 4, "GPU9"),
        (lambda t: t.replace("GPU2\tNV12", "NV12\tNV12", 1), 4, "wrapped"),
        (lambda t: t.replace("GPU1\tNV12\t X ", "GPU1\tNV12\tNV12", 1), 3, "not X"),
        (lambda t: t.replace("\t X \tNV12", "\t\tX", 1), 2, "is X"),
    ],
)
def test_what_cannot_be_repaired_is_named_by_line_and_cell(spoil, line: int, word: str) -> None:
    with pytest.raises(DamagedFileError, match=word) as caught:
        machine(spoil(simple_matrix()))
    assert caught.value.where == f"topo.txt:{line}"
    assert caught.value.hint


def test_a_cell_lost_on_both_sides() -> None:
    text = simple_matrix().replace("GPU0\t X \tNV12", "GPU0\t X \t", 1).replace("GPU1\tNV12", "GPU1\t", 1)
    with pytest.raises(DamagedFileError, match="GPU0/GPU1 is empty"):
        machine(text)


@given(st.integers(0, 10_000), st.sampled_from(["\t", " "]))
def test_cut_anywhere_it_is_whole_or_named(cut: int, sep: str) -> None:
    text = simple_matrix(sep=sep, legend=False)
    found, fault = outcome(text[: cut % len(text)])
    if fault is None:
        assert found is not None
        assert found.layout.islands == PLAIN.layout.islands
    else:
        assert fault.exit_code == 2
        assert "topo.txt" in fault.where


@given(st.randoms(use_true_random=False))
def test_relabelled_gpus_are_the_same_machine(chance: random.Random) -> None:
    names, cells = matrix_words(6, 6, per_socket=3)
    order = list(range(12))
    head, tail = order[:6], order[6:]
    chance.shuffle(head)
    chance.shuffle(tail)
    order = head + tail
    turned = [[cells[a][b] for b in order] for a in order]
    layout = machine(topo_matrix(names, turned, affinity=False, legend=True)).layout
    served = {nic.name: nic.gpus for nic in layout.nics}
    assert served == {f"NIC{j}": (head.index(tail[j] - 6),) for j in range(6)}
    assert sorted(nic.gpus for nic in layout.nics) == [(i,) for i in range(6)]
