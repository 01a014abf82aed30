"""How many ranks a launch line starts.

    world_size(launcher, directives)   torchrun: nnodes · nproc_per_node; deepspeed: num_nodes · num_gpus;
                                       srun and #SBATCH: ntasks, or nodes · ntasks_per_node

What only the running job knows (`--nproc-per-node gpu`, a range of nodes, a variable nothing sets) leaves it unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from shardwright.planner.readers.shell_walk import Word

_SHORT = {"-N": "nodes", "-n": "ntasks", "-G": "gpus"}
_TORCHRUN = re.compile(r"(.*/)?(torchrun|torch\.distributed\.(run|launch)|accelerate)")
_GPUS = re.compile(r"(?:gpu:)?(?:[A-Za-z0-9_-]+:)?([0-9]+)")


def world_size(launcher: Sequence[Word], directives: Sequence[Word] = ()) -> int | None:
    """Ranks that are started, or None where that cannot be told.

    Args:
        launcher: the words before the program.
        directives: the words of `#SBATCH` lines.
    """
    texts = [word.text for word in launcher]
    start = next((i for i, text in enumerate(texts) if _TORCHRUN.fullmatch(text)), None)
    if start is not None:
        return _torchrun(options(launcher[start:]), directives)
    if "deepspeed" in texts:
        return _deepspeed(options(launcher[texts.index("deepspeed") :]))
    tasks = options(directives) | (options(launcher[texts.index("srun") :]) if "srun" in texts else {})
    if "srun" not in texts and not directives:
        return None
    return _slurm(tasks)


def slurm_variables(directives: Sequence[Word]) -> dict[str, str]:
    """The variables Slurm sets for a job from its `#SBATCH` lines."""
    stated = options(directives)
    nodes, gpus = _whole(stated.get("nodes")), gpus_per_node(stated)
    made = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_GPUS_ON_NODE": gpus, "SLURM_GPUS_PER_NODE": gpus}
    made["SLURM_NTASKS"] = _slurm(stated)
    made["SLURM_NTASKS_PER_NODE"] = _whole(stated.get("ntasks_per_node"))
    return {name: str(value) for name, value in made.items() if value is not None}


def gpus_per_node(stated: Mapping[str, str]) -> int | None:
    """GPUs a node by `--gpus-per-node`, `--gres=gpu:8` or `--gres=gpu:h100:8`."""
    found = _GPUS.fullmatch(stated.get("gpus_per_node", "") or stated.get("gres", ""))
    return int(found[1]) if found else None


def options(words: Sequence[Word]) -> dict[str, str]:
    """Options of a launcher by name, `-` as `_`; a switch has an empty value."""
    made: dict[str, str] = {}
    name = ""
    for word in words:
        if word.text.startswith("-") and not re.fullmatch(r"-[0-9.]+", word.text):
            name, separator, value = word.text.partition("=")
            name = _SHORT.get(name, name.lstrip("-").replace("-", "_"))
            made[name] = value if separator and not word.unknowns else ""
        elif name and not made.get(name):
            made[name] = "" if word.unknowns else word.text
    return made


def _torchrun(stated: Mapping[str, str], directives: Sequence[Word]) -> int | None:
    processes = _whole(stated.get("nproc_per_node", stated.get("num_processes", "1")))
    nodes = _whole(stated.get("nnodes", stated.get("num_machines", "1")))
    if "num_processes" in stated:
        return processes
    if nodes is None and directives:
        nodes = _whole(options(directives).get("nodes"))
    return processes * nodes if processes is not None and nodes is not None else None


def _deepspeed(stated: Mapping[str, str]) -> int | None:
    nodes, gpus = _whole(stated.get("num_nodes", "1")), _whole(stated.get("num_gpus"))
    return nodes * gpus if nodes is not None and gpus is not None else None


def _slurm(stated: Mapping[str, str]) -> int | None:
    tasks, nodes, each = (_whole(stated.get(name)) for name in ("ntasks", "nodes", "ntasks_per_node"))
    if tasks is not None:
        return tasks
    return nodes * each if nodes is not None and each is not None else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text) else None
