"""The protobuf of an ONNX file: read, checked, without its weights.

Reading a protobuf executes nothing. Functions of the file are inlined; of the tensors only those of a few whole numbers
(shapes, axes) keep their values, so that what follows handles kilobytes, whatever the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardwright.errors import DamagedFileError, UnsupportedError
from shardwright.models.checks import shown

MIN_OPSET, MAX_FILE_BYTES = 7, (2 << 30) - 1
KEPT_ELEMENTS, MAX_MASK = 64, 16_384
HIDDEN = -1e4
"""Scores with less than this added are hidden."""
_AGAIN = "export it again by torch.onnx.export(model, inputs, 'model.onnx')"


def load(path: Path) -> tuple[Any, frozenset[str]]:
    """The ModelProto of a file, functions inlined, large tensors without their data; and the names of causal masks among them.

    Raises:
        UnsupportedError: onnx is not installed; an opset before 7; more than a protobuf holds.
        DamagedFileError: no ONNX file.
    """
    onnx = _library()
    where = str(path)
    if path.stat().st_size > MAX_FILE_BYTES:
        raise UnsupportedError("protobufs hold 2 GiB at most", where=where, hint="export with external data; it is not read")
    try:
        model = onnx.load_model(where, load_external_data=False)
        if model.functions:
            from onnx import inliner

            model = inliner.inline_local_functions(model)
    except Exception as error:  # whatever protobuf and onnx raise at a foreign file
        said = f"{path} is no ONNX file ({type(error).__name__}: {shown(str(error))})"
        raise DamagedFileError(said, where=where, hint=_AGAIN) from error
    if not model.graph.node:
        raise DamagedFileError(f"{path} holds no ONNX graph", where=where, hint=_AGAIN)
    _check_opset(model, where)
    causal = frozenset(tensor.name for tensor in model.graph.initializer if _is_causal(tensor))
    for tensor in model.graph.initializer:
        _lighten(tensor)
    return model, causal


def opset(model: Any) -> int:
    """Version of the standard operators that a model uses; 0 where it names none."""
    return max((int(one.version) for one in model.opset_import if one.domain in {"", "ai.onnx"}), default=0)


def _library() -> Any:
    try:
        import onnx
    except ImportError as error:
        said = "reading ONNX files needs the package onnx"
        raise UnsupportedError(said, where="MODEL", hint="pip install onnx, or export by torch.export.save") from error
    return onnx


def _check_opset(model: Any, where: str) -> None:
    version = opset(model)
    if version < MIN_OPSET:
        raise UnsupportedError(f"opset {version}", where=where, hint=f"opset {MIN_OPSET} and later are read")


def _is_causal(tensor: Any) -> bool:
    """Whether a tensor is a square that lets every row see what stands before it: 0 or true there, -inf or false behind."""
    sizes = [int(size) for size in tensor.dims]
    square = len(sizes) >= 2 and sizes[-1] == sizes[-2] > 1 and all(size == 1 for size in sizes[:-2])
    if not square or sizes[-1] > MAX_MASK or tensor.data_type not in {1, 9, 10} or not tensor.raw_data:
        return False
    import numpy as np

    kind = np.dtype({1: "<f4", 9: "?", 10: "<f2"}[tensor.data_type])
    if len(tensor.raw_data) != kind.itemsize * sizes[-1] ** 2:
        return False
    found: np.ndarray = np.frombuffer(tensor.raw_data, dtype=kind).reshape(sizes[-2:])
    seen = found if kind == np.dtype("?") else found > HIDDEN
    return bool((seen == np.tri(sizes[-1], dtype=bool)).all())


def _lighten(tensor: Any) -> None:
    """Drops the data of a tensor that says nothing of shapes."""
    elements = 1
    for size in tensor.dims:
        elements *= max(int(size), 0)
    if elements > KEPT_ELEMENTS:
        for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "external_data"):
            tensor.ClearField(field)
        tensor.ClearField("data_location")
