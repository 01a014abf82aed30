"""Prices a user's configuration: what it breaks first, with remedies, then what it costs.

    estimate_file(framework, path, cluster)                   a file of a framework
    estimate_configuration(configuration, cluster, options)   any configuration a reader made
    estimate_megatron(path, cluster)                          arguments of Megatron-LM

The cluster is named beside the file and must have the ranks the file starts. Where the file describes a model, a MODEL named
beside it must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwright.errors import ConflictError, InvalidValueError
from shardwright.hardware.catalog import load_cluster
from shardwright.models.catalog import load_model
from shardwright.models.graph import ModelGraph
from shardwright.models.spec import ModelSpec
from shardwright.models.transformer import build_graph
from shardwright.planner.estimation import Estimate, estimate_problem
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.readers.configuration import Configuration
from shardwright.planner.readers.megatron_files import MegatronFile, read_megatron_file
from shardwright.planner.readers.megatron_model import describes_model, model_mapping
from shardwright.planner.readers.megatron_plan import SPLIT_SETTINGS, job_of, plan_of, sharded_by_fsdp, unpriced
from shardwright.planner.readers.stated import StatedSettings
from shardwright.planner.rules.registry import RULES
from shardwright.planner.rules.versions import checked_version, holds_in

LAUNCHED = "launch.world_size"
CONNECTIONS = "env.CUDA_DEVICE_MAX_CONNECTIONS"
_COMPARED = {"num_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads", "num_query_groups": "kv_heads"}


def estimate_file(framework: str, path: str | Path, cluster: str, **more: Any) -> Estimate:
    """Prices a configuration of a framework; the rest is as the framework's own function takes it."""
    return READERS[framework](path, cluster, **more)


def estimate_megatron(
    path: str | Path,
    cluster: str,
    *,
    model: str | None = None,
    options: PricingOptions | None = None,
    defined: Mapping[str, str] | None = None,
    world_size: int | None = None,
) -> Estimate:
    """Prices Megatron-LM arguments.

    Args:
        path: a shell script, a list of arguments, YAML or JSON.
        cluster: `NODE:COUNT[xG]` or a path.
        model: a preset or file; None for the architecture in the arguments.
        options: stack, margin and the like; precision, optimizer and gradients come from the file.
        defined: shell variables to take as given, arguments of the script as "1", "2".
        world_size: ranks that are started, where the file does not say or another number is meant.

    Raises:
        ShardwrightError: the file cannot be read, or misses what a price needs. A configuration that cannot run is an answer.
    """
    chosen = options or PricingOptions()
    version = checked_version("megatron", chosen.target_version)
    found = read_megatron_file(Path(path), defined)
    gpus = _gpus(cluster, chosen)
    settings, graph = found.settings, _model(found, model, Path(path).stem)
    job = job_of(settings)
    plan = plan_of(settings, job, graph.spec, newest_default=holds_in("megatron", version, "0.17", None))
    stage = plan.degrees.tp * plan.degrees.cp * plan.degrees.pp
    environment, said = _environment(found)
    configuration = Configuration(
        source=str(path),
        framework="megatron",
        graph=graph,
        seq_len=job.seq_len,
        global_batch=job.global_batch or job.micro_batch * max(gpus // stage, 1),
        precision=job.precision,
        optimizer=job.optimizer,
        grad_dtype=job.grad_dtype,
        degrees=plan.degrees,
        settings=settings.values() | environment | _launched(world_size or found.world_size),
        violations=plan.violations,
        warnings=(*found.warnings, *said, *unpriced(settings), *_other_model(settings, model, graph.spec)),
    )
    return estimate_configuration(configuration, cluster, chosen)


def estimate_configuration(configuration: Configuration, cluster: str, options: PricingOptions) -> Estimate:
    """Prices a configuration on a cluster, with everything it breaks."""
    problem = build_problem(
        configuration.graph,
        cluster,
        seq_len=configuration.seq_len,
        global_batch=configuration.global_batch,
        options=replace(
            options,
            framework=configuration.framework,
            precision=configuration.precision,
            optimizer=configuration.optimizer,
            grad_dtype=configuration.grad_dtype,
        ),
    )
    data = estimate_problem(problem, configuration.degrees, configuration.settings).to_dict()
    broken = [*data["violations"], *_unless_reported(configuration, data["violations"], problem.cluster.gpus)]
    data |= {"violations": broken, "feasible": not broken, "warnings": [*configuration.warnings, *data["warnings"]]}
    return Estimate(data=data)


def _unless_reported(configuration: Configuration, reported: list[dict[str, str]], gpus: int) -> list[dict[str, str]]:
    """What the reader found, where no rule of the framework says it already."""
    read = {setting for broken in reported for rule in RULES if rule.id == broken["rule"] for setting in rule.settings}
    made = [] if read & SPLIT_SETTINGS else list(configuration.violations)
    launched = configuration.settings.get(LAUNCHED)
    if launched is not None and launched != gpus and LAUNCHED not in read:
        message = f"the launch starts {launched} ranks; the cluster has {gpus} GPUs"
        remedy = f"start {gpus} ranks, or name a cluster of {launched} GPUs"
        made.append({"rule": "launch-world-size", "message": message, "remedy": remedy})
    return made


def _gpus(cluster: str, options: PricingOptions) -> int:
    machine = load_cluster(cluster)
    return (machine if options.gpus is None else machine.truncated(options.gpus)).gpus


def _model(found: MegatronFile, model: str | None, name: str) -> ModelGraph:
    """The model that is named, or the one the arguments describe; MTP as the arguments have it."""
    settings = found.settings
    if model is None:
        if not describes_model(settings):
            hint = "name MODEL on the command line, or add --num-layers and the like to the file"
            raise InvalidValueError(f"{settings.source} describes no model", where=settings.source, hint=hint)
        return build_graph(ModelSpec.from_dict(model_mapping(settings, name)))
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


def _launched(ranks: int | None) -> dict[str, Any]:
    return {} if ranks is None else {LAUNCHED: ranks}


READERS: Mapping[str, Callable[..., Estimate]] = {"megatron": estimate_megatron}
