"""The Zipf-Mandelbrot law nearest to a measured one."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.distribution.empirical import Empirical
from costmodels.distribution.zipf import Zipf

FloatArray = NDArray[np.float64]

_EDGES: Final = 80
_FEWEST_RANKS: Final = 4
_STARTS: Final = ((1.0, 0.0), (1.5, 3.0))
_LARGEST_EXPONENT: Final = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ZipfFit:
    """p_k proportional to (k + shift)^-exponent for k = 1..num_ranks.

    ``ks_ratio`` is the largest distance between the two cumulative laws (Kolmogorov-Smirnov)
    over the ranks that the sample tells apart: 0 for a perfect fit, 1 for none.
    """

    exponent: float
    shift: float
    num_ranks: int
    ks_ratio: float


def fit_zipf(law: Empirical, num_indices: int, num_ranks: Sequence[int]) -> ZipfFit | None:
    """Maximum likelihood over log-spaced rank bins; None for a handful of rows.

    Which of the rows expected less than once in the sample is the hotter cannot be known: together
    they are one bin, and the number of ranks is the one among those offered that fits best.

    Args:
        law: smoothed.
        num_indices: size of the sample behind it.
        num_ranks: how many rows are drawn at all, as far as that is known.
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
    """Distance (Kullback and Leibler) and parameters for a number of ranks."""
    optimize = importlib.import_module("scipy.optimize")
    mass = np.diff(seen, prepend=0.0)

    def loss(point: FloatArray) -> float:
        model = _cumulative(_clipped(point, num_ranks), num_ranks, edges)
        return float(-mass @ np.log(np.maximum(np.diff(model, prepend=0.0), 1e-300)))

    settings = {"xatol": 1e-4, "fatol": 1e-10}
    results = [
        optimize.minimize(loss, start, method="Nelder-Mead", options=settings) for start in _STARTS
    ]
    best = min(results, key=lambda result: float(result.fun))
    exponent, shift = _clipped(best.x, num_ranks)
    distance = np.abs(_cumulative((exponent, shift), num_ranks, edges) - seen)
    fit = ZipfFit(
        exponent=exponent, shift=shift, num_ranks=num_ranks, ks_ratio=float(distance.max())
    )
    entropy = float(mass @ np.log(np.maximum(mass, 1e-300)))
    return float(best.fun) + entropy, fit


def _clipped(point: FloatArray, num_ranks: int) -> tuple[float, float]:
    """Exponent and shift from the free coordinates (s, ln(1 + q))."""
    exponent = min(max(float(point[0]), 0.0), _LARGEST_EXPONENT)
    return exponent, float(np.expm1(min(max(float(point[1]), 0.0), np.log1p(10.0 * num_ranks))))


def _cumulative(point: tuple[float, float], num_ranks: int, edges: FloatArray) -> FloatArray:
    zipf = Zipf(num_embeddings=num_ranks, exponent=point[0], shift=point[1])
    rows, probability = zipf.frequency_bins()
    ranks = np.concatenate([[0.0], np.cumsum(rows)])
    mass = np.concatenate([[0.0], np.cumsum(rows * probability)])
    return np.asarray(np.interp(edges, ranks, mass))
