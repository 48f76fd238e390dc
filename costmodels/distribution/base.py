"""The interface of an index distribution, and all that follows from its frequency bins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Final, final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from costmodels.distribution._laws import Laws
from costmodels.errors import require
from costmodels.fields import is_whole

__all__ = [
    "AbstractIndexDistribution",
    "FloatArray",
    "IntArray",
    "Laws",
    "check_rows",
    "side_by_side",
]


class AbstractIndexDistribution(ABC):
    """Probability law of the row ids drawn from one table.

    A law is a list of bins, hottest first: ``rows[k]`` rows, each drawn with probability
    ``probability[k]``. Everything below is exact for such a law. A new law therefore only has to
    give its bins.

    ``scattered`` says where hot rows live: True when ids are hashed, so that hot rows spread evenly
    over any id range; False when ids are ordered by frequency, so that the first row-wise shard
    gets the heat.

    A law measured from data may know more than its bins: where its hot rows are (``range_rows``)
    and how much more often than by chance ids repeat inside a batch (``effective_draws``), and how
    well it is known (``alternatives``). Those are the only concrete methods that a law may replace.
    """

    __slots__ = ()

    num_embeddings: int
    scattered: bool

    @abstractmethod
    def frequency_bins(self) -> tuple[FloatArray, FloatArray]:
        """``(rows, probability)`` per bin, hottest first; rows sum to the table, mass to 1."""

    def alternatives(self) -> tuple[AbstractIndexDistribution, ...]:
        """Other laws that the data allow; none where the law is known."""
        return ()

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

    def ranges_rows(self, row_offset: IntArray, num_rows: IntArray) -> FloatArray:
        """:meth:`range_rows` of several id ranges, ``[ranges, bins]``.

        A law whose :meth:`range_rows` is slow may replace this one too.
        """
        pairs = zip(row_offset.tolist(), num_rows.tolist(), strict=True)
        return np.array([self.range_rows(offset, rows) for offset, rows in pairs])

    @property
    def is_ordered(self) -> bool:
        """Whether ids stand in the order of the bins, so that an id range is a range of bins."""
        in_order = type(self).range_rows is AbstractIndexDistribution.range_rows
        return in_order and not self.scattered

    @property
    def draws_are_indices(self) -> bool:
        """Whether every index of a batch is an independent draw."""
        return type(self).effective_draws is AbstractIndexDistribution.effective_draws

    @final
    def expected_unique_rows(self, num_indices: float) -> float:
        """Distinct rows expected in ``num_indices`` indices: sum_k 1 - (1 - p_k)^N.

        N is the effective number of independent draws.
        """
        return float(_alone(self).unique_rows(_FIRST, _one(num_indices))[0])

    @final
    def access_share(self, num_hottest_rows: float) -> float:
        """Share (0..1) of accesses that fall on the ``num_hottest_rows`` hottest rows."""
        rows, mass = _cumulative(self)
        return float(np.interp(num_hottest_rows, rows, mass))

    @final
    def range_share(self, row_offset: int, num_rows: int) -> float:
        """Share (0..1) of accesses on the ids ``row_offset .. row_offset + num_rows - 1``."""
        return float(
            _alone(self).range_share(_FIRST, np.array([row_offset]), np.array([num_rows]))[0]
        )

    @final
    def unique_rows_in_range(self, num_indices: float, row_offset: int, num_rows: int) -> float:
        """Distinct rows of an id range expected when the *table* receives ``num_indices`` draws."""
        offset, rows = np.array([row_offset]), np.array([num_rows])
        return float(_alone(self).unique_rows_in_range(_FIRST, _one(num_indices), offset, rows)[0])

    @final
    def characteristic_draws(self, cached_rows: float) -> float:
        """Draws after which an LRU cache of ``cached_rows`` rows forgets a row (Che et al. 2002).

        The root T of sum_k 1 - exp(-p_k T) = cached_rows, read off a curve of 256 log-spaced T;
        infinite when every row that is ever drawn fits.
        """
        return float(_alone(self).characteristic_draws(_FIRST, _one(cached_rows))[0])

    @final
    def hit_ratio(self, cached_rows: float) -> float:
        """Steady-state hit ratio (0..1) of an LRU cache, by Che's approximation."""
        return float(_alone(self).hit_ratio(_FIRST, _one(cached_rows))[0])

    @final
    def expected_misses(self, num_indices: float, cached_rows: float) -> float:
        """Misses of a cold LRU cache in ``num_indices`` draws.

        With T the characteristic draws, h the hit ratio and N the effective draws: ``cached_rows``
        misses while the cache fills, then (N - T)(1 - h). The expected unique rows when the working
        set fits.
        """
        return float(_alone(self).expected_misses(_FIRST, _one(num_indices), _one(cached_rows))[0])

    @final
    def expected_unique_misses(self, num_indices: float, cached_rows: float) -> float:
        """Distinct rows of a batch that a warm LRU cache does not hold when the batch starts.

        A row is held if drawn in the last T draws, so: sum_k (1 - (1-p_k)^N) exp(-p_k T).
        """
        cached = _one(cached_rows)
        return float(_alone(self).expected_unique_misses(_FIRST, _one(num_indices), cached)[0])


def side_by_side(laws: tuple[AbstractIndexDistribution, ...]) -> Laws:
    """Laws that are asked together; what they were asked is remembered between calls."""
    return _alone(laws[0]) if len(laws) == 1 else _together(laws)


def check_rows(num_embeddings: int) -> None:
    """Refuse an empty table, and rows that are no whole number."""
    good = is_whole(num_embeddings)
    require(good, f"rows of a table must be a whole number, got {num_embeddings!r}")
    require(num_embeddings >= 1, f"a table needs at least 1 row, got {num_embeddings}")


_FIRST: Final = np.zeros(1, dtype=np.int64)
_FIRST.flags.writeable = False


def _one(value: float) -> FloatArray:
    return np.array([value], dtype=float)


@lru_cache(maxsize=8192)
def _alone(law: AbstractIndexDistribution) -> Laws:
    return Laws((law,))


@lru_cache(maxsize=4)
def _together(laws: tuple[AbstractIndexDistribution, ...]) -> Laws:
    """Those of a workload: it is priced under one system, batch size or pipeline after another."""
    return Laws(laws)


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
