"""Lower bounds of linear programs that are true whatever a solver says.

For a program ``min c x`` over ``lower <= A x <= upper`` and ``least <= x <= most`` every vector
``y`` of row prices gives a lower bound (weak duality): with ``d = c - y A``,

    bound(y) = sum_i (y_i lower_i if y_i > 0 else y_i upper_i) + least value of d x over the x.

A solver only proposes ``y``, and the bound is computed here: poor prices give a low bound, never a
wrong one. What rounding can have added is taken off: a sum of n products is off by at most
``n eps / (1 - n eps)`` times the sum of their sizes (Neumaier and Shcherbina, Safe bounds in linear
and mixed-integer linear programming, Mathematical Programming 99, 2004; Higham, Accuracy and
Stability of Numerical Algorithms, section 3.1).

If a variable without an upper limit had a negative ``d``, the least value would be minus infinity.
Solvers leave slightly negative ones all the time, within their tolerances. Such prices are scaled
down until no ``d`` of these variables is negative.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from planner.search.common.lp import LinearProgram

_EPS: Final = float(np.finfo(np.float64).eps)
"""Distance from 1 to the next number of double precision: twice the largest rounding error of one
operation, as a share."""
_SHRINK: Final = 1.0 - 1e-12
"""Prices that are scaled down are made smaller by this further factor, so that rounding leaves no
reduced cost below 0. It costs the bound as small a share."""

_PAYING_ROUNDS: Final = 3
"""Rounds in which first prices are passed on: from the objective to phases, from those to means."""


def safe_bound(program: LinearProgram, prices: FloatArray) -> tuple[float, FloatArray]:
    """The bound that row prices prove, and the reduced costs that go with it.

    Args:
        program: what is minimised; whole variables are taken for continuous ones.
        prices: one per row, from any source.

    Returns:
        The bound, minus infinity if the prices prove nothing; and by how much the bound rises at
        least for each unit of a variable. For a variable of a group: by how much it rises if that
        variable is the one of its group that is 1.
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


def first_prices(program: LinearProgram) -> FloatArray:
    """Row prices of a program that no solver has finished, which prove more than none at all.

    Variables without an upper limit are paid for in turn, the last one first, which is the
    objective in programs that minimise a maximum: what a variable costs becomes the price of the
    row with the most coefficients among those that hold it from below. Variables that such a row
    has on its other side are paid for in the next round.
    """
    rows, y = program.rows, np.zeros(len(program.rows.lower))
    length = np.bincount(rows.row, minlength=len(y))
    holds = np.where(
        rows.values > 0, np.isfinite(rows.lower[rows.row]), np.isfinite(rows.upper[rows.row])
    )
    endless = np.flatnonzero(np.isinf(program.upper))[::-1]
    entries = {column: np.flatnonzero(rows.column == column) for column in endless}
    for column in np.tile(endless, _PAYING_ROUNDS):
        mine = entries[column]
        cost = program.cost[column] - float(y[rows.row[mine]] @ rows.values[mine])
        below = mine[holds[mine] & (rows.values[mine] != 0)]
        if cost > 0 and len(below):
            entry = below[int(np.argmax(length[rows.row[below]]))]
            y[rows.row[entry]] += cost / rows.values[entry]
    return y


def _usable(program: LinearProgram, prices: FloatArray) -> FloatArray:
    """The prices, with 0 for limits that do not exist and for what is not a number."""
    y = np.where(np.isfinite(prices), prices, 0.0)
    y = np.where((y > 0) & np.isinf(program.rows.lower), 0.0, y)
    return np.asarray(np.where((y < 0) & np.isinf(program.rows.upper), 0.0, y))


def _reduced(program: LinearProgram, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``c - y A`` for each variable, and by how much rounding may have moved it at most."""
    rows, size = program.rows, len(program.cost)
    products = y[rows.row] * rows.values
    total = np.bincount(rows.column, products, size)
    sizes = np.bincount(rows.column, np.abs(products), size) + np.abs(program.cost)
    counts = np.bincount(rows.column, minlength=size) + 2
    return program.cost - total, _rounding(counts) * sizes


def _scaled(program: LinearProgram, y: FloatArray) -> FloatArray:
    """Prices under which no variable without an upper limit has a negative reduced cost.

    If a variable has a negative reduced cost, the prices that lower it are scaled down by the
    factor that makes it 0. Their rows hold other variables too, whose reduced costs may become
    negative by that, as those of means do when prices of their phase's maximum are scaled. So the
    last variable has its turn first, which is the objective in programs that minimise a maximum,
    and the others have two turns.
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


def _least(program: LinearProgram, low: FloatArray) -> tuple[float, float]:
    """The least value of ``low @ x`` within the limits of the variables, and the size of its terms.

    Of the variables of a group, the cheapest that may be chosen is 1. Every other variable is at
    its upper limit if its reduced cost is negative, and at its lower limit otherwise.
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


def _above_least(program: LinearProgram, low: FloatArray) -> FloatArray:
    """Reduced costs; those of the variables of a group less the least of that group."""
    if program.groups is None:
        return low
    count = len(program.groups)
    each = np.full(int(program.groups[-1]) + 1, np.inf)
    np.minimum.at(each, program.groups, np.where(program.upper[:count] > 0, low[:count], np.inf))
    risen = low.copy()
    risen[:count] -= np.where(np.isfinite(each), each, 0.0)[program.groups]
    return risen


def _rounding(count: FloatArray | IntArray | int) -> FloatArray:
    """The largest relative error of a sum of ``count`` products, see the top of the module."""
    share = np.asarray(count) * _EPS
    return np.asarray(share / (1.0 - share))
