"""The frequency bins of one index law: which rows draws touch, and which rows a cache holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.errors import require

if TYPE_CHECKING:
    from costmodels.distribution.base import AbstractIndexDistribution

_ORDER_ROUNDING: Final = 1e-4
"""Share by which a bin may be more probable than the one before: flat laws are rounded so."""
_ROUNDING: Final = 1e-6
"""Relative error that the sums over the bins of a law may have."""

_CERTAIN: Final = 1.0 - 1e-12
"""Largest probability of which ln(1 - p) is taken; a table of one row has p = 1."""


class Bins:
    """The frequency bins of one law, hottest first.

    Attributes:
        rows: ``[b]`` rows of each bin.
        probability: ``[b]`` probability of one row of each bin.
        drawn_rows: the rows of the bins whose rows are ever drawn.
        drawn_probability: the probabilities of these bins, all above 0.
    """

    __slots__ = ("drawn_probability", "drawn_rows", "probability", "rows")

    def __init__(self, law: AbstractIndexDistribution) -> None:
        """Ask the law for its bins.

        Raises:
            InvalidValueError: they are not what :meth:`AbstractIndexDistribution.frequency_bins`
                has to return.
        """
        self.rows, self.probability = _checked(law)
        drawn = self.probability > 0
        every = bool(drawn.all())
        self.drawn_rows = self.rows if every else self.rows[drawn]
        self.drawn_probability = self.probability if every else self.probability[drawn]

    def touched(self, draws: float) -> FloatArray:
        """Expected share (0..1) of each bin's rows that N = ``draws`` draws touch, ``[b]``.

        It is 1 - (1 - p)^N. Below one draw it is p N, so that it is never more than the draws.
        """
        if draws < 1.0:
            return np.asarray(self.probability * draws)
        missed = np.log1p(-np.minimum(self.probability, _CERTAIN))
        return np.asarray(-np.expm1(draws * missed))

    def cache(self, draws: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The rows that an LRU cache holds, and its hit ratio, if it forgets a row after T draws.

        By Che's approximation a row is held with the probability 1 - exp(-p T).

        Args:
            draws: ``[n]`` values of T.

        Returns:
            Rows held ``[n]``, and hit ratios (0..1) ``[n]``.
        """
        missed = np.outer(draws, -self.drawn_probability)
        np.expm1(missed, out=missed)
        mass = self.drawn_rows * self.drawn_probability
        held, hits = (-np.einsum("nb,b->n", missed, weight) for weight in (self.drawn_rows, mass))
        return held, hits

    def kept(self, draws: float, batch_draws: float) -> float:
        """Rows that the batch to come does not use, but a batch before and a batch after it do.

        The last use before and the first use after must be at most K = ``draws / batch_draws``
        batches apart. Let q be the probability that a batch does not touch a row. A last use i
        batches ago and a next use in j batches have the probability (1 - q)^2 q^(i + j - 2). The
        sum of this over all i + j <= K, times q, is q (1 - q^K) - K (1 - q) q^K. It is 0 for K up
        to 1.
        """
        batches, apart = draws / batch_draws, self.drawn_probability * batch_draws
        again = np.exp(-apart) * -np.expm1(-batches * apart)
        once = batches * -np.expm1(-apart) * np.exp(-batches * apart)
        share = again - once
        return float(self.drawn_rows @ np.maximum(share, 0.0))


def busy_share(mean_draws: FloatArray, draws_of_row: float) -> FloatArray:
    """Probability (0..1) that a row is drawn more than ``draws_of_row`` times.

    Draws of a row follow a Poisson law. Its tail beyond k is that of a gamma law of k + 1, whose
    cube root is nearly normal (Wilson and Hilferty 1931); the normal law is taken from a logistic
    of an odd cubic (Page 1977). The error is below 0.001.
    """
    ninth = 1.0 / (9.0 * (draws_of_row + 1.0))
    z = (np.cbrt(mean_draws / (draws_of_row + 1.0)) - 1.0 + ninth) / np.sqrt(ninth)
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(1.5976 * z + 0.07056 * z**3, -600, 600))))


def _checked(law: AbstractIndexDistribution) -> tuple[FloatArray, FloatArray]:
    bins, name = law.frequency_bins(), type(law).__name__
    good = isinstance(bins, tuple) and len(bins) == 2
    good = good and all(isinstance(part, np.ndarray) and part.ndim == 1 for part in bins)
    require(
        good and len(bins[0]) == len(bins[1]) > 0,
        f"{name}.frequency_bins must return two arrays of one length, the rows of each bin and the "
        "probability of one row of each",
    )
    rows, probability = bins
    require(
        bool((rows >= 0).all() and (probability >= 0).all()),
        f"{name}.frequency_bins must return numbers of 0 or more",
    )
    drawn = probability[rows > 0]
    require(
        bool((drawn[1:] <= drawn[:-1] * (1 + _ORDER_ROUNDING)).all()),
        f"{name}.frequency_bins must return the bins with the most probable rows first",
    )
    for what, total, wanted in (
        ("the rows of all bins", float(rows.sum()), law.num_embeddings),
        ("rows times probabilities", float(rows @ probability), 1),
    ):
        require(
            abs(total - wanted) <= _ROUNDING * wanted,
            f"{name}.frequency_bins: {what} must sum to {wanted}, got {total:g}",
        )
    return rows, probability
