"""Fits: non-negative seconds per count, and a smooth learned correction."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from costmodels.cpu.constants import Residual
from costmodels.datatypes import FloatArray, IntArray
from costmodels.errors import require

_ROUNDS = 4
_CUT = 0.15
"""Relative errors beyond this count linearly, so that few disturbed points do not pull."""
_FAR = 0.3
"""Logarithmic errors beyond this count as much."""
_SEED = 0
_FOLDS = 4
_ODD = 0.5
_MOST_ODD = 5


def non_negative(counts: FloatArray, times_s: FloatArray) -> FloatArray:
    """Coefficients c >= 0 with ``counts @ c`` close to ``times_s``, in relative terms.

    Weighted least squares on relative errors, repeated with smaller weights on points that lie far
    off (Huber).
    """
    from scipy.optimize import nnls

    require(len(times_s) >= 1 and bool(np.all(times_s > 0)), "a fit needs times above 0")
    scale = np.maximum(np.abs(counts).max(axis=0), 1e-300)
    weights = np.ones(len(times_s))
    coefficients = np.zeros(counts.shape[1])
    for _ in range(_ROUNDS):
        relative = counts / scale / times_s[:, None]
        solution, _ = nnls(relative * weights[:, None], weights)
        coefficients = solution / scale
        errors = np.abs(counts @ coefficients / times_s - 1.0)
        weights = np.sqrt(np.minimum(1.0, _CUT / np.maximum(errors, 1e-12)))
    return coefficients * _centred(counts @ coefficients, times_s)


def _centred(predicted_s: FloatArray, times_s: FloatArray) -> float:
    """Factor to a mean logarithmic error of 0: relative squares favour predictions too low."""
    return float(np.exp(np.clip(-log_errors(predicted_s, times_s), -_FAR, _FAR).mean()))


def log_errors(predicted_s: FloatArray, times_s: FloatArray) -> FloatArray:
    """ln(predicted / measured)."""
    return np.asarray(np.log(np.maximum(predicted_s, 1e-12) / times_s))


def learned_residual(shapes: FloatArray, log_ratio: FloatArray, *, limit: float) -> Residual:
    """A Gaussian process on ``log_ratio`` = ln(measured / predicted), as a kernel regression."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    center, spread = shapes.mean(axis=0), np.maximum(shapes.std(axis=0), 1e-9)
    scaled = (shapes - center) / spread
    kernel = ConstantKernel(0.02, (1e-4, 1.0)) * RBF(
        np.full(shapes.shape[1], 2.0), (0.5, 100.0)
    ) + WhiteKernel(0.005, (2e-3, 0.3))
    process = GaussianProcessRegressor(kernel, random_state=_SEED)
    with warnings.catch_warnings():
        # Bounds are reached where a feature does not matter: that is an answer.
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(scaled, np.clip(log_ratio, -limit, limit))
    signal = process.kernel_.k1
    weights = float(signal.k1.constant_value) * process.alpha_
    lengths = np.broadcast_to(signal.k2.length_scale, spread.shape) * spread
    return Residual(
        points_ratio=tuple(tuple(float(v) for v in row) for row in shapes),
        weights_ratio=tuple(float(w) for w in np.ravel(weights)),
        lengths_ratio=tuple(float(v) for v in lengths),
        limit_ratio=limit,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FitError:
    """How well one model fits: on the points it was fitted to, and on points held out.

    ``geomean_ratio`` = exp(mean |ln(predicted / measured)|) - 1. ``odd_points`` describes
    measurements that lie far off and may be wrong.
    """

    name: str
    num_points: int
    geomean_ratio: float
    held_out_ratio: float
    p90_ratio: float
    odd_points: tuple[str, ...] = ()


def geomean_error(errors: FloatArray) -> float:
    """exp(mean |e|) - 1 of logarithmic errors; 0 without any."""
    return float(np.expm1(np.abs(errors).mean())) if len(errors) else 0.0


def folds(count: int, num_folds: int) -> list[IntArray]:
    """Random disjoint index sets that cover everything."""
    order = np.random.default_rng(_SEED).permutation(count)
    return [np.sort(part) for part in np.array_split(order, min(num_folds, max(count, 1)))]


def fit_counts(
    counts: FloatArray,
    times_s: FloatArray,
    name: str,
    *,
    groups: Sequence[int] | None = None,
    describe: Callable[[int], str] | None = None,
) -> tuple[tuple[float, ...], FitError]:
    """Non-negative coefficients, with errors on points held out in turn.

    Points of one group are held out together.
    """
    coefficients = non_negative(counts, times_s)
    inside = log_errors(counts @ coefficients, times_s)
    outside = log_errors(held_out_seconds(counts, times_s, groups), times_s)
    odd = [i for i in np.argsort(-np.abs(outside)) if abs(outside[i]) > _ODD][:_MOST_ODD]
    error = FitError(
        name=name,
        num_points=len(times_s),
        geomean_ratio=geomean_error(inside),
        held_out_ratio=geomean_error(outside),
        p90_ratio=float(np.expm1(np.quantile(np.abs(outside), 0.9))),
        odd_points=tuple(
            f"{describe(i) if describe else f'point {i}'}: predicted / measured "
            f"{np.exp(outside[i]):.2f}"
            for i in odd
        ),
    )
    return tuple(float(c) for c in coefficients), error


def held_out_seconds(
    counts: FloatArray, times_s: FloatArray, groups: Sequence[int] | None = None
) -> FloatArray:
    """Every point predicted by a fit without its group; as measured where nothing else is left."""
    own = np.arange(len(times_s)) if groups is None else np.asarray(groups)
    number = np.unique(own, return_inverse=True)[1]
    found = times_s.copy()
    for part in folds(int(number.max()) + 1, _FOLDS):
        held, kept = (np.flatnonzero(np.isin(number, part, invert=x)) for x in (False, True))
        if len(kept):
            found[held] = counts[held] @ non_negative(counts[kept], times_s[kept])
    return found
