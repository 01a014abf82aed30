"""Recurrences over the sequence in place of attention: Mamba 1 and 2, gated delta rule, lightning attention.

With a heads of size d, g key heads of size n (the state a head is d x n), h hidden, w taps of a causal convolution:

                   parts of in_proj (k = h)                         before the scan         after it
    mamba2         gate a d, value a d, key g n, query g n, step a  conv of w taps          norm(out * silu(gate)), a d wide
    gated-delta    the same, and decay a                            conv of w taps          norm (d wide), * silu(gate)
    lightning      gate a d, value a d, key g n, query g n          silu                    norm (a d wide), * sigmoid(gate)
    mamba1         gate a, value a                                  conv, x_proj, dt_proj   out * silu(gate)

where x_proj makes step sizes of rank r, key and query (a -> r + 2 n) and dt_proj widens the step sizes (r -> a),
and out_proj from a d to h. The scan itself is `operators.ScanShape`. It reads its operands, writes its output and, once a
chunk, its fp32 state of d n a head, which the backward pass computes again; kept are its operands, the gate, the output
before the norm, and what the convolution read. The convolution counts bytes, not FLOPs (2 w a channel).

`scan_block` lists the operators. Sources: arXiv 2312.00752 (Mamba), arXiv 2405.21060 (Mamba 2), arXiv 2412.06464 (gated
delta rule), arXiv 2501.08313 (lightning attention).
"""

from __future__ import annotations

from shardwright.models.dims import TOKENS
from shardwright.models.graph import CONVOLVE, GATED_NORM, GemmShape, Normalised, Operator, OperatorKind, ScanShape, TensorSpec
from shardwright.models.parts import FP32, activation, hidden, optional, parameter
from shardwright.models.spec import ScanSpec

MIXED = hidden("attn_projected")
MODULE = "scan"
WIDE, NARROW, STEP = ("scan_heads", "scan_head_dim"), ("scan_groups", "scan_state"), ("scan_heads",)
METHODS = {"mamba1": "selective", "mamba2": "state-space", "gated-delta": "delta", "lightning": "linear"}
OUT = activation("scan_out", *WIDE)
GATED = activation("scan_gated", *WIDE)
GATE = activation("scan_gate", *WIDE)


def scan_dims(scan: ScanSpec) -> dict[str, int]:
    """Sizes of the fixed dims of the block."""
    sizes = {"scan_heads": scan.heads, "scan_head_dim": scan.head_dim, "scan_groups": scan.groups, "scan_state": scan.state}
    convolution = {"scan_conv": scan.conv} if scan.conv else {}
    return {**sizes, **convolution, **({"dt_rank": scan.dt_rank} if scan.dt_rank is not None else {})}


def scan_block(scan: ScanSpec, source: TensorSpec) -> tuple[Operator, ...]:
    """Operators from what the block reads to ``attn_projected``."""
    within = _selective(scan, source) if scan.kind == "mamba1" else _chunked(scan, source)
    return (*within, _gate(scan), _out_proj(scan))


def _chunked(scan: ScanSpec, source: TensorSpec) -> tuple[Operator, ...]:
    """Projection of all operands, convolution, scan."""
    raw = tuple(activation(f"scan_{name}_raw", *dims) for name, dims in zip(*_OPERANDS, strict=True))
    ready = tuple(activation(f"scan_{name}", *dims) for name, dims in zip(*_OPERANDS, strict=True))
    steps = {"mamba2": ("step",), "gated-delta": ("step", "decay"), "lightning": ()}[scan.kind]
    scalars = tuple(activation(f"scan_{name}", *STEP) for name in steps)
    own = {"mamba2": ("a_log", "step_bias", "skip"), "gated-delta": ("a_log", "step_bias"), "lightning": ()}[scan.kind]
    return (
        _in_proj(scan, source, (GATE, *raw, *scalars)),
        _convolution(scan, raw, ready),
        _scan(scan, (*ready, *scalars), tuple(parameter(f"scan_{name}", *STEP) for name in own)),
    )


_OPERANDS = (("value", "key", "query"), (WIDE, NARROW, NARROW))


def _selective(scan: ScanSpec, source: TensorSpec) -> tuple[Operator, ...]:
    """Projection, convolution, step sizes and B and C from the convolved values, scan."""
    raw, value = activation("scan_value_raw", *WIDE), activation("scan_value", *WIDE)
    low, key, query = (
        activation("step_low", "dt_rank"),
        activation("scan_key", "scan_state"),
        activation("scan_query", "scan_state"),
    )
    small, stages = (low, key, query), optional(scan.inner_norms, "_raw")
    before = tuple(TensorSpec(name=f"{spec.name}_raw", dims=spec.dims) for spec in small) if stages else small
    step = activation("scan_step", *STEP)
    own = (parameter("scan_a_log", *STEP, "scan_state"), parameter("scan_skip", *STEP))
    return (
        _in_proj(scan, source, (GATE, raw)),
        _convolution(scan, (raw,), (value,)),
        _gemm("x_proj", value, before),
        *((_inner_norm(before, small),) if stages else ()),
        _gemm("dt_proj", low, (step,), bias=True),
        _scan(scan, (value, key, query, step), own),
    )


def _in_proj(scan: ScanSpec, source: TensorSpec, targets: tuple[TensorSpec, ...]) -> Operator:
    return _gemm("in_proj", source, targets, bias=scan.bias)


def _gemm(name: str, source: TensorSpec, targets: tuple[TensorSpec, ...], *, bias: bool = False) -> Operator:
    """A projection of the inner dims of `source` to those of all targets, one weight each."""
    inner, parts = source.dims[2:], tuple(target.dims[2:] for target in targets)
    stems = tuple(name if len(targets) == 1 else f"{name}_{target.name}" for target in targets)
    weights = tuple(parameter(f"{stem}_weight", *inner, *part) for stem, part in zip(stems, parts, strict=True))
    biases = tuple(parameter(f"{stem}_bias", *part) for stem, part in zip(stems, parts, strict=True))
    return Operator(
        name=name,
        kind=OperatorKind.GEMM,
        module=MODULE,
        inputs=(source,),
        outputs=targets,
        parameters=weights + optional(bias, *biases),
        saved=(source,),
        gemm=GemmShape(m=TOKENS, n=parts, k=inner),
    )


def _convolution(scan: ScanSpec, raw: tuple[TensorSpec, ...], ready: tuple[TensorSpec, ...]) -> Operator:
    """The causal convolution (where there is one) and the activation after it."""
    taps = tuple(parameter(f"{target.name}_conv_weight", *target.dims[2:], "scan_conv") for target in ready)
    biases = tuple(parameter(f"{target.name}_conv_bias", *target.dims[2:]) for target in ready)
    return Operator(
        name="scan_conv" if scan.conv else "scan_act",
        kind=OperatorKind.ELEMENTWISE,
        module=MODULE,
        inputs=raw,
        outputs=ready,
        parameters=optional(scan.conv > 0, *taps) + optional(scan.conv > 0 and scan.conv_bias, *biases),
        saved=raw,
        whole=("seq", "scan_conv") if scan.conv else (),
        beside=(CONVOLVE,) if scan.conv else (),
    )


def _inner_norm(source: tuple[TensorSpec, ...], target: tuple[TensorSpec, ...]) -> Operator:
    stats = tuple(TensorSpec(name=f"{spec.name}_stats", dims=TOKENS, bytes_per_element=FP32) for spec in source)
    return Operator(
        name="inner_norm",
        kind=OperatorKind.ELEMENTWISE,
        module=MODULE,
        inputs=source,
        outputs=target,
        parameters=tuple(parameter(f"{spec.name}_norm_weight", spec.dims[-1]) for spec in target),
        saved=source + stats,
        normalised=Normalised(dims=tuple(dict.fromkeys(spec.dims[-1] for spec in source))),
    )


def _scan(scan: ScanSpec, operands: tuple[TensorSpec, ...], own: tuple[TensorSpec, ...]) -> Operator:
    states = activation("scan_states", *WIDE, "scan_state")
    states = TensorSpec(name=states.name, dims=states.dims, bytes_per_element=FP32 / scan.chunk)
    return Operator(
        name="scan",
        kind=OperatorKind.SCAN,
        module=MODULE,
        inputs=operands,
        outputs=(OUT, states),
        parameters=own,
        saved=operands,
        scan=ScanShape(method=METHODS[scan.kind], chunk=scan.chunk),
        whole=("seq", "scan_head_dim", "scan_state"),
    )


def _gate(scan: ScanSpec) -> Operator:
    """The gate, and the norm of the scan's output, whose statistics are kept: none for mamba1."""
    over = {"mamba1": (), "gated-delta": ("scan_head_dim",)}.get(scan.kind, WIDE)
    stats = TensorSpec(
        name="scan_out_stats", dims=(*TOKENS, "scan_heads") if over == ("scan_head_dim",) else TOKENS, bytes_per_element=FP32
    )
    return Operator(
        name="scan_gate",
        kind=OperatorKind.ELEMENTWISE,
        module=MODULE,
        inputs=(OUT, GATE),
        outputs=(GATED,),
        parameters=optional(bool(over), parameter("scan_norm_weight", *over)),
        saved=(OUT, GATE, *optional(bool(over), stats)),
        normalised=Normalised(dims=over) if over else None,
        beside=(GATED_NORM,) if scan.kind == "mamba2" else (),
    )


def _out_proj(scan: ScanSpec) -> Operator:
    return _gemm("out_proj", GATED, (MIXED,), bias=scan.bias)
