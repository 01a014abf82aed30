"""Megatron-LM's own verdict on argument lists; run as a process of its own, with a source checkout first on its path.

    python megatron_lm_worker.py CHECKOUT < {"arguments": [...], "environment": {...}} lines > {"accepted": ..., ...} lines

Each list goes through parse_args, validate_args and core_transformer_config_from_args. The device is not there: its compute
capability, all that the arguments are judged by, is said to be Hopper's. Modules that only a device needs (triton) are empty.
"""

import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
import types
import typing
import warnings
from collections.abc import Iterator
from typing import Any

import typing_extensions

ON_CPU = ["--transformer-impl", "local", "--no-persist-layer-norm", "--no-gradient-accumulation-fusion", "--no-rope-fusion"]
"""Appended to every list: options that choose kernels, without which no config is made where there is no device."""


class Anything(type):
    """A class whose attributes are classes, and which decorates nothing."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})

    def __call__(cls, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else cls

    def __getitem__(cls, _: Any) -> Any:
        return cls


class Stub(types.ModuleType):
    """An empty module, with any attribute asked of it."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds triton and what is in it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".", maxsplit=1)[0] != "triton":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__version__ = "3.4.0"  # type: ignore[attr-defined]


def prepared(checkout: str) -> Any:
    """Megatron-LM's `arguments` module."""
    import torch
    from torch.utils import _triton

    _triton.has_triton_package()  # answered once, truthfully, before the stub
    for name in ("has_triton", "has_triton_tma", "has_triton_tma_device"):
        getattr(_triton, name, bool)()
    import torch._inductor.config
    import torch._inductor.utils

    hopper = types.SimpleNamespace(major=9, minor=0, multi_processor_count=132, total_memory=80 << 30, name="H100")
    torch.cuda.get_device_properties = lambda *_, **__: hopper  # type: ignore[assignment]
    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
    typing.override = getattr(typing, "override", typing_extensions.override)  # type: ignore[attr-defined]
    sys.meta_path.append(StubFinder())
    sys.path.insert(0, checkout)
    from megatron.training import arguments

    return arguments


def judged(arguments: Any, given: list[str]) -> dict[str, Any]:
    """The verdict on one list."""
    sys.argv = ["pretrain", *given, *ON_CPU]
    link = "parse"
    try:
        parsed = arguments.parse_args()
        link = "validate"
        arguments.validate_args(parsed)
        link = "config"
        arguments.core_transformer_config_from_args(parsed)
    except SystemExit:
        return {"accepted": False, "link": link, "message": "refused by the parser"}
    except Exception as fault:
        text = " ".join(str(fault).split()) or type(fault).__name__
        return {"accepted": False, "link": link, "message": f"{type(fault).__name__}: {text}"[:400]}
    kept = ("sequence_parallel", "virtual_pipeline_model_parallel_size", "overlap_p2p_comm", "padded_vocab_size")
    return {"accepted": True, "link": "", "message": "", "settled": {name: getattr(parsed, name, None) for name in kept}}


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for one list."""
    before = dict(os.environ)
    os.environ.update({"RANK": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1", **values})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def main() -> None:
    """Judges every line of the standard input."""
    warnings.simplefilter("ignore")
    out = sys.stdout
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with environment({"WORLD_SIZE": "1"}):
            arguments = prepared(sys.argv[1])
        for line in sys.stdin:
            case = json.loads(line)
            with environment(case["environment"]):
                verdict = judged(arguments, case["arguments"])
            out.write(json.dumps(verdict) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
