"""Runs `check.py` of many bundles in one process: the framework itself is asked, once it is imported.

    python check_runner.py JOBS.json

The file holds {"bundles": [folder, …], "stand_ins": [package, …], "path": [folder, …], "device": bool}: packages that stand-ins
take the place of, folders put before the module path, whether a Hopper is to be there. One line of JSON is printed, a mapping
from folder to the framework's complaint, empty where it accepts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import sys
import types
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

OF_A_BUNDLE = ("recipe", "shardwright_plan")


class Anything(type):
    """A class whose every attribute is such a class, and which returns what it decorates."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})

    def __call__(cls, *args: Any, **named: Any) -> Any:
        only = args[0] if len(args) == 1 and not named and callable(args[0]) else None
        return only if only is not None else (lambda function: function)


class StandIns:
    """Finds modules of packages that are not there."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = tuple(packages)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        del path, target
        named = any(name == package or name.startswith(package + ".") for package in self.packages)
        return importlib.util.spec_from_loader(name, self) if named else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module: Any = types.ModuleType(spec.name)
        module.__path__, module.__version__ = [], "3.0.0"
        module.__getattr__ = lambda name: getattr(Anything(spec.name, (), {}), name)
        return module  # type: ignore[no-any-return]

    def exec_module(self, module: types.ModuleType) -> None:
        del module


def prepare(stand_ins: Sequence[str], path: Sequence[str], *, device: bool) -> None:
    """Puts stand-ins and folders in place; torch is asked first what it has."""
    import torch
    import torch._inductor.config
    import torch.utils._triton

    sys.path[:0] = path
    if stand_ins:
        for probe in ("has_triton", "has_triton_package"):
            getattr(torch.utils._triton, probe)()
        sys.meta_path.append(StandIns(stand_ins))  # type: ignore[arg-type]
    if device:
        seen = types.SimpleNamespace(major=9, minor=0, name="stand-in", total_memory=0)
        torch.cuda.get_device_properties = lambda *device: seen  # type: ignore[assignment]
        torch.cuda.get_device_capability = lambda *device: (9, 0)


def complaint(folder: str) -> str:
    """What the framework says against a bundle."""
    kept = list(sys.path), list(sys.argv)
    for name in OF_A_BUNDLE:
        sys.modules.pop(name, None)
    spec = importlib.util.spec_from_file_location("check", Path(folder) / "check.py")
    if spec is None or spec.loader is None:
        return "no check.py"
    module = importlib.util.module_from_spec(spec)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            spec.loader.exec_module(module)
            module.main()
    except BaseException as error:
        said = errors.getvalue().strip().splitlines()[-1:] if isinstance(error, SystemExit) else []
        return f"{type(error).__name__}: {error} {' '.join(said)}".strip()[:600]
    finally:
        sys.path[:], sys.argv[:] = kept
        tear_down()
    return ""


def tear_down() -> None:
    """Leaves no process group to the next bundle."""
    import torch.distributed as dist

    with contextlib.suppress(Exception):
        from megatron.core import parallel_state

        parallel_state.destroy_model_parallel()
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


def main() -> None:
    warnings.simplefilter("ignore")
    jobs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    prepare(jobs["stand_ins"], jobs["path"], device=jobs["device"])
    found = {folder: complaint(folder) for folder in jobs["bundles"]}
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
