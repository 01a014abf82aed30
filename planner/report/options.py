"""The options that several commands take, and the help page that groups options under headings.

Imports nothing but Typer: every call of the program loads this module.
"""

from __future__ import annotations

import textwrap
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

INPUTS, JOB, PLAN, SEARCH, RUN, OUTPUT = "Inputs", "Pricing", "The plan", "Search", "The run", "Output"
PANELS = (INPUTS, PLAN, JOB, SEARCH, RUN, OUTPUT)
OTHER = "Options"
EXAMPLES = {
    "plan": "llama3.1-8b --cluster dgx-h100:2 --seq-len 8192 --global-batch 128 --framework megatron -o out",
    "estimate": "llama3.1-8b --cluster dgx-h100:2 --seq-len 8192 --global-batch 128 --tp 2",
    "explain": "out --why-not tp=8",
    "compare": "out out --rank-b 2",
    "shard": "llama3.1-8b --cluster dgx-h100:2 --seq-len 8192 --global-batch 64 --mesh dp=2,tp=8 --micro-batches 32",
    "sweep": "llama3.1-8b --node dgx-h100 --nodes 1..64x2 --store points.db",
    "size": "llama3.1-8b --tokens 1T --days 30 --seq-len 8192 --global-batch 512 --node dgx-h100",
    "validate": "runs.csv",
    "calibrate": "nccl-tests.log --cluster dgx-h100:2 -o site.json",
    "report": "out -o report.html",
    "emit": "out --target megatron --launcher slurm -o launch",
    "run": "out --scale-down",
    "tune": "result.json --measured 1=14.2,3=13.9 -o site.json",
    "show": "nodes dgx-h100",
    "topo": "topo.txt topology.conf -o cluster.yaml",
    "schema": "plan-result",
}
"""Of each command, what may follow its name; `out` is the folder that `plan -o out` wrote."""


class GroupedCommand(TyperCommand):
    """A command whose help lists its options in groups, with an example at the end."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What follows the name of the command: RESULT, [MODEL] if it may be left out, LOG... if there may be more."""
        arguments = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "argument"]
        return ["[OPTIONS]", *(_placed(parameter) for parameter in arguments)]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Writes the example so that it can be copied."""
        lines = textwrap.wrap(self.epilog or "", 74, break_on_hyphens=False, break_long_words=False)
        formatter.write("\nExample:\n  " + " \\\n    ".join(lines) + "\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes one section a group, in the order of `PANELS`."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = help_record(parameter, ctx)
            if record is not None:
                panel = getattr(parameter, "rich_help_panel", None) or OTHER
                groups.setdefault(panel, []).append(record)
        for panel in (*PANELS, OTHER):
            if panel in groups:
                with formatter.section(panel):
                    formatter.write_dl(groups[panel], col_max=28)


def example(name: str) -> str:
    """A line that calls the command of this name."""
    return f"shardwright {name} {EXAMPLES[name]}"


def help_record(parameter: Any, context: Any) -> tuple[str, str] | None:
    """Name and text of a parameter in a help page; None where it is hidden. Arguments are named without Typer's types."""
    record = parameter.get_help_record(context)
    if record is None or parameter.param_type_name != "argument":
        return record  # type: ignore[no-any-return]
    return _named(parameter), record[1]


def _named(argument: Any) -> str:
    return f"{argument.metavar}{'...' if argument.nargs != 1 else ''}"


def _placed(argument: Any) -> str:
    return _named(argument) if argument.required else f"[{_named(argument)}]"


def option(panel: str, text: str, *names: str, **more: Any) -> Any:
    """An option of a group; `text` says the default."""
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """A positional argument, listed among the inputs."""
    return typer.Argument(metavar=metavar, help=text, rich_help_panel=INPUTS, show_default=False, **more)


def _complete_models(incomplete: str) -> list[str]:
    from shardwright.models.catalog import model_ids

    return [name for name in model_ids() if name.startswith(incomplete)]


def _complete_nodes(incomplete: str) -> list[str]:
    from shardwright.hardware.catalog import node_ids

    return [f"{name}:" for name in node_ids() if name.startswith(incomplete)]


Model = Annotated[
    str | None,
    argument("MODEL", "preset id, config.json or its folder, model YAML, .onnx, .pt2", autocompletion=_complete_models),
]
Cluster = Annotated[
    str | None,
    option(INPUTS, "NODE:COUNT, NODE:COUNTxG or cluster YAML", metavar="C", autocompletion=_complete_nodes),
]
SeqLen = Annotated[int | None, option(INPUTS, "tokens a sequence", metavar="S")]
GlobalBatch = Annotated[str | None, option(INPUTS, "sequences a step", metavar="B")]
BatchRange = Annotated[str | None, option(INPUTS, "sequences a step, or a range 1024..2048", "--global-batch", metavar="B")]
TokensPerBatch = Annotated[int | None, option(INPUTS, "tokens a step, instead of --global-batch", metavar="N")]
LengthHistogram = Annotated[str | None, option(INPUTS, "CSV or JSON of length,count: packed documents", metavar="FILE")]
Dim = Annotated[list[str] | None, option(INPUTS, "graph file: a dynamic dim, batch=32", metavar="NAME=SIZE")]
Declare = Annotated[list[str] | None, option(INPUTS, "graph file: an operator, MyOp=elementwise|opaque", metavar="OP=KIND")]
Gpus = Annotated[int | None, option(INPUTS, "use the first N GPUs", metavar="N")]
Set = Annotated[list[str] | None, option(INPUTS, "what-if, as cluster.memory_bytes=96e9", "--set", metavar="KEY=VALUE")]

Precision = Annotated[
    str | None,
    option(
        JOB,
        "bf16 (default) fp16 fp32 tf32 fp8-delayed fp8-tensorwise fp8-rowwise fp8-rowwise-gw-hp fp8-blockwise mxfp8 nvfp4",
        metavar="P",
    ),
]
Optimizer = Annotated[str | None, option(JOB, "adam (default) adam-bf16 adam-8bit sgd muon adafactor", metavar="O")]
GradDtype = Annotated[str | None, option(JOB, "fp32 bf16; default: the stack's", metavar="D")]
Framework = Annotated[str | None, option(JOB, "megatron torchtitan pytorch deepspeed any (default)", metavar="F")]
TargetVersion = Annotated[str | None, option(JOB, "of the framework, as 0.16; default: the newest known", metavar="V")]
RoutingSkew = Annotated[
    float | None, option(JOB, "rows of the busiest expert over the mean (1)", "--routing-skew", metavar="I")
]
Stack = Annotated[str | None, option(JOB, "stack profile; default: the framework's", metavar="ID")]
MemoryMargin = Annotated[float | None, option(JOB, "memory to keep free on each device (0)", metavar="GIB")]
MemoryMeter = Annotated[str | None, option(JOB, "headline: allocated reserved device (default)", metavar="M")]
Lora = Annotated[str | None, option(JOB, "train adapters alone: rank=16,targets=qkv+out_proj", metavar="K=V,...")]
Freeze = Annotated[list[str] | None, option(JOB, "modules not to train: embeddings+attention", metavar="M+...")]
Calibration = Annotated[str | None, option(JOB, "measured there: what `calibrate` wrote", metavar="FILE")]
Measured = Annotated[
    list[str] | None, option(JOB, "a run of this site: tp=8,pp=4,step_time_s=12.3", "--measured", metavar="K=V,...")
]
FromRuns = Annotated[str | None, option(INPUTS, "measured runs, as `validate` takes them", metavar="RUNS.csv")]
NcclTests = Annotated[list[str] | None, option(INPUTS, "output of nccl-tests, or all_gather=LOG", metavar="LOG...")]
MoreLogs = Annotated[list[str] | None, argument("LOG", "output of nccl-tests, as --nccl-tests takes it")]
MeasuredPlans = Annotated[
    list[str] | None, option(RUN, "seconds a step of plans that ran elsewhere, by rank", "--measured", metavar="RANK=S,...")
]
CalibrationOut = Annotated[str | None, option(OUTPUT, "calibration to write", "-o", metavar="FILE")]
Objective = Annotated[str, option(JOB, "throughput (default) cost energy goodput", metavar="O")]
Prices = Annotated[list[str] | None, option(JOB, "USD per GPU-hour, or a YAML of them", "--price", metavar="NODE=USD")]

Whole = "N"
Mesh = Annotated[str | None, option(PLAN, "axes of the mesh, outermost first: dp=8,tp=8", "--mesh", metavar="A=N,...")]
Layer = Annotated[str | None, option(PLAN, "one layer alone: its number, embedding or head", metavar="N")]
Memory = Annotated[float | None, option(PLAN, "budget of a device; default: what it has", "--memory", metavar="GIB")]
MicroBatches = Annotated[int, option(PLAN, "passes a step (1)", "--micro-batches", metavar=Whole, min=1)]
InFlight = Annotated[int, option(PLAN, "micro-batches whose activations are kept (1)", "--in-flight", metavar=Whole, min=1)]
RecomputeMode = Annotated[str, option(PLAN, "none (default) selective full", "--recompute", metavar="MODE")]
Svg = Annotated[str | None, option(OUTPUT, "drawing to write, as SVG", "--svg", metavar="FILE")]
Dot = Annotated[str | None, option(OUTPUT, "drawing to write, as Graphviz DOT", "--dot", metavar="FILE")]

Top = Annotated[int, option(SEARCH, "plans to show (10)", metavar="N", min=1, max=1000)]
Fix = Annotated[list[str] | None, option(SEARCH, "hold degrees: tp=4,pp=2", metavar="K=V,...")]
EFFORT_HELP = "scan: even layers; search (default): divides them too; prove: on to a proof"
Effort = Annotated[str, option(SEARCH, EFFORT_HELP, metavar="E")]
EffortSeconds = Annotated[
    float | None,
    option(
        SEARCH,
        "stop dividing layers by the solver's own clock, alike everywhere",
        "--effort-seconds",
        metavar="SECONDS",
    ),
]
TimeLimit = Annotated[
    float | None, option(SEARCH, "stop dividing layers by the clock on the wall", "--time-limit", metavar="SECONDS")
]
Tie = Annotated[float, option(SEARCH, "plans this close tie (1 %, at most 3); 0: none do", metavar="PCT", min=0, max=3)]
AllowSubset = Annotated[bool, option(SEARCH, "may use fewer nodes; implied by cost energy goodput", "--allow-subset")]
Pareto = Annotated[bool, option(SEARCH, "list plans that no other beats in time, memory and cost", "--pareto")]
Trials = Annotated[
    int | None, option(SEARCH, "the K plans to measure to hold the fastest", "--trials", metavar="K", min=1, max=100)
]
Workers = Annotated[int | None, option(SEARCH, "threads to price with; the result is the same", metavar="N", min=1, max=256)]

Many = "one, a list, a range 8..64x2 or 8..64+8, or auto"
Models = Annotated[list[str] | None, argument("MODEL", "preset ids, files, auto; or a sweep.yaml")]
NodeTypes = Annotated[list[str] | None, option(INPUTS, "node types: dgx-h100,dgx-b200", metavar="NODE,...")]
NodeCounts = Annotated[str | None, option(INPUTS, f"how many: {Many} (default)", metavar="N,...")]
GpuCounts = Annotated[str | None, option(INPUTS, "GPUs instead of nodes", metavar="N,...")]
SeqLens = Annotated[str | None, option(INPUTS, "tokens a sequence; default auto: up to 8,192", metavar="S,...")]
GlobalBatches = Annotated[str | None, option(INPUTS, "sequences a step; default auto: 4,194,304 tokens", metavar="B,...")]
BatchesPerGpu = Annotated[str | None, option(INPUTS, "sequences a step for each GPU, a batch rule too", metavar="B,...")]
TokensPerBatches = Annotated[str | None, option(INPUTS, "tokens a step, a batch rule too", metavar="N,...")]
Precisions = Annotated[list[str] | None, option(JOB, "bf16,fp8-blockwise; auto (default): bf16 or fp16", metavar="P,...")]
Frameworks = Annotated[list[str] | None, option(JOB, "megatron torchtitan pytorch deepspeed any (default)", metavar="F,...")]
SweepTop = Annotated[int | None, option(SEARCH, "plans to keep a point (1)", metavar="N", min=1, max=1000)]
SweepEffort = Annotated[str | None, option(SEARCH, EFFORT_HELP, "--effort", metavar="E")]
SweepTie = Annotated[
    float | None, option(SEARCH, "plans this close tie (1 %, at most 3); 0: none do", "--tie", metavar="PCT", min=0, max=3)
]
SweepObjective = Annotated[str | None, option(JOB, "throughput (default) cost energy goodput", "--objective", metavar="O")]
SweepSubset = Annotated[bool | None, option(SEARCH, "may use fewer nodes; implied by cost energy goodput", "--allow-subset")]
Engine = Annotated[str, option(SEARCH, "local (default): processes; ray: a Ray cluster", metavar="E")]
Processes = Annotated[
    int | None, option(SEARCH, "points at once; default: the cores", "--workers", metavar="N", min=1, max=256)
]
Address = Annotated[str | None, option(SEARCH, "of a Ray cluster; default: one on this machine", metavar="ADDR")]
StoreFile = Annotated[str | None, option(OUTPUT, "keep finished points here and go on from them", "--store", metavar="FILE")]
Figure = Annotated[str | None, option(OUTPUT, "draw how the jobs scale: FILE.svg or FILE.png", metavar="FILE")]

PlanFile = Annotated[str | None, option(INPUTS, "price a plan of this RESULT or PLAN instead", "--plan", metavar="FILE")]
Result = Annotated[str, argument("RESULT", "what plan or estimate wrote: file, folder, or -")]
PlanResult = Annotated[str, argument("RESULT", "what plan wrote: file, folder, or -")]
WhyNot = Annotated[list[str] | None, option(PLAN, "compare with the plan that has these: tp=8,pp=4", metavar="K=V,...")]
Rank = Annotated[int | None, option(INPUTS, "which plan of the RESULT (1)", metavar="N", min=1)]
MegatronArgs = Annotated[str | None, option(INPUTS, "price these Megatron-LM arguments: script, list, YAML", metavar="FILE")]
TorchtitanToml = Annotated[str | None, option(INPUTS, "price this torchtitan 0.2 configuration", metavar="FILE")]
DeepspeedJson = Annotated[str | None, option(INPUTS, "price this DeepSpeed configuration", metavar="FILE")]
WorldSize = Annotated[int | None, option(INPUTS, "ranks the launch starts; default: as the file says", metavar="N", min=1)]
Define = Annotated[list[str] | None, option(INPUTS, "a variable of the script: NNODES=4, or 1=PATH", metavar="NAME=VALUE")]
Tp = Annotated[int | None, option(PLAN, "tensor parallel (1)", metavar=Whole)]
Pp = Annotated[int | None, option(PLAN, "pipeline stages (1)", metavar=Whole)]
Vpp = Annotated[int | None, option(PLAN, "virtual chunks a pipeline rank (1)", metavar=Whole)]
Cp = Annotated[int | None, option(PLAN, "context parallel (1)", metavar=Whole)]
CpComm = Annotated[str | None, option(PLAN, "p2p (default) a2a allgather", "--cp-comm", metavar="KIND")]
Ep = Annotated[int | None, option(PLAN, "expert parallel (1)", metavar=Whole)]
MoeDispatcher = Annotated[
    str | None, option(PLAN, "allgather alltoall deepep hybridep; default: the stack's", "--moe-dispatcher", metavar="KIND")
]
Etp = Annotated[int | None, option(PLAN, "tensor parallel of experts (megatron: tp, else 1)", metavar=Whole)]
DpReplicate = Annotated[int | None, option(PLAN, "replicas of the sharded group (1)", metavar=Whole)]
MicroBatch = Annotated[int | None, option(PLAN, "sequences a micro-batch (1)", metavar=Whole)]
Zero = Annotated[int | None, option(PLAN, "ZeRO stage 0 to 3; default: the framework's", metavar="Z")]
Schedule = Annotated[
    str | None, option(PLAN, "gpipe 1f1b interleaved-1f1b (default if vpp > 1) zb-h1 zb-v dualpipe-v", metavar="NAME")
]
SequenceParallel = Annotated[bool | None, option(PLAN, "default: on if tp > 1", "--sequence-parallel/--no-sequence-parallel")]
Recompute = Annotated[str | None, option(PLAN, "none (default) selective full", metavar="MODE")]
RecomputeLayers = Annotated[int | None, option(PLAN, "layers of a stage to recompute (all)", metavar=Whole)]
LossChunks = Annotated[int | None, option(PLAN, "pieces of head and loss (1)", metavar=Whole)]
OffloadTo = Annotated[
    str | None, option(PLAN, "share held in host memory: optimizer=1,activations=0.5; none", "--offload", metavar="PART=F,...")
]
LayersPerStage = Annotated[str | None, option(PLAN, "layers of each stage or chunk", metavar="A,B,...")]

Trace = Annotated[str | None, option(OUTPUT, "write one step as a trace for Perfetto", metavar="FILE")]
Format = Annotated[str, option(OUTPUT, "table (default) json yaml csv", "--format", metavar="F")]
SchemaFormat = Annotated[str, option(OUTPUT, "json (default) yaml", "--format", metavar="F")]
Folder = Annotated[str | None, option(OUTPUT, "write result.json, plans.csv, README.txt", "-o", metavar="DIR")]
