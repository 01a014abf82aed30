"""Bytes per element of what training keeps: GEMM inputs, activations, parameters, gradients, optimiser state.

tf32 is fp32 whose matrix products round their inputs to 10 bits of mantissa (NVIDIA A100 white paper): all bytes stay 4.
Scaled formats store scales beside their elements:

    fp8-blockwise   1 + 4 / 128     one fp32 scale for 128 elements (1x128 tiles, as in DeepSeek-V3, arXiv 2412.19437)
    mxfp8           1 + 1 / 32      one E8M0 scale for 32 elements (OCP Microscaling Formats 1.0)
    nvfp4           1/2 + 1 / 16    one E4M3 scale for 16 elements (arXiv 2509.25149)

How the scales of 8-bit operands are found is part of the precision's name, as frameworks name their recipes:

    delayed     one for a tensor, from the largest values of earlier steps    Megatron-LM --fp8-recipe delayed
    tensor      one for a tensor, from itself (current scaling)               --fp8-recipe tensorwise; torchao tensorwise
    row         one for a row of each operand of each product                 torchao rowwise, rowwise_with_gw_hp
    block       one for a tile or a block of it                               --fp8-recipe blockwise, mxfp8

`rowwise_with_gw_hp` makes gradients of weights by products in 16 bits (pytorch/ao, float8/config.py).

Optimiser state per parameter = master copy + moments. Parameters are held in 16 bits in all mixed-precision
recipes here (fp8 and fp4 are the precision of GEMM inputs), so the master copy is fp32; `state_bytes` drops
it where the parameter itself is fp32.

Sources: arXiv 1910.02054 section 3.1 (Adam 4 + 4 + 4), arXiv 2110.02861 (8-bit moments), arXiv 2502.16982
(Muon, one momentum), arXiv 1804.04235 (Adafactor, factored second moment, no first moment).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from shardwright.errors import unknown_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A training precision.

    Attributes:
        id: the word users write.
        compute: key into a device's peak FLOP/s: bf16, fp16, fp32, tf32, fp8 or fp4.
        gemm_input_bytes: bytes per element of a GEMM input, scales included.
        activation_bytes: bytes per element of activations between operators.
        parameter_bytes: bytes per element of the parameter the forward pass reads.
        scales: how scales of operands are found: delayed, tensor, row or block; empty where there are none.
        rate: id by which kernel fits know the rate of its products; empty: its own.
        wide_weight_gradients: whether products that make gradients of weights run in 16 bits.
    """

    id: str
    compute: str
    gemm_input_bytes: float
    activation_bytes: int = 2
    parameter_bytes: int = 2
    scales: str = ""
    rate: str = ""
    wide_weight_gradients: bool = False

    @property
    def rate_id(self) -> str:
        """The id of the rate of its products."""
        return self.rate or self.id

    @property
    def narrow(self) -> bool:
        """Whether operands of products are quantised."""
        return self.gemm_input_bytes < self.activation_bytes

    @property
    def whole(self) -> bool:
        """Whether everything is held in 32 bits, so that head, router and attention have the rate of the other products."""
        return self.activation_bytes > 2

    @property
    def has_bf16_parameters(self) -> bool:
        """Whether parameters are held in bf16 (also where products run below 16 bits)."""
        return self.parameter_bytes == 2 and self.compute != "fp16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """An optimiser's state per parameter.

    Attributes:
        id: the word users write.
        master_bytes: bytes of the fp32 copy kept beside 16-bit parameters.
        moment_bytes: bytes of moments (momentum, variance).
    """

    id: str
    master_bytes: int
    moment_bytes: float

    @property
    def state_bytes_per_parameter(self) -> float:
        """Master copy and moments, for 16-bit parameters."""
        return self.master_bytes + self.moment_bytes

    def state_bytes(self, precision: Precision) -> float:
        """Bytes of state per parameter; an fp32 parameter is its own master copy."""
        return self.moment_bytes + self.state_master_bytes(precision)

    def state_master_bytes(self, precision: Precision) -> int:
        """Bytes of the master copy of a parameter; 0 where the parameter is its own."""
        return self.master_bytes if precision.parameter_bytes < 4 else 0


def _precisions() -> dict[str, Precision]:
    records = (
        Precision(id="bf16", compute="bf16", gemm_input_bytes=2.0),
        Precision(id="fp16", compute="fp16", gemm_input_bytes=2.0),
        Precision(id="fp32", compute="fp32", gemm_input_bytes=4.0, activation_bytes=4, parameter_bytes=4),
        Precision(id="tf32", compute="tf32", gemm_input_bytes=4.0, activation_bytes=4, parameter_bytes=4),
        Precision(id="fp8-delayed", compute="fp8", gemm_input_bytes=1.0, scales="delayed", rate="fp8-tensorwise"),
        Precision(id="fp8-tensorwise", compute="fp8", gemm_input_bytes=1.0, scales="tensor"),
        Precision(id="fp8-rowwise", compute="fp8", gemm_input_bytes=1.0, scales="row", rate="fp8-tensorwise"),
        Precision(
            id="fp8-rowwise-gw-hp",
            compute="fp8",
            gemm_input_bytes=1.0,
            scales="row",
            rate="fp8-tensorwise",
            wide_weight_gradients=True,
        ),
        Precision(id="fp8-blockwise", compute="fp8", gemm_input_bytes=1.0 + 4.0 / 128.0, scales="block"),
        Precision(id="mxfp8", compute="fp8", gemm_input_bytes=1.0 + 1.0 / 32.0, scales="block"),
        Precision(id="nvfp4", compute="fp4", gemm_input_bytes=0.5 + 1.0 / 16.0, scales="block"),
    )
    return {record.id: record for record in records}


def _optimizers() -> dict[str, Optimizer]:
    records = (
        Optimizer(id="adam", master_bytes=4, moment_bytes=8.0),
        Optimizer(id="adam-bf16", master_bytes=4, moment_bytes=4.0),
        Optimizer(id="adam-8bit", master_bytes=4, moment_bytes=2.0),
        Optimizer(id="sgd", master_bytes=4, moment_bytes=4.0),
        Optimizer(id="muon", master_bytes=4, moment_bytes=4.0),
        Optimizer(id="adafactor", master_bytes=4, moment_bytes=0.0),
    )
    return {record.id: record for record in records}


PRECISIONS: Mapping[str, Precision] = MappingProxyType(_precisions())
OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(_optimizers())
GRAD_DTYPES: Mapping[str, int] = MappingProxyType({"fp32": 4, "bf16": 2})


def precision_of(text: str) -> Precision:
    """The precision of that id.

    Raises:
        UnknownNameError: there is none.
    """
    if text not in PRECISIONS:
        raise unknown_name("precision", text, PRECISIONS, where="--precision")
    return PRECISIONS[text]


def optimizer_of(text: str) -> Optimizer:
    """The optimiser of that id.

    Raises:
        UnknownNameError: there is none.
    """
    if text not in OPTIMIZERS:
        raise unknown_name("optimizer", text, OPTIMIZERS, where="--optimizer")
    return OPTIMIZERS[text]


def grad_bytes_of(text: str) -> int:
    """Bytes per element of accumulated gradients.

    Raises:
        UnknownNameError: no such gradient dtype.
    """
    if text not in GRAD_DTYPES:
        raise unknown_name("gradient dtype", text, GRAD_DTYPES, where="--grad-dtype")
    return GRAD_DTYPES[text]
