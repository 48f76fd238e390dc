"""Fits of models: non-negative seconds per count, and a smooth learned correction.

A *count* is how often something with a constant price happens in a measured point, such as a call,
a byte or an index. A model is a sum of counts times seconds per count.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodels.calibration.points import LookupPoint
from costmodels.cpu.lookup import Accesses, factor, features
from costmodels.datatypes import FloatArray, IntArray
from costmodels.errors import require
from costmodels.lookup.base import LookupShards, TableColumns
from costmodels.measured import cpu_constants as cpu
from costmodels.topology import FITTED_KINDS
from costmodels.uncertainty import MACHINE
from costmodels.workload import Optimizer

_ROUNDS = 4
"""Weighted fits that follow each other; weights hardly change after a few."""
_CUT = 0.15
"""Relative error above which a point counts by its error and not by its square, so that a few
points that were disturbed while they were measured do not decide."""
_FAR = 0.3
"""Largest logarithmic error that a point may add to the mean by which a fit is centred."""
_SEED = 0
"""Seed of the folds and of the learned correction, so that equal points give equal constants."""
_FOLDS = 4
"""Parts of the points that are left out in turn. More parts leave fewer points out of each fit,
and take more fits."""


def non_negative(counts: FloatArray, times_s: FloatArray) -> FloatArray:
    """Seconds per count c >= 0 for which ``counts @ c`` is close to ``times_s``.

    Weighted least squares on relative errors, repeated with smaller weights for points with large
    errors (Huber's weights). Then all coefficients are multiplied by one factor, after which the
    mean logarithmic error is about 0: squares of relative errors are smaller for predictions that
    are too low than for those that are too high by the same factor.

    Args:
        counts: ``[points, counts]``.
        times_s: ``[points]`` measured seconds, all above 0.

    Raises:
        InvalidValueError: there is no point, or a time that is not above 0.
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
    off = np.clip(-log_errors(counts @ coefficients, times_s), -_FAR, _FAR)
    return coefficients * float(np.exp(off.mean()))


def log_errors(predicted_s: FloatArray, times_s: FloatArray) -> FloatArray:
    """ln(predicted / measured) of each point, ``[points]``."""
    return np.asarray(np.log(np.maximum(predicted_s, 1e-12) / times_s))


def learned_residual(shapes: FloatArray, log_ratio: FloatArray, *, limit: float) -> cpu.Residual:
    """The mean of a Gaussian process that is fitted to ln(measured / predicted).

    Args:
        shapes: ``[points, features]`` logarithms that describe each point.
        log_ratio: ``[points]`` ln(measured / predicted).
        limit: largest absolute value of the logarithm of the correction; errors beyond it are cut
            before the fit.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    center, spread = shapes.mean(axis=0), np.maximum(shapes.std(axis=0), 1e-9)
    scaled = (shapes - center) / spread
    # The fit starts from corrections of 14 % (the root of 0.02) that change over two standard
    # deviations of a feature, and from noise of 7 % (the root of 0.005). Bounds keep lengths above
    # half a standard deviation and noise above 4 %, so that single points are not followed.
    kernel = ConstantKernel(0.02, (1e-4, 1.0)) * RBF(
        np.full(shapes.shape[1], 2.0), (0.5, 100.0)
    ) + WhiteKernel(0.005, (2e-3, 0.3))
    process = GaussianProcessRegressor(kernel, random_state=_SEED)
    with warnings.catch_warnings():
        # A length reaches its bound if its feature does not matter. That is no failure of the fit.
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(scaled, np.clip(log_ratio, -limit, limit))
    signal = process.kernel_.k1
    weights = float(signal.k1.constant_value) * process.alpha_
    lengths = np.broadcast_to(signal.k2.length_scale, spread.shape) * spread
    return cpu.Residual(
        points_ratio=tuple(tuple(float(v) for v in row) for row in shapes),
        weights_ratio=tuple(float(w) for w in np.ravel(weights)),
        lengths_ratio=tuple(float(v) for v in lengths),
        limit_ratio=limit,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FitError:
    """How well one model fits.

    Attributes:
        name: what was fitted.
        num_points: points of the fit.
        geomean_ratio: exp(mean |ln(predicted / measured)|) - 1 on the points of the fit.
        held_out_ratio: the same for points that were left out of the fit, in turn.
        p90_ratio: 90 % of the points that were left out are not further off than this.
    """

    name: str
    num_points: int
    geomean_ratio: float
    held_out_ratio: float
    p90_ratio: float


def geomean_error(errors: FloatArray) -> float:
    """exp(mean |e|) - 1 of logarithmic errors e; 0 if there are none."""
    return float(np.expm1(np.abs(errors).mean())) if len(errors) else 0.0


def fit_counts(
    counts: FloatArray,
    times_s: FloatArray,
    name: str,
    groups: Sequence[int] | IntArray | None = None,
) -> tuple[tuple[float, ...], FitError, FloatArray]:
    """Seconds per count, and how well they fit.

    Args:
        counts: ``[points, counts]``.
        times_s: ``[points]`` measured seconds.
        name: what is fitted.
        groups: ``[points]`` points of the same group are left out together; None if each point is a
            group.

    Returns:
        Seconds for each of the counts, the errors, and the seconds ``[points]`` that fits to the
        other groups predict for each point.
    """
    coefficients = non_negative(counts, times_s)
    own = np.arange(len(times_s)) if groups is None else np.asarray(groups)
    held_out_s = left_out(
        own, times_s, lambda kept, out: counts[out] @ non_negative(counts[kept], times_s[kept])
    )
    errors = log_errors(counts @ coefficients, times_s), log_errors(held_out_s, times_s)
    return tuple(coefficients.tolist()), fit_error(name, *errors), held_out_s


def left_out(
    groups: IntArray, times_s: FloatArray, predict: Callable[[IntArray, IntArray], FloatArray]
) -> FloatArray:
    """Seconds ``[points]`` that are predicted for points whose groups are left out, in turn.

    Args:
        groups: ``[points]`` the group of each point.
        times_s: ``[points]`` measured seconds, which are the result if there is one group alone.
        predict: seconds of the points in its second argument, from a fit to those in its first.
    """
    number = np.unique(groups, return_inverse=True)[1]
    order = np.random.default_rng(_SEED).permutation(int(number.max()) + 1)
    found = times_s.copy()
    for part in np.array_split(order, min(_FOLDS, len(order))):
        out, kept = (np.flatnonzero(np.isin(number, part, invert=x)) for x in (False, True))
        if len(kept):
            found[out] = predict(kept, out)
    return found


def fit_error(name: str, inside: FloatArray, outside: FloatArray) -> FitError:
    """The error of a fit from logarithmic errors ``[points]``.

    Args:
        name: what was fitted.
        inside: errors on the points of the fit.
        outside: errors on points that were left out.
    """
    return FitError(
        name=name,
        num_points=len(outside),
        geomean_ratio=geomean_error(inside),
        held_out_ratio=geomean_error(outside),
        p90_ratio=float(np.expm1(np.quantile(np.abs(outside), 0.9))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants of a machine, and how well they fit its measurements.

    Attributes:
        constants: the constants of all models.
        errors: the error of each fit.
        seed: seed of the random points that were measured.
        effort: name of the :class:`~costmodels.calibration.points.Effort`.

    Raises:
        InvalidValueError: a deviation is of no kind of time.
    """

    constants: cpu.CpuConstants
    errors: tuple[FitError, ...]
    seed: int
    effort: str

    def __post_init__(self) -> None:
        """Check what the deviations are of; the constants have checked their numbers."""
        kinds, sigmas = (*FITTED_KINDS, MACHINE), self.constants.sigmas_ratio
        require(
            all(kind in kinds for kind, _ in sigmas),
            f"deviations must be of {', '.join(kinds)}: calibrate again",
        )


# ------------------------------------------------------------------ lookups, table by table


_LIMIT = 0.6
"""Largest absolute value of the logarithm of the learned factor: it is between 0.55 and 1.82."""


def fit_lookups(
    points: Sequence[LookupPoint], caches: cpu.Caches, kernel: cpu.CpuKernel
) -> tuple[cpu.LookupConstants, tuple[FitError, ...]]:
    """Fit the constants of one kernel.

    Args:
        points: measured tables of any kernels.
        caches: sizes of the caches of a core.
        kernel: the kernel; points of other kernels are ignored.

    Returns:
        The constants, and the errors of forward and backward pass.
    """
    chosen = [p for p in points if p.kernel is kernel]
    require(bool(chosen), f"no lookups of kernel {kernel} were measured")
    seen = Accesses(point_shards(chosen))
    counted = features(seen, kernel, caches)
    found: dict[str, Any] = {}
    errors = []
    for phase in ("forward", "backward"):
        times_s, name = [getattr(p, f"{phase}_s") for p in chosen], f"lookup {phase} {kernel}"
        seconds, residual, error = _fit_pass(
            getattr(counted, phase), counted.shape, np.array(times_s), name
        )
        found |= {f"{phase}_s": seconds, f"{phase}_residual": residual}
        errors.append(error)
    return cpu.LookupConstants(**found), tuple(errors)


def _fit_pass(
    counts: FloatArray, shapes: FloatArray, times_s: FloatArray, name: str
) -> tuple[tuple[float, ...], cpu.Residual, FitError]:
    """Seconds per count of one pass, the learned factor on top of them, and their error.

    Args:
        counts: ``[points, counts]``.
        shapes: ``[points, features]`` what the learned factor sees.
        times_s: ``[points]`` measured seconds.
        name: what is fitted.
    """

    def fitted(at: IntArray) -> tuple[FloatArray, cpu.Residual]:
        coefficients = non_negative(counts[at], times_s[at])
        ratio = -log_errors(counts[at] @ coefficients, times_s[at])
        return coefficients, learned_residual(shapes[at], ratio, limit=_LIMIT)

    def predicted(coefficients: FloatArray, residual: cpu.Residual, at: IntArray) -> FloatArray:
        return np.asarray(counts[at] @ coefficients * factor(residual, shapes[at]))

    every = np.arange(len(times_s))
    outside = left_out(every, times_s, lambda kept, out: predicted(*fitted(kept), out))
    coefficients, residual = fitted(every)
    inside = predicted(coefficients, residual, every)
    errors = log_errors(inside, times_s), log_errors(outside, times_s)
    return tuple(coefficients.tolist()), residual, fit_error(name, *errors)


def point_shards(points: Sequence[LookupPoint]) -> LookupShards:
    """Measured tables, described as the lookup model describes shards."""
    tables = TableColumns([p.table for p in points])
    bags = np.array([float(p.num_bags) for p in points])
    return LookupShards.whole(tables, bags * tables.pooling_factor, bags, optimizer=Optimizer.SGD)
