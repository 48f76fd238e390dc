"""Lower bounds of linear programs that hold whatever a solver says.

For a program ``min c x`` over ``lower <= A x <= upper`` and ``least <= x <= most`` every vector
``y`` of row prices gives a lower bound (weak duality): with ``d = c - y A``,

    bound(y) = sum_i (y_i lower_i if y_i > 0 else y_i upper_i) + least value of d x over the x.

So a solver only proposes ``y``; the bound is computed here, and poor prices give a poor bound,
never a wrong one. What rounding can have added is taken off: a sum of n products is off by at most
``n eps / (1 - n eps)`` times the sum of their sizes (Neumaier and Shcherbina, Safe bounds in linear
and mixed-integer linear programming, Mathematical Programming 99, 2004; Higham, Accuracy and
Stability of Numerical Algorithms, section 3.1).

A variable without an upper limit allows no negative ``d``. Prices that leave one are scaled down
until none is left, which a solver's tolerances make necessary all the time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from planner.search.common.programs import MilpProgram

_EPS: Final = float(np.finfo(np.float64).eps)
_SHRINK: Final = 1.0 - 1e-12
"""Scaled prices are a little smaller than they need to be, so that rounding leaves nothing."""


def safe_bound(program: MilpProgram, prices: FloatArray) -> tuple[float, FloatArray]:
    """The bound that row prices prove, and what each variable adds to it at least.

    Args:
        program: what is minimised; integers are taken for continuous.
        prices: one per row, from any source.

    Returns:
        The bound, minus infinity where the prices prove nothing; and what the bound rises by at
        least for each unit of a variable (of a group: where that variable is the one that is 1).
    """
    y = _usable(program, prices)
    y = _scaled(program, y)
    d, error = _reduced(program, y)
    low = d - error
    endless = np.isinf(program.upper)
    if (low[endless] < 0).any():
        return -np.inf, low
    least, size = _least(program, low)
    limits = np.where(y > 0, program.rows.lower, program.rows.upper)
    terms = np.where(y == 0, 0.0, y * np.where(y == 0, 0.0, limits))
    total, sizes = float(terms.sum()) + least, float(np.abs(terms).sum()) + size
    return total - float(_rounding(len(terms) + len(d) + 2)) * sizes, _above_least(program, low)


def _usable(program: MilpProgram, prices: FloatArray) -> FloatArray:
    """Prices of limits that exist."""
    y = np.where(np.isfinite(prices), prices, 0.0)
    y = np.where((y > 0) & np.isinf(program.rows.lower), 0.0, y)
    return np.asarray(np.where((y < 0) & np.isinf(program.rows.upper), 0.0, y))


def _reduced(program: MilpProgram, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``c - y A`` and how far rounding may have moved each of it."""
    rows, size = program.rows, len(program.cost)
    products = y[rows.row] * rows.values
    total = np.bincount(rows.column, products, size)
    sizes = np.bincount(rows.column, np.abs(products), size) + np.abs(program.cost)
    counts = np.bincount(rows.column, minlength=size) + 2
    return program.cost - total, _rounding(counts) * sizes


def _scaled(program: MilpProgram, y: FloatArray) -> FloatArray:
    """Prices under which no variable without an upper limit has a negative reduced cost.

    The last variable goes first: it is the objective of programs that minimise a maximum, and its
    rows hold the other variables too. A price that lowers a reduced cost is scaled by the factor
    that leaves nothing negative there. That may leave another variable short, as a phase's maximum
    does its means, so the others have two turns.
    """
    endless = np.isinf(program.upper)
    last = np.zeros_like(endless)
    last[-1] = endless[-1]
    for group in (last, endless & ~last, endless & ~last):
        if not group.any():
            continue
        rows = program.rows
        products = y[rows.row] * rows.values
        counted = group[rows.column] & (products > 0)
        lowers = np.bincount(rows.column[counted], products[counted], len(group))
        lifts = program.cost - np.bincount(rows.column[~counted], products[~counted], len(group))
        d, error = _reduced(program, y)
        short = group & (d - error < 0)
        if not short.any():
            continue
        room = np.maximum(lifts - 4.0 * error, 0.0)
        factor = np.ones(len(group))
        factor[short] = np.minimum(room[short] / np.maximum(lowers[short], 1e-300), 1.0) * _SHRINK
        by_row = np.ones(len(y))
        np.minimum.at(by_row, rows.row[counted], factor[rows.column[counted]])
        y = y * by_row
    return y


def _least(program: MilpProgram, low: FloatArray) -> tuple[float, float]:
    """Least ``low @ x`` over the variables' limits, and the size of its terms.

    Of variables of which exactly one is 1 the cheapest that may be chosen counts, otherwise those
    that are negative, at their limits.
    """
    most = np.where(np.isfinite(program.upper), program.upper, 0.0)
    terms = np.where(low < 0, low * most, low * program.lower)
    each = np.zeros(0)
    if program.groups is not None:
        count = len(program.groups)
        terms[:count] = 0.0
        each = np.full(int(program.groups[-1]) + 1, np.inf)
        shown = np.where(program.upper[:count] > 0, low[:count], np.inf)
        np.minimum.at(each, program.groups, shown)
    sizes = np.abs(terms).sum() + np.abs(each[np.isfinite(each)]).sum()
    return float(terms.sum() + each.sum()), float(sizes)


def _above_least(program: MilpProgram, low: FloatArray) -> FloatArray:
    """Reduced costs, those of a group above its least."""
    if program.groups is None:
        return low
    count = len(program.groups)
    each = np.full(int(program.groups[-1]) + 1, np.inf)
    np.minimum.at(each, program.groups, np.where(program.upper[:count] > 0, low[:count], np.inf))
    risen = low.copy()
    risen[:count] -= np.where(np.isfinite(each), each, 0.0)[program.groups]
    return risen


def _rounding(count: FloatArray | IntArray | int) -> FloatArray:
    """Largest relative error of a sum of ``count`` products."""
    share = np.asarray(count) * _EPS
    return np.asarray(share / (1.0 - share))
