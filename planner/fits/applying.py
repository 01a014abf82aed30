"""Fitted factors on the records of a problem: its stack profile and the kernel fits of its devices.

A record with factors f applied and one with factors g differ by the quotients g / f (`Fits.over`), which is what is applied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardwright.documents import rounded
from shardwright.planner.fits.factors import Fits

if TYPE_CHECKING:
    from shardwright.planner.problem import Problem


def with_fits(problem: Problem, fits: Fits) -> Problem:
    """The problem with these factors in place of its own."""
    ratio = fits.over(problem.fits)
    archs = {group.node.device.kernels: group.node.device.arch for group in problem.cluster.groups}
    first, *further = (ratio.kernels(fit, archs.get(fit.id, ""), problem.stack) for fit in (problem.kernels, *problem.further))
    return replace(problem, stack=ratio.stack(problem.stack), kernels=first, further=tuple(further), fits=fits)


def fits_in_force(problem: Problem) -> dict[str, float]:
    """The factors that are for the problem's devices, arithmetic and stack."""
    archs = [group.node.device.arch for group in problem.cluster.groups]
    found = problem.fits.in_force(archs, problem.stack, problem.job.precision.id)
    return dict(rounded(found))
