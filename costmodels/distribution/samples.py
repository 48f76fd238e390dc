"""What a sample of accesses tells about a table.

**The share of accesses on its hottest rows.** Rows that a sample shows once or never look alike,
although some may be much hotter than others. So a sample gives only a lower and an upper bound on
the share:

- Lower bound, by leaving out: each access is left out in turn, and rows are ranked by the accesses
  that remain. The rows that are ranked first get, in expectation, no more of the left-out accesses
  than the rows that are really hottest. (Good 1953: the N_k rows that are seen k times hold
  (k + 1) N_(k+1) / n of all accesses, of which the sample has n.)
- Upper bound, by the most uneven law: let the sum and the sum of squares of the probabilities of
  some rows be known, and let c be their coefficient of variation. A part f of these rows then holds
  at most the share f + c sqrt(f (1 - f)) of their accesses (Cauchy and Schwarz). The sum of squares
  is estimated from pairs of accesses to the same row. Rows that are seen often are left out of this
  and hold the share that they were seen with. The bound is computed for several meanings of "often"
  (``_SEEN_OFTEN``), and the lowest one is taken.

**Smoothing: from how often rows were seen to how likely they are.** A row that was seen once in n
accesses need not have the probability 1/n, and a row that was never seen need not have the
probability 0. The count of a row of probability p follows a Poisson law of mean n p. The law behind
the counts is therefore a mixture of Poisson laws. It is found by non-parametric maximum likelihood
(Kiefer and Wolfowitz 1956), computed by the EM algorithm, in which rows that were never seen have
the count 0. If the counts do not contradict a law with equally likely rows, that law is taken
instead. Rows that were seen more than ``LOW_COUNT`` times keep the frequency that they were seen
with.

In expectation, the law gives to the rows that were never seen the probability of Good and Turing,
N1 / n, where N1 rows were seen once.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from costmodels.errors import require

_SEEN_OFTEN: Final = (-1, 0, 1, 2, 4, 8, 16, 32, 64, 128)
"""Counts above which a row is taken to be seen often. With -1 no row is: all rows of the table are
bounded by their pairs of accesses, those that were never seen included."""
_ALIKE: Final = 128
"""Rows with more accesses keep their rank when one access is left out; that changes little."""
_QUANTILE_95: Final = 1.645
"""95 % quantile of the normal law: the number of pairs is raised by so many standard deviations."""
_LARGEST: Final = 256
"""Largest count that the expected counts of a sample list one by one. Bins with an expected count
above half of it are listed with that count, because then counts of single rows matter little."""
_DOUBLINGS: Final = 20
"""How often a sample is doubled in thought; 2^20 is about a million."""
HOTTEST_RATIO: Final = 0.01
"""Hottest rows whose share of the accesses is asked for, over all rows of a table."""
WIDEST_RANGE_RATIO: Final = 0.05
"""Widest range of that share with which a sample counts as large enough."""


def hot_share_range(
    counts: FloatArray, rows: FloatArray, num_embeddings: float, num_hottest: float
) -> tuple[float, float]:
    """The least and the most share (0..1) of accesses that the hottest rows may have.

    Args:
        counts: ``[n]`` different counts of accesses, ascending, each at least 1.
        rows: ``[n]`` rows that were accessed so often.
        num_embeddings: rows of the table.
        num_hottest: how many hottest rows are asked about, up to all rows.
    """
    low = _held_out(counts, rows, num_embeddings, num_hottest)
    bounds = [_bound(counts, rows, num_embeddings, num_hottest, often) for often in _SEEN_OFTEN]
    return low, min(1.0, max(low, *[min(bounds)]))


def _held_out(
    counts: FloatArray, rows: FloatArray, num_embeddings: float, num_hottest: float
) -> float:
    """The lower bound, by leaving out each access in turn; arguments as in the caller."""
    accesses = counts * rows
    # An access to a row with count k is left out, so that the row is ranked among those with k - 1.
    # ``ranked`` is how many rows are ranked as high as that row or higher.
    shift = np.where(counts <= _ALIKE + 1, counts - 1, counts)
    ranked = np.array([rows[counts >= max(k, 1)].sum() for k in shift[::-1]])
    ranked[shift[::-1] == 0] = num_embeddings
    captured = np.cumsum(accesses[::-1]) / accesses.sum()
    return float(np.interp(num_hottest, [0.0, *ranked, num_embeddings], [0.0, *captured, 1.0]))


def _bound(
    counts: FloatArray, rows: FloatArray, num_embeddings: float, num_hottest: float, often: int
) -> float:
    """The upper bound if the rows seen more than ``often`` times hold what they were seen with."""
    total = float(counts @ rows)
    known = counts > often if often >= 0 else np.zeros(len(counts), dtype=bool)
    num_known = float(rows[known].sum())
    if num_known >= num_hottest:
        above = np.cumsum(rows[::-1])
        share = np.cumsum((counts * rows)[::-1]) / total
        return float(np.interp(num_hottest, [0.0, *above], [0.0, *share]))
    # The other rows were seen at most ``often`` times. As for the lower bound, what they hold is
    # estimated from the accesses whose row has no more than ``often`` others, and their squares
    # from the pairs of accesses whose row has no more than ``often`` others.
    others = num_embeddings - num_known
    single = counts <= often + 1 if often >= 0 else np.ones(len(counts), dtype=bool)
    double = counts <= often + 2 if often >= 0 else single
    mass = float((counts * rows)[single].sum()) / total
    pairs = counts * (counts - 1.0) / 2.0
    found = float((pairs * rows)[double].sum())
    spread = _QUANTILE_95 * math.sqrt(float((pairs**2 * rows)[double].sum()) + 1.0)
    squares = 2.0 * (found + spread) / total**2
    part = (num_hottest - num_known) / others
    if mass <= 0:
        return 1.0
    variation = math.sqrt(max(others * squares / mass**2 - 1.0, 0.0))
    return 1.0 - mass + mass * min(1.0, part + math.sqrt(part * (1.0 - part)) * variation)


def draws_needed(
    bins: tuple[FloatArray, FloatArray], num_draws: float, num_hottest: float
) -> float | None:
    """How many accesses a sample needs to tell the share of the hottest rows, if this is the law.

    The range of the share is computed from the counts that are expected in samples with 2, 4, 8 ...
    times as many accesses as the sample at hand.

    Args:
        bins: rows of each bin of the law, and the probability of one row of each bin.
        num_draws: accesses of the sample at hand.
        num_hottest: how many hottest rows are asked about.

    Returns:
        The number of accesses; None if a million times as many as at hand are too few.
    """
    rows, probability = bins
    every = np.arange(1.0, _LARGEST + 1)
    log_factorial = np.cumsum(np.log(every))
    for doubling in range(1, _DOUBLINGS + 1):
        draws = num_draws * 2.0**doubling
        means = probability * draws
        often = means > _LARGEST / 2
        few = (means > 0) & ~often
        log_poisson = np.outer(every, np.log(means[few])) - means[few] - log_factorial[:, None]
        counts = np.concatenate([every, means[often][::-1]])
        expected = np.concatenate([np.exp(log_poisson) @ rows[few], rows[often][::-1]])
        low, high = hot_share_range(counts, expected, float(rows.sum()), num_hottest)
        if tells(low, high):
            return draws
    return None


def tells(low_ratio: float, high_ratio: float) -> bool:
    """Whether a range of shares is narrow enough to plan with (``WIDEST_RANGE_RATIO``)."""
    return high_ratio - low_ratio <= WIDEST_RANGE_RATIO


LOW_COUNT: Final = 128
"""Largest count that is smoothed. Above it the relative error of a count is below 9 %."""
_LOW_CLASSES: Final = (0, 1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97)
"""Smallest count of each class up to ``LOW_COUNT``; classes get wider where counts tell less."""
_EXACT_RANKS: Final = 16
"""Rows above ``LOW_COUNT``, hottest first, that have classes of their own."""
_RANK_RATIO: Final = 1.25
"""Rank at the end of a class over that at its start, for all other rows above ``LOW_COUNT``."""
_GRID_POINTS: Final = 72
"""Means that the mixture may have. More would make each round slower, fewer the law coarser."""
_ROUNDS: Final = 500
"""Accelerated rounds of EM for the law of a table. EM gains ever less with each round."""
_ROUNDS_PER_RANGE: Final = 300
"""Plain rounds of EM for an id range. They begin near the answer, at the law of the table."""
_SMALLEST_MASS: Final = 1e-9
"""Share of all accesses below which a mean of the mixture is left out of the law."""
_QUANTILE_999: Final = 3.09
"""99.9 % quantile of the normal law, for the test in :func:`_looks_even`."""
_MOST_EVEN_COUNT: Final = LOW_COUNT / 2
"""Largest mean count of a row for which that test is made. At this mean, no row of a law with
equally likely rows is seen more than ``LOW_COUNT`` times, so that no count is cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothed:
    """A smoothed law.

    Attributes:
        class_low: ``[classes]`` smallest count of each class of counts, ascending; the first class
            is that of the rows never seen.
        num_rows_per_class: ``[classes]`` rows that were seen so often.
        num_rows: ``[bins]`` rows of each bin of the law, hottest first; the last bin holds the rows
            of probability 0, and may be empty.
        num_draws: ``[bins]`` accesses of one row of each bin that are expected in the sample.
        head_bins: the bin of each class above ``LOW_COUNT``, in the order of the classes; all other
            bins belong to the mixture.
    """

    class_low: IntArray
    num_rows_per_class: FloatArray
    num_rows: FloatArray
    num_draws: FloatArray
    head_bins: IntArray


def smooth(counts: IntArray, rows: IntArray, num_embeddings: int) -> Smoothed:
    """The law behind a sample.

    Args:
        counts: ``[n]`` different counts of accesses, ascending, each at least 1.
        rows: ``[n]`` rows that were accessed so often.
        num_embeddings: rows of the table, those never seen included.

    Raises:
        InvalidValueError: the sample is empty, its counts do not ascend, or it has more rows than
            the table.
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
    # The mixture must have as many accesses as the sample: EM ends before this is quite exact.
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
        num_draws=means,
        head_bins=np.argsort(order, kind="stable")[: len(head_rows)],
    )


def smooth_ranges(law: Smoothed, low_counts: FloatArray, head_rows: FloatArray) -> FloatArray:
    """The rows of each bin of a law in each of several id ranges, ``[ranges, bins]``.

    Each range is smoothed by itself, beginning with the law of the whole table. A row that was seen
    once in a hot range is likely to be hotter than one that was seen once in a cold range.

    Args:
        law: the law of all ranges together.
        low_counts: ``[ranges, LOW_COUNT + 1]`` rows of each range that were seen 0, 1, 2 ... times.
        head_rows: ``[ranges, classes above LOW_COUNT]`` rows of each range in each of these
            classes, in the order of the classes.
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
    """Rows of each mean in each range, ``[ranges, means]``, fitted to the rows that were seen.

    If u rows of mean m were seen, u e^-m / (1 - e^-m) more rows of this mean are expected that were
    not seen. These are added, scaled down if the range has fewer rows that were never seen.

    Args:
        poisson: ``[LOW_COUNT + 1, means]`` probability of each count.
        counts: ``[ranges, LOW_COUNT + 1]`` rows seen 0, 1, 2 ... times.
        start: ``[means]`` proportions of the means that the fit begins with.
    """
    kernel = poisson[1:] / poisson[1:].sum(axis=0)
    seen = counts[:, 1:]
    weights = np.outer(seen.sum(axis=1), start / start.sum())
    for _ in range(_ROUNDS_PER_RANGE):
        weights = _round(kernel, seen, weights)
    unseen = weights * (poisson[0] / poisson[1:].sum(axis=0))
    total = np.maximum(unseen.sum(axis=1, keepdims=True), 1e-300)
    with np.errstate(over="ignore"):  # a total of next to nothing
        share = np.minimum(1.0, counts[:, :1] / total)
    return np.asarray(weights + unseen * share)


def _class_bounds(counts: IntArray, rows: IntArray) -> IntArray:
    """Smallest count of each class: ``_LOW_CLASSES``, then classes by rank in hotness."""
    hot = counts > LOW_COUNT
    values, number = counts[hot][::-1], rows[hot][::-1]
    rows_above = np.cumsum(number) - number
    group = np.searchsorted(_rank_edges(float(number.sum())), rows_above, side="right")
    smallest = values[np.flatnonzero(np.diff(group, append=-1))]
    return np.concatenate([np.array(_LOW_CLASSES, dtype=np.int64), smallest[::-1]])


def _rank_edges(last: float) -> FloatArray:
    """Ranks at which a new class starts, up to ``last``: each of the first ones, then wider."""
    edges = np.arange(1.0, _EXACT_RANKS + 1)
    if last <= _EXACT_RANKS:
        return edges
    steps = int(np.ceil(np.log(last / _EXACT_RANKS) / np.log(_RANK_RATIO)))
    return np.concatenate([edges, _EXACT_RANKS * _RANK_RATIO ** np.arange(1, steps + 1)])


def _mixture(values: IntArray, number: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The means of a mixture of Poisson laws, and how many rows have each mean.

    Rows with counts above ``LOW_COUNT`` are left out, so each Poisson law is conditional on a count
    up to it. First a mixture is fitted to the rows that were seen, by Poisson laws without the
    count 0. It implies a number of rows that were never seen. If the table has at least as many,
    the remaining ones have mean 0, and this is the maximum of the likelihood. Otherwise no row has
    mean 0, and a mixture is fitted to all rows.

    Args:
        values: ``[n]`` different counts, ascending, the first of them 0.
        number: ``[n]`` rows with each count.

    Returns:
        Means, of which the first is 0, and the rows with each mean.
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
    """Whether the counts do not contradict a law with equally likely rows.

    Then n accesses to E rows have n (n - 1) / 2E pairs of accesses to the same row in expectation,
    with a variance of the same size. More pairs than that contradict the law in a test at 0.1 %.
    Without this test the maximum of the likelihood would give a higher probability to the few rows
    that chance has put above the others.
    """
    every = np.arange(LOW_COUNT + 1.0)
    draws = float(every @ counts)
    pairs, expected = float((every * (every - 1.0)) @ counts) / 2.0, draws * (draws - 1.0)
    expected /= 2.0 * num_rows
    few = draws <= _MOST_EVEN_COUNT * num_rows
    return few and pairs <= expected + _QUANTILE_999 * max(expected, 1.0) ** 0.5


def _grid(never: float, once: float) -> FloatArray:
    """The log-spaced means that a mixture may have.

    The smallest mean is the larger of two, and at most 0.02. With the first, the probability of the
    rows never seen would be spread over twice as many rows as there are. With the second, one row
    would be expected to be seen twice, beside the rows seen once. Smaller means cannot be told
    apart. The largest mean is above ``LOW_COUNT``, because rows of such means may have counts below
    it.

    Args:
        never: rows that were never seen.
        once: rows that were seen once.
    """
    spread = 0.5 * once / max(never, 1.0)
    smallest = min(0.02, max(spread, 2.0 / max(once, 1.0)))
    return np.geomspace(smallest, 1.3 * LOW_COUNT, _GRID_POINTS)


def _poisson(means: FloatArray) -> FloatArray:
    """Probability of each count up to ``LOW_COUNT`` for each mean, ``[counts, means]``."""
    every = np.arange(LOW_COUNT + 1.0)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(every[1:]))])
    log_mean = np.log(np.maximum(means, 1e-300))
    return np.asarray(np.exp(np.outer(every, log_mean) - means - log_factorial[:, None]))


def _maximum(poisson: FloatArray, counts: FloatArray, weights: FloatArray) -> FloatArray:
    """Rows of each mean ``[means]`` with the largest likelihood, by accelerated EM.

    Args:
        poisson: ``[counts, means]`` probability of each count, up to a factor for each mean.
        counts: ``[counts]`` rows with each count.
        weights: ``[means]`` the rows of each mean that the rounds begin with, all above 0.
    """
    kernel = poisson / poisson.sum(axis=0)
    for _ in range(_ROUNDS):
        weights = _accelerated(kernel, counts, weights)
    return weights


def _accelerated(kernel: FloatArray, counts: FloatArray, weights: FloatArray) -> FloatArray:
    """Three rounds of EM, the third from an extrapolation of the first two.

    This is SQUAREM (Varadhan and Roland 2008). Weights that the extrapolation would make negative
    are taken from the second round.
    """
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
    """One round of EM, for one sample ``[means]`` or many ``[samples, means]``.

    Args:
        kernel: ``[counts, means]`` probability of each count, summing to 1 over counts.
        counts: ``[..., counts]`` rows with each count.
        weights: ``[..., means]`` rows of each mean so far.
    """
    expected = np.maximum(weights @ kernel.T, 1e-300)
    return np.asarray(weights * ((counts / expected) @ kernel))
