"""What every pricing command may be told beside model, cluster and batch, and the words it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwright.errors import ConflictError, InvalidValueError, unknown_name
from shardwright.hardware.calibration import Calibration
from shardwright.models.adapters import FrozenSpec, parse_freeze, parse_lora
from shardwright.models.dtypes import grad_bytes_of
from shardwright.planner.fits.factors import Fits
from shardwright.planner.stacks import StackProfile

FRAMEWORKS = ("megatron", "torchtitan", "pytorch", "deepspeed", "any")
METERS = ("allocated", "reserved", "device")
OBJECTIVES = ("throughput", "cost", "energy", "goodput")
GIB = 2**30
MOST_MARGIN_GIB = 1024
MOST_SKEW = 65_536.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PricingOptions:
    """What every pricing command takes; None means "the stack's default".

    Attributes:
        grad_dtype: "fp32" or "bf16".
        framework: one of `FRAMEWORKS` (`torchrun` is another word for `pytorch`).
        target_version: version of the framework whose rules hold; None for the newest.
        memory_margin_gib: memory kept free on every device, GiB.
        memory_meter: which reading `memory.meters` headlines; feasibility always uses the device's.
        overrides: what-if statements `key=value` on the inputs, such as `cluster.internode_bytes_per_s=25e9`.
        gpus: use the first so many GPUs of the cluster.
        lora: adapters, as `rank=16,targets=qkv+out_proj`; everything else is frozen.
        freeze: modules that are not trained, words of `models.adapters.FREEZABLE`.
        length_histogram: path of a CSV or JSON file of `length,count`: documents packed into sequences.
        calibration: collectives or steps measured on this cluster: a file that `calibrate` wrote, or what it holds.
        prices: statements `NODE=USD_PER_GPU_HOUR`, `NODE=TERM` of the price table, or paths of YAML files of node: price.
        objective: one of `OBJECTIVES`: what is to be least, or most.
        routing_skew: rows of the busiest expert over the mean of all, at least 1.
        measured: runs of this site, each `tp=8,pp=4,step_time_s=12.3`; `planner.site.stated` says what may be stated.
        dims: sizes of dynamic dims of a graph file, `batch=32`.
        declared: unknown operators of a graph file, `MyOp=elementwise` or `MyOp=opaque`.
        fits: factors fitted to published runs; None for those that come with the package.
    """

    precision: str = "bf16"
    optimizer: str = "adam"
    grad_dtype: str | None = None
    framework: str = "any"
    target_version: str | None = None
    stack: str | None = None
    memory_margin_gib: float = 0.0
    memory_meter: str = "device"
    overrides: tuple[str, ...] = ()
    gpus: int | None = None
    lora: str | None = None
    freeze: tuple[str, ...] = ()
    length_histogram: str | Path | None = None
    calibration: str | Path | Calibration | None = None
    prices: tuple[str, ...] = ()
    objective: str = "throughput"
    routing_skew: float | None = None
    measured: tuple[str, ...] = ()
    dims: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    fits: Fits | None = None


def framework_of(name: str) -> str:
    """A framework by its name.

    Raises:
        UnknownNameError: none of `FRAMEWORKS`.
    """
    return one_of("framework", "pytorch" if name == "torchrun" else name, FRAMEWORKS, "--framework")


def one_of(kind: str, given: str, known: Sequence[str] | Mapping[str, Any], where: str) -> str:
    """A word that must be one of those known.

    Raises:
        UnknownNameError: it is none of them.
    """
    if not isinstance(given, str) or given not in known:
        raise unknown_name(kind, str(given), list(known), where=where)
    return given


def grad_bytes_asked(options: PricingOptions, stack: StackProfile) -> int:
    """Bytes of a gradient: as asked, else the stack's."""
    if options.grad_dtype is None:
        return stack.grad_bytes
    return grad_bytes_of(options.grad_dtype)


def frozen_asked(options: PricingOptions) -> FrozenSpec:
    """What is frozen and what adapters there are."""
    lora = parse_lora(options.lora) if options.lora is not None else None
    return FrozenSpec(lora=lora, freeze=tuple(dict.fromkeys(w for text in options.freeze for w in parse_freeze(text))))


def fits_of(options: PricingOptions) -> Fits:
    """The fitted factors asked for: those that come with the package unless others are named."""
    if options.fits is not None:
        return options.fits
    from shardwright.planner.fits.shipped import shipped

    return shipped()


def with_skew(stack: StackProfile, options: PricingOptions) -> StackProfile:
    """The stack with rows spread over experts as unevenly as asked.

    Raises:
        InvalidValueError: less than the mean, or no number.
        ConflictError: a what-if states it as well.
    """
    skew = options.routing_skew
    if skew is None:
        return stack
    if any(text.replace(" ", "").startswith("stack.moe_load_imbalance=") for text in options.overrides):
        message = "--routing-skew and --set stack.moe_load_imbalance both say how uneven routing is"
        raise ConflictError(message, where="--routing-skew", hint="keep one of the two")
    if not 1.0 <= skew <= MOST_SKEW:
        hint = f"give rows of the busiest expert over the mean, 1 to {MOST_SKEW:g}"
        raise InvalidValueError(f"a skew of {skew:g}", where="--routing-skew", hint=hint)
    return replace(stack, moe_load_imbalance=float(skew))
