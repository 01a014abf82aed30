"""ONNX operators in the vocabulary of `records.OPERATIONS`.

`converted` gives the word, the tensors in the word's order and its attributes for one node. What the backward pass keeps is
what PyTorch's operator of that name keeps. Operators: github.com/onnx/onnx/blob/main/docs/Operators.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A node as a rule sees it.

    Attributes:
        inputs: names; empty where an optional one is left out.
        attributes: by name.
        ranks: number of dims by tensor.
        numbers: values of small tensors of whole numbers.
    """

    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    ranks: Mapping[str, int]
    numbers: Mapping[str, Sequence[int]]

    def rank(self, index: int = 0) -> int:
        """Number of dims of an input."""
        return self.ranks.get(self.inputs[index], 0) if index < len(self.inputs) else 0

    def axis(self, default: int, index: int = 0) -> int:
        """The attribute `axis`, counted from the front."""
        return int(self.attributes.get("axis", default)) % max(self.rank(index), 1)

    def some(self, *indices: int) -> tuple[str, ...]:
        """Those of the inputs that are there."""
        return tuple(self.inputs[i] for i in indices if i < len(self.inputs) and self.inputs[i])


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One node in the common vocabulary."""

    op: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


_POINTWISE = {
    "none": """Add Sub Sum Neg Cast CastLike Sign Floor Ceil Round Equal Greater Less GreaterOrEqual LessOrEqual And Or Not Xor
        IsNaN IsInf BitwiseAnd BitwiseOr BitwiseNot Mod Mean""",
    "inputs": """Mul Div Pow Gelu Abs Cos Sin Tan Acos Asin Atan Cosh Sinh Log LeakyRelu Elu Celu Selu Mish Softplus Softsign
        HardSwish HardSigmoid Clip Max Min Where PRelu Erf ThresholdedRelu Shrink Swish LRN""",
    "output": "Relu Sigmoid Tanh Exp Sqrt Reciprocal",
    "mask": "Dropout",
}
_CONSTANT = """Constant ConstantOfShape Shape Size Range EyeLike RandomNormal RandomUniform RandomNormalLike RandomUniformLike
    Multinomial"""
_RESHAPES = "Reshape Flatten Squeeze Unsqueeze Identity"
_WINDOWS = """Pad Tile CumSum TopK Trilu OneHot DepthToSpace SpaceToDepth GatherElements ScatterElements ScatterND Scatter
    ReverseSequence GridSample LpNormalization Hardmax Col2Im"""
_POOLS = "MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool GlobalLpPool"
_REDUCTIONS = {
    "none": "ReduceSum ReduceMean ArgMax ArgMin",
    "inputs": "ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp",
    "index": "ReduceMax ReduceMin",
}


def converted(op_type: str, given: Given) -> Call | None:
    """The call of a standard operator in the common vocabulary, None for one without a rule."""
    rule = _RULES.get(op_type)
    return None if rule is None else rule(given)


def _plain(op: str, **attributes: Any) -> Callable[[Given], Call]:
    return lambda given: Call(op=op, inputs=tuple(filter(None, given.inputs)), attributes=attributes)


def _first(op: str, **attributes: Any) -> Callable[[Given], Call]:
    return lambda given: Call(op=op, inputs=given.some(0), attributes=attributes)


def _gemm(given: Given) -> Call:
    turned = bool(given.attributes.get("transA", 0)), bool(given.attributes.get("transB", 0))
    if turned[0]:
        how = {"transpose_a": True, "transpose_b": turned[1]}
        return Call(op="matmul", inputs=given.some(0, 1, 2), attributes=how)
    return Call(op="linear", inputs=given.some(0, 1, 2), attributes={"layout": "nk" if turned[1] else "kn"})


def _conv(transposed: bool) -> Callable[[Given], Call]:
    def call(given: Given) -> Call:
        how = {"groups": int(given.attributes.get("group", 1)), "transposed": transposed}
        return Call(op="conv", inputs=given.some(0, 1, 2), attributes=how)

    return call


def _norm(over: str) -> Callable[[Given], Call]:
    """Norms; running statistics (inputs 4 and 5 of a batch norm) are neither trained nor differentiated."""
    return lambda given: Call(op="norm", inputs=given.some(0, 1, 2), attributes={"over": over})


def _gather(given: Given) -> Call:
    return Call(op="embedding", inputs=given.some(0, 1), attributes={"dim": given.axis(0)})


def _transpose(given: Given) -> Call:
    order = given.attributes.get("perm") or list(range(given.rank()))[::-1]
    return Call(op="permute", inputs=given.some(0), attributes={"order": [int(i) for i in order]})


def _along(op: str) -> Callable[[Given], Call]:
    def call(given: Given) -> Call:
        inputs = tuple(filter(None, given.inputs)) if op == "concat" else given.some(0)
        return Call(op=op, inputs=inputs, attributes={"dim": given.axis(0)})

    return call


def _softmax(given: Given) -> Call:
    return Call(op="softmax", inputs=given.some(0), attributes={"dim": given.axis(-1), "saves": "output"})


def _reduction(saves: str) -> Callable[[Given], Call]:
    def call(given: Given) -> Call:
        axes = given.attributes.get("axes")
        if axes is None and len(given.inputs) > 1:
            axes = given.numbers.get(given.inputs[1])
        if axes is None and "axis" in given.attributes:
            axes = [given.attributes["axis"]]
        how = {"dims": None if axes is None else [int(a) for a in axes], "keep": bool(given.attributes.get("keepdims", 1))}
        return Call(op="reduce", inputs=given.some(0), attributes=how | {"saves": saves})

    return call


def _attention(given: Given) -> Call | None:
    """Opset 23; where queries stand as batch x heads x tokens x size."""
    if given.rank() != 4:
        return None
    how = {"causal": bool(given.attributes.get("is_causal", 0))}
    return Call(op="attention", inputs=given.some(0, 1, 2, 3), attributes=how)


def _loss(given: Given) -> Call:
    return Call(op="loss", inputs=given.some(0, 1), attributes={"dim": 1 if given.rank() > 1 else 0})


def _table() -> dict[str, Callable[[Given], Call | None]]:
    made: dict[str, Callable[[Given], Call | None]] = {}
    made |= {name: _plain("pointwise", saves=saves) for saves, names in _POINTWISE.items() for name in names.split()}
    made["Dropout"] = _first("pointwise", saves="mask")
    made["Clip"] = _first("pointwise", saves="inputs")
    made |= {name: _plain("constant") for name in _CONSTANT.split()}
    made |= {name: _first("reshape") for name in _RESHAPES.split()}
    made |= {name: _first("window", saves="index" if name == "TopK" else "none") for name in _WINDOWS.split()}
    made |= {name: _first("pool", saves="index" if name == "MaxPool" else "none") for name in _POOLS.split()}
    made |= {name: _reduction(saves) for saves, names in _REDUCTIONS.items() for name in names.split()}
    made |= {"MatMul": _plain("matmul"), "Gemm": _gemm, "Conv": _conv(False), "ConvTranspose": _conv(True)}
    made |= {name: _norm("channel") for name in ("BatchNormalization", "InstanceNormalization", "GroupNormalization")}
    made |= {name: _norm("last") for name in ("LayerNormalization", "RMSNormalization")}
    made |= {"Gather": _gather, "GatherND": _plain("opaque", saves="none"), "Transpose": _transpose, "Expand": _first("expand")}
    made |= {"Slice": _first("slice"), "Split": _along("split"), "Concat": _along("concat")}
    made |= {"Softmax": _softmax, "LogSoftmax": _softmax, "Resize": _first("resize"), "Upsample": _first("resize")}
    made |= {"SoftmaxCrossEntropyLoss": _loss, "NegativeLogLikelihoodLoss": _loss, "Attention": _attention}
    return made


_RULES = _table()
