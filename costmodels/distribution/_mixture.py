"""From how often rows were seen to how likely they are: smoothing of sample counts.

A row seen once in a sample is not a row of probability 1/n, and a row never seen is not one of
probability 0. Counts are Poisson with mean n p, so the law behind them is found by the
non-parametric maximum likelihood of a Poisson mixture (Kiefer and Wolfowitz 1956; fitted by EM),
with the rows never seen as counts of zero. Where the counts do not speak against rows that are all
equally likely, that is the law. In expectation the mass it leaves to unseen rows is that
of Good and Turing, N1 / n. Rows seen more than ``LOW_COUNT`` times keep the frequency they show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from costmodels.errors import require

LOW_COUNT: Final = 128
_LOW_CLASSES: Final = (0, 1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97)
_EXACT_RANKS: Final = 16
_RANK_RATIO: Final = 1.25
_GRID_POINTS: Final = 72
_ROUNDS: Final = 500
_ROUNDS_PER_RANGE: Final = 300
_SMALLEST_MASS: Final = 1e-9
_QUANTILE_999: Final = 3.09
_MOST_EVEN_COUNT: Final = LOW_COUNT / 2
"""Mean count up to which no row of an even law is seen more than ``LOW_COUNT`` times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothed:
    """A smoothed law.

    Attributes:
        class_low: smallest count of each count class, ascending; the first class is "never seen".
        num_rows_per_class: rows of each class.
        num_rows: rows of each bin of the law, hottest first; the last bin holds the rows of
            probability 0, and may be empty.
        probability_ratio: of one row of each bin.
        num_draws: accesses expected of one row of each bin in the sample.
        head_bins: bin of each class above ``LOW_COUNT``, ascending; the other bins share the rest.
    """

    class_low: IntArray
    num_rows_per_class: FloatArray
    num_rows: FloatArray
    probability_ratio: FloatArray
    num_draws: FloatArray
    head_bins: IntArray


def smooth(counts: IntArray, rows: IntArray, num_embeddings: int) -> Smoothed:
    """The law behind a sample.

    Args:
        counts: distinct counts of accesses, ascending, each at least 1.
        rows: number of rows that were accessed so often.
        num_embeddings: rows of the table, those never seen included.
    """
    counts, rows = np.asarray(counts, dtype=np.int64), np.asarray(rows, dtype=np.int64)
    seen = int(rows.sum())
    require(len(counts) >= 1, "a sample without any index says nothing about a table")
    require(bool(counts[0] >= 1) and bool(np.all(np.diff(counts) > 0)), "counts must ascend from 1")
    require(
        seen <= num_embeddings,
        f"the sample touched {seen} rows, more than the {num_embeddings} of the table",
    )
    low = _class_bounds(counts, rows)
    values = np.concatenate([[0], counts])
    number = np.concatenate([[num_embeddings - seen], rows]).astype(float)
    class_of = np.searchsorted(low, values, side="right") - 1
    class_rows: FloatArray = np.bincount(class_of, number, minlength=len(low)).astype(float)

    few = values <= LOW_COUNT
    means, mixed = _mixture(values[few], number[few])
    if mixed @ means > 0:
        means = means * (float(values[few] @ number[few]) / float(mixed @ means))

    head_rows = class_rows[len(_LOW_CLASSES) :]
    draws = np.bincount(class_of, values * number, minlength=len(low))[len(_LOW_CLASSES) :]
    all_means = np.concatenate([draws / head_rows, means])
    order = np.argsort(-all_means, kind="stable")
    law_rows = np.concatenate([head_rows, mixed])[order]
    means = all_means[order]
    return Smoothed(
        class_low=low,
        num_rows_per_class=class_rows,
        num_rows=law_rows,
        probability_ratio=means / float(law_rows @ means),
        num_draws=means,
        head_bins=np.argsort(order, kind="stable")[: len(head_rows)],
    )


def smooth_ranges(law: Smoothed, low_counts: FloatArray, head_rows: FloatArray) -> FloatArray:
    """The bins of a law in each of several id ranges, ``[ranges, bins]``.

    Each range is smoothed by itself, starting from the law of the whole table: a row seen once in a
    hot range is likely to be hotter than one seen once in a cold range.

    Args:
        law: of all ranges together.
        low_counts: ``[ranges, LOW_COUNT + 1]``: rows seen 0, 1, 2 ... times.
        head_rows: ``[ranges, classes above LOW_COUNT]``: rows of each class, ascending.
    """
    result = np.zeros((len(low_counts), len(law.num_rows)))
    result[:, law.head_bins] = head_rows
    is_low = np.ones(len(law.num_rows), dtype=bool)
    is_low[law.head_bins] = False
    poisson = _poisson(law.num_draws[is_low])
    alive = law.num_draws[is_low] > 0
    start = law.num_rows[is_low] * poisson[1:].sum(axis=0) + 1e-12
    weights = np.zeros((len(low_counts), int(is_low.sum())))
    weights[:, alive] = _from_seen(poisson[:, alive], low_counts, start[alive])
    weights[:, ~alive] = low_counts.sum(axis=1, keepdims=True) - weights.sum(axis=1, keepdims=True)
    kernel = poisson / poisson.sum(axis=0)
    for _ in range(_ROUNDS_PER_RANGE):
        weights = _round(kernel, low_counts, weights)
    result[:, is_low] = weights
    return result


def _from_seen(poisson: FloatArray, counts: FloatArray, start: FloatArray) -> FloatArray:
    """Rows of each mean by range, from the rows seen alone; at most as many as there are.

    Zero-truncated: to u rows seen of mean m belong u e^-m / (1 - e^-m) that were not.
    """
    kernel = poisson[1:] / poisson[1:].sum(axis=0)
    seen = counts[:, 1:]
    weights = np.outer(seen.sum(axis=1), start / start.sum())
    for _ in range(_ROUNDS_PER_RANGE):
        weights = _round(kernel, seen, weights)
    unseen = weights * (poisson[0] / poisson[1:].sum(axis=0))
    total = np.maximum(unseen.sum(axis=1, keepdims=True), 1e-300)
    return np.asarray(weights + unseen * np.minimum(1.0, counts[:, :1] / total))


def _class_bounds(counts: IntArray, rows: IntArray) -> IntArray:
    """Smallest count of each class: fixed up to ``LOW_COUNT``, then by log-spaced rank."""
    hot = counts > LOW_COUNT
    values, number = counts[hot][::-1], rows[hot][::-1]
    rows_above = np.cumsum(number) - number
    group = np.searchsorted(_rank_edges(float(number.sum())), rows_above, side="right")
    smallest = values[np.flatnonzero(np.diff(group, append=-1))]
    return np.concatenate([np.array(_LOW_CLASSES, dtype=np.int64), smallest[::-1]])


def _rank_edges(last: float) -> FloatArray:
    """Ranks at which a new class starts: each of the first, then ever wider."""
    edges = np.arange(1.0, _EXACT_RANKS + 1)
    if last <= _EXACT_RANKS:
        return edges
    steps = int(np.ceil(np.log(last / _EXACT_RANKS) / np.log(_RANK_RATIO)))
    return np.concatenate([edges, _EXACT_RANKS * _RANK_RATIO ** np.arange(1, steps + 1)])


def _mixture(values: IntArray, number: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means of a Poisson mixture, the first of them 0, and the rows that have them.

    Counts above ``LOW_COUNT`` were cut off, so each Poisson law is the one conditional on that.
    First the rows seen are explained, by zero-truncated laws. If the rows never seen that belong to
    these are no more than there are, the others have mean 0, and this is the maximum; otherwise
    none has, and all rows are explained together.
    """
    never, counts = float(number[0]), np.zeros(LOW_COUNT + 1)
    counts[values] = number
    seen = counts[1:]
    if seen.sum() == 0:
        return np.zeros(1), np.array([never])
    if _looks_even(counts, float(number.sum())):
        mean = float(values @ number) / float(number.sum())
        return np.array([0.0, mean]), np.array([0.0, float(number.sum())])
    means = _grid(never, float(counts[1]))
    poisson = _poisson(means)
    rows = _maximum(poisson[1:], seen, np.full(len(means), seen.sum() / len(means)))
    rows /= poisson[1:].sum(axis=0) / poisson.sum(axis=0)
    if rows.sum() > number.sum():
        rows = _maximum(poisson, counts, rows * (number.sum() / rows.sum()))
    kept = rows * means > _SMALLEST_MASS * max(float(rows @ means), 1.0)
    dead = max(float(number.sum() - rows[kept].sum()), 0.0)
    return np.append(0.0, means[kept]), np.append(dead, rows[kept])


def _looks_even(counts: FloatArray, num_rows: float) -> bool:
    """Whether no more pairs of accesses meet in a row than if all rows were equally likely.

    Of n accesses to E rows n (n - 1) / 2E pairs are expected then, with a variance of that size.
    The maximum of the likelihood follows the few rows that chance has put above the others, so the
    plainer law is kept unless a test at 0.1 % speaks against it.
    """
    every = np.arange(LOW_COUNT + 1.0)
    draws = float(every @ counts)
    pairs, expected = float((every * (every - 1.0)) @ counts) / 2.0, draws * (draws - 1.0)
    expected /= 2.0 * num_rows
    few = draws <= _MOST_EVEN_COUNT * num_rows
    return few and pairs <= expected + _QUANTILE_999 * max(expected, 1.0) ** 0.5


def _grid(never: float, once: float) -> FloatArray:
    """Log-spaced means.

    The smallest would spread the unseen mass over twice the rows never seen, or leave one row seen
    twice: what is smaller cannot be told apart.
    """
    spread = 0.5 * once / max(never, 1.0)
    smallest = min(0.02, max(spread, 2.0 / max(once, 1.0)))
    return np.geomspace(smallest, 1.3 * LOW_COUNT, _GRID_POINTS)


def _poisson(means: FloatArray) -> FloatArray:
    """P(count | mean) for counts up to ``LOW_COUNT``, ``[counts, means]``."""
    every = np.arange(LOW_COUNT + 1.0)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(every[1:]))])
    log_mean = np.log(np.maximum(means, 1e-300))
    return np.asarray(np.exp(np.outer(every, log_mean) - means - log_factorial[:, None]))


def _maximum(poisson: FloatArray, counts: FloatArray, weights: FloatArray) -> FloatArray:
    """Weights of the maximum likelihood, by accelerated EM."""
    kernel = poisson / poisson.sum(axis=0)
    for _ in range(_ROUNDS):
        weights = _accelerated(kernel, counts, weights)
    return weights


def _accelerated(kernel: FloatArray, counts: FloatArray, weights: FloatArray) -> FloatArray:
    """Three rounds of EM, the third from an extrapolated point (SQUAREM, Varadhan 2008)."""
    first = _round(kernel, counts, weights)
    second = _round(kernel, counts, first)
    step, bend = first - weights, (second - first) - (first - weights)
    size = float(bend @ bend)
    stride = -1.0 if size <= 0 else min(-1.0, -float(np.sqrt((step @ step) / size)))
    ahead = weights - 2.0 * stride * step + stride * stride * bend
    ahead = np.where(ahead > 0, ahead, second)
    ahead *= counts.sum() / ahead.sum()
    return _round(kernel, counts, ahead)


def _round(kernel: FloatArray, counts: FloatArray, weights: FloatArray) -> FloatArray:
    """One round of EM; any number of samples at once, one a row."""
    expected = np.maximum(weights @ kernel.T, 1e-300)
    return np.asarray(weights * ((counts / expected) @ kernel))
