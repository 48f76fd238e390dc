"""Answers for many index laws at once: what follows from their frequency bins.

Questions come as arrays with one entry per query, and each query names its law by position. All
formulas are here; the methods of :class:`~costmodels.distribution.base.AbstractIndexDistribution`
ask this module about a single law.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray, distinct
from costmodels.errors import require

if TYPE_CHECKING:
    from costmodels.distribution.base import AbstractIndexDistribution

_ORDER_ROUNDING: Final = 1e-4
"""Share by which a bin may be more probable than the one before: flat laws are rounded so."""
_SUM_ROUNDING: Final = 1e-6
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
        self.rows, self.probability = bins_of(law)
        drawn = self.probability > 0
        self.drawn_rows, self.drawn_probability = self.rows[drawn], self.probability[drawn]

    def touched(self, draws: float) -> FloatArray:
        """Expected share (0..1) of each bin's rows that N = ``draws`` draws touch, ``[b]``.

        It is 1 - (1 - p)^N. Below one draw it is p N, so that it is never more than the draws.
        """
        if draws < 1.0:
            return np.asarray(self.probability * draws)
        missed = np.log1p(-np.minimum(self.probability, _CERTAIN))
        return np.asarray(-np.expm1(draws * missed))

    def distinct(self, draws: float) -> float:
        """Expected distinct rows of N = ``draws`` draws."""
        return float((self.rows * self.touched(draws)).sum())

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
    of an odd cubic (Page 1977). The error is below 0.001. Beyond eight standard deviations, where
    the logistic is within 1e-21 of its end, the share is 0 or 1.
    """
    ninth = 1.0 / (9.0 * (draws_of_row + 1.0))
    sure = 8.0 * np.sqrt(ninth)
    low, high = ((draws_of_row + 1.0) * max(1.0 - ninth + d, 0.0) ** 3 for d in (-sure, sure))
    share = (mean_draws > high).astype(float)
    open_ = (mean_draws >= low) & (mean_draws <= high)
    z = (np.cbrt(mean_draws[open_] / (draws_of_row + 1.0)) - 1.0 + ninth) / np.sqrt(ninth)
    share[open_] = 1.0 / (1.0 + np.exp(-(1.5976 * z + 0.07056 * z**3)))
    return np.asarray(share)


@lru_cache(maxsize=16384)
def bins_of(law: AbstractIndexDistribution) -> tuple[FloatArray, FloatArray]:
    """The bins of a law, made and checked once; read-only, because all callers share them."""
    bins, name = law.frequency_bins(), type(law).__name__
    good = isinstance(bins, tuple) and len(bins) == 2
    good = good and all(isinstance(part, np.ndarray) and part.ndim == 1 for part in bins)
    require(
        good and len(bins[0]) == len(bins[1]) > 0,
        f"{name}.frequency_bins must return two arrays of one length, the rows of each bin and the "
        "probability of one row of each",
    )
    check_bins(*bins, law.num_embeddings, f"{name}.frequency_bins")
    for part in bins:
        part.flags.writeable = False
    return bins


def check_bins(rows: FloatArray, probability: FloatArray, num_embeddings: int, where: str) -> None:
    """Check the bins of a law.

    Args:
        rows: ``[bins]`` rows of each bin.
        probability: ``[bins]`` probability of one row of each bin.
        num_embeddings: rows of the table.
        where: what the bins are from, for messages.

    Raises:
        InvalidValueError: bins are not finite, negative, not hottest first, or have wrong sums.
    """
    numbers = np.stack([rows, probability])
    good = bool(np.isfinite(numbers).all() and (numbers >= 0).all())
    require(good, f"{where}: rows and probabilities of a law must be finite and not negative")
    drawn = probability[rows > 0]
    falls = bool((drawn[1:] <= drawn[:-1] * (1 + _ORDER_ROUNDING)).all())
    require(falls, f"{where}: bins of a law must be hottest first")
    for what, total, wanted in (
        ("the rows of all bins", float(rows.sum()), num_embeddings),
        ("rows times probabilities", float(rows @ probability), 1),
    ):
        require(
            abs(total - wanted) <= _SUM_ROUNDING * wanted,
            f"{where}: {what} must sum to {wanted}, got {total:g}",
        )


_CURVE_POINTS: Final = 256
"""Points of a law's cache curve, log-spaced in draws. Between them the curve is interpolated."""
_LAST: Final = _CURVE_POINTS - 1
_FEWEST_DRAWS: Final = 0.5
"""Draws at the first point of a cache curve. Before it the curve is a straight line from 0."""
_FULL: Final = 14.0
"""Expected draws of the coldest row at the last point of a cache curve. The cache then lacks
exp(-14), about 1e-6, of the coldest rows, and fewer of all others."""
_HALVINGS: Final = 40
"""Steps of a bisection over draws; they leave an interval of 1e-12 of the first one."""


class Laws:
    """Formulas over the frequency bins of several laws.

    Every method takes columns ``[n]`` with one entry per query and returns ``[n]`` answers. ``law``
    holds positions in ``laws``. The other arguments are those of the method with the same purpose
    in :class:`~costmodels.distribution.base.AbstractIndexDistribution`. Two things are kept for
    later queries: distinct rows by batch size, and points of the cache curves.
    """

    def __init__(self, laws: Sequence[AbstractIndexDistribution]) -> None:
        """Keep the laws; their bins are asked for when they are needed."""
        self.laws = tuple(laws)
        self._num_embeddings = np.array([float(law.num_embeddings) for law in self.laws])
        self._scattered = np.array([law.scattered for law in self.laws], dtype=bool)
        self._counts: dict[tuple[int, float], tuple[float, float]] = {}

    # -- distinct rows ----------------------------------------------------------------------------

    def effective_draws(self, law: IntArray, num_indices: FloatArray) -> FloatArray:
        """Independent draws that touch as many rows as the indices of a batch do."""
        return self._counted(law, num_indices)[1]

    def unique_rows(self, law: IntArray, num_indices: FloatArray) -> FloatArray:
        """Distinct rows expected in ``num_indices`` indices."""
        return self._counted(law, num_indices)[0]

    def unique_rows_in_range(
        self, law: IntArray, num_indices: FloatArray, row_offset: IntArray, num_rows: IntArray
    ) -> FloatArray:
        """Distinct rows of an id range expected when the whole table receives ``num_indices``."""
        found = np.empty(len(law))
        even = self._scattered[law]
        whole = law[even]
        unique = self.unique_rows(whole, num_indices[even])
        found[even] = unique * num_rows[even] / self._num_embeddings[whole]
        for at, count, chosen in _groups(~even, law, num_indices):
            touched = self._bins[at].touched(self.laws[at].effective_draws(count))
            found[chosen] = self._range_sums(at, row_offset[chosen], num_rows[chosen], touched)
        return found

    def busy_rows_in_range(
        self,
        law: IntArray,
        num_indices: FloatArray,
        row_offset: IntArray,
        num_rows: IntArray,
        draws_of_row: float,
    ) -> FloatArray:
        """Rows of an id range that one batch of the whole table draws more than so many times."""
        found = np.zeros(len(law))
        for at, count, chosen in _groups(np.ones(len(law), dtype=bool), law, num_indices):
            bins, draws = self._bins[at], self.laws[at].effective_draws(count)
            busy = busy_share(bins.probability * draws, draws_of_row)
            if self._scattered[at]:
                found[chosen] = (busy @ bins.rows) * (num_rows[chosen] / self._num_embeddings[at])
            else:
                found[chosen] = self._range_sums(at, row_offset[chosen], num_rows[chosen], busy)
        return found

    def range_share(self, law: IntArray, row_offset: IntArray, num_rows: IntArray) -> FloatArray:
        """Share (0..1) of accesses on the ids of a range."""
        found = np.asarray(num_rows / self._num_embeddings[law])
        for at, _, chosen in _groups(~self._scattered[law], law, np.zeros(len(law))):
            probability = self._bins[at].probability
            sums = self._range_sums(at, row_offset[chosen], num_rows[chosen], probability)
            found[chosen] = np.minimum(sums, 1.0)
        return found

    # -- caches -----------------------------------------------------------------------------------

    def filled(self, law: IntArray, cached: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Draws after which an LRU cache forgets a row, and its steady-state hit ratio (0..1).

        They are infinity and 1 if all rows that are ever drawn fit.

        Draws are interpolated between two points in the logarithms of rows and draws, hit ratios in
        the logarithm of draws. The points are found by bisection, so that few of each curve have to
        be computed.
        """
        grid, (held, hits) = self._grid, self._points
        draws, ratio = np.full(len(law), np.inf), np.ones(len(law))
        least, most = (self._held_at(law, np.full(len(law), point)) for point in (0, _LAST))
        first, inside = cached <= least, (cached > least) & (cached < most)
        share = np.maximum(cached[first], 0.0) / least[first]
        draws[first], ratio[first] = grid[law[first], 0] * share, hits[law[first], 0] * share
        law, cached = law[inside], cached[inside]
        low, high = np.zeros(len(law), dtype=np.int64), np.full(len(law), _LAST)
        while len(wide := np.flatnonzero(high - low > 1)):
            middle = (low[wide] + high[wide]) // 2
            full = self._held_at(law[wide], middle) <= cached[wide]
            low[wide] = np.where(full, middle, low[wide])
            high[wide] = np.where(full, high[wide], middle)
        before, after = (law, low), (law, high)
        x, y = np.log(held[before]), np.log(grid[before])
        rise = np.log(grid[after]) - y
        along = rise / (np.log(held[after]) - x) * (np.log(cached) - x)
        draws[inside] = np.exp(along + y)
        ratio[inside] = (hits[after] - hits[before]) / rise * along + hits[before]
        return draws, ratio

    def hit_ratio(self, law: IntArray, cached_rows: FloatArray) -> FloatArray:
        """Steady-state hit ratio (0..1) of an LRU cache."""
        return self.filled(law, cached_rows)[1]

    def expected_misses(
        self, law: IntArray, num_indices: FloatArray, cached_rows: FloatArray
    ) -> FloatArray:
        """Misses of a cold LRU cache in ``num_indices`` indices.

        Let T be the draws after which it forgets a row, h the hit ratio and N the effective draws.
        The cache misses ``cached_rows`` times while it fills, and (N - T) (1 - h) times after that.
        If the rows of the batch fit into the cache, the misses are the expected distinct rows.
        """
        unique, effective = self._counted(law, num_indices)
        draws, hits = self.filled(law, cached_rows)
        fills = draws < effective
        after = np.where(fills, effective - draws, 0.0) * (1.0 - hits)
        missed = np.minimum(np.maximum(cached_rows + after, unique), num_indices)
        return np.where(fills, missed, unique)

    def expected_unique_misses(
        self, law: IntArray, num_indices: FloatArray, cached_rows: FloatArray, lookahead: int = 0
    ) -> FloatArray:
        """Distinct rows of a batch that a warm cache does not hold when the batch starts.

        The cache is LRU. If it also knows the next ``lookahead`` batches, it keeps their rows over
        :meth:`lookahead_draws` draws, or as long as an LRU cache does if that is longer.
        """
        draws, effective = self.filled(law, cached_rows)[0], self.effective_draws(law, num_indices)
        if lookahead:
            ahead = self.lookahead_draws(law, num_indices, cached_rows, lookahead)
            draws = np.maximum(draws, ahead)
        first, back = distinct(law, effective, draws)
        found = np.zeros(len(first))
        law, effective, draws = law[first], effective[first], draws[first]
        for at, count, chosen in _groups(np.isfinite(draws), law, effective):
            bins = self._bins[at]
            touched = bins.rows * bins.touched(count)
            cold = np.exp(np.outer(draws[chosen], -bins.probability))
            found[chosen] = (cold * touched).sum(axis=-1)
        return found[back]

    def lookahead_draws(
        self, law: IntArray, num_indices: FloatArray, cached_rows: FloatArray, batches: int
    ) -> FloatArray:
        """Draws over which a cache keeps rows because a coming batch needs them.

        These are the draws of the next ``batches``, or fewer if the cache has no room. Beside the
        rows of the batch to come, it holds rows that are between two uses (``Bins.kept``). Their
        number grows with the draws, so that the draws that just fit are found by bisection.
        """
        first, back = distinct(law, num_indices, cached_rows)
        law, num_indices = law[first], num_indices[first]
        most = self.effective_draws(law, batches * num_indices)
        room = cached_rows[first] - self.unique_rows(law, num_indices)
        found = np.zeros(len(law))
        for at, (index, draws, left) in enumerate(zip(law.tolist(), most, room, strict=True)):
            bins, high = self._bins[index], float(draws)
            one = high / batches
            if high <= 0.0 or bins.kept(high, one) <= left:
                found[at] = high
                continue
            for _ in range(_HALVINGS):
                middle = 0.5 * (found[at] + high)
                if bins.kept(middle, one) <= left:
                    found[at] = middle
                else:
                    high = middle
        return found[back]

    # -- private ----------------------------------------------------------------------------------

    @cached_property
    def _bins(self) -> list[Bins]:
        """The bins of each law."""
        return [Bins(law) for law in self.laws]

    def _counted(self, law: IntArray, num_indices: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Expected distinct rows, and effective draws, of each query."""
        first, back = distinct(law, num_indices)
        pairs = zip(law[first].tolist(), num_indices[first].tolist(), strict=True)
        found = np.array([self._count(*pair) for pair in pairs]).reshape(-1, 2)[back]
        return found[:, 0], found[:, 1]

    def _count(self, at: int, num_indices: float) -> tuple[float, float]:
        """The same for one law and one number of indices; the result is kept."""
        known = self._counts.get((at, num_indices))
        if known is None:
            bins, draws = self._bins[at], self.laws[at].effective_draws(num_indices)
            unique = min(bins.distinct(draws), num_indices)
            known = self._counts[at, num_indices] = (unique, draws)
        return known

    def _range_sums(
        self, at: int, row_offset: IntArray, num_rows: IntArray, weight: FloatArray
    ) -> FloatArray:
        """Sums of a weight over the rows of id ranges, ``[n]``.

        Args:
            at: position of the law.
            row_offset: ``[n]`` first id of each range.
            num_rows: ``[n]`` ids of each range.
            weight: ``[bins]`` weight of one row of each bin.
        """
        law, rows = self.laws[at], self._bins[at].rows
        if not law.is_ordered:
            inside = law.range_rows(row_offset, num_rows)
            name, wanted = type(law).__name__, (len(row_offset), len(rows))
            message = f"{name}.range_rows must return rows {wanted}: of each range, of each bin"
            require(np.shape(inside) == wanted, f"{message}; got shape {np.shape(inside)}")
            return np.asarray((inside * weight).sum(axis=-1))
        # Ids are in the order of the bins, so that a range is some neighbouring bins, of which the
        # outer two may be cut. All pairs of a range and one of its bins stand in one list.
        ends = np.cumsum(rows)
        begins, last = ends - rows, len(ends) - 1
        low, high = row_offset.astype(float), (row_offset + num_rows).astype(float)
        first = np.minimum(np.searchsorted(ends, low, side="right"), last)
        count = np.minimum(np.searchsorted(ends, high, side="left"), last) - first + 1
        count = np.maximum(count, 1)
        starts = np.cumsum(count) - count
        query = np.repeat(np.arange(len(low)), count)
        bin_ = np.arange(len(query)) - starts[query] + first[query]
        inside = np.minimum(ends[bin_], high[query]) - np.maximum(begins[bin_], low[query])
        return np.asarray(np.add.reduceat(np.maximum(inside, 0.0) * weight[bin_], starts))

    # The cache curve of a law gives, at log-spaced numbers of draws T, the rows that an LRU cache
    # holds which forgets a row after T draws, and its hit ratio. Points are computed when they are
    # asked for; points that are not known yet are NaN.

    @cached_property
    def _grid(self) -> FloatArray:
        """Draws T at each point, ``[laws, points]``."""
        coldest = np.array([bins.drawn_probability.min() for bins in self._bins])
        return np.geomspace(_FEWEST_DRAWS, _FULL / coldest, _CURVE_POINTS, axis=-1)

    @cached_property
    def _points(self) -> tuple[FloatArray, FloatArray]:
        """Rows that a cache holds at each point, and its hit ratio (0..1), ``[laws, points]``."""
        held, hits = np.full((2, len(self.laws), _CURVE_POINTS), np.nan)
        return held, hits

    def _held_at(self, law: IntArray, point: IntArray) -> FloatArray:
        """Rows that a cache holds at point ``point`` of the curve of each query's law, ``[n]``."""
        held, hits = self._points
        for at, _, chosen in _groups(np.isnan(held[law, point]), law, np.zeros(len(law))):
            some = np.unique(point[chosen])
            held[at, some], hits[at, some] = self._bins[at].cache(self._grid[at, some])
        return np.asarray(held[law, point])


def _groups(
    chosen: BoolArray, law: IntArray, value: FloatArray
) -> list[tuple[int, float, IntArray]]:
    """The chosen queries in groups of the same law and value: (law, value, their positions)."""
    where = np.flatnonzero(chosen)
    if not len(where):
        return []
    first, back = distinct(law[where], value[where])
    order = np.argsort(back, kind="stable")
    parts = np.split(where[order], np.cumsum(np.bincount(back))[:-1])
    heads = where[first]
    return list(zip(law[heads].tolist(), value[heads].tolist(), parts, strict=True))


# ------------------------------------------------------------------ the hottest part of a table


_HEAD_ROWS: Final = 64
"""Hottest rows whose places are random one by one. The others are so many that the share of a part
on them is a normal variable."""
_POINTS: Final = 512
"""Shares at which the distribution function of a part is computed."""
_DEVIATIONS: Final = 14.0
"""Standard deviations of the head that the shares reach beyond the hottest row."""
_TAIL_DEVIATIONS: Final = 6.0
_MARGIN: Final = 1.3
"""Span of the shares over what they can be, since a discrete Fourier transform is periodic."""
_NOTHING: Final = 9.0
"""Standard deviations from which on the characteristic function of a normal law is taken as 0: it
is exp(-40)."""
_FINE: Final = 16
"""Powers of a row's turn that are computed one by one; the others are products with these."""
_SMOOTHING: Final = 0.7
"""Least standard deviation of the tail, in steps between points: jumps of the distribution function
would ring."""


@lru_cache(maxsize=65536)
def hottest_share(law: AbstractIndexDistribution, num_parts: int) -> float:
    """Expected largest share (0..1) of accesses among ``num_parts`` equal parts of a hashed table.

    A part holds each row with probability 1/k. Only what a row has above the mean of all rows makes
    parts differ, since parts have equally many rows. Let Y be the sum of these excesses in a part,
    and F its distribution function, from the product of the characteristic functions of the 64
    hottest rows and a normal one for the others. The hottest row is in exactly one part, whose
    distribution function is F shifted by its excess w_1. With the parts taken as independent
    otherwise, the maximum has the distribution function F(x - w_1) F(x)^(k-1). Within 3 % of the
    mean of simulated placements (``tests/costmodels/distribution/test_hottest.py``).

    Args:
        law: of the table.
        num_parts: k, at least 1.
    """
    if num_parts == 1:
        return 1.0
    (rows, probability), even = bins_of(law), 1.0 / num_parts
    excess, before = probability - 1.0 / rows.sum(), np.cumsum(rows) - rows
    alone = np.clip(np.floor(_HEAD_ROWS - before), 0, np.floor(rows)).astype(np.int64)
    head = np.maximum(np.repeat(excess, alone), 0.0)
    first, others = float(head[:1].sum()), head[1:]
    tail = float(np.sqrt(((rows - alone) @ excess**2) * even * (1.0 - even)))
    deviation = float(np.sqrt((others**2).sum() * even * (1.0 - even) + tail**2))
    if first + deviation <= 0.0:
        return even
    total = float(others.sum())
    high = first + min(total, _DEVIATIONS * deviation) + _TAIL_DEVIATIONS * tail
    low = -min((first + total) * even, _DEVIATIONS * deviation + first * even)
    low -= _TAIL_DEVIATIONS * tail
    step = (high - low) * _MARGIN / _POINTS
    low -= 0.1 * (high - low)
    angle = 2.0 * np.pi / (_POINTS * step)
    smooth = max(tail, _SMOOTHING * step)
    needed = int(_NOTHING / (smooth * angle)) + 1  # at further points the wave is 0
    t = angle * np.arange(min(needed, _POINTS // 2 + 1))
    # Powers of each row's turn are products of two of them, so that few exponentials are computed.
    turns = 1j * others[:, None] * angle
    fine = np.exp(np.arange(_FINE) * turns)
    coarse = even * np.exp(_FINE * np.arange(-(-len(t) // _FINE)) * turns)
    factors = coarse[:, :, None] * fine[:, None, :]
    factors += 1.0 - even
    product = factors.prod(axis=0).ravel()[: len(t)]
    wave = np.exp(-0.5 * (t * smooth) ** 2 - 1j * t * ((first + total) * even)) * product

    def distribution(shift: float) -> FloatArray:
        """F(x - shift) at the points."""
        density = np.fft.irfft(np.conj(wave * np.exp(1j * t * (shift - low))), _POINTS)
        return np.asarray(np.clip(np.cumsum(density), 0.0, 1.0))

    below = distribution(first) * distribution(0.0) ** (num_parts - 1)
    found = even + low + float((1.0 - below).sum()) * step
    return min(max(found, even + first * (1.0 - even)), 1.0)
