"""Arguments of Megatron-LM as a configuration: file, model, job and plan put together.

megatron_configuration(path, beside)   a script, list, YAML or JSON (`megatron_files`) -> Configuration
"""

from __future__ import annotations

from pathlib import Path

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.models.catalog import load_model
from shardwright.models.graph import ModelGraph
from shardwright.models.spec import ModelSpec
from shardwright.models.transformer import build_graph
from shardwright.planner.readers.configuration import Beside, Configuration
from shardwright.planner.readers.megatron_files import MegatronFile, read_megatron_file
from shardwright.planner.readers.megatron_model import describes_model, model_mapping
from shardwright.planner.readers.megatron_plan import (
    grouped_micro_batches,
    job_of,
    plan_of,
    sharded_by_fsdp,
    unpriced,
)
from shardwright.planner.readers.stated import StatedSettings
from shardwright.planner.rules.versions import holds_in

CONNECTIONS = "env.CUDA_DEVICE_MAX_CONNECTIONS"
_COMPARED = {"num_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads", "num_query_groups": "kv_heads"}


def megatron_configuration(path: Path, beside: Beside) -> Configuration:
    """The configuration that Megatron-LM arguments describe.

    Raises:
        ShardwrightError: the file cannot be read, or misses what a price needs.
    """
    found = read_megatron_file(path, beside.defined)
    settings, graph = found.settings, _model(found, beside, path.stem)
    job = job_of(settings)
    plan = plan_of(settings, job, graph.spec, newest_default=holds_in("megatron", beside.version, "0.17", None))
    replicas = max(beside.gpus // (plan.degrees.tp * plan.degrees.cp * plan.degrees.pp), 1)
    batch = job.global_batch or job.micro_batch * replicas
    environment, said = _environment(found)
    ranks = beside.world_size or found.world_size
    return Configuration(
        source=str(path),
        framework="megatron",
        graph=graph,
        seq_len=job.seq_len,
        global_batch=batch,
        precision=job.precision,
        optimizer=job.optimizer,
        grad_dtype=job.grad_dtype,
        degrees=plan.degrees,
        settings=settings.values() | environment | ({} if ranks is None else {"launch.world_size": ranks}),
        found=plan.found,
        waived=frozenset(("interleaved-batch",))
        if grouped_micro_batches(settings, plan.degrees, batch, replicas)
        else frozenset(),
        warnings=(*found.warnings, *said, *unpriced(settings), *_other_model(settings, beside.model, graph.spec)),
    )


def _model(found: MegatronFile, beside: Beside, name: str) -> ModelGraph:
    """The model that is named, or the one the arguments describe; MTP as the arguments have it."""
    settings, model = found.settings, beside.model
    if model is None:
        if not describes_model(settings):
            hint = "name MODEL on the command line, or add --num-layers and the like to the file"
            raise InvalidValueError(f"{settings.source} describes no model", where=settings.source, hint=hint)
        counts_end = holds_in("megatron", beside.version, None, "0.17")
        return build_graph(ModelSpec.from_dict(model_mapping(settings, name, null_tokenizer_counts_end=counts_end)))
    graph = load_model(model)
    for setting, key in _COMPARED.items():
        stated, own = settings.whole(setting), getattr(graph.spec, key)
        if stated is not None and stated != own and not (key == "kv_heads" and graph.spec.mla):
            message = f"the file says {setting} {stated}; {graph.name} has {own}"
            raise ConflictError(message, where=settings.where(setting), hint="drop MODEL, or name the model of the file")
    wanted = settings.whole("mtp_num_layers", 0, least=0)
    if wanted == graph.spec.mtp_layers:
        return graph
    return build_graph(ModelSpec.from_dict(graph.spec.to_dict() | {"mtp_layers": wanted}))


def _other_model(settings: StatedSettings, model: str | None, spec: ModelSpec) -> tuple[str, ...]:
    if model is None or load_model(model).spec.mtp_layers == spec.mtp_layers:
        return ()
    return (f"{settings.source} trains {spec.mtp_layers} multi-token-prediction blocks; {model} has others",)


def _environment(found: MegatronFile) -> tuple[dict[str, str], tuple[str, ...]]:
    """Variables as settings; a file that cannot set any is taken to be launched as Megatron demands."""
    if found.environment is not None:
        return {f"env.{name}": value for name, value in found.environment.items()}, ()
    value = "8" if sharded_by_fsdp(found.settings) else "1"
    said = f"{found.settings.source} sets no environment; CUDA_DEVICE_MAX_CONNECTIONS={value} is taken for granted"
    return {CONNECTIONS: value}, (said,)
