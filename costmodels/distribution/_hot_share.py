"""What a sample can tell about the share of accesses that falls on the hottest rows.

Rows that a sample shows once or never look alike, however unlike they are. Two shares enclose the
truth:

- Held out: leave each access out in turn and rank rows by the others. What falls on the rows ranked
  first is, in expectation, no more than falls on the rows that are hottest (Good 1953: rows seen k
  times hold (k + 1) N_(k+1) / n of all accesses, N_k of them).
- Most uneven: rows whose sum and sum of squares of probabilities are known hold no more on a part f
  of them than f + sqrt(f (1 - f)) times their coefficient of variation (Cauchy and Schwarz). Pairs
  of accesses to one row tell the sum of squares. Rows seen more than some times count as they were
  seen; the least of the bounds for several such times is taken.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray

_SEEN_OFTEN: Final = (-1, 0, 1, 2, 4, 8, 16, 32, 64, 128)
"""Counts above which rows count as they were seen; the first means all rows are bounded by their
pairs, rows never seen too."""
_ALIKE: Final = 128
"""Above this count one access more or less changes no ranking worth speaking of."""
_QUANTILE_95: Final = 1.645
_LARGEST: Final = 256
_DOUBLINGS: Final = 20
HOTTEST_RATIO: Final = 0.01
"""Rows whose share of the accesses is asked for, over all rows of a table."""
WIDEST_RANGE_RATIO: Final = 0.05
"""Range of that share beyond which a sample counts as too small."""


def hot_share_range(
    counts: FloatArray, rows: FloatArray, num_embeddings: float, num_hottest: float
) -> tuple[float, float]:
    """Shares (0..1) of the hottest rows, the least and the most that the sample allows.

    Args:
        counts: distinct counts of accesses, ascending, each at least 1.
        rows: rows that were accessed so often.
        num_embeddings: rows of the table.
        num_hottest: how many hottest rows, up to all.
    """
    low = _held_out(counts, rows, num_embeddings, num_hottest)
    bounds = [_bound(counts, rows, num_embeddings, num_hottest, often) for often in _SEEN_OFTEN]
    return low, min(1.0, max(low, *[min(bounds)]))


def _held_out(
    counts: FloatArray, rows: FloatArray, num_embeddings: float, num_hottest: float
) -> float:
    accesses = counts * rows
    shift = np.where(counts <= _ALIKE + 1, counts - 1, counts)
    ranked = np.array([rows[counts >= max(k, 1)].sum() for k in shift[::-1]])
    ranked[shift[::-1] == 0] = num_embeddings
    captured = np.cumsum(accesses[::-1]) / accesses.sum()
    return float(np.interp(num_hottest, [0.0, *ranked, num_embeddings], [0.0, *captured, 1.0]))


def _bound(
    counts: FloatArray, rows: FloatArray, num_embeddings: float, num_hottest: float, often: int
) -> float:
    """Most that the hottest rows can hold if those seen more than ``often`` times are known."""
    total = float(counts @ rows)
    known = counts > often if often >= 0 else np.zeros(len(counts), dtype=bool)
    num_known = float(rows[known].sum())
    if num_known >= num_hottest:
        above = np.cumsum(rows[::-1])
        share = np.cumsum((counts * rows)[::-1]) / total
        return float(np.interp(num_hottest, [0.0, *above], [0.0, *share]))
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
    """Accesses of a sample that tells the share of the hottest rows, were this the law.

    The range is computed for the counts expected of 2, 4, 8 ... times as many accesses.

    Args:
        bins: rows and probabilities of the law.
        num_draws: accesses of the sample there is.
        num_hottest: how many hottest rows.

    Returns:
        None if a million times as many would not do.
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
    """Whether a range of shares is narrow enough to plan with."""
    return high_ratio - low_ratio <= WIDEST_RANGE_RATIO
