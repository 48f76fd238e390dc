"""Many index laws side by side: what follows from their frequency bins, for arrays of queries.

A query names its law by position. The formulas stand here once; the methods of
:class:`~costmodels.distribution.base.AbstractIndexDistribution` ask them about one law.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from costmodels.distribution.base import AbstractIndexDistribution


_CURVE_POINTS: Final = 256
_LAST: Final = _CURVE_POINTS - 1
_FEWEST_DRAWS: Final = 0.5
_FULL: Final = 14.0
"""After this many draws of its coldest row a law's cache curve ends: 1e-6 of the rows are left."""
_CERTAIN: Final = 1.0 - 1e-12
_COARSE: Final = 16
_HALVINGS: Final = 40
_FEW_BINS: Final = 64
"""Laws with no more bins have their whole cache curve computed at once."""
_ROUNDING: Final = 1.0 + 1e-9


class _Bins:
    """The frequency bins of one law, hottest first."""

    __slots__ = ("drawn_probability", "drawn_rows", "probability", "rows")

    def __init__(self, law: AbstractIndexDistribution) -> None:
        self.rows, self.probability = law.frequency_bins()
        drawn = self.probability > 0
        every = bool(drawn.all())
        self.drawn_rows = self.rows if every else self.rows[drawn]
        self.drawn_probability = self.probability if every else self.probability[drawn]

    def touched(self, draws: float) -> FloatArray:
        """Expected share of each bin's rows that ``draws`` draws touch: 1 - (1 - p)^N, per bin."""
        if draws < 1.0:
            return np.asarray(self.probability * draws)
        missed = np.log1p(-np.minimum(self.probability, _CERTAIN))
        return np.asarray(-np.expm1(draws * missed))

    def cache(self, draws: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Rows an LRU cache holds after so many draws, and its hit ratio (0..1) then, ``[n]``."""
        missed = np.outer(draws, -self.drawn_probability)
        np.expm1(missed, out=missed)
        mass = self.drawn_rows * self.drawn_probability
        held, hits = (-np.einsum("nb,b->n", missed, weight) for weight in (self.drawn_rows, mass))
        return held, hits

    def kept(self, draws: float, batch_draws: float) -> float:
        """Rows that the batch to come does not use, but one before and one after it do.

        The two are at most ``draws / batch_draws`` = K batches apart. With q the probability that a
        batch does not touch a row, that is q (1 - q^K) - K (1 - q) q^K: not used now, and at least
        twice in K other batches around it. That is nothing for K of at most 1.
        """
        batches, apart = draws / batch_draws, self.drawn_probability * batch_draws
        again = np.exp(-apart) * -np.expm1(-batches * apart)
        once = batches * -np.expm1(-apart) * np.exp(-batches * apart)
        share = again - once
        return float(self.drawn_rows @ np.maximum(share, 0.0))


class Laws:
    """Formulas over the frequency bins of several laws.

    Every method takes columns with one entry per query: ``law`` is the position of its law, and the
    other arguments are those of the method of the same purpose in
    :class:`~costmodels.distribution.base.AbstractIndexDistribution`. What a law has been asked is
    remembered: unique rows by batch size, and points of the curve that says how a cache fills.
    """

    def __init__(self, laws: Sequence[AbstractIndexDistribution]) -> None:
        """Nothing is computed yet."""
        self.laws = tuple(laws)
        self._num_embeddings = np.array([float(law.num_embeddings) for law in self.laws])
        self._scattered = np.array([law.scattered for law in self.laws], dtype=bool)
        self._draws_alike = all(law.draws_are_indices for law in self.laws)
        self._counts: dict[tuple[int, float], tuple[float, float]] = {}

    # -- distinct rows ----------------------------------------------------------------------------

    def effective_draws(self, law: IntArray, num_indices: FloatArray) -> FloatArray:
        """Independent draws that touch as many rows as the indices of a batch do."""
        if self._draws_alike:
            return num_indices
        first, back = _distinct(law, num_indices)
        pairs = zip(law[first].tolist(), num_indices[first].tolist(), strict=True)
        draws = [self.laws[at].effective_draws(count) for at, count in pairs]
        return np.array(draws, dtype=float)[back]

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

    def range_share(self, law: IntArray, row_offset: IntArray, num_rows: IntArray) -> FloatArray:
        """Share (0..1) of accesses on the ids of a range."""
        found = np.asarray(num_rows / self._num_embeddings[law])
        for at, _, chosen in _groups(~self._scattered[law], law, np.zeros(len(law))):
            probability = self._bins[at].probability
            sums = self._range_sums(at, row_offset[chosen], num_rows[chosen], probability)
            found[chosen] = np.minimum(sums, 1.0)
        return found

    # -- caches -----------------------------------------------------------------------------------

    def characteristic_draws(self, law: IntArray, cached_rows: FloatArray) -> FloatArray:
        """Draws after which an LRU cache forgets a row; infinite where all rows ever drawn fit."""
        return self._filled(law, cached_rows)[0]

    def hit_ratio(self, law: IntArray, cached_rows: FloatArray) -> FloatArray:
        """Steady-state hit ratio (0..1) of an LRU cache."""
        return self._filled(law, cached_rows)[1]

    def expected_misses(
        self, law: IntArray, num_indices: FloatArray, cached_rows: FloatArray
    ) -> FloatArray:
        """Misses of a cold LRU cache in ``num_indices`` draws."""
        misses, effective = self._counted(law, num_indices)
        top = self._position_after(law, effective)
        evicts = self._holds_more(law, cached_rows, top)
        law, cached, unique = law[evicts], cached_rows[evicts], misses[evicts]
        draws, hits = self._interpolated(law, cached)
        missed = cached + (effective[evicts] - draws) * (1.0 - hits)
        within = np.minimum(np.maximum(missed, unique), num_indices[evicts])
        misses[evicts] = np.where(draws >= effective[evicts], unique, within)
        return misses

    def expected_unique_misses(
        self,
        law: IntArray,
        num_indices: FloatArray,
        cached_rows: FloatArray,
        lookahead_batches: int = 0,
    ) -> FloatArray:
        """Distinct rows of a batch that a warm LRU cache does not hold when the batch starts.

        A cache that knows the next batches keeps what they need for as long as
        :meth:`lookahead_draws` says, or as an LRU cache would if that is longer.
        """
        draws, effective = self._filled(law, cached_rows)[0], self.effective_draws(law, num_indices)
        if lookahead_batches:
            ahead = self.lookahead_draws(law, num_indices, cached_rows, lookahead_batches)
            draws = np.maximum(draws, ahead)
        first, back = _distinct(law, effective, draws)
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
        """Draws over which a cache keeps rows that it knows will be needed again.

        Those of the next ``batches``, or fewer where the cache has no room. Beside the rows of the
        batch to come it holds those that are between two uses, see ``_Bins.kept``.
        """
        first, back = _distinct(law, num_indices, cached_rows)
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
    def _bins(self) -> list[_Bins]:
        return [_Bins(law) for law in self.laws]

    def _counted(self, law: IntArray, num_indices: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Unique rows, and effective draws."""
        first, back = _distinct(law, num_indices)
        pairs = zip(law[first].tolist(), num_indices[first].tolist(), strict=True)
        found = np.array([self._count(*pair) for pair in pairs]).reshape(-1, 2)[back]
        return found[:, 0], found[:, 1]

    def _count(self, at: int, num_indices: float) -> tuple[float, float]:
        known = self._counts.get((at, num_indices))
        if known is None:
            bins, draws = self._bins[at], self.laws[at].effective_draws(num_indices)
            unique = min(float((bins.rows * bins.touched(draws)).sum()), num_indices)
            known = self._counts[at, num_indices] = (unique, draws)
        return known

    def _range_sums(
        self, at: int, row_offset: IntArray, num_rows: IntArray, weight: FloatArray
    ) -> FloatArray:
        """Sum of ``weight`` (per bin, of one row) over the rows of each range, ``[n]``."""
        law = self.laws[at]
        if not law.is_ordered:
            return np.asarray((law.ranges_rows(row_offset, num_rows) * weight).sum(axis=-1))
        ends = np.cumsum(self._bins[at].rows)
        begins, last = ends - self._bins[at].rows, len(ends) - 1
        low, high = row_offset.astype(float), (row_offset + num_rows).astype(float)
        first = np.minimum(np.searchsorted(ends, low, side="right"), last)
        count = np.minimum(np.searchsorted(ends, high, side="left"), last) - first + 1
        count = np.maximum(count, 1)
        starts = np.cumsum(count) - count
        query = np.repeat(np.arange(len(low)), count)
        bin_ = np.arange(len(query)) - starts[query] + first[query]
        inside = np.minimum(ends[bin_], high[query]) - np.maximum(begins[bin_], low[query])
        return np.asarray(np.add.reduceat(np.maximum(inside, 0.0) * weight[bin_], starts))

    # The curve of a law gives the rows held and the hit ratio at log-spaced numbers of draws. Its
    # points are computed when they are asked for; those not known yet are NaN.

    @cached_property
    def _grid(self) -> FloatArray:
        """Draws at each point, ``[laws, points]``."""
        coldest = np.array([bins.drawn_probability.min() for bins in self._bins])
        return np.geomspace(_FEWEST_DRAWS, _FULL / coldest, _CURVE_POINTS, axis=-1)

    @cached_property
    def _held(self) -> FloatArray:
        return np.full((len(self.laws), _CURVE_POINTS), np.nan)

    @cached_property
    def _hits(self) -> FloatArray:
        return np.full((len(self.laws), _CURVE_POINTS), np.nan)

    @cached_property
    def _drawn_rows(self) -> FloatArray:
        """Rows that are ever drawn; no cache holds more."""
        return np.array([float(bins.drawn_rows.sum()) for bins in self._bins])

    def _held_at(self, law: IntArray, point: IntArray) -> FloatArray:
        """Rows held at a point of each query's law."""
        held = self._held[law, point]
        unknown = np.flatnonzero(np.isnan(held))
        if len(unknown):
            self._compute(np.unique(law[unknown] * _CURVE_POINTS + point[unknown]))
            held = self._held[law, point]
        return np.asarray(held)

    def _compute(self, codes: IntArray) -> None:
        """Points of the curves, as ascending codes law x points + point."""
        laws, points = np.divmod(codes, _CURVE_POINTS)
        starts = np.flatnonzero(np.diff(laws, prepend=-1))
        for at, chosen in zip(laws[starts].tolist(), np.split(points, starts[1:]), strict=True):
            bins = self._bins[at]
            if len(bins.drawn_rows) <= _FEW_BINS:
                held, hits = bins.cache(self._grid[at])
                self._held[at], self._hits[at] = np.maximum.accumulate(held), hits
            else:
                held, hits = bins.cache(self._grid[at, chosen])
                self._held[at, chosen], self._hits[at, chosen] = held, hits

    def _position_after(self, law: IntArray, draws: FloatArray) -> IntArray:
        """A point of the curve at more than ``draws`` draws; the last where there is none."""
        ends = np.log(self._grid[law, -1] / _FEWEST_DRAWS)
        with np.errstate(divide="ignore"):
            position = np.log(draws / _FEWEST_DRAWS) * (_LAST / ends)
        return np.asarray(np.clip(np.ceil(position) + 1.0, 0, _LAST)).astype(np.int64)

    def _holds_more(self, law: IntArray, cached: FloatArray, point: IntArray) -> BoolArray:
        """Where more rows than ``cached`` would be held at a point of the curve."""
        open_ = cached < self._drawn_rows[law] * _ROUNDING
        open_[open_] = cached[open_] < self._held_at(law[open_], point[open_])
        return np.asarray(open_)

    def _filled(self, law: IntArray, cached: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(draws, hit ratio) when a cache is full; infinity and 1 where all rows drawn fit."""
        last = np.full(len(law), _LAST)
        draws, hits = np.full(len(law), np.inf), np.ones(len(law))
        fills = self._holds_more(law, cached, last)
        draws[fills], hits[fills] = self._interpolated(law[fills], cached[fills])
        return draws, hits

    def _interpolated(self, law: IntArray, cached: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(draws, hit ratio) read off the curves, where ``cached`` is below their last points."""
        grid, held, hits = self._grid, self._held, self._hits
        zero = np.zeros(len(law), dtype=np.int64)
        least = self._held_at(law, zero)
        draws = grid[law, zero] * np.maximum(cached, 0.0) / least
        ratio = hits[law, zero] * draws / grid[law, zero]
        inside = cached > least
        law, cached = law[inside], cached[inside]
        low = self._below(law, cached)
        before, after = (law, low), (law, low + 1)
        self._held_at(*after)
        x, y = np.log(held[before]), np.log(grid[before])
        rise = np.log(grid[after]) - y
        along = rise / (np.log(held[after]) - x) * (np.log(cached) - x)
        draws[inside] = np.exp(along + y)
        ratio[inside] = (hits[after] - hits[before]) / rise * along + hits[before]
        return draws, ratio

    def _below(self, law: IntArray, cached: FloatArray) -> IntArray:
        """The point of the curve after which ``cached`` rows are held.

        Among every sixteenth point first; then two neighbouring points at a time, at the place that
        is likely by interpolation, later half-way.
        """
        coarse = np.arange(0, _CURVE_POINTS + _COARSE, _COARSE)
        coarse[-1] = _LAST
        distinct, back = np.unique(law, return_inverse=True)
        held = self._held_at(np.repeat(distinct, len(coarse)), np.tile(coarse, len(distinct)))
        full = held.reshape(-1, len(coarse))[back] <= cached[:, None]
        place = np.minimum(full.sum(axis=-1), len(coarse) - 1)
        low, high = coarse[place - 1], coarse[place]
        likely = True
        while len(wide := np.flatnonzero(high - low > 1)):
            one, below, above = law[wide], low[wide], high[wide]
            share = np.full(len(wide), 0.5)
            if likely:
                least = np.log(self._held[one, below])
                share = (np.log(cached[wide]) - least) / (np.log(self._held[one, above]) - least)
            first = below + np.clip(
                (share * (above - below)).astype(np.int64), 1, above - below - 1
            )
            second = np.minimum(first + 1, above)
            points = self._held_at(np.tile(one, 2), np.append(first, second)).reshape(2, -1)
            past_first, past_second = points <= cached[wide]
            low[wide] = np.where(past_second, second, np.where(past_first, first, below))
            high[wide] = np.where(past_second, above, np.where(past_first, second, first))
            likely = False
        return np.asarray(low)


def _distinct(*columns: FloatArray | IntArray) -> tuple[IntArray, IntArray]:
    """Positions of one query of each kind, and for each query the kind it is of."""
    size = len(columns[0])
    order = np.lexsort(columns[::-1])
    new = np.zeros(size, dtype=bool)
    new[:1] = True
    for column in columns:
        sorted_ = column[order]
        new[1:] |= sorted_[1:] != sorted_[:-1]
    back = np.empty(size, dtype=np.int64)
    back[order] = np.cumsum(new) - 1
    return order[new], back


def _groups(
    chosen: BoolArray, law: IntArray, value: FloatArray
) -> list[tuple[int, float, IntArray]]:
    """(law, value, positions) of the chosen queries, by law and value."""
    where = np.flatnonzero(chosen)
    if not len(where):
        return []
    first, back = _distinct(law[where], value[where])
    order = np.argsort(back, kind="stable")
    parts = np.split(where[order], np.cumsum(np.bincount(back))[:-1])
    heads = where[first]
    return list(zip(law[heads].tolist(), value[heads].tolist(), parts, strict=True))
