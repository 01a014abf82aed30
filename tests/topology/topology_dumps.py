"""Small dumps in the formats that are read, written by the tests themselves."""

from collections.abc import Sequence

LEGEND = """
Legend:

  X    = Self
  SYS  = across sockets
  NODE = within a memory domain
  PHB  = over the host bridge
  PXB  = over several PCIe bridges
  PIX  = over one PCIe bridge
"""
NVLINK_LINE = "  NV#  = a bonded set of # NVLinks\n"


def matrix_words(gpus: int, cards: int, *, links: str = "NV12", per_socket: int = 2) -> tuple[list[str], list[list[str]]]:
    """Names and cells of a machine whose card i is next to GPU i; cards beyond the GPUs are near nobody."""
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(cards)]
    socket = [i // per_socket for i in range(gpus)] + [i // per_socket if i < gpus else -1 - i for i in range(cards)]

    def cell(a: int, b: int) -> str:
        if a == b:
            return "X"
        if a < gpus and b < gpus and links:
            return links
        if {a, b} == {min(a, b), min(a, b) + gpus} and min(a, b) < gpus:
            return "PIX"
        return "NODE" if socket[a] == socket[b] else "SYS"

    return names, [[cell(a, b) for b in range(len(names))] for a in range(len(names))]


def topo_matrix(
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
    *,
    sep: str = "\t",
    legend: bool = True,
    affinity: bool = True,
    per_socket: int = 2,
    nvlink_line: bool = True,
) -> str:
    """The table as `nvidia-smi topo -m` prints it, with tabs, or aligned by blanks."""

    def line(words: Sequence[str]) -> str:
        return sep.join(words) if sep == "\t" else "".join(word.ljust(8) for word in words).rstrip()

    tail = ["CPU Affinity", "NUMA Affinity"] if affinity else []
    rows = [line(["", *names, *tail])]
    for index, name in enumerate(names):
        numa = index // per_socket
        own = [f"{16 * numa}-{16 * numa + 15}", str(numa)] if affinity and name.startswith("GPU") else []
        rows.append(line([name, *(f" {c} " if c == "X" else c for c in cells[index]), *own]))
    return "\n".join(rows) + "\n" + (LEGEND + (NVLINK_LINE if nvlink_line else "") if legend else "")


def simple_matrix(gpus: int = 4, cards: int = 4, **how: object) -> str:
    names, cells = matrix_words(gpus, cards, links=str(how.pop("links", "NV12")))
    return topo_matrix(names, cells, **how)  # type: ignore[arg-type]


def rocm(gpus: int, *, kind: str = "XGMI", hops: str = "1", per_socket: int = 4) -> str:
    def table(title: str, word: str) -> str:
        head = "       " + "".join(f"GPU{i}".ljust(13) for i in range(gpus))
        rows = [f"GPU{a}".ljust(7) + "".join(("0" if a == b else word).ljust(13) for b in range(gpus)) for a in range(gpus)]
        return "\n".join([f" {title} ".center(60, "="), head, *rows, ""])

    numa = [f"GPU[{i}]\t\t: (Topology) Numa {what}: {i // per_socket}" for i in range(gpus) for what in ("Node", "Affinity")]
    parts = [
        " ROCm System Management Interface ".center(60, "="),
        table("Weight between two GPUs", "15"),
        table("Hops between two GPUs", hops),
        table("Link Type between two GPUs", kind),
        "\n".join([" Numa Nodes ".center(60, "="), *numa, " End of ROCm SMI Log ".center(60, "=")]),
    ]
    return "\n".join(parts) + "\n"


GPU_PCI = '<pci busid="{bus}" class="0x030200" vendor="0x10de" device="{device}" link_speed="{speed}" link_width="16">'


def nccl_dump(*, device: str = "0x20b2", speed: str = "16.0 GT/s PCIe", nets: str = "", switch: bool = True) -> str:
    """Four GPUs on two sockets, each with a card beside it below a PCIe switch; NVLinks to a switch."""
    parts = ['<system version="1">']
    for gpu in range(4):
        if gpu % 2 == 0:
            parts.append(f'<cpu numaid="{gpu // 2}" arch="x86_64">')
        link = '<nvlink target="ffff:ff:ff.0" count="12" tclass="0x068000"/>' if switch else ""
        parts += [
            f'<pci busid="0000:0{gpu}:00.0" class="0x060400" link_speed="{speed}" link_width="16">',
            GPU_PCI.format(bus=f"0000:0{gpu}:01.0", device=device, speed=speed),
            f'<gpu dev="{gpu}" sm="80" rank="{gpu}" gdr="1">{link}</gpu></pci>',
            f'<pci busid="0000:0{gpu}:02.0" class="0x020700" vendor="0x15b3" link_speed="{speed}" link_width="16">',
            f'<nic><net name="mlx5_{gpu}" dev="{gpu}" speed="200000" port="1" gdr="1"/></nic></pci></pci>',
        ]
        if gpu == 1:
            parts.append(nets)
        if gpu % 2 == 1:
            parts.append("</cpu>")
    return "\n".join([*parts, "</system>"])


def provider_file(*, gpus: int = 4) -> str:
    """Only PCI classes, placeholder bridges, two GPUs and a card below each."""
    parts = ["<!-- of a provider -->", '<system version="1">']
    for pair in range(gpus // 2):
        parts += [
            f'<cpu numaid="{pair}"><pci busid="ffff:ff:0{pair}.0" class="0x060400" link_speed="32.0 GT/s" link_width="16">',
            f'<pci busid="000{2 * pair}:00:00.0" class="0x030200" link_speed="32.0 GT/s" link_width="16"/>',
            f'<pci busid="000{2 * pair + 1}:00:00.0" class="0x030200" link_speed="32.0 GT/s" link_width="16"/>',
            f'<pci busid="010{pair}:00:00.0" class="0x020700" link_speed="32.0 GT/s" link_width="16"/></pci></cpu>',
        ]
    return "\n".join([*parts, "</system>"])


def scontrol(hosts: Sequence[str], *, gres: str = "gpu:h100:8(S:0-1)", state: str = "IDLE", one_line: bool = False) -> str:
    made = []
    for host in hosts:
        fields = [
            f"NodeName={host} Arch=x86_64 CoresPerSocket=56",
            "CPUAlloc=0 CPUTot=112 CPULoad=0.10",
            f"Gres={gres}",
            f"NodeAddr={host} NodeHostName={host} Version=24.05",
            "OS=Linux 5.15.0-1-generic #1 SMP Mon Jan 1 00:00:00 UTC 2024",
            "RealMemory=2000000 AllocMem=0 Sockets=2 Boards=1",
            f"State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1",
            *(["Reason=bad GPU, see ticket [root@2025-01-01T00:00:00]"] if state not in ("IDLE", "MIXED") else []),
        ]
        made.append((" " if one_line else "\n   ").join(fields))
    return ("\n" if one_line else "\n\n").join(made) + "\n"


def tree_conf(leaves: int = 2, hosts: int = 4) -> str:
    lines = ["# a tree", f"SwitchName=spine Switches=leaf[1-{leaves}]"]
    lines += [f"SwitchName=leaf{i} Nodes=n[{(i - 1) * hosts + 1:03d}-{i * hosts:03d}]" for i in range(1, leaves + 1)]
    return "\n".join(lines) + "\n"


def _guid(kind: str, number: int) -> str:
    return f"{kind}-{number:016x}"


def ibnetdiscover(hosts: Sequence[str], *, rails: int = 2, spines: int = 2, cables: int = 2, speed: str = "4xNDR") -> str:
    """A rail-optimised fabric: card r of every host on leaf r, `cables` cables from each leaf to each spine."""
    leaf = [_guid("S", 1 + r) for r in range(rails)]
    spine = [_guid("S", 101 + s) for s in range(spines)]
    card = {(h, r): _guid("H", 10_000 + 100 * i + r) for i, h in enumerate(hosts) for r in range(rails)}
    parts = ["#", "# Topology file: generated on a day", "#"]

    def switch(guid: str, name: str, ports: Sequence[str]) -> None:
        ids = "vendid=0x2c9\ndevid=0xd2f2\nsysimgguid=0x1\nswitchguid=0x1(1)"
        head = f'{ids}\nSwitch\t64 "{guid}"\t\t# "{name}" enhanced port 0 lid 1 lmc 0'
        parts.append("\n".join([head, *ports]))

    for r in range(rails):
        own = [f'[{i + 1}]\t"{card[h, r]}"[1](abc) \t\t# "{h} mlx5_{r}" lid 9 {speed}' for i, h in enumerate(hosts)] + [
            f'[{len(hosts) + s * cables + c + 1}]\t"{spine[s]}"[{r * cables + c + 1}]\t\t# "spine{s}" lid 8 {speed}'
            for s in range(spines)
            for c in range(cables)
        ]
        switch(leaf[r], f"leaf{r}", own)
    for s in range(spines):
        own = [
            f'[{r * cables + c + 1}]\t"{leaf[r]}"[{len(hosts) + s * cables + c + 1}]\t\t# "leaf{r}" lid 7 {speed}'
            for r in range(rails)
            for c in range(cables)
        ]
        switch(spine[s], f"spine{s}", own)
    for i, h in enumerate(hosts):
        for r in range(rails):
            parts.append(
                f'vendid=0x2c9\ndevid=0x1021\nsysimgguid=0x1\ncaguid=0x1\nCa\t1 "{card[h, r]}"\t\t# "{h} mlx5_{r}"\n'
                f'[1](abc) \t"{leaf[r]}"[{i + 1}]\t\t# lid 9 lmc 0 "leaf{r}" lid 7 {speed}'
            )
    return "\n\n".join(parts) + "\n"


def iblinkinfo(hosts: Sequence[str], *, gbit: str = "53.125", could: str = "") -> str:
    up = f"==( 4X {gbit:>13} Gbps Active/  LinkUp)==>"
    lines = []
    for i, h in enumerate(hosts):
        own = f'      0xaa00{i:012x}     {i + 2:2d}    1[  ] {up}       1 {i + 1:4d}[  ] "leaf" ( {could})'
        lines += [f"CA: {h} HCA-1:", own]
    lines.append("Switch: 0xbb00000000000001 leaf:")
    lines += [f'           1 {i + 1:4d}[  ] {up}      {i + 2:2d}    1[  ] "{h} HCA-1" ( {could})' for i, h in enumerate(hosts)]
    lines.append('           1   40[  ] ==(                Down/ Polling)==>             [  ] "" ( )')
    return "\n".join(lines) + "\n"
