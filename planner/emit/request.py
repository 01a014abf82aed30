"""From a saved result to a `Request`: the plan is priced again from its file, and refused unless it is feasible."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shardwright.documents import digest
from shardwright.errors import InvalidValueError, UnsupportedError
from shardwright.models.spec import ModelSpec
from shardwright.planner.emit.base import Machines, Request
from shardwright.planner.emit.options import LaunchOptions
from shardwright.planner.estimation import chunk_layers, degrees_of
from shardwright.planner.problem import problem_from_inputs

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")


def read_request(record: Mapping[str, Any], options: LaunchOptions) -> Request:
    """The request of a priced plan; its version is the one it was planned for, empty for none.

    Raises:
        ShardwrightError: the plan breaks a rule or does not fit; it trains adapters.
    """
    _check_feasible(record)
    inputs, parallel = record["inputs"], record["parallel"]
    return Request(
        spec=ModelSpec.from_dict(inputs["model"]),
        training=_whole_model(inputs["training"]),
        parallel=parallel,
        chunks=chunk_layers(record["stages"], parallel),
        stack=inputs["calibration"]["inline"]["stack"],
        machines=_machines(inputs["cluster"], parallel["world_size"], record, options),
        version=inputs["search"].get("target_version") or "",
        launch=options,
        plan_id=digest({"parallel": parallel, "stages": [stage["layers"] for stage in record["stages"]]})[:8],
        problem=problem_from_inputs(inputs, world_size=parallel["world_size"]),
        degrees=degrees_of(record),
    )


def _check_feasible(record: Mapping[str, Any]) -> None:
    if record["feasible"]:
        return
    first = record["violations"][0]
    raise InvalidValueError(
        f"the plan is not feasible: {first['message']}", where=f"plan: {first['rule']}", hint=first["remedy"]
    )


def _whole_model(training: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, what in (("lora", "adapters"), ("freeze", "frozen modules"), ("length_histogram", "packed documents")):
        if training.get(name):
            message = f"the plan has {what}; launch files for them are not written"
            raise UnsupportedError(
                message, where=f"inputs.training.{name}", hint="plan without them, or write the files by hand"
            )
    return training


def _machines(cluster: Mapping[str, Any], world_size: int, record: Mapping[str, Any], options: LaunchOptions) -> Machines:
    group = cluster["groups"][0]
    per_node = min(int(group["gpus_per_node"]), world_size)
    nodes, left = divmod(world_size, per_node)
    if left:
        message = f"{world_size} GPUs are no whole number of nodes of {per_node}"
        raise UnsupportedError(message, where="plan: world_size", hint="plan for whole nodes")
    hosts = options.hosts or tuple((record.get("placement") or {}).get("hosts") or ())
    if hosts and len(hosts) != nodes:
        message = f"{len(hosts)} host names for {nodes} nodes"
        raise InvalidValueError(message, where="--launch hosts", hint=f"name {nodes}, in rank order")
    for host in hosts:
        if not _HOST.match(host):
            hint = "letters, digits, - and dots"
            raise InvalidValueError(f"{host!r} is no host name", where="--launch hosts", hint=hint)
    device = group["node"]["device"]
    return Machines(nodes=nodes, gpus_per_node=per_node, arch=device["arch"], vendor=device["vendor"], hosts=tuple(hosts))
