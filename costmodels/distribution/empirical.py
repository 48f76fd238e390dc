"""The law of a table as it was seen in data: `shardplan profile` measures it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Self, final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from costmodels.distribution._hot_share import HOTTEST_RATIO
from costmodels.distribution._mixture import smooth
from costmodels.distribution.base import AbstractIndexDistribution, check_rows
from costmodels.errors import InvalidValueError, require

_TOLERANCE_RATIO: Final = 1e-6
_SAME_RATIO: Final = 0.003
_MOST_REPEATS: Final = 64.0
_FEWEST_REPEATS: Final = 1.0 / 16.0
_HALVINGS: Final = 60


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Empirical(AbstractIndexDistribution):
    """A law given by frequency bins that were fitted to a sample of indices.

    Build it with :meth:`from_counts` (smooths: rows that the sample never touched share the mass of
    Good and Turing, so a larger batch keeps finding new rows) or :meth:`from_bins` (takes the bins
    as they are). Valid for batches up to a few times the size of the sample; beyond it the number
    of rows that are never drawn is a guess.

    Args:
        num_embeddings: rows E of the table.
        num_rows_per_bin: rows of each bin, hottest first; sum to E.
        probability_ratio: probability of one row of each bin; times rows, they sum to 1.
        num_rows_per_range: where the rows are: for each of several equal id ranges its rows per
            bin. Empty when hot rows are spread evenly.
        num_ids_in_ranges: ids ``0 .. num_ids_in_ranges - 1`` that the ranges divide; ids beyond
            were never seen and hold rows of probability 0.
        num_unique_curve: measured ``(indices, distinct rows)`` per batch, ascending; taken in
            preference to independent draws.
        hot_share_ratio: least and most that the hottest 1 % of rows may hold of the accesses, where
            the sample was too small to tell; empty otherwise.

    ``scattered`` is False where ranges are given.

    References:
        Good 1953; Efron and Thisted 1976 (unseen species); Kiefer and Wolfowitz 1956.
    """

    num_embeddings: int
    num_rows_per_bin: tuple[float, ...] = field(repr=False)
    probability_ratio: tuple[float, ...] = field(repr=False)
    num_rows_per_range: tuple[tuple[float, ...], ...] = field(default=(), repr=False)
    num_ids_in_ranges: int = 0
    num_unique_curve: tuple[tuple[float, float], ...] = ()
    hot_share_ratio: tuple[float, ...] = ()
    scattered: bool = field(init=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check bins, ranges and curve."""
        check_rows(self.num_embeddings)
        object.__setattr__(self, "scattered", not self.num_rows_per_range)
        self._check_bins()
        self._check_ranges()
        curve = np.array(self.num_unique_curve, dtype=float).reshape(-1, 2)
        ascending = bool(np.all(np.diff(curve, axis=0) >= 0) and np.all(np.diff(curve[:, 0]) > 0))
        sound = bool(np.all((curve >= 1) & (curve[:, 1:] <= curve[:, :1])))
        require(
            ascending and sound,
            "a curve of distinct rows must ascend, with 1 <= distinct rows <= indices",
        )
        shares = self.hot_share_ratio
        require(
            not shares or (len(shares) == 2 and 0 <= shares[0] <= shares[1] <= 1),
            f"hot_share must be the least and the most share of the hottest rows, got {shares}",
        )
        object.__setattr__(self, "_hash", hash((self.num_embeddings, *self._content())))

    def __hash__(self) -> int:
        """Computed once: laws are keys of caches."""
        return self._hash

    @classmethod
    def from_counts(
        cls,
        counts: Sequence[int] | IntArray,
        num_embeddings: int,
        *,
        num_unique_curve: tuple[tuple[float, float], ...] = (),
    ) -> Self:
        """The smoothed law of a sample.

        Args:
            counts: accesses of each row that was seen, in any order; zeros are rows never seen.
            num_embeddings: rows of the table.
            num_unique_curve: see the class.
        """
        array = np.asarray(counts, dtype=np.int64)
        require(bool(np.all(array >= 0)), "counts of accesses must not be negative")
        values, rows = np.unique(array[array > 0], return_counts=True)
        law = smooth(values, rows.astype(np.int64), num_embeddings)
        return cls.from_bins(
            law.num_rows, law.probability_ratio, num_embeddings, num_unique_curve=num_unique_curve
        )

    @classmethod
    def from_bins(
        cls,
        rows: FloatArray,
        probability: FloatArray,
        num_embeddings: int,
        *,
        range_rows: FloatArray | None = None,
        num_ids_in_ranges: int = 0,
        num_unique_curve: tuple[tuple[float, float], ...] = (),
        hot_share_ratio: tuple[float, ...] = (),
    ) -> Self:
        """A law from bins, hottest first; fitted to the table and normalised.

        A table larger than the bins gets rows of probability 0; from a smaller one the coldest rows
        are taken away.

        Args:
            rows: per bin.
            probability: of one row per bin; need not be normalised.
            num_embeddings: rows of the table.
            range_rows: ``[ranges, bins]``, or None.
            num_ids_in_ranges: see the class.
            num_unique_curve: see the class.
            hot_share_ratio: see the class.
        """
        rows = np.append(np.maximum(rows, 0.0), 0.0)
        probability = np.append(np.maximum(probability, 0.0), 0.0)
        before = np.concatenate([[0.0], np.cumsum(rows)[:-1]])
        fitted = np.clip(num_embeddings - before, 0.0, rows)
        fitted[-1] = max(fitted[-1] + num_embeddings - fitted.sum(), 0.0)
        total = float(fitted @ probability)
        require(total > 0, "a law needs at least one row that is drawn")
        ranges: tuple[tuple[float, ...], ...] = ()
        if range_rows is not None:
            padded = np.pad(range_rows, ((0, 0), (0, 1)))
            kept = np.divide(fitted, rows, out=np.ones_like(rows), where=rows > 0)
            ranges = tuple(tuple(line) for line in (padded * np.minimum(kept, 1.0)).tolist())
        return cls(
            num_embeddings=num_embeddings,
            num_rows_per_bin=tuple(fitted.tolist()),
            probability_ratio=tuple((probability / total).tolist()),
            num_rows_per_range=ranges,
            num_ids_in_ranges=num_ids_in_ranges if ranges else 0,
            num_unique_curve=num_unique_curve,
            hot_share_ratio=hot_share_ratio,
        )

    def alternatives(self) -> tuple[Empirical, ...]:
        """The law with the least and with the most on its hottest 1 % of rows that data allow."""
        return tuple(self._with_hot_share(share) for share in self.hot_share_ratio)

    def _with_hot_share(self, share_ratio: float) -> Empirical:
        """Accesses of the hottest rows and of the others scaled to this share and the rest."""
        rows, probability = self.frequency_bins()
        hot = np.clip(HOTTEST_RATIO * self.num_embeddings - (np.cumsum(rows) - rows), 0.0, rows)
        now = float(hot @ probability)
        if not 0.0 < now < 1.0:
            return replace(self, hot_share_ratio=())
        scaled = np.concatenate(
            [probability * share_ratio / now, probability * (1.0 - share_ratio) / (1.0 - now)]
        )
        part = np.divide(hot, rows, out=np.zeros_like(rows), where=rows > 0)
        parts, order = np.concatenate([part, 1.0 - part]), np.argsort(-scaled, kind="stable")
        in_ranges = None
        if not self.scattered:
            in_ranges = (np.tile(np.array(self.num_rows_per_range), 2) * parts)[:, order]
        return Empirical.from_bins(
            (np.tile(rows, 2) * parts)[order],
            scaled[order],
            self.num_embeddings,
            range_rows=in_ranges,
            num_ids_in_ranges=self.num_ids_in_ranges,
            num_unique_curve=self.num_unique_curve,
        )

    def frequency_bins(self) -> tuple[FloatArray, FloatArray]:
        """The bins as given."""
        return np.array(self.num_rows_per_bin), np.array(self.probability_ratio)

    def range_rows(self, row_offset: int, num_rows: int) -> FloatArray:
        """Rows of every bin among some ids, as they were seen; even inside one range."""
        if self.scattered:
            return np.array(self.num_rows_per_bin) * (num_rows / self.num_embeddings)
        found: FloatArray = self.ranges_rows(np.array([row_offset]), np.array([num_rows]))[0]
        return found

    def ranges_rows(self, row_offset: IntArray, num_rows: IntArray) -> FloatArray:
        """The same of several id ranges."""
        if self.scattered:
            return np.outer(num_rows / self.num_embeddings, self.num_rows_per_bin)
        cumulative = _range_curve(self)
        ranges = len(cumulative) - 1
        ends = np.array([row_offset, row_offset + num_rows]) * (ranges / self.num_ids_in_ranges)
        ends = np.minimum(ends, ranges)
        whole = np.minimum(ends.astype(np.int64), ranges - 1)
        part = (ends - whole)[..., None]
        low, high = cumulative[whole] * (1.0 - part) + cumulative[whole + 1] * part
        return np.asarray(np.maximum(high - low, 0.0))

    def effective_draws(self, num_indices: float) -> float:
        """Independent draws that touch as many rows as were measured in a batch of that size.

        Log-linear between measured sizes; outside them the ratio is kept, down to one draw.
        """
        if not self.num_unique_curve or num_indices <= 1:
            return num_indices
        log_indices, log_draws = _draws_curve(self)
        at = float(np.log(num_indices))
        if at < log_indices[1] and log_draws[1] <= log_indices[1]:
            return float(np.exp(max(at + log_draws[1] - log_indices[1], 0.0)))
        beyond = max(at - log_indices[-1], 0.0)
        return float(np.exp(np.interp(at, log_indices, log_draws) + beyond))

    def _check_bins(self) -> None:
        rows, probability = np.array(self.num_rows_per_bin), np.array(self.probability_ratio)
        require(
            len(rows) == len(probability) >= 1, "a law needs as many probabilities as bins of rows"
        )
        finite = bool(np.all(np.isfinite(rows)) and np.all(np.isfinite(probability)))
        require(
            finite and bool(np.all(rows >= 0)) and bool(np.all(probability >= 0)),
            "rows and probabilities of a law must be finite and not negative",
        )
        require(bool(np.all(np.diff(probability) <= 0)), "bins of a law must be hottest first")
        _require_sum(float(rows.sum()), self.num_embeddings, "rows of the bins")
        _require_sum(float(rows @ probability), 1.0, "probabilities of all rows")

    def _check_ranges(self) -> None:
        if self.scattered:
            ids = self.num_ids_in_ranges
            require(ids == 0, f"ids_in_ranges {ids} needs rows_per_range, the rows of each range")
            return
        bins = len(self.num_rows_per_bin)
        if any(len(line) != bins for line in self.num_rows_per_range):
            msg = f"each id range must give its rows for each of the {bins} bins"
            raise InvalidValueError(msg)
        require(
            self.num_ids_in_ranges >= 1,
            f"id ranges must divide at least 1 id, got {self.num_ids_in_ranges}",
        )
        total = np.array(self.num_rows_per_range).sum(axis=0)
        drawn = float(total @ np.array(self.probability_ratio))
        require(abs(drawn - 1.0) < 1e-3, f"the id ranges hold {drawn:.4f} of all accesses, not 1")

    def _content(self) -> tuple[object, ...]:
        return (
            self.num_rows_per_bin,
            self.probability_ratio,
            self.num_rows_per_range,
            self.num_ids_in_ranges,
            self.num_unique_curve,
            self.hot_share_ratio,
        )


def _require_sum(value: float, expected: float, name: str) -> None:
    good = abs(value - expected) <= _TOLERANCE_RATIO * expected
    require(good, f"{name} must sum to {expected:g}, got {value:.9g}")


@lru_cache(maxsize=1024)
def _range_curve(law: Empirical) -> FloatArray:
    """Rows per bin below the start of every range, and below the end of the last."""
    rows = np.array(law.num_rows_per_range)
    return np.concatenate([np.zeros((1, rows.shape[1])), np.cumsum(rows, axis=0)])


@lru_cache(maxsize=1024)
def _draws_curve(law: Empirical) -> tuple[FloatArray, FloatArray]:
    """Logs of measured batch sizes (one index first) and of the draws they are worth."""
    points = [(1.0, 1.0)]
    for indices, unique in law.num_unique_curve:
        if indices > 1:
            points.append((indices, max(_draws_for(law, indices, unique), points[-1][1])))
    if len(points) == 1:
        points.append((2.0, 2.0))
    log_points = np.log(np.array(points))
    return log_points[:, 0], log_points[:, 1]


def _draws_for(law: Empirical, indices: float, unique: float) -> float:
    """Draws that are expected to touch ``unique`` rows; ``indices`` itself where that is so."""
    rows, probability = law.frequency_bins()
    log_missed = np.log1p(-np.minimum(probability, 1.0 - 1e-12))

    def expected(draws: float) -> float:
        return float(rows @ -np.expm1(draws * log_missed))

    if abs(expected(indices) - unique) <= _SAME_RATIO * unique:
        return indices
    low, high = np.log(indices / _MOST_REPEATS), np.log(indices / _FEWEST_REPEATS)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if expected(np.exp(middle)) < unique else (low, middle)
    return float(np.exp(high))
