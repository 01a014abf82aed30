"""Plans how to train a large model on a cluster.

The product is a handful of functions; the command line is a shell over them:

    result = shardwright.plan("llama3.1-70b", "dgx-h100:16", seq_len=8192, global_batch=512)
    price = shardwright.estimate("llama3.1-8b", "dgx-h100:1", seq_len=8192, global_batch=64, degrees=shardwright.Degrees(tp=2))

Names are imported when they are first used, so that `import shardwright` costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it; `typing` itself would cost every start some milliseconds
if TYPE_CHECKING:
    from typing import Any

    from shardwright import errors as errors
    from shardwright.hardware.catalog import load_cluster as load_cluster
    from shardwright.hardware.mesh import DeviceMesh as DeviceMesh
    from shardwright.hardware.readers import TopoOptions as TopoOptions
    from shardwright.hardware.readers import topo as topo
    from shardwright.models.catalog import load_model as load_model
    from shardwright.planner.emit.emission import emit as emit
    from shardwright.planner.emit.options import LaunchOptions as LaunchOptions
    from shardwright.planner.estimation import estimate as estimate
    from shardwright.planner.estimation import estimate_plan as estimate_plan
    from shardwright.planner.execution.run import run as run
    from shardwright.planner.explanation.comparison import compare as compare
    from shardwright.planner.explanation.explain import explain as explain
    from shardwright.planner.plans import Degrees as Degrees
    from shardwright.planner.problem import PricingOptions as PricingOptions
    from shardwright.planner.readers.estimating import estimate_file as estimate_file
    from shardwright.planner.report.html.document import report as report
    from shardwright.planner.report.notebook import frame_of as frame_of
    from shardwright.planner.report.notebook import html_of as html_of
    from shardwright.planner.report.trace import write_trace as write_trace
    from shardwright.planner.search.operators.menu import operator_menu as operator_menu
    from shardwright.planner.search.operators.options import ShardOptions as ShardOptions
    from shardwright.planner.search.operators.sharding import shard as shard
    from shardwright.planner.search.options import SearchOptions as SearchOptions
    from shardwright.planner.search.run import plan as plan
    from shardwright.planner.sizing.request import SizeRequest as SizeRequest
    from shardwright.planner.sizing.run import size as size
    from shardwright.planner.sizing.target import Target as Target
    from shardwright.planner.sweep.run import sweep as sweep
    from shardwright.planner.tuning.tuning import tune as tune
    from shardwright.planner.validation.run import validate as validate

    __version__: str

_PLACES = {
    "plan": "shardwright.planner.search.run",
    "estimate": "shardwright.planner.estimation",
    "estimate_plan": "shardwright.planner.estimation",
    "estimate_file": "shardwright.planner.readers.estimating",
    "report": "shardwright.planner.report.html.document",
    "emit": "shardwright.planner.emit.emission",
    "explain": "shardwright.planner.explanation.explain",
    "compare": "shardwright.planner.explanation.comparison",
    "run": "shardwright.planner.execution.run",
    "tune": "shardwright.planner.tuning.tuning",
    "LaunchOptions": "shardwright.planner.emit.options",
    "sweep": "shardwright.planner.sweep.run",
    "frame_of": "shardwright.planner.report.notebook",
    "html_of": "shardwright.planner.report.notebook",
    "write_trace": "shardwright.planner.report.trace",
    "size": "shardwright.planner.sizing.run",
    "SizeRequest": "shardwright.planner.sizing.request",
    "Target": "shardwright.planner.sizing.target",
    "validate": "shardwright.planner.validation.run",
    "PricingOptions": "shardwright.planner.problem",
    "Degrees": "shardwright.planner.plans",
    "SearchOptions": "shardwright.planner.search.options",
    "shard": "shardwright.planner.search.operators.sharding",
    "operator_menu": "shardwright.planner.search.operators.menu",
    "ShardOptions": "shardwright.planner.search.operators.options",
    "DeviceMesh": "shardwright.hardware.mesh",
    "load_model": "shardwright.models.catalog",
    "load_cluster": "shardwright.hardware.catalog",
    "topo": "shardwright.hardware.readers",
    "TopoOptions": "shardwright.hardware.readers",
}

__all__ = [
    "Degrees",
    "DeviceMesh",
    "LaunchOptions",
    "PricingOptions",
    "SearchOptions",
    "ShardOptions",
    "SizeRequest",
    "Target",
    "TopoOptions",
    "__version__",
    "compare",
    "emit",
    "errors",
    "estimate",
    "estimate_file",
    "estimate_plan",
    "explain",
    "frame_of",
    "html_of",
    "load_cluster",
    "load_model",
    "operator_menu",
    "plan",
    "report",
    "run",
    "shard",
    "size",
    "sweep",
    "topo",
    "validate",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__version__":
        return _version()
    if name == "errors":
        return importlib.import_module("shardwright.errors")
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'shardwright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("shardwright")
    except metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return "0.1.0"
