"""Fits the constants of lookups to tables that were measured one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.calibration.fitting import (
    FitError,
    fit_error,
    learned_residual,
    left_out,
    log_errors,
    non_negative,
)
from costmodels.calibration.points import LookupPoint
from costmodels.cpu.lookup import Access, factor, features
from costmodels.datatypes import FloatArray, IntArray
from costmodels.distribution.zipf import Zipf
from costmodels.measured.cpu_constants import CpuKernel, LookupConstants, Residual

_LIMIT = 0.6
"""Largest absolute value of the logarithm of the learned factor: it is between 0.55 and 1.82."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """Sizes of the caches of a core, from which counts of cache misses follow."""

    l2_bytes: float
    l3_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Data:
    """The measured tables of one pass.

    Attributes:
        counts: ``[points, counts]``.
        shapes: ``[points, features]`` what the learned factor sees.
        times_s: ``[points]`` measured seconds.
    """

    counts: FloatArray
    shapes: FloatArray
    times_s: FloatArray


def fit_lookups(
    points: Sequence[LookupPoint], caches: Caches, kernel: CpuKernel
) -> tuple[LookupConstants, tuple[FitError, FitError]]:
    """Fit the constants of one kernel.

    Args:
        points: measured tables of any kernels.
        caches: sizes of the caches of a core.
        kernel: the kernel; points of other kernels are ignored.

    Returns:
        The constants, and the errors of forward and backward pass.
    """
    chosen = [p for p in points if p.kernel is kernel]
    found = []
    for phase in ("forward", "backward"):
        data = _data(chosen, caches, phase)
        coefficients, residual = _fit(data)
        found.append((coefficients, residual, _error(data, chosen, f"lookup {phase} {kernel}")))
    forward, backward = found
    constants = LookupConstants(
        forward_s=tuple(float(c) for c in forward[0]),
        backward_s=tuple(float(c) for c in backward[0]),
        forward_residual=forward[1],
        backward_residual=backward[1],
    )
    return constants, (forward[2], backward[2])


def point_access(point: LookupPoint) -> Access:
    """A measured table, described as the lookup model describes a shard."""
    law = Zipf(num_embeddings=point.num_embeddings, exponent=point.exponent)
    rows, probability = law.frequency_bins()
    draws = point.num_bags * point.pooling_factor
    return Access(
        rows=rows,
        probability=probability,
        draws=draws,
        num_indices=draws,
        num_bags=draws if point.kernel is CpuKernel.SEQUENCE else point.num_bags,
        num_cols=point.embedding_dim,
        num_rows=point.num_embeddings,
    )


def _data(points: Sequence[LookupPoint], caches: Caches, phase: str) -> _Data:
    """Counts, shapes and seconds of one pass, which is ``forward`` or ``backward``."""
    counted = [
        features(
            point_access(p),
            l2_bytes=caches.l2_bytes,
            l3_bytes=caches.l3_bytes,
            kernel=p.kernel,
        )
        for p in points
    ]
    return _Data(
        counts=np.array([getattr(f, phase) for f in counted]),
        shapes=np.array([f.shape for f in counted]),
        times_s=np.array([getattr(p, f"{phase}_s") for p in points]),
    )


def _fit(data: _Data) -> tuple[FloatArray, Residual]:
    """Seconds per count, and the learned factor on top of them."""
    coefficients = non_negative(data.counts, data.times_s)
    ratio = -log_errors(data.counts @ coefficients, data.times_s)
    return coefficients, learned_residual(data.shapes, ratio, limit=_LIMIT)


def _predict(data: _Data, coefficients: FloatArray, residual: Residual) -> FloatArray:
    """Predicted seconds of each point."""
    return np.asarray(data.counts @ coefficients * factor(residual, data.shapes))


def _part(data: _Data, rows: IntArray) -> _Data:
    """The data of some points."""
    return _Data(counts=data.counts[rows], shapes=data.shapes[rows], times_s=data.times_s[rows])


def _error(data: _Data, points: Sequence[LookupPoint], name: str) -> FitError:
    """Errors on the points of the fit, and on points that are left out in turn."""
    predicted = left_out(
        np.arange(len(points)),
        data.times_s,
        lambda kept, out: _predict(_part(data, out), *_fit(_part(data, kept))),
    )
    inside = log_errors(_predict(data, *_fit(data)), data.times_s)
    outside = log_errors(predicted, data.times_s)
    return fit_error(name, inside, outside, lambda i: _describe(points[i]))


def _describe(point: LookupPoint) -> str:
    """A point in words."""
    return (
        f"{point.num_embeddings} x {point.embedding_dim}, {point.num_bags} bags of "
        f"{point.pooling_factor:g}, exponent {point.exponent:.2f}"
    )
