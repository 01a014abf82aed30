"""Shapes of every tensor of an ONNX graph: dynamic dims bound, the rest inferred.

    bind        sizes of `--dim` in the inputs, by the dim's name (``batch``) or its place (``ids.0``)
    infer       what the file says, else onnx's own shape inference; outputs of declared operators take the shape that their
                inputs broadcast to, and inference goes on from there

A dim of an input that stays without a size is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwright.errors import DamagedFileError, InvalidValueError
from shardwright.models.checks import shown
from shardwright.models.traced.records import ReadOptions, TracedTensor, checked_shape

WIDTHS: Mapping[int, tuple[float, bool]] = {
    1: (4.0, True),
    2: (1.0, False),
    3: (1.0, False),
    4: (2.0, False),
    5: (2.0, False),
    6: (4.0, False),
    7: (8.0, False),
    9: (1.0, False),
    10: (2.0, True),
    11: (8.0, True),
    12: (4.0, False),
    13: (8.0, False),
    16: (2.0, True),
}
"""Bytes an element and whether it is a real number, by TensorProto.DataType."""

MAX_ROUNDS = 200


def tensors_of(model: Any, options: ReadOptions, where: str) -> dict[str, TracedTensor]:
    """Every tensor of the graph by name, as far as shapes are known.

    Raises:
        InvalidValueError: a dim of an input has no size.
        DamagedFileError: shapes contradict each other.
    """
    _bind(model, options, where)
    known: dict[str, TracedTensor] = {}
    for _ in range(MAX_ROUNDS):
        model = _inferred(model, where)
        known = _known(model, where)
        if not _declared(model, known, options):
            break
    return known


def dynamic_dims(model: Any) -> frozenset[str]:
    """Names and places of dims of the inputs without a size."""
    found: set[str] = set()
    for value in model.graph.input:
        for index, dim in enumerate(value.type.tensor_type.shape.dim):
            if not (dim.HasField("dim_value") and dim.dim_value > 0):
                found |= {f"{value.name}.{index}", *([dim.dim_param] if dim.dim_param else [])}
    return frozenset(found)


def _bind(model: Any, options: ReadOptions, where: str) -> None:
    """Writes sizes into the inputs; what other tensors say of dynamic dims is dropped, so that it is inferred anew."""
    trained = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in trained:
            continue
        if not value.type.tensor_type.HasField("shape"):
            said = f"the input {value.name} has no shape"
            raise DamagedFileError(said, where=where, hint="export the model with the shapes of its inputs")
        for index, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                continue
            name, place = dim.dim_param, f"{value.name}.{index}"
            size = options.dims.get(place, options.dims.get(name))
            if size is None:
                said = f"dim {index} of the input {value.name} is dynamic ({name or 'without a name'})"
                raise InvalidValueError(said, where=where, hint=f"give its size: --dim {name or place}=32")
            dim.dim_value = size
    stale = [v for v in model.graph.value_info if not _fixed(v)]
    for value in stale:
        model.graph.value_info.remove(value)
    for value in model.graph.output:
        if not _fixed(value):
            value.type.tensor_type.ClearField("shape")


def _fixed(value: Any) -> bool:
    kind = value.type.tensor_type
    return kind.HasField("shape") and all(dim.HasField("dim_value") and dim.dim_value >= 0 for dim in kind.shape.dim)


def _inferred(model: Any, where: str) -> Any:
    from onnx import shape_inference

    try:
        return shape_inference.infer_shapes(model, check_type=False, strict_mode=False, data_prop=True)
    except Exception as error:  # whatever onnx raises where shapes contradict each other
        said = f"the shapes of the graph contradict each other ({shown(str(error))})"
        raise DamagedFileError(said, where=where, hint="export the model again") from error


def _known(model: Any, where: str) -> dict[str, TracedTensor]:
    made: dict[str, TracedTensor] = {}
    for tensor in model.graph.initializer:
        made[tensor.name] = _tensor(tensor.name, tuple(map(int, tensor.dims)), tensor.data_type, where)
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        if value.name not in made and _fixed(value):
            shape = tuple(int(dim.dim_value) for dim in value.type.tensor_type.shape.dim)
            made[value.name] = _tensor(value.name, shape, value.type.tensor_type.elem_type, where)
    return made


def _tensor(name: str, shape: tuple[int, ...], kind: int, where: str) -> TracedTensor:
    width, floating = WIDTHS.get(kind, (4.0, True))
    return TracedTensor(name=name, shape=checked_shape(shape, name, where), width=width, floating=floating)


def _declared(model: Any, known: Mapping[str, TracedTensor], options: ReadOptions) -> bool:
    """Gives the outputs of declared operators shapes; whether there was anything to give."""
    from onnx import helper

    given = False
    for node in model.graph.node:
        wanted = [name for name in node.output if name and name not in known]
        sources = [known[name] for name in node.input if name in known]
        if options.declared.get(node.op_type) is None or not wanted or not sources:
            continue
        shape = _broadcast([tensor.shape for tensor in sources])
        for name in wanted:
            model.graph.value_info.append(helper.make_tensor_value_info(name, 1, shape))
            given = True
    return given


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that operands broadcast to; where they do not, that of the first."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    if any(len({size for size in sizes if size != 1}) > 1 for sizes in zip(*padded, strict=True)):
        return shapes[0]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))
