"""A power law: the k-th hottest row is drawn with probability proportional to (k + q)^-s."""

import math
from dataclasses import dataclass
from typing import Annotated, Final, final

import numpy as np

from costmodels.datatypes import FloatArray
from costmodels.distribution.base import AbstractIndexDistribution, Rows
from costmodels.fields import Range, settle

_EXACT_RANKS: Final = 512
"""Hottest rows that get a bin each. More would make bins more exact and every question slower."""
_BIN_RATIO: Final = 1.04
"""Rank at the end of a bin over that at its start, at most, for all other rows. Wider bins are
faster and less exact: all rows of a bin get the same probability."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Zipf(AbstractIndexDistribution):
    """Zipf-Mandelbrot law p_k = (k + q)^-s / sum_j (j + q)^-s for k = 1..E.

    The 512 hottest rows have bins of their own. All other rows are put into bins that are at most
    4 % wide in rank. The probability of all rows of a bin is the integral of (x + q)^-s from half a
    rank before its first row to half a rank after its last row. Its relative error is below 1e-6
    for s up to 2, and 2e-5 for s = 10.

    Args:
        num_embeddings: rows E of the table, 1 or more.
        exponent: s, 0 to 10; 0 is uniform.
        shift: q, 0 or more; it makes the hottest rows less hot (FBGEMM's ``zipf_q``).
        scattered: True if ids are hashed, so that hot rows are spread over all ids; False if a
            lower id is always the hotter one.
        ids_per_draw: how many ids always come together. In MLPerf's multi-hot inputs each original
            id brings a fixed tuple of other ids, and all rows of a tuple have its frequency. The
            coldest tuples do not fit into the table; their probability is spread over all rows.

    Raises:
        InvalidValueError: a parameter is out of range.

    Reference: Mandelbrot 1953; parameters named as in FBGEMM's TBE data configuration.

    Example:
        >>> law = Zipf(num_embeddings=1_000_000, exponent=1.2)
        >>> round(law.access_share(10_000), 2)  # share of accesses on the hottest 1 % of rows
        0.91
    """

    num_embeddings: Rows
    exponent: Annotated[float, Range(0, 10)]
    shift: Annotated[float, Range(0, 1e12)] = 0.0
    scattered: bool = True
    ids_per_draw: Annotated[int, Range(1, 10**6)] = 1

    def __post_init__(self) -> None:
        """Check that each parameter is in its range."""
        settle(self, "zipf ")

    def frequency_bins(self) -> tuple[FloatArray, FloatArray]:
        """One bin for each of the hottest rows, then log-spaced bins; see the class."""
        last = self.num_embeddings
        head = np.arange(1, min(last, _EXACT_RANKS) + 1, dtype=float)
        rows, mass = np.ones_like(head), self._weight(head)
        if last > _EXACT_RANKS:
            edges = _tail_edges(_EXACT_RANKS, last)
            rows = np.concatenate([rows, np.diff(edges)])
            mass = np.concatenate([mass, self._integral(edges[:-1] + 0.5, edges[1:] + 0.5)])
        mass = mass / mass.sum()
        if self.ids_per_draw > 1:
            rows, mass = self._bundled(rows, mass)
        return rows, mass / rows

    def _bundled(self, rows: FloatArray, mass: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The bins of tuples from those of single ids.

        Every bin gets ``ids_per_draw`` times as many rows, until the table is full. The probability
        of the tuples that do not fit is spread evenly over the rows of the table.

        Args:
            rows: ``[bins]`` rows of each bin, as if ids came alone.
            mass: ``[bins]`` probability of all rows of each bin.

        Returns:
            Rows and probability of all rows, of the bins that have rows.
        """
        ends = np.minimum(np.cumsum(rows * self.ids_per_draw), self.num_embeddings)
        widened = np.diff(np.concatenate([[0.0], ends]))
        kept = mass * widened / (rows * self.ids_per_draw)
        inside = widened > 0
        left_over = (1.0 - kept.sum()) / self.num_embeddings
        return widened[inside], kept[inside] + left_over * widened[inside]

    def _weight(self, rank: FloatArray) -> FloatArray:
        """Probability of the rows of these ranks, over that of the hottest row."""
        log_weight = -self.exponent * (np.log(rank + self.shift) - np.log(1.0 + self.shift))
        return np.asarray(np.exp(log_weight))

    def _integral(self, start: FloatArray, end: FloatArray) -> FloatArray:
        """Integral of :meth:`_weight`, ((x + q) / (1 + q))^-s, from ``start`` to ``end``."""
        scale = 1.0 + self.shift
        low, high = (start + self.shift) / scale, (end + self.shift) / scale
        power = 1.0 - self.exponent
        if abs(power) < 1e-9:
            return np.asarray(scale * np.log(high / low))
        return np.asarray(
            scale * np.exp(power * np.log(low)) * np.expm1(power * np.log(high / low)) / power
        )


def _tail_edges(first: int, last: int) -> FloatArray:
    """Ends of bins: whole ranks from ``first`` to ``last``, log-spaced by ``_BIN_RATIO`` at most.

    Ranks that are equal after rounding are kept once.
    """
    count = max(2, math.ceil(math.log(last / first) / math.log(_BIN_RATIO)) + 1)
    start, end = math.log10(first), math.log10(last)
    exponents = np.arange(count) * ((end - start) / (count - 1)) + start
    edges: FloatArray = np.round(np.power(10.0, exponents))
    edges[0], edges[-1] = first, last
    return np.asarray(edges[np.append(np.diff(edges) > 0, True)])
