"""torchtitan 0.2's TOML as a configuration.

    world = dp_replicate · dp_shard · cp · tp · pp        dp_shard -1: what is left of the cluster
    batch = global_batch_size, else local_batch_size · dp
    micro-batch = local_batch_size, under a pipeline pipeline_parallel_microbatch_size

Stages hold what `module_fqns_per_model_part` names, or what torchtitan makes of layers, weights of embedding and output and
`pipeline_parallel_layers_per_stage` (`stage_layers`). The model is a flavor that has a preset, or the MODEL named beside it.

Source: torchtitan 0.2.2, `config/job_config.py`, `distributed/parallel_dims.py`, `distributed/pipeline_parallel.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwright.errors import ConflictError, InvalidValueError, UnsupportedError, unknown_name
from shardwright.models.catalog import load_model
from shardwright.models.graph import ModelGraph
from shardwright.models.spec import ModelSpec
from shardwright.models.transformer import build_graph
from shardwright.planner.emit.torchtitan.flavors import flavors_of, preset_of
from shardwright.planner.emit.torchtitan.settings import FLOAT8_RECIPES
from shardwright.planner.offloading import Offload
from shardwright.planner.plans import Degrees
from shardwright.planner.readers.configuration import Beside, Configuration, Finding
from shardwright.planner.readers.documents import read_toml
from shardwright.planner.readers.stated import StatedSettings
from shardwright.planner.readers.torchtitan_keys import MOVED, REWORDED, SECTIONS
from shardwright.planner.schedules.registry import SCHEDULE_IDS

#: torch's schedule -> (ours, what it is priced as if not itself)
_SCHEDULES: Mapping[str, tuple[str, str]] = {
    "1f1b": ("1f1b", ""),
    "gpipe": ("gpipe", ""),
    "interleaved1f1b": ("interleaved-1f1b", ""),
    "loopedbfs": ("interleaved-1f1b", "LoopedBFS is priced as Interleaved1F1B"),
    "interleavedzerobubble": ("interleaved-1f1b", "InterleavedZeroBubble is priced as Interleaved1F1B"),
    "zbvzerobubble": ("zb-v", ""),
    "dualpipev": ("dualpipe-v", ""),
}
_MX, _FLOAT8 = "mx", "float8"
_RECIPES = {name: precision for precision, name in FLOAT8_RECIPES.items()}
_RECIPE_KEYS = ("quantize.linear.float8.recipe_name", "float8.recipe_name")
"""Where 0.2 and 0.1 keep the recipe; none is tensorwise."""
_P = "parallelism."
_SHARD, _LOCAL = _P + "data_parallel_shard_degree", "training.local_batch_size"
_STAGES = (
    _P + "pipeline_parallel_layers_per_stage",
    _P + "pipeline_parallel_first_stage_less_layers",
    _P + "pipeline_parallel_last_stage_less_layers",
    _P + "module_fqns_per_model_part",
)
VERSION = "0.2"
"""The last version that reads TOML."""


_BACKENDS = {"standard": "alltoall", "deepep": "deepep"}
"""How tokens reach their experts."""

_ROTATIONS = {"allgather": "allgather", "alltoall": "p2p"}
"""How keys and values reach all ranks; what torch calls alltoall sends them on round a ring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mesh:
    """Degrees, and what of them cannot be."""

    tp: int
    cp: int
    pp: int
    replicate: int
    shard: int
    broken: tuple[Finding, ...]


def torchtitan_configuration(path: Path, beside: Beside) -> Configuration:
    """The configuration of a TOML file.

    Raises:
        ShardwrightError: the file cannot be read, or misses what a price needs.
    """
    written = read_toml(path)
    settings = _moved(written)
    graph = _model(settings, beside)
    mesh = _mesh(settings, beside.gpus)
    chunks, schedule, broken, said = _pipeline(settings, mesh.pp, graph.layers)
    local = settings.whole(_LOCAL, 8) or 8
    dp = max(beside.gpus // (mesh.tp * mesh.cp * mesh.pp), 1)
    micro = (settings.whole(_P + "pipeline_parallel_microbatch_size", 1) or 1) if mesh.pp > 1 else local
    batch = settings.whole("training.global_batch_size", least=-1)
    mode, recomputed, waived = _recompute(settings, graph.layers, mesh.pp)
    degrees = Degrees(
        tp=mesh.tp,
        cp=mesh.cp,
        pp=mesh.pp,
        vpp=max(len(chunks) // mesh.pp, 1),
        ep=settings.whole(_P + "expert_parallel_degree", 1) or 1,
        etp=settings.whole(_P + "expert_tensor_parallel_degree", 1) if graph.spec.moe else None,
        dp_replicate=mesh.replicate if _zero(settings, mesh) else None,
        micro_batch=micro,
        zero=_zero(settings, mesh),
        schedule=schedule,
        recompute=mode,
        recompute_layers=recomputed,
        layers_per_stage=chunks or None,
        moe_dispatcher=_BACKENDS[
            settings.word(_P + "expert_parallel_comm_backend", tuple(_BACKENDS), "standard") or "standard"
        ],
        cp_comm=_ROTATIONS[settings.word(_P + "context_parallel_rotate_method", tuple(_ROTATIONS), "allgather") or "allgather"],
        offload=Offload(optimizer=1.0, parameters=1.0) if settings.on("training.enable_cpu_offload") else None,
    )
    whole = batch if batch is not None and batch > 0 else local * dp
    accumulated = mesh.pp > 1 and whole > local * dp
    return Configuration(
        source=str(path),
        framework="torchtitan",
        version=VERSION,
        graph=graph,
        seq_len=settings.whole("training.seq_len", 2048) or 2048,
        global_batch=whole,
        precision=_precision(settings),
        stack=None if settings.on("compile.enable") else "torchtitan-eager",
        degrees=degrees,
        settings=settings.values() | ({} if beside.world_size is None else {"launch.world_size": beside.world_size}),
        found=(*_unknown(written), *mesh.broken, *broken, *_local(settings, mesh.pp, local, micro), *_lost(settings, mesh)),
        waived=waived,
        warnings=(*said, *_unpriced(settings, accumulated=accumulated)),
    )


def _found(rule: str, message: str, remedy: str, *settings: str) -> Finding:
    return Finding(rule=rule, message=message, remedy=remedy, settings=frozenset(settings))


def _moved(settings: StatedSettings) -> StatedSettings:
    """Values under older names read as though they stood where they belong now, so that one slip is told once."""
    moved = {MOVED[n]: one for n, one in settings.stated.items() if n in MOVED and n not in REWORDED}
    return StatedSettings(source=settings.source, stated=moved | dict(settings.stated))


def _model(settings: StatedSettings, beside: Beside) -> ModelGraph:
    """The MODEL that is named, or the preset of the flavor; torchtitan trains no multi-token prediction."""
    family, flavor = settings.text("model.name") or "llama3", settings.text("model.flavor") or "debugmodel"
    preset = beside.model or preset_of(family, flavor)
    if preset is None:
        where = settings.where("model.flavor" if "model.flavor" in settings else "model.name")
        if flavor == "debugmodel":
            raise UnsupportedError(f"{family} debugmodel has no preset", where=where, hint="name MODEL on the command line")
        raise unknown_name(f"flavor of {family}", flavor, flavors_of(family), where=where)
    graph = load_model(preset)
    if not graph.spec.mtp_layers:
        return graph
    return build_graph(ModelSpec.from_dict(graph.spec.to_dict() | {"mtp_layers": 0}))


def _mesh(settings: StatedSettings, gpus: int) -> _Mesh:
    names = ("tensor", "context", "pipeline", "data_parallel_replicate")
    keys = [f"{_P}{name}_parallel_degree" if "data" not in name else f"{_P}{name}_degree" for name in names]
    tp, cp, pp, replicate = (settings.whole(key, 1) or 1 for key in keys)
    shard = settings.whole(_SHARD, -1, least=-1) or -1
    rest = gpus // (tp * cp * pp * replicate)
    product = replicate * max(shard, 1) * cp * tp * pp
    wrong = gpus % (tp * cp * pp * replicate) != 0 or (shard > 0 and product != gpus)
    broken: tuple[Finding, ...] = ()
    if wrong and gpus % (tp * cp * pp) == 0:
        degrees = f"dp_replicate {replicate} · dp_shard {max(shard, 1)} · cp {cp} · tp {tp} · pp {pp} = {product}"
        remedy = "set data_parallel_shard_degree = -1" if rest else "lower the degrees"
        broken = (_found("torchtitan-world-size", f"{degrees} is not the {gpus} GPUs", remedy, *keys[3:], _SHARD),)
    return _Mesh(tp=tp, cp=cp, pp=pp, replicate=replicate, shard=max(rest, 1) if shard < 0 else shard, broken=broken)


def _zero(settings: StatedSettings, mesh: _Mesh) -> int:
    """FSDP shards over dp_shard · cp ranks; without resharding after forward, the default of a pipeline, it is ZeRO 2."""
    if mesh.shard * mesh.cp == 1:
        return 0
    policy = settings.word(_P + "fsdp_reshard_after_forward", ("default", "always", "never"), "default")
    return 2 if policy == "never" or (policy == "default" and mesh.pp > 1) else 3


def _lost(settings: StatedSettings, mesh: _Mesh) -> tuple[Finding, ...]:
    """What `torch-split-backward` says, for the schedule that is priced as one that keeps gradients together."""
    name = settings.text(_P + "pipeline_parallel_schedule") or ""
    if mesh.pp == 1 or name.lower() != "interleavedzerobubble" or _zero(settings, mesh) != 3:
        return ()
    message = f"{name} loses gradients of weights, without an error, where FSDP reshards after forward"
    remedy = f'set {_P}fsdp_reshard_after_forward = "never"'
    return (_found("torch-split-backward", message, remedy, _P + "fsdp_reshard_after_forward"),)


def _pipeline(
    settings: StatedSettings, pp: int, layers: int
) -> tuple[tuple[int, ...], str | None, tuple[Finding, ...], tuple[str, ...]]:
    """Layers of each stage, the schedule, what cannot be, what is priced as something else."""
    if pp == 1:
        return (), None, (), ()
    name = settings.text(_P + "pipeline_parallel_schedule") or "1F1B"
    if name.lower() not in _SCHEDULES:
        raise unknown_name("schedule", name, _SCHEDULES, where=settings.where(_P + "pipeline_parallel_schedule"))
    schedule, said = _SCHEDULES[name.lower()]
    if schedule not in SCHEDULE_IDS:
        schedule, said = "interleaved-1f1b", f"{name} is priced as Interleaved1F1B"
    single = schedule in {"1f1b", "gpipe"}
    try:
        chunks = _named_layers(settings, layers) or stage_layers(settings, pp=pp, layers=layers, single=single)
        _check_stages(len(chunks), pp, single=single, name=name)
    except ConflictError as error:
        return (), schedule if single else None, (_found("torchtitan-split", error.message, error.hint, *_STAGES),), ()
    return chunks, schedule, (), (said,) if said else ()


def _named_layers(settings: StatedSettings, layers: int) -> tuple[int, ...]:
    """Layers of each stage by the names of their modules."""
    key = _P + "module_fqns_per_model_part"
    parts: Any = settings.known(key)
    if parts is None:
        return ()
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        hint = 'write [["tok_embeddings", "layers.0"], ...]'
        raise InvalidValueError("the parts are no list of lists", where=settings.where(key), hint=hint)
    named = [name for part in parts for name in map(str, part) if name.startswith("layers.")]
    wanted = [f"layers.{index}" for index in range(layers)]
    if named != wanted:
        missing = sorted(set(wanted) - set(named)) or ["none, but their order is another"]
        message = f"the parts name {len(named)} layers of {layers}; missing: {missing[0]}"
        raise ConflictError(message, hint="name every layer once, in order")
    return tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)


def stage_layers(settings: StatedSettings, *, pp: int, layers: int, single: bool) -> tuple[int, ...]:
    """Layers of each stage as torchtitan divides them: embedding and output weigh some layers, the first stages one more.

    Raises:
        ConflictError: the stages do not fill the ranks, or the weights exceed a stage.
    """
    first = settings.whole(_P + "pipeline_parallel_first_stage_less_layers", 1, least=0) or 0
    last = settings.whole(_P + "pipeline_parallel_last_stage_less_layers", 1, least=0) or 0
    each = settings.whole(_P + "pipeline_parallel_layers_per_stage")
    units = layers + first + last
    stages = pp * (1 if single else 2) if each is None else -(-units // each)
    if stages % pp:
        even = [n for n in range(1, units + 1) if -(-units // n) % pp == 0]
        near = min(even, key=lambda n: (abs(n - (each or 1)), n), default=units)
        raise ConflictError(
            f"{stages} stages of {each} layers over pp {pp}", hint=f"set pipeline_parallel_layers_per_stage = {near}"
        )
    base, more = divmod(units, stages)
    if max(first, last, 1) > base:
        message = f"{units} units (layers, embedding {first}, output {last}) in {stages} stages leave {base} a stage"
        raise ConflictError(message, hint="use fewer stages, or smaller weights of embedding and output")
    chunks = [base + (index < more) for index in range(stages)]
    chunks[0] -= first
    chunks[-1] -= last
    return tuple(chunks)


def _check_stages(stages: int, pp: int, *, single: bool, name: str) -> None:
    if stages % pp or (single and stages != pp) or (not single and stages < 2 * pp):
        wanted = f"{pp}" if single else f"a multiple of {pp}, {2 * pp} at least"
        raise ConflictError(f"{stages} stages for schedule {name} over pp {pp}", hint=f"make it {wanted} stages")


def _recompute(settings: StatedSettings, layers: int, pp: int) -> tuple[str, int | None, frozenset[str]]:
    """The mode, layers of a stage, and the rule that an every-n-th option refutes."""
    mode = settings.word("activation_checkpoint.mode", ("none", "selective", "full", "memory_budget"), "selective")
    option = settings.text("activation_checkpoint.selective_ac_option") or "2"
    if mode == "selective" and option.isdecimal() and int(option) > 0:
        held = -(-layers // pp)
        return "full", -(-held // int(option)), frozenset(("torch-recompute",))
    return ("selective" if mode == "memory_budget" else mode or "selective"), None, frozenset()


def _precision(settings: StatedSettings) -> str:
    for word in settings.words("model.converters"):
        kind = word.rsplit(".", 1)[-1]
        if kind == _FLOAT8:
            key = next((k for k in _RECIPE_KEYS if k in settings), _RECIPE_KEYS[0])
            return _RECIPES[settings.word(key, tuple(_RECIPES), "tensorwise") or "tensorwise"]
        if kind == _MX:
            return "mxfp8"
    return {"bfloat16": "bf16", "float32": "fp32"}[
        settings.word("training.mixed_precision_param", ("bfloat16", "float32"), "bfloat16") or "bfloat16"
    ]


def _local(settings: StatedSettings, pp: int, local: int, micro: int) -> tuple[Finding, ...]:
    """Under a pipeline the local batch is cut into micro-batches."""
    if pp == 1 or local % micro == 0:
        return ()
    message = f"a local batch of {local} cannot be cut into micro-batches of {micro}"
    remedy = f"set {_LOCAL} = {-(-local // micro) * micro}"
    return (_found("torchtitan-micro-batch", message, remedy, _LOCAL, _P + "pipeline_parallel_microbatch_size"),)


def _unknown(settings: StatedSettings) -> tuple[Finding, ...]:
    """Keys that torchtitan refuses, with what they are called now."""
    known = [f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys]
    made = []
    for name, one in settings.stated.items():
        section, _, key = name.partition(".")
        if section in SECTIONS and key.split(".")[0] in SECTIONS[section]:
            continue
        near = [MOVED[name]] if name in MOVED else difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        remedy = f"write {near[0]}" if near else "leave it out"
        made.append(_found("torchtitan-key", f"torchtitan 0.2 knows no key {name} ({one.where})", remedy))
    return tuple(made)


def _unpriced(settings: StatedSettings, *, accumulated: bool) -> tuple[str, ...]:
    said = {
        _P + "enable_async_tensor_parallel": "how much of it is hidden is the stack profile's",
        _P + "pipeline_parallel_schedule_csv": "the schedule of the file is not read",
        "quantize.linear.float8.enable_fsdp_float8_all_gather": "shards are priced as gathered in 16 bits",
    }
    found = [f"{settings.where(key)}: {text}" for key, text in said.items() if settings.known(key) not in (None, False, "")]
    if settings.text("training.dtype") == "bfloat16":
        found.append(f"{settings.where('training.dtype')}: states are priced with an fp32 master copy")
    if settings.text("activation_checkpoint.mode") == "memory_budget":
        found.append(f"{settings.where('activation_checkpoint.mode')}: priced as selective recompute")
    if accumulated:
        found.append("local batches that are accumulated are priced as micro-batches of one pipeline")
    return tuple(found)
