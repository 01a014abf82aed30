"""From a priced plan to a `Request`; one that is not feasible is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shardwright.documents import digest
from shardwright.errors import InvalidValueError, UnsupportedError
from shardwright.models.spec import ModelSpec
from shardwright.models.traced.document import is_document
from shardwright.planner.emit.base import Machines, Request
from shardwright.planner.emit.mixing import kinds_of, named_hosts, oldest
from shardwright.planner.emit.options import LaunchOptions
from shardwright.planner.plan_records import chunk_layers, degrees_of
from shardwright.planner.problem import Problem, problem_from_inputs

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")


def read_request(record: Mapping[str, Any], options: LaunchOptions, problem: Problem | None = None) -> Request:
    """The request of a priced plan; its version is the one it was planned for, empty for none.

    Args:
        record: an ESTIMATE with its inputs.
        options: what the launcher is told.
        problem: the problem of the inputs, where it is at hand.

    Raises:
        ShardwrightError: the plan breaks a rule or does not fit; it trains adapters.
    """
    _check_feasible(record)
    _refuse_graph(record["inputs"]["model"])
    _check_whole_model(record["inputs"]["training"])
    return request_of(problem or _problem_of(record), record["inputs"], record, options)


def _problem_of(record: Mapping[str, Any]) -> Problem:
    return problem_from_inputs(record["inputs"], world_size=record["parallel"]["world_size"])


def request_of(problem: Problem, inputs: Mapping[str, Any], record: Mapping[str, Any], options: LaunchOptions) -> Request:
    """The request of a plan that has stages, feasible or not.

    Raises:
        ShardwrightError: it takes a part of a node, or its hosts are none.
    """
    parallel = record["parallel"]
    return Request(
        spec=ModelSpec.from_dict(inputs["model"]),
        training=inputs["training"],
        parallel=parallel,
        chunks=chunk_layers(record["stages"], parallel),
        stack=inputs["calibration"]["inline"]["stack"],
        machines=_machines(inputs["cluster"], parallel["world_size"], record, options),
        version=inputs["search"].get("target_version") or "",
        launch=options,
        plan_id=digest({"parallel": parallel, "stages": [stage["layers"] for stage in record["stages"]]})[:8],
        problem=problem,
        degrees=degrees_of(record),
    )


def _check_feasible(record: Mapping[str, Any]) -> None:
    if record["feasible"]:
        return
    first = record["violations"][0]
    raise InvalidValueError(
        f"the plan is not feasible: {first['message']}", where=f"plan: {first['rule']}", hint=first["remedy"]
    )


def _refuse_graph(model: Mapping[str, Any]) -> None:
    """A graph from a file says what is computed, not which program computes it.

    Raises:
        UnsupportedError: the model is one.
    """
    if is_document(model):
        message = (
            f"{model.get('name')} was read from a graph file; launch files are written for models built from an architecture"
        )
        hint = "apply the plan to your own module: --format json lists the layers of each stage and their modules"
        raise UnsupportedError(message, where="inputs.model", hint=hint)


def _check_whole_model(training: Mapping[str, Any]) -> None:
    for name, what in (("lora", "adapters"), ("freeze", "frozen modules"), ("length_histogram", "packed documents")):
        if training.get(name):
            message = f"the plan has {what}; launch files for them are not written"
            raise UnsupportedError(
                message, where=f"inputs.training.{name}", hint="plan without them, or write the files by hand"
            )


def _machines(cluster: Mapping[str, Any], world_size: int, record: Mapping[str, Any], options: LaunchOptions) -> Machines:
    group = cluster["groups"][0]
    per_node = min(int(group["gpus_per_node"]), world_size)
    nodes, left = divmod(world_size, per_node)
    if left:
        message = f"{world_size} GPUs are no whole number of nodes of {per_node}"
        raise UnsupportedError(message, where="plan: world_size", hint="plan for whole nodes")
    kinds = kinds_of(cluster["groups"], nodes)
    hosts = options.hosts or tuple((record.get("placement") or {}).get("hosts") or ())
    hosts = hosts or (named_hosts(cluster["groups"], nodes) if kinds else ())
    if hosts and len(hosts) != nodes:
        message = f"{len(hosts)} host names for {nodes} nodes"
        raise InvalidValueError(message, where="--launch hosts", hint=f"name {nodes}, in rank order")
    for host in hosts:
        if not _HOST.match(host):
            hint = "letters, digits, - and dots"
            raise InvalidValueError(f"{host!r} is no host name", where="--launch hosts", hint=hint)
    device = oldest(cluster["groups"]) if kinds else group["node"]["device"]
    return Machines(
        nodes=nodes,
        gpus_per_node=per_node,
        arch=device["arch"],
        vendor=device["vendor"],
        hosts=tuple(hosts),
        kinds=kinds,
    )
