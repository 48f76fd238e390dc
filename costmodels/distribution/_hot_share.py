"""What a sample of accesses tells about the share of accesses on the hottest rows of a table.

Rows that a sample shows once or never look alike, although some may be much hotter than others. So
a sample gives only a lower and an upper bound on the share:

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
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray

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
