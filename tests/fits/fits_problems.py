"""A problem and sets of factors that tests of fits share."""

from shardwright.planner.fits.factors import Fits
from shardwright.planner.problem import PricingOptions, build_problem

SET = Fits(name="test", source="made up", values={"streams": 1.25, "attention": 1.1, "host": 1.2, "exposed.tp": 3.0})


def problem(fits, *, node="dgx-h100", precision="bf16", **more):
    options = PricingOptions(fits=fits, precision=precision, framework="megatron", **more)
    return build_problem("llama3.1-8b", f"{node}:1", seq_len=4096, global_batch=64, options=options)
