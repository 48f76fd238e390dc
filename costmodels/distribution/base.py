"""The interface of an index distribution, and everything that follows from its frequency bins."""

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Annotated, final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from costmodels.distribution.laws import Laws, bins_of, hottest_share
from costmodels.fields import Range

Rows = Annotated[int, Range(1, 2**62)]
"""The number of rows of a table."""


class AbstractIndexDistribution(ABC):
    """The probability law of the row ids that are drawn from one table.

    A law is a list of frequency bins, hottest first: bin k has ``rows[k]`` rows, each of which is
    drawn with the probability ``probability[k]``. All methods work on these bins, so that a new law
    only has to give its bins.

    A law that was measured from data may know more than its bins: which ids its hot rows have
    (``range_rows``), how much more often than by chance ids repeat inside a batch
    (``effective_draws``), and which other laws the data allow (``alternatives``). These are the
    only concrete methods that a law may replace.

    Attributes:
        num_embeddings: rows of the table.
        scattered: where hot rows are. True if ids are hashed, so that hot rows are spread evenly
            over all ids. False if ids are ordered by frequency, so that the first shard of a
            row-wise table has the hottest rows, or if the law knows the rows of each id range.
    """

    __slots__ = ()

    num_embeddings: int
    scattered: bool

    @abstractmethod
    def frequency_bins(self) -> tuple[FloatArray, FloatArray]:
        """The rows of each bin, and the probability of one row of each bin, ``[bins]`` both.

        The hottest bin comes first. The rows sum to ``num_embeddings``; rows times probabilities
        sum to 1.
        """

    def alternatives(self) -> "tuple[AbstractIndexDistribution, ...]":
        """Other laws that the data allow as well; none if the law is known."""
        return ()

    def range_rows(self, row_offset: IntArray | int, num_rows: IntArray | int) -> FloatArray:
        """Rows ``[..., bins]`` of each bin among the ids of each range.

        If hot rows are scattered, each bin has its even share in a range. Otherwise ids are taken
        to be in the order of the bins.

        Args:
            row_offset: ``[...]`` the first id of each range.
            num_rows: ``[...]`` how many ids each range has.
        """
        rows, _ = bins_of(self)
        first, count = np.asarray(row_offset)[..., None], np.asarray(num_rows)[..., None]
        if self.scattered:
            return np.asarray(rows * (count / self.num_embeddings))
        ends = np.cumsum(rows)
        inside = np.minimum(ends, first + count) - np.maximum(ends - rows, first)
        return np.asarray(np.maximum(inside, 0.0))

    def effective_draws(self, num_indices: float) -> float:
        """Independent draws that touch as many rows as ``num_indices`` indices of one batch do.

        The result is ``num_indices``, unless a law was seen to repeat ids inside a batch more often
        or less often than independent draws would.
        """
        return num_indices

    @property
    def is_ordered(self) -> bool:
        """Whether ids are in the order of the bins, so that an id range is a range of bins."""
        in_order = type(self).range_rows is AbstractIndexDistribution.range_rows
        return in_order and not self.scattered

    @final
    def expected_unique_rows(self, num_indices: float) -> float:
        """Distinct rows expected in ``num_indices`` indices: sum over rows of 1 - (1 - p)^N.

        N is the number of effective draws; the result is never above ``num_indices``.
        """
        return _asked(self, "unique_rows", num_indices)

    @final
    def access_share(self, num_hottest_rows: float) -> float:
        """Share (0..1) of all accesses that fall on the ``num_hottest_rows`` hottest rows."""
        rows, probability = bins_of(self)
        ends, mass = np.cumsum(rows), np.minimum(np.cumsum(rows * probability), 1.0)
        return float(np.interp(num_hottest_rows, [0.0, *ends], [0.0, *mass]))

    @final
    def hottest_share(self, num_parts: int) -> float:
        """Expected largest share (0..1) of accesses among equal parts of a table of hashed ids.

        See :func:`costmodels.distribution.laws.hottest_share`.
        """
        return hottest_share(self, num_parts)

    @final
    def hit_ratio(self, cached_rows: float) -> float:
        """Hit ratio (0..1) of a warm LRU cache of ``cached_rows`` rows, by Che's approximation.

        The cache forgets a row after T draws (Che et al. 2002), which solve: sum over rows of
        1 - exp(-p T) = ``cached_rows``. T is read off a curve of 256 log-spaced values, and
        infinite if every row that is ever drawn fits.
        """
        return _asked(self, "hit_ratio", cached_rows)

    @final
    def expected_unique_misses(self, num_indices: float, cached_rows: float) -> float:
        """Distinct rows of a batch that a warm LRU cache does not hold when the batch starts.

        A row is held if it was drawn in the last T draws (:meth:`hit_ratio`). So the result is the
        sum over rows of (1 - (1 - p)^N) exp(-p T).
        """
        return _asked(self, "expected_unique_misses", num_indices, cached_rows)


def side_by_side(laws: tuple[AbstractIndexDistribution, ...]) -> Laws:
    """The given laws as columns; answers are kept, so that later calls get them for free."""
    return _alone(laws[0]) if len(laws) == 1 else _together(laws)


def _asked(law: AbstractIndexDistribution, question: str, *values: float) -> float:
    """The answer of a method of :class:`Laws` to a single query about one law."""
    columns = [np.array([v], dtype=float) for v in values]
    return float(getattr(_alone(law), question)(np.zeros(1, dtype=np.int64), *columns)[0])


@lru_cache(maxsize=8192)
def _alone(law: AbstractIndexDistribution) -> Laws:
    """A :class:`Laws` of one law, kept so that its answers are."""
    return Laws((law,))


@lru_cache(maxsize=4)
def _together(laws: tuple[AbstractIndexDistribution, ...]) -> Laws:
    """A :class:`Laws` of all laws of a workload.

    A few of them are kept, because a workload is priced on one system, with one batch size and in
    one pipeline after another.
    """
    return Laws(laws)
