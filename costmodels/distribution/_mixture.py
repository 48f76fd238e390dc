"""From how often rows were seen to how likely they are: smoothing of sample counts.

A row seen once in a sample is not a row of probability 1/n, and a row never seen is not one of
probability 0. Counts are Poisson with mean n p, so the law behind them is found by the
non-parametric maximum likelihood of a Poisson mixture (Kiefer and Wolfowitz 1956; fitted by EM),
with the rows never seen as counts of zero. In expectation the mass it leaves to unseen rows is that
of Good and Turing, N1 / n. Rows seen more than ``LOW_COUNT`` times keep the frequency they show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from costmodels.errors import require

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LOW_COUNT: Final = 128
_LOW_CLASSES: Final = (0, 1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97)
_EXACT_RANKS: Final = 16
_RANK_RATIO: Final = 1.25
_GRID_POINTS: Final = 72
_ROUNDS: Final = 300
_SMALLEST_MASS: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Smoothed:
    """A smoothed law.

    Attributes:
        class_low: smallest count of each count class, ascending; the first class is "never seen".
        class_rows: rows of each class.
        rows: rows of each bin of the law, hottest first; the last bin holds the rows of
            probability 0, and may be empty.
        probability: of one row of each bin.
        membership: ``[classes, bins]``: how the rows of a class spread over the bins; sums to 1.
    """

    class_low: IntArray
    class_rows: FloatArray
    rows: FloatArray
    probability: FloatArray
    membership: FloatArray


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
    class_rows = np.bincount(class_of, number, minlength=len(low))
    num_draws = float(counts @ rows)

    few = values <= LOW_COUNT
    means, posterior = _mixture(values[few].astype(float), number[few])
    low_classes = len(_LOW_CLASSES)
    low_membership = _by_class(class_of[few], number[few], posterior, low_classes)
    low_draws = class_rows[:low_classes] @ low_membership @ means
    if low_draws > 0:
        means = means * (float(values[few] @ number[few]) / low_draws)

    head_draws = np.bincount(class_of, values * number, minlength=len(low))[low_classes:]
    all_means = np.concatenate([head_draws / class_rows[low_classes:], means])
    num_head = len(low) - low_classes
    membership = np.zeros((len(low), len(all_means)))
    membership[low_classes:, :num_head] = np.eye(num_head)
    membership[:low_classes, num_head:] = low_membership
    order = np.argsort(-all_means, kind="stable")
    probability, membership = all_means[order] / num_draws, membership[:, order]
    law_rows = class_rows @ membership
    probability = probability / float(law_rows @ probability)
    return Smoothed(low, class_rows, law_rows, probability, membership)


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


def _mixture(values: FloatArray, number: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means of a Poisson mixture and, per count, how likely each mean is behind it.

    Counts above ``LOW_COUNT`` were cut off, so each Poisson law is the one conditional on that.
    """
    means = _grid(number)
    kernel = _truncated_poisson(values, means)
    weights = np.full(len(means), number.sum() / len(means))
    for _ in range(_ROUNDS):
        weights = _accelerated(kernel, number, weights)
    joint = kernel * weights
    posterior = joint / joint.sum(axis=1, keepdims=True)
    rows = number @ posterior
    mass = rows * means
    kept = (mass > _SMALLEST_MASS * max(float(mass.sum()), 1.0)) | (means == 0)
    posterior = posterior[:, kept]
    return means[kept], posterior / posterior.sum(axis=1, keepdims=True)


def _accelerated(kernel: FloatArray, number: FloatArray, weights: FloatArray) -> FloatArray:
    """Three rounds of EM, the third from an extrapolated point (SQUAREM, Varadhan 2008)."""
    first = _round(kernel, number, weights)
    second = _round(kernel, number, first)
    step, bend = first - weights, (second - first) - (first - weights)
    size = float(bend @ bend)
    stride = -1.0 if size <= 0 else min(-1.0, -float(np.sqrt((step @ step) / size)))
    ahead = weights - 2.0 * stride * step + stride * stride * bend
    ahead = np.where(ahead > 0, ahead, second)
    ahead *= number.sum() / ahead.sum()
    return _round(kernel, number, ahead)


def _round(kernel: FloatArray, number: FloatArray, weights: FloatArray) -> FloatArray:
    return np.asarray(weights * ((number / np.maximum(kernel @ weights, 1e-300)) @ kernel))


def _grid(number: FloatArray) -> FloatArray:
    """Log-spaced means; the smallest spreads the unseen mass over all rows never seen."""
    never, once = float(number[0]), float(number[1]) if len(number) > 1 else 0.0
    spread = 0.5 * max(once, 1.0) / max(never, 1.0)
    smallest = min(0.02, max(spread, 1e-7))
    return np.concatenate([[0.0], np.geomspace(smallest, 1.3 * LOW_COUNT, _GRID_POINTS)])


def _truncated_poisson(values: FloatArray, means: FloatArray) -> FloatArray:
    """P(count | mean, count <= ``LOW_COUNT``), ``[values, means]``."""
    every = np.arange(LOW_COUNT + 1.0)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(every[1:]))])
    log_mean = np.log(np.maximum(means, 1e-300))
    full = np.exp(np.outer(every, log_mean) - means - log_factorial[:, None])
    return np.asarray((full / full.sum(axis=0))[values.astype(np.int64)])


def _by_class(
    class_of: IntArray, number: FloatArray, posterior: FloatArray, num_classes: int
) -> FloatArray:
    """Posterior of a class: that of its counts, weighted by their rows."""
    membership = np.zeros((num_classes, posterior.shape[1]))
    np.add.at(membership, class_of, number[:, None] * posterior)
    total = membership.sum(axis=1, keepdims=True)
    membership[total[:, 0] == 0, 0] = 1.0
    return np.asarray(membership / np.maximum(membership.sum(axis=1, keepdims=True), 1e-300))
