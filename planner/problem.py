"""A planning problem: model, training job, cluster, framework stack, calibration, each with its origin.

`build_problem` turns what a user named into one immutable `Problem`; `problem_from_inputs` rebuilds it from
the `inputs` of a saved result, so that every later command works from the file alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from shardwright.documents import digest, rounded
from shardwright.errors import DamagedFileError, InvalidValueError
from shardwright.hardware.areas import Areas, areas_of
from shardwright.hardware.calibration import Corrections
from shardwright.hardware.catalog import cluster_from_dict, load_node, node_ids
from shardwright.hardware.cluster import Cluster, Node
from shardwright.hardware.device import Device
from shardwright.hardware.economics import rated_power_w
from shardwright.hardware.kernel_fits import KernelFit, fit_from_dict, load_fit
from shardwright.hardware.reliability import Operation
from shardwright.hardware.site_factors import AS_MODELLED, PARTS, SiteFactors
from shardwright.models.adapters import FrozenSpec
from shardwright.models.catalog import load_model, model_from_dict
from shardwright.models.checks import whole
from shardwright.models.dtypes import PRECISIONS, optimizer_of, precision_of
from shardwright.models.graph import ModelGraph
from shardwright.models.job import TrainingJob, choices_in_force
from shardwright.models.length_files import read_lengths
from shardwright.models.lengths import Lengths
from shardwright.planner.corrections import corrections_from
from shardwright.planner.fits.applying import fits_in_force, with_fits
from shardwright.planner.fits.factors import NOTHING_FITTED, Fits
from shardwright.planner.overrides import apply_overrides, fits_with, load_filled, operation_with
from shardwright.planner.prices import with_prices
from shardwright.planner.pricing_options import (
    FRAMEWORKS,
    GIB,
    METERS,
    MOST_MARGIN_GIB,
    OBJECTIVES,
    PricingOptions,
    fits_of,
    framework_of,
    frozen_asked,
    grad_bytes_asked,
    one_of,
    with_skew,
)
from shardwright.planner.rules.versions import checked_version
from shardwright.planner.stacks import DEFAULT_STACKS, StackProfile, load_stack, stack_from_dict

__all__ = [
    "FRAMEWORKS",
    "GIB",
    "METERS",
    "OBJECTIVES",
    "Assumption",
    "PricingOptions",
    "Problem",
    "build_problem",
    "problem_from_inputs",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A value in force and where it comes from: given, preset, default or inferred."""

    key: str
    value: Any
    origin: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"key": self.key, "value": self.value, "origin": self.origin}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Everything a price depends on, except the plan itself.

    `whole` is the cluster asked for where `cluster` is only its first nodes; None where plans use all of it. `further` holds
    the kernel fits of further devices, where nodes of several kinds are mixed. `stack` and kernel fits have `fits` applied.
    """

    job: TrainingJob
    cluster: Cluster
    stack: StackProfile
    kernels: KernelFit
    framework: str
    memory_margin_bytes: int
    memory_meter: str
    target_version: str | None = None
    collectives: Corrections | None = None
    operation: Operation = field(default_factory=Operation)
    objective: str = "throughput"
    whole: Cluster | None = None
    further: tuple[KernelFit, ...] = ()
    fits: Fits = NOTHING_FITTED
    assumptions: tuple[Assumption, ...] = field(default=())

    @property
    def graph(self) -> ModelGraph:
        """The layer graph that is trained: the model's, with adapters where there are any."""
        return self.job.trained

    @property
    def site(self) -> SiteFactors:
        """What measured steps of this site say."""
        return AS_MODELLED if self.collectives is None else self.collectives.site

    @property
    def device(self) -> Device:
        """The device every rank runs on; an error where they differ."""
        return self.cluster.device

    @property
    def areas(self) -> Areas:
        """Kinds of node and the sets of them that stages may stand on."""
        return areas_of(self.cluster)

    @property
    def memory_bytes(self) -> int:
        """Memory of all devices together."""
        return sum(group.gpus * group.node.device.memory_bytes for group in self.cluster.groups)

    @property
    def peak_flops(self) -> float:
        """Dense peak of a GPU in the training precision; the mean where devices differ."""
        peaks = [group.node.device.peak_flops[self.job.precision.compute] for group in self.cluster.groups]
        if len(set(peaks)) == 1:
            return peaks[0]
        return sum(p * group.gpus for p, group in zip(peaks, self.cluster.groups, strict=True)) / self.cluster.gpus

    def kernels_of(self, device: Device) -> KernelFit:
        """The kernel fit of a device of the cluster."""
        return next((fit for fit in self.further if fit.id == device.kernels), self.kernels)

    @property
    def asked(self) -> Cluster:
        """The cluster asked for."""
        return self.cluster if self.whole is None else self.whole

    @property
    def checkpoint_bytes(self) -> float:
        """Size of a checkpoint, all ranks together: trained weights, master copy and moments."""
        job = self.job
        state = job.optimizer.state_bytes(job.precision) + job.precision.parameter_bytes
        return float(self.graph.trainable_parameters if job.frozen else self.graph.parameters) * state

    def on_first(self, gpus: int) -> Problem:
        """The problem on the first GPUs of the cluster asked for."""
        if gpus == self.asked.gpus:
            return replace(self, cluster=self.asked, whole=None)
        part = self.asked.truncated(gpus)
        return replace(self, cluster=part.in_equal_blocks() if ":" in part.name else part, whole=self.asked)

    def repriced(self, prices: Sequence[str], objective: str = "throughput") -> Problem:
        """The problem with stated prices, and another objective than throughput where one is named."""
        whole = None if self.whole is None else with_prices(self.whole, prices)
        named = self.objective if objective == "throughput" else objective
        return replace(self, cluster=with_prices(self.cluster, prices), whole=whole, objective=named)

    def to_inputs(self) -> dict[str, Any]:
        """The self-contained `inputs` of a result."""
        inline: dict[str, Any] = {"stack": _plain(self.stack), "kernels": _plain(self.kernels)}
        inline |= {"further_kernels": [_plain(fit) for fit in self.further]} if self.further else {}
        name = "+".join(fit.id for fit in (self.kernels, *self.further))
        inline |= {"fits": self.fits.to_dict()} if self.fits.values else {}
        if self.collectives is not None:
            measured = self.collectives.calibration
            inline, name = inline | {"collectives": measured.to_dict()}, f"{name}+{measured.name}"
        return {
            "model": self.job.graph.to_dict(),
            "cluster": self.asked.to_dict(),
            "training": {
                "seq_len": self.job.seq_len,
                "global_batch": self.job.global_batch,
                "precision": self.job.precision.id,
                "optimizer": self.job.optimizer.id,
                "grad_bytes": self.job.grad_bytes,
                **self.job.choices(),
            },
            "calibration": {"name": name, "digest": digest(rounded(inline)), "inline": inline},
            "stack": self.stack.id,
            "search": {
                "framework": self.framework,
                "target_version": self.target_version,
                "memory_margin_bytes": self.memory_margin_bytes,
                "memory_meter": self.memory_meter,
                "objective": self.objective,
            },
            "operation": self.operation.to_dict(),
        }


def build_problem(
    model: str | ModelGraph,
    cluster: str | Cluster,
    *,
    seq_len: int | None,
    global_batch: int,
    options: PricingOptions | None = None,
) -> Problem:
    """The problem a user describes.

    Args:
        model: a preset id, a path, or a graph.
        cluster: `NODE:COUNT[xG]`, a path, or a cluster.
        seq_len: tokens a sequence; None: as a graph file has it, 1 where it has no sequence.
        global_batch: sequences a step.
        options: precision, framework, stack and the like.

    Raises:
        ShardwrightError: an unknown name, or a value outside what is allowed.
    """
    chosen = options or PricingOptions()
    framework = framework_of(chosen.framework)
    one_of("memory meter", chosen.memory_meter, METERS, "--memory-meter")
    one_of("objective", chosen.objective, OBJECTIVES, "--objective")
    if not 0 <= chosen.memory_margin_gib <= MOST_MARGIN_GIB:
        raise InvalidValueError(f"{chosen.memory_margin_gib} GiB", where="--memory-margin", hint="give 0 to 1024 GiB")
    graph = load_model(model, dims=chosen.dims, declared=chosen.declared) if isinstance(model, str) else model
    framework = "pytorch" if framework == "any" and graph.origin is not None else framework
    machine, statements = load_filled(cluster, chosen.overrides)
    if chosen.gpus is not None:
        machine = machine.truncated(chosen.gpus)
    if isinstance(cluster, str) and ":" in machine.name:
        machine = machine.in_equal_blocks()
    measured = corrections_from(chosen.calibration, machine)
    fits = fits_with(fits_of(chosen), statements)
    stack = fits.stack(load_stack(DEFAULT_STACKS[framework] if chosen.stack is None else chosen.stack))
    graph, machine, stack = apply_overrides(graph, machine, with_skew(stack, chosen), statements)
    machine = with_prices(machine, chosen.prices)
    job = TrainingJob(
        graph=graph,
        seq_len=_sequence(graph) if seq_len is None else seq_len,
        global_batch=global_batch,
        precision=precision_of(chosen.precision),
        optimizer=optimizer_of(chosen.optimizer),
        grad_bytes=grad_bytes_asked(chosen, stack),
        frozen=frozen_asked(chosen),
        lengths=read_lengths(Path(chosen.length_histogram)) if chosen.length_histogram is not None else None,
    )
    problem = _assembled(job, machine, stack, framework, int(chosen.memory_margin_gib * GIB), chosen.memory_meter, fits)
    version = checked_version(framework, chosen.target_version)
    problem = replace(problem, target_version=version, collectives=measured, objective=chosen.objective)
    problem = replace(problem, operation=operation_with(problem.operation, statements))
    return replace(problem, assumptions=_assumptions(problem, chosen))


def _sequence(graph: ModelGraph) -> int:
    """The sequence length of a graph from a file.

    Raises:
        InvalidValueError: the model is no such graph.
    """
    if graph.origin is None:
        raise InvalidValueError("--seq-len is missing", where="--seq-len", hint="give the tokens of a sequence")
    return graph.origin.seq or 1


def problem_from_inputs(inputs: Mapping[str, Any], overrides: tuple[str, ...] = (), world_size: int | None = None) -> Problem:
    """The problem stored in the `inputs` of a result or a plan.

    Args:
        inputs: as `Problem.to_inputs` wrote them.
        overrides: what-if statements `key=value` applied to them.
        world_size: GPUs of a plan that may use only the first of the cluster; None for all.

    Raises:
        ShardwrightError: a part is missing, of another type, or out of range.
    """
    try:
        problem = _stored(inputs, overrides)
        return problem if world_size is None or world_size > problem.cluster.gpus else problem.on_first(world_size)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, ArithmeticError) as error:
        hint = "give a file as `plan` or `estimate` wrote it"
        raise DamagedFileError(f"the inputs of the plan cannot be used ({error!r})", where="inputs", hint=hint) from error


def _stored(inputs: Mapping[str, Any], overrides: tuple[str, ...]) -> Problem:
    training, search, inline = inputs["training"], inputs["search"], inputs["calibration"]["inline"]
    saved_fits = Fits.from_dict(inline["fits"]) if inline.get("fits") else NOTHING_FITTED
    fits = fits_with(saved_fits, overrides)
    stack = fits.over(saved_fits).stack(stack_from_dict(inline["stack"]))
    graph, cluster, stack = apply_overrides(
        model_from_dict(inputs["model"]), cluster_from_dict(inputs["cluster"]), stack, overrides
    )
    job = TrainingJob(
        graph=graph,
        seq_len=training["seq_len"],
        global_batch=training["global_batch"],
        precision=precision_of(training["precision"]),
        optimizer=optimizer_of(training["optimizer"]),
        grad_bytes=training["grad_bytes"],
        frozen=FrozenSpec.from_dict(training),
        lengths=Lengths.from_list(training["length_histogram"]) if training.get("length_histogram") else None,
    )
    meter = one_of("memory meter", search["memory_meter"], METERS, "inputs.search.memory_meter")
    margin = whole(search["memory_margin_bytes"], "inputs.search.memory_margin_bytes", 0, MOST_MARGIN_GIB * GIB)
    problem = _assembled(job, cluster, stack, framework_of(search["framework"]), margin, meter, saved_fits)
    problem = replace(problem, target_version=checked_version(problem.framework, search.get("target_version")))
    saved = {fit.id: fit for fit in map(fit_from_dict, (inline["kernels"], *inline.get("further_kernels", ())))}
    further = tuple(saved.get(fit.id, fit) for fit in problem.further)
    problem = replace(problem, kernels=saved.get(problem.kernels.id, problem.kernels), further=further)
    problem = replace(with_fits(problem, fits), stack=stack)
    if inline.get("collectives") is not None:
        from shardwright.hardware.calibration_file import calibration_from_dict

        problem = replace(problem, collectives=Corrections.of(calibration_from_dict(inline["collectives"])))
    operation = operation_with(Operation.from_dict(inputs.get("operation", {})), overrides)
    objective = one_of("objective", search.get("objective", "throughput"), OBJECTIVES, "inputs.search.objective")
    problem = replace(problem, operation=operation, objective=objective)
    made = tuple(Assumption(key=key, value=value, origin="given") for key, value in _values_in_force(problem))
    return replace(problem, assumptions=made + _what_ifs(overrides))


def _assembled(
    job: TrainingJob, cluster: Cluster, stack: StackProfile, framework: str, margin: int, meter: str, fits: Fits
) -> Problem:
    devices = [group.node.device for group in cluster.groups]
    kernels = {device.kernels: fits.kernels(load_fit(device.kernels), device.arch, stack) for device in devices}
    for device in devices:
        speedup = kernels[device.kernels].precision_speedup
        able = [p.id for p in PRECISIONS.values() if p.compute in device.peak_flops and p.rate_id in speedup]
        if job.precision.id not in able:
            raise InvalidValueError(
                f"{device.id} cannot train in {job.precision.id}", where="--precision", hint="it can do " + ", ".join(able)
            )
    fit, *further = kernels.values()
    return Problem(
        job=job,
        cluster=cluster,
        stack=stack,
        kernels=fit,
        further=tuple(further),
        framework=framework,
        memory_margin_bytes=margin,
        memory_meter=meter,
        fits=fits,
    )


def _plain(record: StackProfile | KernelFit) -> dict[str, Any]:
    """A record as JSON values."""
    return dict(json.loads(json.dumps(asdict(record))))


def _values_in_force(problem: Problem) -> list[tuple[str, Any]]:
    job, stack = problem.job, problem.stack
    return [
        ("training.precision", job.precision.id),
        ("training.optimizer", job.optimizer.id),
        ("training.grad_bytes", job.grad_bytes),
        ("framework", problem.framework),
        *((("framework.version", problem.target_version),) if problem.target_version is not None else ()),
        ("stack", stack.id),
        ("memory.margin_bytes", problem.memory_margin_bytes),
        ("memory.meter", problem.memory_meter),
        ("memory.context_bytes", stack.context_bytes),
        ("memory.allocator_slack", stack.allocator_slack),
        ("device.memory_bytes", _of_nodes(problem, lambda node: node.device.memory_bytes)),
        ("attention.fused", stack.fused_attention),
        ("zero.shards_over", "dp_shard x cp"),
        ("vocabulary.padded_to", "multiple of 128 x tp"),
        *stack.routing_in_force(routed=problem.graph.spec.moe is not None),
        ("rank_order", "tp-cp-dp-pp, experts etp-ep-edp-pp"),
        ("pipeline.update", "each rank on its own, without waiting for a norm over all"),
        ("pipeline.dualpipe_ep_hidden", stack.dualpipe_ep_hidden),
        ("node.usd_per_gpu_hour", _of_nodes(problem, lambda node: node.usd_per_gpu_hour)),
        ("node.power_w", _of_nodes(problem, rated_power_w)),
        *problem.operation.in_force(),
        ("cluster.scaleup_domain_gpus", _of_nodes(problem, lambda node: node.scaleup_domain_gpus)),
        ("kernels.sustained_factor", _of_nodes(problem, lambda node: problem.kernels_of(node.device).sustained_factor)),
        *((f"fit.{name}", value) for name, value in fits_in_force(problem).items()),
        *_mixing(problem),
        *choices_in_force(job),
        *_measured_in_force(problem),
    ]


def _of_nodes(problem: Problem, value: Callable[[Node], Any]) -> Any:
    """What is in force for the nodes: the value, or kind by kind in words where they differ."""
    kinds = problem.areas.kinds
    return value(kinds[0]) if len(kinds) == 1 else ", ".join(f"{node.id} {value(node)}" for node in kinds)


def _mixing(problem: Problem) -> list[tuple[str, Any]]:
    """What is taken for granted where nodes of several kinds are mixed."""
    if not problem.cluster.mixed:
        return []
    order = ", ".join(f"{group.gpus} GPUs of {group.node.id}" for group in problem.cluster.groups)
    return [("mixed.rank_order", order), ("mixed.batch", "equal on all data-parallel ranks"), ("mixed.sends", "slowest link")]


def _measured_in_force(problem: Problem) -> list[tuple[str, Any]]:
    if problem.collectives is None:
        return []
    calibration, site = problem.collectives.calibration, problem.site
    made: list[tuple[str, Any]] = [("calibration.collectives", calibration.name)] if calibration.series else []
    if calibration.site is not None:
        made += [(f"calibration.site.{part}", rounded(getattr(site, part))) for part in PARTS]
        made += [(f"measured[{number}]", str(run)) for number, run in enumerate(site.runs, start=1)]
    return made


_INFERRED = frozenset(("model.flops", "training.lengths.attended"))


def _assumptions(problem: Problem, options: PricingOptions) -> tuple[Assumption, ...]:
    defaults = PricingOptions()
    given = {
        "training.precision": options.precision != defaults.precision,
        "training.optimizer": options.optimizer != defaults.optimizer,
        "training.grad_bytes": options.grad_dtype is not None,
        "framework": options.framework != defaults.framework,
        "framework.version": options.target_version is not None,
        "stack": options.stack is not None,
        "moe.routing_skew": options.routing_skew is not None,
        "memory.margin_bytes": options.memory_margin_gib != 0,
        "memory.meter": options.memory_meter != defaults.memory_meter,
    }
    origin = dict.fromkeys(
        ("device.memory_bytes", "kernels.sustained_factor", "node.usd_per_gpu_hour", "node.power_w"), "preset"
    )
    origin |= {"node.usd_per_gpu_hour": "given"} if options.prices else {}
    origin |= {"node.power_w": "inferred"} if any(group.node.power_w is None for group in problem.cluster.groups) else {}
    origin["cluster.scaleup_domain_gpus"] = "inferred" if _in_blocks(problem.cluster) else "preset"
    origin |= {f"fit.{name}": "preset" for name in problem.fits.values}
    origin |= {key: "given" for key, is_given in given.items() if is_given}
    origin |= {key: "inferred" if ".site." in key else "given" for key, _ in _measured_in_force(problem)}
    origin |= {key: "inferred" if key in _INFERRED else "given" for key, _ in choices_in_force(problem.job)}
    rows = (Assumption(key=k, value=v, origin=origin.get(k, "default")) for k, v in _values_in_force(problem))
    return (*rows, *_what_ifs(options.overrides))


def _in_blocks(cluster: Cluster) -> bool:
    """Whether domains that span nodes are used in equal blocks smaller than a domain."""
    node = cluster.groups[0].node
    return not cluster.mixed and node.scaleup_domain_gpus > node.gpus and node.id in node_ids() and load_node(node.id) != node


def _what_ifs(overrides: tuple[str, ...]) -> tuple[Assumption, ...]:
    """The `--set` statements in force."""
    return tuple(Assumption(key=f"set.{k}", value=v, origin="given") for k, _, v in (text.partition("=") for text in overrides))
