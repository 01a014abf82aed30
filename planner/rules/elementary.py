"""Rules that mathematics and hardware demand of every plan: products, divisibility, batch identity."""

from __future__ import annotations

import numpy as np

from shardwright.planner.plans import BoolArray
from shardwright.planner.rules.base import Columns, Facts, Rule, counted_ends, divisors, nearest
from shardwright.planner.schedules.registry import SCHEDULE_IDS, SCHEDULES

_LOOPED = SCHEDULE_IDS.index("interleaved-1f1b")


def _graph_broken(c: Columns, f: Facts) -> BoolArray:
    return np.asarray(((c["tp"] > 1) | (c["cp"] > 1)) & (f.graph.origin is not None))


GRAPH_AXES = Rule(
    id="graph-axes",
    says="a graph read from a file is planned with tp 1 and cp 1",
    reads=("tp", "cp"),
    broken=_graph_broken,
    message=lambda c, f: f"{f.graph.name} was read from a graph file, which tp {c['tp']}, cp {c['cp']} is not planned for",
    remedy=lambda c, f: "use tp 1 and cp 1: data parallelism with sharded states, and pipelines",
    source="graph files say nothing of how a framework splits a layer's weights",
)


def _world_broken(c: Columns, f: Facts) -> BoolArray:
    return np.asarray(f.gpus % (c["tp"] * c["cp"] * c["pp"]) != 0)


WORLD = Rule(
    id="world-size",
    says="tp · cp · pp divides the number of GPUs",
    reads=("tp", "cp", "pp"),
    broken=_world_broken,
    message=lambda c, f: (
        f"tp·cp·pp = {c['tp']}·{c['cp']}·{c['pp']} = {c['tp'] * c['cp'] * c['pp']} does not divide {f.gpus} GPUs"
    ),
    remedy=lambda c, f: f"use a product of {nearest(c['tp'] * c['cp'] * c['pp'], divisors(f.gpus))}",
    source="Megatron-LM validate_args; torchtitan ParallelDims",
)


def _heads_broken(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((f.graph.spec.heads % c["tp"] != 0) & (f.graph.origin is None))


HEADS = Rule(
    id="attention-heads",
    says="tp divides the attention heads",
    reads=("tp",),
    broken=_heads_broken,
    message=lambda c, f: f"{f.graph.spec.heads} attention heads cannot be divided by tp {c['tp']}",
    remedy=lambda c, f: f"use tp {nearest(c['tp'], divisors(f.graph.spec.heads))}",
    source="Megatron-Core TransformerConfig",
)


def _kv_broken(c: Columns, f: Facts) -> BoolArray:
    heads = f.graph.spec.kv_heads
    return np.asarray((heads % c["tp"] != 0) & (c["tp"] % heads != 0))


KV_HEADS = Rule(
    id="kv-heads",
    says="tp divides the key/value heads, or is a multiple of them (they are then replicated)",
    reads=("tp",),
    broken=_kv_broken,
    message=lambda c, f: f"{f.graph.spec.kv_heads} key/value heads neither divide nor are divided by tp {c['tp']}",
    remedy=lambda c, f: f"use tp {nearest(c['tp'], divisors(f.graph.spec.kv_heads))}",
    source="Megatron-Core 0.16 and later TransformerConfig",
)


def _widths(f: Facts) -> tuple[int, ...]:
    """Sizes of the dims that tensor parallelism divides besides heads and vocabulary."""
    layers = f.graph.layer_kinds
    return tuple(sorted({layer.dims[d] for layer in layers for d in ("ffn", "shared_ffn") if layer.dims.get(d)}))


def _ffn_broken(c: Columns, f: Facts) -> BoolArray:
    broken = np.zeros(len(c["tp"]), dtype=bool)
    for width in _widths(f):
        broken |= width % c["tp"] != 0
    return broken


FFN = Rule(
    id="mlp-width",
    says="tp divides the width of dense and shared MLPs",
    reads=("tp",),
    broken=_ffn_broken,
    message=lambda c, f: f"MLP width {' and '.join(map(str, _widths(f)))} cannot be divided by tp {c['tp']}",
    remedy=lambda c, f: f"use tp {nearest(c['tp'], divisors(int(np.gcd.reduce(_widths(f)))))}",
    source="Megatron-Core divide()",
)


def _cp_broken(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((c["cp"] > 1) & (f.seq_len % (2 * c["cp"]) != 0))


SEQUENCE_CP = Rule(
    id="sequence-cp",
    says="2 · cp divides the sequence (causal masks are balanced in pairs of blocks)",
    reads=("cp",),
    broken=_cp_broken,
    message=lambda c, f: f"a sequence of {f.seq_len} cannot be divided by 2·cp = {2 * c['cp']}",
    remedy=lambda c, f: f"use cp {nearest(c['cp'], divisors(max(f.seq_len // 2, 1)))}",
    source="Megatron-LM validate_args",
)


def _sp_broken(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((c["sp"] > 0) & (f.seq_len % (c["tp"] * c["cp"]) != 0))


SEQUENCE_SP = Rule(
    id="sequence-sp",
    says="tp · cp divides the sequence under sequence parallelism",
    reads=("tp", "cp", "sp"),
    broken=_sp_broken,
    message=lambda c, f: f"a sequence of {f.seq_len} cannot be divided by tp·cp = {c['tp'] * c['cp']}",
    remedy=lambda c, f: f"use tp·cp {nearest(c['tp'] * c['cp'], divisors(f.seq_len))}, or switch sequence parallelism off",
    source="reduce-scatter along the sequence",
)


def _dp_batch_broken(c: Columns, f: Facts) -> BoolArray:
    return np.asarray(f.global_batch % c["dp"] != 0)


def _legal_batches(step: int, wanted: int) -> str:
    low = max(wanted // step, 1) * step
    return f"{low} or {low + step}" if low != wanted else str(low)


DP_BATCH = Rule(
    id="batch-dp",
    says="dp divides the global batch",
    reads=("dp",),
    broken=_dp_batch_broken,
    message=lambda c, f: f"a global batch of {f.global_batch} cannot be shared by dp {c['dp']}",
    remedy=lambda c, f: (
        f"use a global batch of {_legal_batches(c['dp'] * c.get('micro_batch', 1), f.global_batch)}, or another dp"
    ),
    source="batch identity: micro_batch · micro_batches · dp = global_batch",
)


def _micro_broken(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((f.global_batch % c["dp"] == 0) & (f.global_batch % (c["dp"] * c["micro_batch"]) != 0))


MICRO_BATCH = Rule(
    id="batch-micro",
    says="dp · micro-batch divides the global batch",
    reads=("dp", "micro_batch"),
    broken=_micro_broken,
    message=lambda c, f: f"a global batch of {f.global_batch} is no multiple of dp·micro-batch = {c['dp'] * c['micro_batch']}",
    remedy=lambda c, f: (
        f"use a global batch of {_legal_batches(c['dp'] * c['micro_batch'], f.global_batch)}, or another micro-batch"
    ),
    source="batch identity: micro_batch · micro_batches · dp = global_batch",
)


def _layers_broken(c: Columns, f: Facts) -> BoolArray:
    counted = np.add(*counted_ends(c["split"]))
    chunks = c["pp"] * c["vpp"]
    units = f.graph.layers + counted
    first_empty = (units // chunks + (units % chunks > 0)) < 1
    return np.asarray((chunks > units) | first_empty | _negative_end(c, units, chunks))


def _negative_end(c: Columns, units: np.ndarray, chunks: np.ndarray) -> BoolArray:
    """A chunk that counts the embedding or head but has no unit for it; with one chunk both are taken out of it."""
    first = units // chunks + (units % chunks > 0)
    last = units // chunks
    embedding, head = counted_ends(c["split"])
    single = chunks == 1
    return np.asarray(np.where(single, first < embedding + head, (first < embedding) | (last < head)))


LAYERS = Rule(
    id="layers-stages",
    says="there are no more pipeline chunks (pp · vpp) than layers (and counted embedding and head)",
    reads=("pp", "vpp", "split"),
    broken=_layers_broken,
    message=lambda c, f: f"{f.graph.layers} layers cannot fill pp·vpp = {c['pp'] * c['vpp']} chunks",
    remedy=lambda c, f: f"use pp·vpp of at most {f.graph.layers}",
    source="every chunk holds at least one layer, the embedding or the head",
)


def _experts(f: Facts) -> int:
    return f.graph.spec.moe.experts if f.graph.spec.moe else 1


def _ep_broken(c: Columns, f: Facts) -> BoolArray:
    return np.asarray(_experts(f) % c["ep"] != 0)


EXPERTS = Rule(
    id="experts-ep",
    says="ep divides the experts",
    reads=("ep",),
    broken=_ep_broken,
    message=lambda c, f: (
        f"{_experts(f)} experts cannot be divided by ep {c['ep']}"
        if f.graph.spec.moe
        else f"ep {c['ep']} needs a model with experts"
    ),
    remedy=lambda c, f: f"use ep {nearest(c['ep'], divisors(_experts(f)))}",
    source="Megatron-LM validate_args",
)


def _etp_broken(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((f.graph.spec.moe.expert_ffn if f.graph.spec.moe else 1) % c["etp"] != 0)


EXPERT_WIDTH = Rule(
    id="expert-width",
    says="etp divides the width of the experts",
    reads=("etp",),
    broken=_etp_broken,
    message=lambda c, f: (
        f"experts of width {f.graph.spec.moe.expert_ffn} cannot be divided by etp {c['etp']}"
        if f.graph.spec.moe
        else f"etp {c['etp']} needs a model with experts"
    ),
    remedy=lambda c, f: "use etp " + nearest(c["etp"], divisors(f.graph.spec.moe.expert_ffn if f.graph.spec.moe else 1)),
    source="Megatron-Core divide()",
)


def _mesh_broken(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((c["tp"] * c["cp"] * c["dp"]) % (c["etp"] * c["ep"]) != 0)


EXPERT_MESH = Rule(
    id="expert-mesh",
    says="etp · ep divides the ranks of a pipeline stage (tp · cp · dp)",
    reads=("dp", "ep", "etp"),
    broken=_mesh_broken,
    message=lambda c, f: (
        f"etp·ep = {c['etp']}·{c['ep']} = {c['etp'] * c['ep']} does not divide the {c['tp'] * c['cp'] * c['dp']} ranks of a "
        f"stage (tp·cp·dp = {c['tp']}·{c['cp']}·{c['dp']})"
    ),
    remedy=lambda c, f: f"use etp·ep {nearest(c['etp'] * c['ep'], divisors(c['tp'] * c['cp'] * c['dp']))}",
    source="Megatron-Core initialize_model_parallel",
)


def _etp_sp_broken(c: Columns, f: Facts) -> BoolArray:
    if f.graph.spec.moe is None:
        return np.zeros(len(c["tp"]), dtype=bool)
    return np.asarray((c["sp"] == 0) & (c["tp"] > 1) & (c["etp"] != c["tp"]))


EXPERT_SP = Rule(
    id="expert-sequence",
    says="with tp > 1 and etp other than tp, routed layers need sequence parallelism (else every rank routes every token)",
    reads=("tp", "sp", "etp"),
    broken=_etp_sp_broken,
    message=lambda c, f: (
        f"tp {c['tp']} without sequence parallelism would route every token {c['tp']} times with etp {c['etp']}"
    ),
    remedy=lambda c, f: f"switch sequence parallelism on, or use etp {c['tp']}",
    source="Megatron-Core MoE layer",
)


def _replicate_broken(c: Columns, f: Facts) -> BoolArray:
    return np.asarray(c["dp"] % c["dp_replicate"] != 0)


REPLICATE = Rule(
    id="dp-replicate",
    says="dp_replicate divides dp",
    reads=("dp", "dp_replicate"),
    broken=_replicate_broken,
    message=lambda c, f: f"dp {c['dp']} cannot be divided into {c['dp_replicate']} replicas",
    remedy=lambda c, f: f"use dp_replicate {nearest(c['dp_replicate'], divisors(c['dp']))}",
    source="dp = dp_replicate · dp_shard",
)


def _replicas_broken(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((c["zero"] == 0) & (c["dp_replicate"] != c["dp"]))


REPLICAS = Rule(
    id="replicas",
    says="without sharding (ZeRO 0) every data-parallel rank is a replica: dp_replicate = dp",
    reads=("dp", "zero", "dp_replicate"),
    broken=_replicas_broken,
    message=lambda c, f: f"ZeRO 0 makes all dp {c['dp']} ranks replicas, not {c['dp_replicate']}",
    remedy=lambda c, f: f"use dp_replicate {c['dp']}, or zero 1 or more",
    source="dp = dp_replicate · dp_shard",
)


def _expert_replicate_broken(c: Columns, f: Facts) -> BoolArray:
    if f.graph.spec.moe is None:
        return np.zeros(len(c["tp"]), dtype=bool)
    edp = (c["tp"] * c["cp"] * c["dp"]) // (c["etp"] * c["ep"])
    return np.asarray((c["zero"] > 0) & (edp % c["dp_replicate"] != 0))


EXPERT_REPLICATE = Rule(
    id="expert-replicate",
    says="dp_replicate divides the experts' data-parallel degree where states are sharded",
    reads=("edp", "zero", "dp_replicate"),
    broken=_expert_replicate_broken,
    message=lambda c, f: f"edp {c['edp']} cannot be divided into {c['dp_replicate']} replicas",
    remedy=lambda c, f: f"use dp_replicate {nearest(c['dp_replicate'], divisors(c['edp']))}",
    source="Megatron-Core num_distributed_optimizer_instances",
)


def _virtual_broken(c: Columns, f: Facts) -> BoolArray:
    return np.asarray((c["vpp"] > 1) & (c["pp"] == 1))


VIRTUAL = Rule(
    id="virtual-stages",
    says="virtual stages need a pipeline",
    reads=("pp", "vpp"),
    broken=_virtual_broken,
    message=lambda c, f: f"vpp {c['vpp']} with pp 1",
    remedy=lambda c, f: "use vpp 1, or pp above 1",
    source="Megatron-Core initialize_model_parallel",
)


def _schedule_chunks_broken(c: Columns, f: Facts) -> BoolArray:
    fits = np.stack([schedule.fits_chunks(c["vpp"]) for schedule in SCHEDULES])
    return np.asarray(~fits[c["schedule"], np.arange(len(c["vpp"]))])


SCHEDULE_CHUNKS = Rule(
    id="schedule-chunks",
    says="gpipe, 1f1b and zb-h1 have one chunk a rank, interleaved-1f1b two or more, zb-v and dualpipe-v two",
    reads=("vpp", "schedule"),
    broken=_schedule_chunks_broken,
    message=lambda c, f: f"schedule {SCHEDULE_IDS[c['schedule']]} with vpp {c['vpp']}",
    remedy=lambda c, f: f"use vpp {SCHEDULES[c['schedule']].chunks}",
    source="torch.distributed.pipelining.schedules",
)


def _schedule_rounds_broken(c: Columns, f: Facts) -> BoolArray:
    least = np.array([schedule.least_rounds for schedule in SCHEDULES])
    return np.asarray((c["pp"] > 1) & (c["micro_batches"] < least[c["schedule"]] * c["pp"]))


SCHEDULE_ROUNDS = Rule(
    id="schedule-rounds",
    says="dualpipe-v needs 2 · pp micro-batches",
    reads=("pp", "micro_batches", "schedule"),
    broken=_schedule_rounds_broken,
    message=lambda c, f: (
        f"{c['micro_batches']} micro-batches are fewer than the {SCHEDULES[c['schedule']].least_rounds * c['pp']} "
        f"that {SCHEDULE_IDS[c['schedule']]} needs on pp {c['pp']}"
    ),
    remedy=lambda c, f: "use a smaller micro-batch or pp, or schedule zb-v",
    source="github.com/deepseek-ai/DualPipe; torch.distributed.pipelining ScheduleDualPipeV",
)


def _interleaved_broken(c: Columns, f: Facts) -> BoolArray:
    if f.settings.number("microbatch_group_size_per_vp_stage"):
        return np.zeros(len(c["pp"]), dtype=bool)  # groups of another size have a rule of their own
    whole = (c["micro_batches"] >= c["pp"]) & (c["micro_batches"] % c["pp"] == 0)
    return np.asarray((c["schedule"] == _LOOPED) & ~whole)


INTERLEAVED_BATCH = Rule(
    id="interleaved-batch",
    says="interleaving runs micro-batches in groups of pp, so pp divides their number",
    reads=("pp", "micro_batches", "schedule"),
    broken=_interleaved_broken,
    message=lambda c, f: (
        f"{c['micro_batches']} micro-batches do not form groups of pp {c['pp']}"
        + (f": interleaving needs at least {c['pp']}" if c["micro_batches"] < c["pp"] else "")
    ),
    remedy=lambda c, f: f"use micro-batches in multiples of {c['pp']}, or vpp 1",
    source="Megatron-Core forward_backward_pipelining_with_interleaving",
)

ELEMENTARY: tuple[Rule, ...] = (
    GRAPH_AXES,
    HEADS,
    KV_HEADS,
    FFN,
    SEQUENCE_CP,
    WORLD,
    DP_BATCH,
    EXPERTS,
    EXPERT_WIDTH,
    EXPERT_MESH,
    SEQUENCE_SP,
    EXPERT_SP,
    REPLICATE,
    REPLICAS,
    EXPERT_REPLICATE,
    MICRO_BATCH,
    VIRTUAL,
    LAYERS,
    SCHEDULE_CHUNKS,
    INTERLEAVED_BATCH,
    SCHEDULE_ROUNDS,
)
