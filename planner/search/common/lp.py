"""Linear programs and their solutions as arrays, and what row prices prove about them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray

# ------------------ bases
#
# The basis of a solved linear program, from which the solver begins a similar program.
#
# A basis says which variables and rows are strictly between their limits in a solution, and at
# which limit the others are. A search solves many programs in a row that differ in a few rows or
# limits. If the solver begins a program with the basis of the last one, it needs a fraction of the
# pivots. A basis only says where to begin: what a program proves does not depend on it.
#
# This module and those that solve programs import nothing about plans and prices. Without these
# imports, a process that only proves starts in half the time.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProgramBasis:
    """The statuses of a solution, as numbers of MathOpt's ``BasisStatusProto``.

    Attributes:
        variables: the status of each variable, ``[variables]``.
        rows: the status of each row, by the row's name (see :func:`row_names`).
    """

    variables: Sequence[int]
    rows: Mapping[bytes, int]

    @staticmethod
    def read(found: Any, names: Sequence[bytes]) -> ProgramBasis | None:
        """The basis of a solution in MathOpt's protocol; None if the solution has none.

        Args:
            found: the solution, a ``SolutionProto``.
            names: the name of each row of the program, in order.
        """
        if not found.HasField("basis"):
            return None
        rows = found.basis.constraint_status
        status = np.zeros(len(names), dtype=np.int64)
        status[np.array(rows.ids, dtype=np.int64)] = np.array(rows.values)
        by_name = dict(zip(names, status.tolist(), strict=True))
        return ProgramBasis(variables=list(found.basis.variable_status.values), rows=by_name)

    def write(self, size: int, names: Sequence[bytes]) -> Any:
        """This basis for another program, as MathOpt's ``BasisProto``.

        Rows that this basis does not know are taken to be between their limits. In every basis the
        number of variables and rows between their limits equals the number of rows. Where rows came
        or went, the status of some of the last rows is changed so that this is true.

        Args:
            size: number of variables of the program.
            names: the name of each of its rows, in order.

        Returns:
            None if the program has another number of variables, or too few rows to change.
        """
        from ortools.math_opt import solution_pb2

        between = solution_pb2.BASIS_STATUS_BASIC
        at_limit = solution_pb2.BASIS_STATUS_AT_UPPER_BOUND
        if len(self.variables) != size:
            return None
        rows = np.array([self.rows.get(name, between) for name in names])
        more = int((rows == between).sum()) + list(self.variables).count(between) - len(rows)
        own = np.flatnonzero((rows == between) == (more > 0))
        if len(own) < abs(more):
            return None
        rows[own[len(own) - abs(more) :]] = at_limit if more > 0 else between
        proto = solution_pb2.BasisProto()
        for part, values in (
            (proto.variable_status, self.variables),
            (proto.constraint_status, rows.tolist()),
        ):
            part.ids.extend(range(len(values)))
            part.values.extend(values)
        return proto


def row_names(row: IntArray, column: IntArray, count: int) -> list[bytes]:
    """Names of the rows of a program: rows about the same variables have the same name.

    A name is a digest of eight bytes, because every box keeps the names of its program.

    Args:
        row: the row of each coefficient, ascending.
        column: the variable of each coefficient, ascending within a row.
        count: number of rows.
    """
    ends = np.searchsorted(row, np.arange(count + 1))
    return [
        hashlib.blake2b(column[a:b].tobytes(), digest_size=8).digest()
        for a, b in itertools.pairwise(ends)
    ]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Constraints ``lower <= A x <= upper``.

    Attributes:
        row: the row of each coefficient of A that is not 0.
        column: its variable.
        values: its value.
        lower: least value of each row, ``[rows]``; minus infinity for none.
        upper: largest value of each row, ``[rows]``; infinite for none.
    """

    row: IntArray
    column: IntArray
    values: FloatArray
    lower: FloatArray
    upper: FloatArray

    @staticmethod
    def dense(matrix: FloatArray, lower: FloatArray, upper: FloatArray) -> Rows:
        """The rows of a dense matrix, ``[rows, variables]``, between these limits."""
        row, column = np.nonzero(matrix)
        return Rows(row=row, column=column, values=matrix[row, column], lower=lower, upper=upper)

    @staticmethod
    def one_of_each(groups: IntArray) -> Rows:
        """A row for each group of variables: the variables of the group add up to 1.

        Args:
            groups: the group of each of the first variables, ascending from 0.
        """
        ones = np.ones(int(groups[-1]) + 1)
        return Rows(
            row=groups,
            column=np.arange(len(groups)),
            values=np.ones(len(groups)),
            lower=ones,
            upper=ones,
        )

    @staticmethod
    def stack(parts: list[Rows]) -> Rows:
        """The rows of all parts, one part below the other."""
        sizes = np.cumsum([0] + [len(p.lower) for p in parts])
        return Rows(
            row=np.concatenate([p.row + s for p, s in zip(parts, sizes[:-1], strict=True)]),
            column=np.concatenate([p.column for p in parts]),
            values=np.concatenate([p.values for p in parts]),
            lower=np.concatenate([p.lower for p in parts]),
            upper=np.concatenate([p.upper for p in parts]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinearProgram:
    """Minimise ``cost @ x`` subject to ``lower <= x <= upper`` and the rows.

    Attributes:
        cost: of each variable, ``[variables]``.
        upper: largest value of each variable; infinite for none.
        rows: constraints on several variables.
        lower: least value of each variable.
        groups: the group of each of the first variables, ascending from 0; None if there are none.
            The variables of a group add up to 1, which the rows have to say too. Bounds are higher
            if they know it.
    """

    cost: FloatArray
    upper: FloatArray
    rows: Rows
    lower: FloatArray = field(default_factory=lambda: np.zeros(1))
    groups: IntArray | None = None

    def __post_init__(self) -> None:
        """Give each variable a lower limit of its own."""
        object.__setattr__(self, "lower", np.broadcast_to(self.lower, self.cost.shape))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """What a solver has found, and what is proven.

    Attributes:
        bound: no solution has a smaller cost; minus infinity if nothing is proven, infinite if it
            is proven that there is no solution.
        x: the value of each variable in the best solution; None if the solver has none.
        reduced_costs: by how much the bound rises at least for each unit of a variable, proven as
            well; None if the solver gave no prices.
        basis: where a similar program can begin; None if the solver has none.
        infeasible: whether it is proven that there is no solution.
        pivots: pivots of the simplex method that it took.
    """

    bound: float
    x: FloatArray | None
    reduced_costs: FloatArray | None
    basis: ProgramBasis | None = None
    infeasible: bool = False
    pivots: int = 0


# ------------------ bounds that are true whatever a solver says
#
# For a program ``min c x`` over ``lower <= A x <= upper`` and ``least <= x <= most`` every vector
# ``y`` of row prices gives a lower bound (weak duality): with ``d = c - y A``,
#
#     bound(y) = sum_i (y_i lower_i if y_i > 0 else y_i upper_i) + least value of d x over the x.
#
# A solver only proposes ``y``, and the bound is computed here: poor prices give a low bound, never
# a wrong one. What rounding can have added is taken off: a sum of n products is off by at most ``n
# eps / (1 - n eps)`` times the sum of their sizes (Neumaier and Shcherbina, Safe bounds in linear
# and mixed-integer linear programming, Mathematical Programming 99, 2004; Higham, Accuracy and
# Stability of Numerical Algorithms, section 3.1).
#
# If a variable without an upper limit had a negative ``d``, the least value would be minus
# infinity. Solvers leave slightly negative ones all the time, within their tolerances. Such prices
# are scaled down until no ``d`` of these variables is negative.

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
