"""Prices a user's configuration: what it breaks first, with remedies, then what it costs.

    estimate_file(framework, path, cluster)      a file of a framework, with what is named beside it
    estimate_configuration(configuration, ...)   any configuration a reader made

The cluster is named beside the file and must have the ranks the file starts. Where the file describes a model, a MODEL named
beside it must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwright.hardware.catalog import load_cluster
from shardwright.hardware.cluster import Cluster
from shardwright.planner.estimation import Estimate, estimate_problem
from shardwright.planner.problem import PricingOptions, build_problem
from shardwright.planner.readers.configuration import Beside, Configuration
from shardwright.planner.readers.deepspeed import deepspeed_configuration
from shardwright.planner.readers.megatron import megatron_configuration
from shardwright.planner.readers.torchtitan import torchtitan_configuration
from shardwright.planner.rules.registry import RULES
from shardwright.planner.rules.versions import checked_version

READERS: Mapping[str, Callable[[Path, Beside], Configuration]] = {
    "megatron": megatron_configuration,
    "torchtitan": torchtitan_configuration,
    "deepspeed": deepspeed_configuration,
}


def estimate_file(
    framework: str,
    path: str | Path,
    cluster: str,
    *,
    model: str | None = None,
    options: PricingOptions | None = None,
    defined: Mapping[str, str] | None = None,
    world_size: int | None = None,
    seq_len: int | None = None,
    degrees: Mapping[str, Any] | None = None,
) -> Estimate:
    """Prices a configuration of a framework.

    Args:
        framework: a key of `READERS`.
        path: the file.
        cluster: `NODE:COUNT[xG]` or a path.
        model: a preset or file; None for the model the file describes.
        options: stack, margin and the like; precision, optimizer and gradients come from the file.
        defined: shell variables to take as given, arguments of a script as "1", "2"; values for what a document leaves open.
        world_size: ranks that are started, where the file does not say or another number is meant.
        seq_len: tokens a sequence, for files that do not say.
        degrees: fields of `plans.Degrees`, for files that do not say.

    Raises:
        ShardwrightError: the file cannot be read, or misses what a price needs. A configuration that cannot run is an answer.
    """
    chosen = options or PricingOptions()
    machine = load_cluster(cluster)
    beside = Beside(
        gpus=(machine if chosen.gpus is None else machine.truncated(chosen.gpus)).gpus,
        model=model,
        version=checked_version(framework, chosen.target_version),
        defined=defined or {},
        world_size=world_size,
        seq_len=seq_len,
        degrees=degrees or {},
    )
    return estimate_configuration(READERS[framework](Path(path), beside), cluster, chosen)


def estimate_configuration(configuration: Configuration, cluster: str | Cluster, options: PricingOptions) -> Estimate:
    """Prices a configuration on a cluster, with everything it breaks."""
    problem = build_problem(
        configuration.graph,
        cluster,
        seq_len=configuration.seq_len,
        global_batch=configuration.global_batch,
        options=replace(
            options,
            framework=configuration.framework,
            target_version=options.target_version or configuration.version,
            precision=configuration.precision,
            optimizer=configuration.optimizer,
            grad_dtype=configuration.grad_dtype,
            stack=options.stack or configuration.stack,
        ),
    )
    data = estimate_problem(problem, configuration.degrees, configuration.settings).to_dict()
    reported = [broken for broken in data["violations"] if broken["rule"] not in configuration.waived]
    broken = [*reported, *_unless_reported(configuration, reported)]
    data |= {"violations": broken, "feasible": not broken, "warnings": [*configuration.warnings, *data["warnings"]]}
    return Estimate(data=data)


def _unless_reported(configuration: Configuration, reported: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """What the reader found, where no rule of the framework on the same settings says it already."""
    broken = {one["rule"] for one in reported}
    read = {setting for rule in RULES if rule.id in broken for setting in rule.settings}
    return [found.to_dict() for found in configuration.found if not found.settings & read]
