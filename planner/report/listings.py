"""What there is: models, nodes, devices, stacks, targets, rules and schedules, as data for `show`.

listing(kind, name=None) -> {"kind": "models", "items": [...]} or {"kind": "model", "item": {...}}

Rules may be narrowed to those that hold for a framework, in a version of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardwright.errors import ConflictError, unknown_name

KINDS = ("models", "nodes", "devices", "targets", "rules", "stacks", "schedules", "fits")
WHERE = "show"


def listing(
    kind: str,
    name: str | None = None,
    *,
    framework: str | None = None,
    target_version: str | None = None,
    dims: tuple[str, ...] = (),
    declared: tuple[str, ...] = (),
) -> dict[str, Any]:
    """All items of a kind in short, or one of them in full.

    Args:
        kind: one of `KINDS`.
        name: the item to show in full; None for all in short.
        framework: rules only: those that hold for a framework or target.
        target_version: rules only: in that version; None for the newest.
        dims: models only: sizes of dynamic dims of a graph file.
        declared: models only: unknown operators of a graph file.

    Raises:
        UnknownNameError: no such kind, item, framework or version.
        ConflictError: a framework or version with another kind than rules, sizes of dims with anything but a graph file.
    """
    if kind not in KINDS:
        raise unknown_name("kind of thing", kind, KINDS, where=WHERE)
    if framework is not None or target_version is not None:
        return _listing_of_rules(kind, name, framework or "any", target_version)
    if dims or declared:
        if kind != "models" or name is None:
            raise ConflictError("--dim and --declare go with a graph file", where=WHERE, hint="show models GRAPH.onnx")
        return {"kind": "model", "item": _model(name, dims, declared)}
    if name is None:
        return {"kind": kind, "items": _ITEMS[kind]()}
    return {"kind": kind.removesuffix("s"), "item": _ONE[kind](name)}


def _models() -> list[dict[str, Any]]:
    from shardwright.models.catalog import load_model, model_ids

    return [_model_row(model_id, load_model(model_id)) for model_id in model_ids()]


def _model_row(model_id: str, graph: Any) -> dict[str, Any]:
    return {
        "id": model_id,
        "parameters": graph.parameters,
        "active_parameters": graph.active_parameters,
        "layers": graph.layers,
        "hidden": graph.spec.to_dict().get("hidden"),
    }


def _model(name: str, dims: tuple[str, ...] = (), declared: tuple[str, ...] = ()) -> dict[str, Any]:
    from shardwright.models.catalog import load_model
    from shardwright.models.summary import summary

    graph = load_model(name, dims=dims, declared=declared)
    if graph.origin is not None:
        from shardwright.models.traced.summary import summary_of_graph

        return summary_of_graph(graph)
    counts = {key: getattr(graph, key) for key in ("parameters", "active_parameters", "buffers", "mtp_parameters", "layers")}
    return {**counts, "digest": graph.digest, "spec": graph.spec.to_dict(), **summary(graph)}


def _nodes() -> list[dict[str, Any]]:
    from shardwright.hardware.catalog import load_node, node_ids

    return [_node_row(load_node(node_id)) for node_id in node_ids()]


def _node_row(node: Any) -> dict[str, Any]:
    return {
        "id": node.id,
        "device": node.device.id,
        "gpus": node.gpus,
        "scaleup_domain_gpus": node.scaleup_domain_gpus,
        "scaleup_bytes_per_s": node.scaleup_bytes_per_s,
        "internode_bytes_per_s": node.internode_bytes_per_s,
        "fabric": node.fabric,
    }


def _node(name: str) -> dict[str, Any]:
    from shardwright.hardware.catalog import load_node

    return load_node(name).to_dict()


def _devices() -> list[dict[str, Any]]:
    from shardwright.hardware.catalog import device_ids, load_device

    return [_device_row(load_device(device_id)) for device_id in device_ids()]


def _device_row(device: Any) -> dict[str, Any]:
    return {
        "id": device.id,
        "arch": device.arch,
        "bf16_flops": device.peak_flops.get("bf16"),
        "memory_bytes": device.memory_bytes,
        "memory_bytes_per_s": device.memory_bytes_per_s,
    }


def _device(name: str) -> dict[str, Any]:
    from shardwright.hardware.catalog import load_device

    return load_device(name).to_dict()


_STACK_NAMES = {"megatron-bridge": "megatron"}


def _targets() -> list[dict[str, Any]]:
    from shardwright.planner.emit.registry import LAUNCHERS, TARGETS
    from shardwright.planner.rules.registry import RULES
    from shardwright.planner.rules.versions import VERSIONS
    from shardwright.planner.stacks import DEFAULT_STACKS, load_stack

    made = []
    for name, target in TARGETS.items():
        stack = load_stack(DEFAULT_STACKS[_STACK_NAMES.get(name, name)])
        rules = [rule.id for rule in RULES if rule.rejects and rule.targets and rule.holds_for(name)]
        made.append(
            {
                "id": name,
                "writes": target.says,
                "versions": list(VERSIONS[name]),
                "launchers": list(LAUNCHERS),
                "stack": stack.id,
                "zero_stage": stack.zero_stage,
                "grad_bytes": stack.grad_bytes,
                "cannot": dict(target.cannot),
                "rules": rules,
            }
        )
    return made


def _stacks() -> list[dict[str, Any]]:
    from shardwright.planner.stacks import load_stack, stack_ids

    found = [load_stack(stack_id) for stack_id in stack_ids()]
    return [{"id": s.id, "framework": s.framework, "released": s.released, "description": s.description} for s in found]


def _stack(name: str) -> dict[str, Any]:
    from dataclasses import asdict

    from shardwright.planner.stacks import load_stack

    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(load_stack(name)).items()}


def _rules() -> list[dict[str, Any]]:
    from shardwright.planner.rules.registry import RULES

    return [rule.to_dict() for rule in RULES]


def _listing_of_rules(kind: str, name: str | None, framework: str, version: str | None) -> dict[str, Any]:
    """The rules that hold for a framework in a version."""
    from shardwright.planner.rules.registry import RULES
    from shardwright.planner.rules.versions import FRAMEWORK_WORDS, checked_version, target_of

    if kind != "rules":
        raise ConflictError(f"show {kind} with a framework or version", where=WHERE, hint="narrow rules by them: show rules")
    if framework not in FRAMEWORK_WORDS:
        raise unknown_name("framework", framework, FRAMEWORK_WORDS, where="--framework")
    chosen = checked_version(framework, version)
    items = [rule.to_dict() for rule in RULES if rule.holds_for(target_of(framework), chosen)]
    if name is None:
        return {"kind": kind, "framework": framework, "target_version": chosen, "items": items}
    return {"kind": "rule", "item": _named(lambda: items, "rule")(name)}


def _schedules() -> list[dict[str, Any]]:
    from shardwright.planner.schedules.registry import SCHEDULE_IDS
    from shardwright.planner.schedules.sample import FRAMEWORKS, KNOWN

    return [
        {
            "id": one.id,
            "searched": one.id in SCHEDULE_IDS,
            "chunks": one.chunks,
            "frameworks": list(FRAMEWORKS[one.id]),
            "source": one.source,
        }
        for one in KNOWN
    ]


def _schedule(name: str) -> dict[str, Any]:
    from shardwright.planner.schedules.drawing import drawn
    from shardwright.planner.schedules.sample import sample

    found = sample(name)
    shape, made = found.shape, found.made
    return {
        **next(one for one in _schedules() if one["id"] == name),
        "sample": {"pp": shape.pp, "vpp": shape.vpp, "micro_batches": shape.micro_batches},
        "passes": made.step_s,
        "idle_percent": round(100 * found.idle, 1),
        "kept": {f"rank {rank}": list(made.peak_chunks(rank)) for rank in range(shape.pp)},
        "time": {f"rank {rank}": line for rank, line in enumerate(drawn(made, column_s=0.5))},
    }


def _named(items: Callable[[], list[dict[str, Any]]], kind: str) -> Callable[[str], dict[str, Any]]:
    """Finds an item by its id; a rule of several cases gives all of them."""

    def find(name: str) -> dict[str, Any]:
        everything = items()
        found = [item for item in everything if item["id"] == name]
        if not found:
            raise unknown_name(kind, name, [str(item["id"]) for item in everything], where=f"{WHERE} {kind}s")
        return found[0] if len(found) == 1 else {"id": name, "cases": found}

    return find


def _fits() -> list[dict[str, Any]]:
    from shardwright.planner.fits.factors import FACTORS
    from shardwright.planner.fits.shipped import shipped_data

    rows = shipped_data()["factors"]
    return [{"id": name, "says": FACTORS[name].says, **row} for name, row in rows.items()]


def _fit(name: str) -> dict[str, Any]:
    """A factor; one that is not fitted can be set all the same."""
    from shardwright.planner.fits.factors import FACTORS
    from shardwright.planner.fits.shipped import shipped_data

    if name not in FACTORS:
        raise unknown_name("fit", name, FACTORS, where=f"{WHERE} fits")
    data, factor = shipped_data(), FACTORS[name]
    fitted = {
        "fitted_to": {"runs": data["runs"], "sources": list(data["sources"]), "date": data["date"]},
        "errors": data["errors"],
    }
    row = data["factors"].get(name)
    return {
        "id": name,
        "says": factor.says,
        **(row or {"value": 1.0, "prior": 1.0, "prior_spread": factor.spread}),
        "changes": [f"{'stack' if factor.stack else 'kernels'}.{field}" for field in factor.fields],
        "divides": factor.divides,
        **(fitted if row else {"fitted_to": None}),
    }


_ITEMS: Mapping[str, Callable[[], list[dict[str, Any]]]] = {
    "models": _models,
    "nodes": _nodes,
    "devices": _devices,
    "targets": _targets,
    "rules": _rules,
    "stacks": _stacks,
    "schedules": _schedules,
    "fits": _fits,
}
_ONE: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "models": _model,
    "nodes": _node,
    "devices": _device,
    "targets": _named(_targets, "target"),
    "rules": _named(_rules, "rule"),
    "stacks": _stack,
    "schedules": _schedule,
    "fits": _fit,
}
