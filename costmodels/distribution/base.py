"""The interface of an index distribution, and all that follows from its frequency bins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from costmodels.errors import require

FloatArray = NDArray[np.float64]

_CURVE_POINTS = 256


class AbstractIndexDistribution(ABC):
    """Probability law of the row ids drawn from one table.

    A law is a list of bins, hottest first: ``rows[k]`` rows, each drawn with probability
    ``probability[k]``. Everything below is exact for such a law. A new law therefore only has to
    give its bins.

    ``scattered`` says where hot rows live: True when ids are hashed, so that hot rows spread evenly
    over any id range; False when ids are ordered by frequency, so that the first row-wise shard
    gets the heat.

    A law measured from data may know more than its bins: where its hot rows are (``range_rows``)
    and how much more often than by chance ids repeat inside a batch (``effective_draws``). Those
    two are the only concrete methods that a law may replace.
    """

    __slots__ = ()

    num_embeddings: int
    scattered: bool

    @abstractmethod
    def frequency_bins(self) -> tuple[FloatArray, FloatArray]:
        """``(rows, probability)`` per bin, hottest first; rows sum to the table, mass to 1."""

    def range_rows(self, row_offset: int, num_rows: int) -> FloatArray:
        """Rows of every bin among the ids ``row_offset .. row_offset + num_rows - 1``.

        An even share when scattered, else rows in the order of their bins.
        """
        rows, _ = _bins(self)
        if self.scattered:
            return rows * (num_rows / self.num_embeddings)
        ends = np.cumsum(rows)
        inside = np.minimum(ends, row_offset + num_rows) - np.maximum(ends - rows, row_offset)
        return np.asarray(np.maximum(inside, 0.0))

    def effective_draws(self, num_indices: float) -> float:
        """Independent draws that touch as many rows as ``num_indices`` indices of one batch do.

        The indices themselves, unless ids were seen to repeat more often (or less) than by chance.
        """
        return num_indices

    @final
    def expected_unique_rows(self, num_indices: float) -> float:
        """Distinct rows expected in ``num_indices`` indices: sum_k 1 - (1 - p_k)^N.

        N is the effective number of independent draws.
        """
        rows, probability = _bins(self)
        return min(_unique(rows, probability, self.effective_draws(num_indices)), num_indices)

    @final
    def access_share(self, num_hottest_rows: float) -> float:
        """Share (0..1) of accesses that fall on the ``num_hottest_rows`` hottest rows."""
        rows, mass = _cumulative(self)
        return float(np.interp(num_hottest_rows, rows, mass))

    @final
    def range_share(self, row_offset: int, num_rows: int) -> float:
        """Share (0..1) of accesses on the ids ``row_offset .. row_offset + num_rows - 1``."""
        if self.scattered:
            return num_rows / self.num_embeddings
        _, probability = _bins(self)
        return min(float(self.range_rows(row_offset, num_rows) @ probability), 1.0)

    @final
    def unique_rows_in_range(self, num_indices: float, row_offset: int, num_rows: int) -> float:
        """Distinct rows of an id range expected when the *table* receives ``num_indices`` draws."""
        if self.scattered:
            return self.expected_unique_rows(num_indices) * num_rows / self.num_embeddings
        _, probability = _bins(self)
        inside = self.range_rows(row_offset, num_rows)
        return _unique(inside, probability, self.effective_draws(num_indices))

    @final
    def characteristic_draws(self, cached_rows: float) -> float:
        """Draws after which an LRU cache of ``cached_rows`` rows forgets a row (Che et al. 2002).

        The root T of sum_k 1 - exp(-p_k T) = cached_rows, read off a curve of 256 log-spaced T;
        infinite when every row that is ever drawn fits.
        """
        draws, filled, _ = _cache_curve(self)
        if cached_rows >= filled[-1]:
            return float("inf")
        if cached_rows <= filled[0]:
            return float(draws[0] * max(cached_rows, 0.0) / filled[0])
        return float(np.exp(np.interp(np.log(cached_rows), np.log(filled), np.log(draws))))

    @final
    def hit_ratio(self, cached_rows: float) -> float:
        """Steady-state hit ratio (0..1) of an LRU cache, by Che's approximation."""
        draws = self.characteristic_draws(cached_rows)
        if np.isinf(draws):
            return 1.0
        grid, _, hits = _cache_curve(self)
        if draws <= grid[0]:
            return float(hits[0] * draws / grid[0])
        return float(np.interp(np.log(draws), np.log(grid), hits))

    @final
    def expected_misses(self, num_indices: float, cached_rows: float) -> float:
        """Misses of a cold LRU cache in ``num_indices`` draws.

        With T the characteristic draws, h the hit ratio and N the effective draws: ``cached_rows``
        misses while the cache fills, then (N - T)(1 - h). The expected unique rows when the working
        set fits.
        """
        draws, effective = self.characteristic_draws(cached_rows), self.effective_draws(num_indices)
        unique = self.expected_unique_rows(num_indices)
        if draws >= effective:
            return unique
        misses = cached_rows + (effective - draws) * (1.0 - self.hit_ratio(cached_rows))
        return min(max(misses, unique), num_indices)

    @final
    def expected_unique_misses(self, num_indices: float, cached_rows: float) -> float:
        """Distinct rows of a batch that a warm LRU cache does not hold when the batch starts.

        A row is held if drawn in the last T draws, so: sum_k (1 - (1-p_k)^N) exp(-p_k T).
        """
        draws = self.characteristic_draws(cached_rows)
        if np.isinf(draws):
            return 0.0
        rows, probability = _bins(self)
        cold = rows * np.exp(-probability * draws)
        return _unique(cold, probability, self.effective_draws(num_indices))


def check_rows(num_embeddings: int) -> None:
    """Refuse an empty table."""
    require(num_embeddings >= 1, f"a table needs at least 1 row, got {num_embeddings}")


def _unique(rows: FloatArray, probability: FloatArray, num_indices: float) -> float:
    if num_indices < 1.0:
        return float(rows @ probability * num_indices)
    certain = np.minimum(probability, 1.0 - 1e-12)
    return float(rows @ -np.expm1(num_indices * np.log1p(-certain)))


@lru_cache(maxsize=8192)
def _bins(law: AbstractIndexDistribution) -> tuple[FloatArray, FloatArray]:
    rows, probability = law.frequency_bins()
    rows.flags.writeable = False
    probability.flags.writeable = False
    return rows, probability


@lru_cache(maxsize=8192)
def _cumulative(law: AbstractIndexDistribution) -> tuple[FloatArray, FloatArray]:
    rows, probability = _bins(law)
    return (
        np.concatenate([[0.0], np.cumsum(rows)]),
        np.concatenate([[0.0], np.minimum(np.cumsum(rows * probability), 1.0)]),
    )


@lru_cache(maxsize=8192)
def _cache_curve(law: AbstractIndexDistribution) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(draws T, rows held after T draws, hit ratio), until all but 1e-6 of the rows are held."""
    rows, probability = _bins(law)
    rows, probability = rows[probability > 0], probability[probability > 0]
    draws = np.geomspace(0.5, 14.0 / probability.min(), _CURVE_POINTS)
    seen = -np.expm1(-np.outer(draws, probability))
    return draws, np.maximum.accumulate(seen @ rows), seen @ (rows * probability)
