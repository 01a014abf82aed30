"""`show`, `topo` and `schema`: what there is to name, and what files look like."""

from __future__ import annotations

from typing import Annotated

from shardwright.commands import console
from shardwright.planner.report import options as o


def show(
    kind: Annotated[str, o.argument("KIND", "models nodes devices targets rules stacks schedules fits")],
    name: Annotated[str | None, o.argument("NAME", "one of them, in full")] = None,
    framework: o.Framework = None,
    target_version: o.TargetVersion = None,
    dim: o.Dim = None,
    declare: o.Declare = None,
    form: o.Format = "table",
) -> None:
    """List what a plan can name: models, nodes, devices and so on."""
    from shardwright.planner.report.listings import listing
    from shardwright.planner.report.output import checked_format

    checked_format(form)
    graph = {"dims": tuple(dim or ()), "declared": tuple(declare or ())}
    made = listing(kind, name, framework=framework, target_version=target_version, **graph)
    console.write(console.rendered(made, form))


def topo(
    files: Annotated[list[str], o.argument("FILES", "dumps of machines and networks, or - for standard input")],
    output: Annotated[str | None, o.option(o.OUTPUT, "cluster YAML to write", "-o", "--output", metavar="FILE")] = None,
    node: Annotated[str | None, o.option(o.INPUTS, "node preset for what they leave open", metavar="NODE")] = None,
    device: Annotated[str | None, o.option(o.INPUTS, "device preset of the GPUs", metavar="DEVICE")] = None,
    nodes: Annotated[int | None, o.option(o.INPUTS, "nodes, where no file names hosts", metavar="N")] = None,
    nic_gbps: Annotated[float | None, o.option(o.INPUTS, "rate of one network card, Gb/s", metavar="RATE")] = None,
    name: Annotated[str, o.option(o.INPUTS, "name of the cluster", metavar="NAME")] = "cluster",
) -> None:
    """Turn topology dumps into a cluster YAML."""
    from shardwright.hardware.readers import TopoOptions
    from shardwright.hardware.readers import topo as read_topology
    from shardwright.hardware.readers.draft import write_draft

    options = TopoOptions(node=node, device=device, nodes=nodes, nic_gbps=nic_gbps, name=name)
    draft = read_topology(files, options)
    if output is not None:
        write_draft(draft, output, files)
    console.say("\n".join(draft.messages()))
    console.write(draft.text() if output is None else draft.summary())


def schema(
    name: Annotated[str, o.argument("NAME", "plan-result estimate explanation cluster model ...; a wrong one lists them")],
    form: o.SchemaFormat = "json",
) -> None:
    """Print the JSON Schema of a document."""
    from shardwright.planner.schema import json_schema

    console.one_of("format", form, ("json", "yaml"))
    console.write(console.rendered(json_schema(name), form))
