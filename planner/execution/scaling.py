"""A plan in miniature: the same axes, schedule and kind of model, small enough for a few processes on CPUs.

    miniature(record, ranks)   -> Miniature: model, degrees, batch, and what was made smaller

Every axis in use stays in use: while the plan has more ranks than may be, its largest degree is divided by its least prime
factor (data parallelism first). Layers, widths, experts, words, sequence and batch shrink to what the degrees still divide.
What is measured of a miniature shows that the plan runs; it says nothing of the speed or memory of the plan itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.planner.offloading import offload_of
from shardwright.planner.plan_records import chunk_layers
from shardwright.planner.plans import Degrees
from shardwright.planner.rules.base import divisors

SHRUNK = ("dp_shard", "dp_replicate", "tp", "cp", "pp")
"""Axes that are made smaller, the first of equals first."""

LAYERS, HEAD_DIM, SEQ_LEN, VOCAB, RANK = 2, 16, 128, 1024, 32
"""Layers of a chunk, size of a head, tokens of a sequence, words, and rank of latent attention, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miniature:
    """A small plan.

    Attributes:
        model: fields of a model file.
        degrees: the plan.
        seq_len, global_batch: the job.
        ranks: its processes.
        changes: what is smaller, name -> [before, now].
    """

    model: dict[str, Any]
    degrees: Degrees
    seq_len: int
    global_batch: int
    ranks: int
    changes: dict[str, list[int]]


def miniature(record: Mapping[str, Any], ranks: int) -> Miniature:
    """The plan of an ESTIMATE record for so many ranks at most."""
    inputs, parallel = record["inputs"], record["parallel"]
    small = smaller_degrees(parallel, ranks)
    chunks = _chunks(chunk_layers(record["stages"], parallel), small["pp"] * parallel["vpp"])
    micro_batch, dp = min(parallel["micro_batch"], 2), small["dp_shard"] * small["dp_replicate"]
    seq_len = min(inputs["training"]["seq_len"], SEQ_LEN)
    model = _model(inputs["model"], small, sum(chunks), seq_len)
    batch = micro_batch * dp * _micro_batches(parallel["micro_batches"], small["pp"])
    world = dp * small["tp"] * small["cp"] * small["pp"]
    before = {**{n: parallel[n] for n in small}, **{n: inputs["model"][n] for n in ("layers", "hidden", "heads", "vocab")}}
    before |= {"world_size": parallel["world_size"], "seq_len": inputs["training"]["seq_len"]}
    before |= {"global_batch": inputs["training"]["global_batch"]}
    now = {**small, **model, "world_size": world, "seq_len": seq_len, "global_batch": batch}
    return Miniature(
        model=model,
        degrees=_degrees(parallel, small, chunks, micro_batch),
        seq_len=seq_len,
        global_batch=batch,
        ranks=world,
        changes={name: [value, now[name]] for name, value in before.items() if value != now[name]},
    )


def smaller_degrees(parallel: Mapping[str, Any], ranks: int) -> dict[str, int]:
    """Degrees whose product is `ranks` at most, and the expert degree that still divides the ranks it lies on."""
    made = {name: int(parallel[name]) for name in SHRUNK}
    while math.prod(made.values()) > ranks:
        largest = max(SHRUNK, key=lambda name: made[name])
        made[largest] //= divisors(made[largest])[1]
    return made | {"ep": math.gcd(parallel["ep"], made["dp_shard"] * made["cp"] * made["tp"])}


def _micro_batches(planned: int, pp: int) -> int:
    """Two rounds of the pipeline, or what there is."""
    return min(planned, 2) if pp == 1 else pp * max(1, min(2, planned // pp))


def _chunks(planned: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Layers of each chunk: as uneven as planned where there are as many chunks, at most `LAYERS`."""
    if len(planned) != count:
        return (min(LAYERS, max(planned)),) * count
    return tuple(-(-layers * LAYERS // max(*planned, LAYERS)) for layers in planned)


def _degrees(parallel: Mapping[str, Any], small: Mapping[str, int], chunks: tuple[int, ...], micro_batch: int) -> Degrees:
    recompute, sharded = parallel["recompute"], parallel["zero_stage"] > 0
    partial = recompute["mode"] == "full" and recompute["layers"] < max(chunks) * parallel["vpp"]
    return Degrees(
        **{name: small[name] for name in ("tp", "cp", "pp", "ep")},
        vpp=parallel["vpp"],
        etp=parallel["etp"],
        dp_replicate=small["dp_replicate"] if sharded else None,
        zero=parallel["zero_stage"],
        schedule=parallel["schedule"],
        sequence_parallel=parallel["sequence_parallel"],
        cp_comm=parallel.get("cp_comm"),
        moe_dispatcher=parallel.get("moe_dispatcher"),
        offload=offload_of(parallel.get("offload")),
        micro_batch=micro_batch,
        recompute=recompute["mode"],
        recompute_layers=parallel["vpp"] if partial else None,
        layers_per_stage=chunks if small["pp"] > 1 else None,
    )


def _model(spec: Mapping[str, Any], small: Mapping[str, int], layers: int, seq_len: int) -> dict[str, Any]:
    """Fields of a small model of the same kind."""
    shares = small["tp"] * small["cp"]
    kv_heads = min(spec["kv_heads"], shares) if spec["kv_heads"] % shares == 0 else spec["kv_heads"]
    heads = kv_heads * min(spec["heads"] // spec["kv_heads"], 2)
    hidden = heads * HEAD_DIM
    made = {**spec, "name": f"{spec['name']}-miniature", "layers": layers, "hidden": hidden, "heads": heads}
    made |= {"kv_heads": kv_heads, "head_dim": HEAD_DIM, "vocab": min(spec["vocab"], VOCAB), "ffn": 2 * hidden}
    made |= {"max_positions": seq_len, "source": None, "notes": [], "mtp_layers": 0}
    made |= {name: spec[name][:1] for name in _BY_LAYER}
    if spec["mla"] is not None:
        made |= _latent(spec["mla"], heads)
    if spec["moe"] is not None:
        made["moe"] = _experts(spec["moe"], small["ep"], hidden, layers)
    return {name: value for name, value in made.items() if value is not None}


_BY_LAYER = ("windows", "rotary_layers", "mixers", "mlps", "layer_kv_heads", "layer_ffn")
"""Fields with an entry a layer; the PyTorch package takes models in which all are equal."""


def _latent(mla: Mapping[str, Any], heads: int) -> dict[str, Any]:
    ranks = {"kv_rank": RANK, "q_rank": None if mla["q_rank"] is None else RANK}
    sizes = {"nope_dim": HEAD_DIM, "rope_dim": HEAD_DIM, "v_dim": HEAD_DIM}
    return {"mla": {**{k: v for k, v in mla.items() if v is not None}, **ranks, **sizes}, "kv_heads": heads, "head_dim": None}


def _experts(moe: Mapping[str, Any], ep: int, width: int, layers: int) -> dict[str, Any]:
    experts = ep * max(1, min(moe["experts"] // ep, 4 if ep < 4 else 2))
    dense = [layer for layer in moe["dense_layers"] if layer < layers - 1]
    made = {**moe, "experts": experts, "topk": min(moe["topk"], experts), "expert_ffn": width, "dense_layers": dense}
    return made | {"shared_ffn": min(moe["shared_ffn"], width), "groups": 1, "topk_groups": 1}
