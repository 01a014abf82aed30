"""Readers of ROCm, NCCL, Slurm and InfiniBand dumps."""

import pytest
from topology_dumps import iblinkinfo, ibnetdiscover, nccl_dump, provider_file, rocm, scontrol, tree_conf

from shardwright.errors import DamagedFileError, ShardwrightError, UnknownNameError, UnsupportedError
from shardwright.hardware.readers import read_text
from shardwright.hardware.readers.base import Machine, Reading
from shardwright.hardware.readers.infiniband import host_of, is_adapter

HOSTS = ("n001", "n002", "n003", "n004")


def machine(text: str) -> Machine:
    (found,) = read_text(text, "file").machines
    return found


def network(text: str) -> Reading:
    reading = read_text(text, "file")
    assert reading.network is not None
    return reading


def refused(text: str, word: str, line: int | None = None) -> ShardwrightError:
    with pytest.raises(ShardwrightError, match=word) as caught:
        read_text(text, "file")
    assert caught.value.exit_code == 2
    assert caught.value.where == ("file" if line is None else f"file:{line}")
    return caught.value


# --- ROCm ---------------------------------------------------------------------------------------------------------


def test_a_mesh_of_xgmi_links() -> None:
    found = machine(rocm(8))
    assert found.layout.islands == (tuple(range(8)),)
    assert found.layout.sockets == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert (found.link_kind, found.links_of_gpu, found.direct) == ("xgmi", 7, True)


def test_cards_on_pcie_are_alone() -> None:
    found = machine(rocm(4, kind="PCIE", hops="2"))
    assert found.layout.islands == ((0,), (1,), (2,), (3,))
    assert found.links_of_gpu is None


@pytest.mark.parametrize(
    ("spoil", "word", "line"),
    [
        (lambda t: t[: t.index("Link Type")], "lacks the table", None),
        (lambda t: t[: t.index("Numa Nodes") - 90], "ends early|cells", 17),
        (lambda t: t.replace("XGMI", "YGMI", 1), "YGMI", 16),
        (lambda t: t.replace("XGMI", "PCIE", 1), "mirror", 16),
        (lambda t: t.replace("GPU[1]", "GPU[0]"), "2 of 4|1 of 4|3 of 4", None),
    ],
)
def test_damaged_tables_of_rocm(spoil, word: str, line: int | None) -> None:
    with pytest.raises(DamagedFileError, match=word) as caught:
        machine(spoil(rocm(4)))
    assert caught.value.where.startswith("file")


# --- NCCL XML -----------------------------------------------------------------------------------------------------


def test_a_dump_has_links_rates_and_device() -> None:
    found = machine(nccl_dump())
    layout = found.layout
    assert layout.islands == ((0, 1, 2, 3),)
    assert layout.sockets == ((0, 1), (2, 3))
    assert layout.pcie_switches == ((0,), (1,), (2,), (3,))
    assert [(nic.name, nic.bytes_per_s, nic.gpus) for nic in layout.nics] == [(f"mlx5_{i}", 25e9, (i,)) for i in range(4)]
    assert (found.links_of_gpu, found.direct, found.pci_id, found.compute_capability) == (12, False, "10de:20b2", 80)
    assert (found.pcie_bytes_per_s, found.fabric) == (32e9, "infiniband")


@pytest.mark.parametrize(
    ("name", "speed"), [("br-1f2e", 200000), ("veth01", 10000), ("docker0", 100000), ("eth0", 1000), ("eno1", 10000)]
)
def test_bridges_veth_and_slow_ethernet_are_no_fabric(name: str, speed: int) -> None:
    layout = machine(nccl_dump(nets=f'<nic><net name="{name}" dev="9" speed="{speed}"/></nic>')).layout
    assert len(layout.nics) == 4
    assert layout.idle_nics == (name,)


def test_a_file_of_a_provider_counts_pci_classes() -> None:
    found = machine(provider_file())
    assert found.gpus == 4
    assert found.layout.islands is None
    assert [nic.gpus for nic in found.layout.nics] == [(0, 1), (2, 3)]
    assert found.layout.pcie_switches == ((0, 1), (2, 3))
    assert found.pcie_bytes_per_s == 64e9  # 32 GT/s x16 is generation 5
    assert found.pci_id is None


@pytest.mark.parametrize(
    ("speed", "rate"), [("8 GT/s", 16e9), ("16.0 GT/s PCIe", 32e9), ("32.0 GT/s PCIe", 64e9), ("", None), ("Unknown", None)]
)
def test_the_generation_of_pcie_follows_from_speed_and_width(speed: str, rate: float | None) -> None:
    assert machine(nccl_dump(speed=speed)).pcie_bytes_per_s == rate


def test_links_that_lead_to_the_gpu_itself_are_left_out() -> None:
    text = nccl_dump(switch=False).replace(
        'rank="0" gdr="1">', 'rank="0" gdr="1"><nvlink target="0000:00:01.0" count="12" tclass="0x030200"/>'
    )
    reading = read_text(text, "file")
    assert reading.machines[0].layout.islands == ((0,), (1,), (2,), (3,))
    assert "names itself" in reading.notes[0]


def test_links_between_two_gpus() -> None:
    text = nccl_dump(switch=False).replace(
        'rank="0" gdr="1">', 'rank="0" gdr="1"><nvlink target="0000:01:01.0" count="12" tclass="0x030200"/>'
    )
    assert machine(text).layout.islands == ((0, 1), (2,), (3,))


def test_a_search_result_counts_gpus_only() -> None:
    text = '<graphs version="1"><graph id="0"><channel><gpu dev="0"/><gpu dev="1"/></channel></graph></graphs>'
    reading = read_text(text, "file")
    assert reading.machines[0].gpus == 2
    assert "not a topology" in reading.notes[0]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('<!DOCTYPE a [<!ENTITY x "y">]><system/>', "document type"),
        ('<!DOCTYPE system SYSTEM "file:///etc/passwd"><system/>', "document type"),
        ("<system>&undefined;</system>", "not well-formed"),
        ("<system><cpu>", "not well-formed"),
        ("<system></system>", "holds no GPU"),
        ("<system>" + "<pci>" * 100, "levels deep"),
        (nccl_dump()[:-40], "not well-formed"),
        (nccl_dump().replace('count="12"', 'count="many"'), "no whole number"),
        (nccl_dump().replace('dev="1"', 'dev="0"'), "same dev"),
        (nccl_dump(speed="fast"), "no speed"),
    ],
)
def test_xml_that_is_damaged_or_reaches_out_is_refused(text: str, word: str) -> None:
    with pytest.raises(DamagedFileError, match=word) as caught:
        read_text(text, "file")
    assert caught.value.where.startswith("file")


# --- Slurm --------------------------------------------------------------------------------------------------------


def test_a_tree_of_switches() -> None:
    found = network(tree_conf(3, 4)).network
    assert found is not None
    assert [(switch.name, switch.tier) for switch in found.switches] == [("leaf1", 1), ("leaf2", 1), ("leaf3", 1), ("spine", 2)]
    assert found.switches[1].ports[0].hosts == ("n005", "n006", "n007", "n008")
    assert found.switches[0].uplinks[0].to == "spine"
    assert found.switches[0].uplinks[0].links is None


def test_blocks() -> None:
    found = network("BlockName=b1 Nodes=n[1-18]\nblockname=b2  NODES=n[19-36] # second\nBlockSizes=18,36\n").network
    assert found is not None
    assert (found.kind, found.block_sizes) == ("blocks", (18, 36))
    assert [len(block.hosts) for block in found.blocks] == [18, 18]


def test_the_yaml_forms_are_the_same_network() -> None:
    yaml = (
        "- topology: other\n  tree: {switches: [{switch: x, nodes: y}]}\n"
        "- topology: main\n  cluster_default: true\n  tree:\n    switches:\n      - {switch: spine, children: 'leaf[1-2]'}\n"
        "      - {switch: leaf1, nodes: 'n[001-004]'}\n      - {switch: leaf2, nodes: 'n[005-008]'}\n"
    )
    assert network(yaml).network == network(tree_conf()).network


def test_a_cluster_model_with_domains() -> None:
    yaml = (
        "switches:\n  spine: {switches: [leaf1, unused]}\nblocks:\n"
        "  - {switch: leaf1, nodes: ['n[1-18]'], annotations: {example.org/domain: nvl1}}\n"
    )
    found = network(yaml).network
    assert found is not None
    assert [switch.name for switch in found.switches] == ["leaf1", "spine"]
    assert found.blocks[0].name == "nvl1"
    assert len(found.blocks[0].hosts) == 18


@pytest.mark.parametrize(
    ("text", "word", "line"),
    [
        ("SwitchName=a Switches=b\n", "b below a is not defined", 1),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "above itself", 1),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", "defined twice", 2),
        ("SwitchName=a Nodes=n1\n\nSwitchName=b Nodes=n[1-2]\nSwitchName=c Switches=a,b\n", "n1 is on switch a", 3),
        ("SwitchName=a Nodes=n[1-\n", "brackets", 1),
        ("SwitchName=a Nodes=n[3-1]\n", "backwards", 1),
        ("SwitchName=a\n", "neither", 1),
        ("SwitchName=a Nodes=n1 Switches=b\nSwitchName=b Nodes=n2\n", "both", 1),
        ("SwitchName=a Nodes=n1 junk\n", "junk", 1),
        ("SwitchName=a Nodes=n1 \\", "backslash", 1),
        ("BlockName=a Nodes=n1\nBlockName=b Nodes=n1\n", "n1 is in block a", 2),
        ("BlockName=a Nodes=n1\nBlockSizes=x\n", "no list of whole numbers", 2),
    ],
)
def test_damaged_topology_conf(text: str, word: str, line: int) -> None:
    refused(text, word, line)


def test_a_wrong_key_is_named_with_the_right_one() -> None:
    with pytest.raises(UnknownNameError) as caught:
        read_text("SwitchName=a Node=n1\n", "file")
    assert "Nodes" in caught.value.hint


@pytest.mark.parametrize("one_line", [False, True])
def test_hosts_of_the_scheduler(one_line: bool) -> None:
    text = scontrol(HOSTS[:3], one_line=one_line) + "\n" + scontrol(HOSTS[3:], state="DOWN*+DRAIN", one_line=one_line)
    states = read_text(text, "file").hosts
    assert [(state.host, state.gpus, state.gpu_type) for state in states] == [(host, 8, "h100") for host in HOSTS]
    assert states[0].memory_bytes == 2_000_000 * 2**20
    assert [state.usable for state in states] == [True, True, True, False]
    assert "drain" in states[3].reason
    assert "bad GPU, see ticket" in states[3].reason


def test_hosts_without_gpus_are_left_out_and_said() -> None:
    reading = read_text(scontrol(HOSTS[:1], gres="(null)") + "\n" + scontrol(HOSTS[1:]), "file")
    assert len(reading.hosts) == 3
    assert "1 host without GPUs" in reading.notes[0]
    refused(scontrol(HOSTS, gres="(null)"), "none with Gres=gpu")


@pytest.mark.parametrize(
    ("text", "word", "line"),
    [
        (scontrol(HOSTS).replace("State=IDLE", "", 1), "no State", 1),
        (scontrol(HOSTS[:1]) + "\n" + scontrol(HOSTS[:1]), "listed twice", 9),
        (scontrol(HOSTS, gres="gpu:h100:eight"), "cannot be read", 1),
        (scontrol(HOSTS, gres="gpu:h100:4,gpu:a100:4"), "several kinds", 1),
    ],
)
def test_damaged_lists_of_hosts(text: str, word: str, line: int) -> None:
    refused(text, word, line)


# --- InfiniBand ---------------------------------------------------------------------------------------------------


def test_a_fabric_with_rails_and_spines() -> None:
    reading = network(ibnetdiscover(HOSTS, rails=2, spines=2, cables=3))
    found = reading.network
    assert found is not None
    assert [(switch.name, switch.tier) for switch in found.switches] == [
        ("leaf0", 1),
        ("leaf1", 1),
        ("spine0", 2),
        ("spine1", 2),
    ]
    assert [(port.rail, port.links, port.bytes_per_s, port.hosts) for port in found.switches[1].ports] == [(1, 1, 50e9, HOSTS)]
    assert [(up.to, up.links, up.bytes_per_s) for up in found.switches[0].uplinks] == [("spine0", 3, 50e9), ("spine1", 3, 50e9)]
    assert reading.fabric == "infiniband"


@pytest.mark.parametrize(
    ("speed", "rate"), [("4xHDR", 25e9), ("2xHDR", 12.5e9), ("4xEDR", 12.5e9), ("4xXDR", 100e9), ("4x???", None)]
)
def test_the_rate_is_that_in_use(speed: str, rate: float | None) -> None:
    found = network(ibnetdiscover(HOSTS, speed=speed)).network
    assert found is not None
    assert {port.bytes_per_s for switch in found.switches for port in switch.ports} == {rate}


def test_adapters_without_host_name_are_no_hosts() -> None:
    text = ibnetdiscover(HOSTS).replace("n004 mlx5_0", "Mellanox Technologies Aggregation Node")
    reading = network(text)
    assert len(reading.adapters) == 7
    assert "without a host name" in reading.notes[0]
    assert "in_switch_reduction" in reading.notes[1]


@pytest.mark.parametrize(
    ("description", "host"),
    [
        ("node-001 HCA-1", ("node-001", "HCA-1")),
        ("n1 mlx5_0", ("n1", "mlx5_0")),
        ("'n1 HCA-2'", ("n1", "HCA-2")),
        ("n1", ("n1", "HCA-1")),
        ("mlx5_0", None),
        ("Mellanox Technologies Aggregation Node", None),
        ("MT4129 ConnectX7   Mellanox Technologies", None),
        ("localhost mlx5_0", None),
        ("", None),
        ("two words", None),
    ],
)
def test_hosts_in_descriptions(description: str, host: tuple[str, str] | None) -> None:
    assert host_of(description) == host


def test_what_is_an_adapter() -> None:
    assert is_adapter("Mellanox Technologies Aggregation Node")
    assert not is_adapter("MF0;sw-001:MQM8700/U1")


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda t: t[: t.rindex("[1](abc)")], "none follows"),
        (lambda t: t[: t.index("caguid")], "not listed"),
        (lambda t: t.replace("4xNDR", "", 1), "no rate"),
        (lambda t: t.replace('[1](abc) \t"S-', '[1](abc) \t"S', 1), "is no port"),
        (lambda t: t.replace("mlx5_", "MT4129 mlx5_"), "names no host"),
        (lambda t: t.replace("Switch\t64", "Swith\t64", 1), "no line of ibnetdiscover|without its switch"),
    ],
)
def test_damaged_fabrics(spoil, word: str) -> None:
    with pytest.raises(DamagedFileError, match=word) as caught:
        read_text(spoil(ibnetdiscover(HOSTS)), "file")
    assert caught.value.where.startswith("file")


@pytest.mark.parametrize(
    ("gbit", "rate"), [("25.78125", 12.5e9), ("53.125", 25e9), ("106.25", 50e9), ("14.0625", 6.82e9), ("10.0", 4e9)]
)
def test_signalling_rates_become_data_rates(gbit: str, rate: float) -> None:
    found = network(iblinkinfo(HOSTS, gbit=gbit)).network
    assert found is not None
    assert [(p.hosts, p.bytes_per_s) for p in found.switches[0].ports] == [(HOSTS, pytest.approx(rate))]


def test_what_a_link_could_do_better_is_said() -> None:
    reading = network(iblinkinfo(HOSTS, gbit="25.78125", could=" Could be 53.125 Gbps"))
    assert any("Could be 53.125 Gbps" in note for note in reading.notes)


def test_a_link_seen_from_one_end_counts() -> None:
    text = iblinkinfo(HOSTS)
    only_switch = text[text.index("Switch:") :]
    assert network(only_switch).network == network(text).network


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda t: t[: t.index("==>") - 3], "cut short"),
        (lambda t: t + "CA: n009 HCA-1:\n", "nothing follows"),
        (lambda t: t.replace("Gbps", "Furlongs", 1), "no width and speed"),
        (lambda t: t.replace("CA: n001 HCA-1:", "n001", 1), "no line of iblinkinfo"),
        (lambda t: t.replace(" HCA-1", " thing"), "names no host"),
    ],
)
def test_damaged_lists_of_links(spoil, word: str) -> None:
    with pytest.raises(DamagedFileError, match=word) as caught:
        read_text(spoil(iblinkinfo(HOSTS)), "file")
    assert caught.value.where.startswith("file")


# --- other files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "word", "hint"),
    [
        ("#  size  count  type  redop  root  time  algbw  busbw\n", "log of nccl-tests", "calibrate"),
        ("name: x\ngroups:\n  - node: dgx-h100\n", "cluster YAML already", "plan --cluster"),
        ('{\n "model_type": "llama"\n}', "configuration of a model", "MODEL"),
        ("hello\n", "no known format", "nvidia-smi topo -m"),
    ],
)
def test_other_files_are_told_where_they_belong(text: str, word: str, hint: str) -> None:
    with pytest.raises(UnsupportedError, match=word) as caught:
        read_text(text, "file")
    assert hint in caught.value.hint
