"""Fits the constants of a GPU's kernels (:class:`KernelConstants`) to measured GPU times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.dense._constants import PRIOR, KernelConstants
from costmodels.errors import require

FIXED: Final = frozenset({"chunk_parameters", "join_s", "join_ratio"})
"""Constants that are not fitted: they are known from the source code of the kernels, or measured
kernel by kernel."""
_SPREAD: Final = 0.7
"""Standard deviation of ln(constant) around its start that the penalty of the fit assumes."""
_ERROR: Final = 0.1
"""Standard deviation of ln(predicted / measured) of a point that the fit assumes."""
_LARGEST: Final = float(np.log(4.0))
"""How far, as a logarithm, a constant may move from its start."""
_STEP: Final = 0.05
"""Change of ln(constant) by which a slope is measured."""
_ROUNDS: Final = 4
"""Rounds of the fit, each with slopes of its own. Further ones change constants by under 1 %."""
_RIDGE: Final = 1e-9
"""Added to the diagonal of the equations of a round, so that they can always be solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPoint:
    """A measured GPU time of a training step, a product or another piece of a dense part.

    Attributes:
        name: of the point.
        family: the model family that it belongs to.
        measured_s: measured seconds of its kernels.
        predicted_s: returns the seconds that the model gives with some constants.
        weight_ratio: how much it counts in the fit.
    """

    name: str
    family: str
    measured_s: float
    predicted_s: Callable[[KernelConstants], float]
    weight_ratio: float = 1.0


def fit_kernels(points: Sequence[KernelPoint], start: KernelConstants = PRIOR) -> KernelConstants:
    """The constants with the least squares of ln(predicted / measured) and of the penalty.

    Every constant stays within a factor of 4 of its start, to which the penalty pulls it. A
    constant that no point depends on keeps its start.

    Args:
        points: what was measured.
        start: the constants that the fit starts from.

    Raises:
        InvalidValueError: there are no points, or a measured time is not positive.
    """
    require(bool(points), "the fit of kernels needs measured points, got none")
    good = all(p.measured_s > 0 for p in points)
    require(good, "the fit of kernels needs measured times above 0")
    names = [f.name for f in fields(start) if f.name not in FIXED]
    moved = np.zeros(len(names))
    for _ in range(_ROUNDS):
        moved = _improved(points, start, names, moved)
    return _moved(start, names, moved)


def _improved(
    points: Sequence[KernelPoint], start: KernelConstants, names: list[str], moved: FloatArray
) -> FloatArray:
    """One Gauss-Newton step of the logarithms ``[constants]`` by which constants are moved."""
    errors = _errors(points, _moved(start, names, moved))
    slopes = np.empty((len(points), len(names)))
    for i in range(len(names)):
        near = moved.copy()
        near[i] += _STEP
        slopes[:, i] = (_errors(points, _moved(start, names, near)) - errors) / _STEP
    weights = np.array([p.weight_ratio for p in points]) / _ERROR**2
    penalty = 1.0 / _SPREAD**2
    left = slopes.T @ (weights[:, None] * slopes) + (penalty + _RIDGE) * np.eye(len(names))
    right = -slopes.T @ (weights * errors) - penalty * moved
    return np.clip(moved + np.linalg.solve(left, right), -_LARGEST, _LARGEST)


def _errors(points: Sequence[KernelPoint], constants: KernelConstants) -> FloatArray:
    """ln(predicted / measured) ``[points]``."""
    return np.array([np.log(p.predicted_s(constants) / p.measured_s) for p in points])


def _moved(start: KernelConstants, names: list[str], moved: FloatArray) -> KernelConstants:
    """The constants multiplied by the exponentials of ``moved``."""
    changed = {n: getattr(start, n) * float(np.exp(m)) for n, m in zip(names, moved, strict=True)}
    return replace(start, **changed)
