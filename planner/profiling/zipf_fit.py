"""Finds the Zipf-Mandelbrot law that is nearest to a measured law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray
from costmodels.distribution.empirical import Empirical
from costmodels.distribution.zipf import Zipf

_EDGES: Final = 80
_FEWEST_RANKS: Final = 4
_STARTS: Final = ((1.0, 0.0), (1.5, 3.0))
"""Points to start from: exponent s, and ln(1 + q) of the shift q."""
_LARGEST_EXPONENT: Final = 8.0
_NEARLY_ONE: Final = 1e-9
"""Exponents that differ from 1 by less than this are integrated as 1."""
_STEP: Final = 1e-5
"""Step of derivatives by differences."""
_DAMPING: Final = 1e-3
_LEAST_DAMPING, _MOST_DAMPING = 1e-9, 1e6
_FACTORS: Final = (0.2, 1.0, 5.0)
"""Factors on the last good damping; the dampings are tried at the same time."""
_TINY: Final = 1e-12
_MOST_STEPS: Final = 200
_LEAST_GAIN: Final = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class ZipfFit:
    """A law with p_k proportional to (k + shift)^-exponent for k = 1..num_ranks.

    ``ks_ratio`` is the largest distance between the two cumulative laws (Kolmogorov-Smirnov) over
    the ranks that the sample can tell apart: 0 for a perfect fit, up to 1.
    """

    exponent: float
    shift: float
    num_ranks: int
    ks_ratio: float


def fit_zipf(law: Empirical, num_indices: int, num_ranks: Sequence[int]) -> ZipfFit | None:
    """Fit a law by maximum likelihood over log-spaced bins of ranks; None for very few rows.

    A sample cannot tell which rows are hotter among those expected less than once in it. These rows
    are one bin together. The number of ranks is the candidate that fits best.

    Args:
        law: the measured law, smoothed.
        num_indices: size of the sample behind it.
        num_ranks: candidates for the number of rows that are drawn at all.
    """
    rows, probability = law.frequency_bins()
    ranks = np.concatenate([[0.0], np.cumsum(rows)])
    mass = np.concatenate([[0.0], np.cumsum(rows * probability)])
    known = float(rows[probability * num_indices >= 1.0].sum())
    found = []
    if min(num_ranks) < _FEWEST_RANKS:
        return None
    for last in sorted(set(num_ranks)):
        edges = np.round(np.geomspace(1.0, min(max(known, 2.0), last), _EDGES))
        edges = np.unique(np.append(edges, last))
        seen = np.interp(edges, ranks, mass)
        found.append(_fit(last, edges, seen / seen[-1]))
    return min(found, key=lambda pair: pair[0])[1]


def _fit(num_ranks: int, edges: FloatArray, seen: FloatArray) -> tuple[float, ZipfFit]:
    """Kullback-Leibler distance and parameters of the best law with ``num_ranks`` ranks."""
    law = _Law(num_ranks, edges)
    mass = np.diff(seen, prepend=0.0)
    points = [_descend(law, mass, np.array(start)) for start in _STARTS]
    point = min(points, key=lambda at: float(law.distances(mass, at[None])[0]))
    exponent, shift = law.parameters(point[None])
    distance = np.abs(law.cumulative(point[None])[0] - seen)
    fit = ZipfFit(
        exponent=float(exponent[0]),
        shift=float(shift[0]),
        num_ranks=num_ranks,
        ks_ratio=float(distance.max()),
    )
    return float(law.distances(mass, point[None])[0]), fit


def _descend(law: _Law, mass: FloatArray, point: FloatArray) -> FloatArray:
    """The next minimum of the distance, by Fisher scoring with damping (Levenberg-Marquardt)."""
    damping, value = _DAMPING, float(law.distances(mass, point[None])[0])
    for _ in range(_MOST_STEPS):
        slopes, model = law.slopes(point)
        gradient = -slopes.T @ mass
        free = ~law.held(point, gradient)
        curvature = (slopes[:, free] * model[:, None]).T @ slopes[:, free]
        scale = np.diag(np.diag(curvature) + _TINY)
        steps = np.zeros((len(_FACTORS), 2))
        for step, factor in zip(steps, _FACTORS, strict=True):
            step[free] = np.linalg.solve(curvature + factor * damping * scale, -gradient[free])
        tried = law.inside(point + steps)
        values = law.distances(mass, tried)
        best = int(np.argmin(values))
        gain = value - float(values[best])
        if gain > 0:
            point, value = tried[best], float(values[best])
            damping = max(damping * _FACTORS[best], _LEAST_DAMPING)
        else:
            damping *= _FACTORS[-1] ** 2
        if gain < _LEAST_GAIN and (gain > 0 or damping > _MOST_DAMPING):
            break
    return point


class _Law:
    """Zipf-Mandelbrot laws with ``num_ranks`` ranks, for many points (s, ln(1 + q)) at once.

    Ranks are summed as in :class:`costmodels.distribution.zipf.Zipf`: the first ones one by one,
    and the others by integrals over wider and wider bins.

    Args:
        num_ranks: number of ranks of the laws.
        edges: ranks at which the cumulative mass is computed.
    """

    def __init__(self, num_ranks: int, edges: FloatArray) -> None:
        """Make the bins, which do not depend on the parameters."""
        rows, _ = Zipf(num_embeddings=num_ranks, exponent=1.0).frequency_bins()
        ends = np.cumsum(rows)
        single = rows == 1.0
        self._middle = ends[single]
        self._start, self._end = ends[~single] - rows[~single] + 0.5, ends[~single] + 0.5
        bins = np.concatenate([[0.0], ends])
        self._edges, self._ends = edges, bins
        self._highest = np.array([_LARGEST_EXPONENT, np.log1p(10.0 * num_ranks)])

    def inside(self, points: FloatArray) -> FloatArray:
        """The points moved into the limits of the parameters."""
        return np.asarray(np.clip(points, 0.0, self._highest))

    def held(self, point: FloatArray, gradient: FloatArray) -> BoolArray:
        """``[2]`` True for coordinates at a limit beyond which the distance would be smaller."""
        low, high = point <= 0.0, point >= self._highest
        return np.asarray((low & (gradient > 0)) | (high & (gradient < 0)))

    def parameters(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Exponents and shifts of points."""
        return points[:, 0], np.expm1(points[:, 1])

    def cumulative(self, points: FloatArray) -> FloatArray:
        """``[points, edges]`` cumulative mass of each law at each edge."""
        exponents, shifts = self.parameters(points)
        s, q = exponents[:, None], shifts[:, None]
        scale = 1.0 + q
        head = np.exp(-s * (np.log(self._middle + q) - np.log(scale)))
        low, high = np.log((self._start + q) / scale), np.log((self._end + q) / scale)
        power = 1.0 - s
        near = np.abs(power) < _NEARLY_ONE
        safe = np.where(near, 1.0, power)
        tail = scale * np.exp(power * low) * np.expm1(power * (high - low)) / safe
        tail = np.where(near, scale * (high - low), tail)
        mass = np.cumsum(np.concatenate([np.zeros_like(s), head, tail], axis=1), axis=1)
        at = np.clip(np.searchsorted(self._ends, self._edges) - 1, 0, len(self._ends) - 2)
        share = (self._edges - self._ends[at]) / (self._ends[at + 1] - self._ends[at])
        return np.asarray((mass[:, at] + share * (mass[:, at + 1] - mass[:, at])) / mass[:, -1:])

    def masses(self, points: FloatArray) -> FloatArray:
        """``[points, edges]`` mass between edges, always above 0."""
        return np.maximum(np.diff(self.cumulative(points), prepend=0.0, axis=1), 1e-300)

    def distances(self, mass: FloatArray, points: FloatArray) -> FloatArray:
        """``[points]`` Kullback-Leibler distances of the laws from ``mass``."""
        own = float(mass @ np.log(np.maximum(mass, 1e-300)))
        return np.asarray(own - np.log(self.masses(points)) @ mass)

    def slopes(self, point: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``[edges, 2]`` derivatives of the logarithms of the masses, and the masses."""
        steps = np.concatenate([np.zeros((1, 2)), _STEP * np.eye(2), -_STEP * np.eye(2)])
        masses = self.masses(np.maximum(point + steps, 0.0))
        width = np.maximum(point + _STEP, 0.0) - np.maximum(point - _STEP, 0.0)
        return (np.log(masses[1:3]) - np.log(masses[3:5])).T / width, masses[0]
