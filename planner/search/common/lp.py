"""Linear programs and their solutions as arrays, and what row prices prove about them."""

from __future__ import annotations

import hashlib
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from planner.space.effort import Meter, program_s

TOLERANCE: Final = 1e-5
"""Share by which solutions of solvers may be off. A solution may break a row or a cut so far before
it is added, and a bound has to rise by more for another program; with a smaller share programs are
solved more often for the same bound."""

# ------------------ bases
#
# The basis of a solved linear program, from which the solver begins a similar program.
#
# A basis says which variables and rows are strictly between their limits in a solution, and at
# which limit the others are. A search solves many programs in a row that differ in a few rows or
# limits. If the solver begins a program with the basis of the last one, it needs a fraction of the
# pivots. A basis only says where to begin: what a program proves does not depend on it.


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
    def dense(matrix: FloatArray, lower: FloatArray | float, upper: FloatArray | float) -> Rows:
        """The rows of a dense matrix, ``[rows, variables]``, between these limits."""
        row, column = np.nonzero(matrix)
        least, most = (np.full(len(matrix), limit) for limit in (lower, upper))
        return Rows(row=row, column=column, values=matrix[row, column], lower=least, upper=most)

    @staticmethod
    def one_of_each(groups: IntArray) -> Rows:
        """A row for each group of variables: the variables of the group add up to 1.

        Args:
            groups: the group of each of the first variables, from 0.
        """
        ones = np.ones(int(groups.max()) + 1)
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
        lower: least value of each variable, or of all.
        groups: the group of each of the first variables, ascending from 0; None if there are none.
            The variables of a group add up to 1, which the rows have to say too. Bounds are higher
            if they know it.
    """

    cost: FloatArray
    upper: FloatArray
    rows: Rows
    lower: FloatArray = field(default_factory=lambda: np.zeros(1))
    groups: IntArray | None = None


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
    y = np.where(np.isfinite(prices), prices, 0.0)
    none = np.isinf(np.where(y > 0, program.rows.lower, program.rows.upper))
    y = _scaled(program, np.where(none, 0.0, y))
    d, error = _reduced(program, y)
    low = d - error
    endless = np.isinf(program.upper)
    if (low[endless] < 0).any():
        return -np.inf, low
    limits = np.where(y > 0, program.rows.lower, program.rows.upper)
    of_rows = np.where(y == 0, 0.0, y * np.where(y == 0, 0.0, limits))
    most = np.where(np.isfinite(program.upper), program.upper, 0.0)
    terms = np.where(low < 0, low * most, low * program.lower)
    each, risen = np.zeros(0), low.copy()
    if program.groups is not None:  # of each group, the cheapest variable that may be chosen is 1
        mine = slice(len(program.groups))
        each = np.full(int(program.groups[-1]) + 1, np.inf)
        np.minimum.at(each, program.groups, np.where(program.upper[mine] > 0, low[mine], np.inf))
        terms[mine] = 0.0
        risen[mine] -= np.where(np.isfinite(each), each, 0.0)[program.groups]
    least = float(terms.sum() + each.sum())
    size = float(np.abs(terms).sum() + np.abs(each[np.isfinite(each)]).sum())
    total, sizes = float(of_rows.sum()) + least, float(np.abs(of_rows).sum()) + size
    return total - float(_rounding(len(of_rows) + len(d) + 2)) * sizes, risen


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


def _rounding(count: FloatArray | IntArray | int) -> FloatArray:
    """The largest relative error of a sum of ``count`` products, see the top of the module."""
    share = np.asarray(count) * _EPS
    return np.asarray(share / (1.0 - share))


# ------------------ solving
#
# GLOP proposes solutions and prices, what they prove is computed here.
#
# The bound of a program is computed from the solver's row prices, by weak duality. If the solver
# says that a program has no solution, that counts only if the same computation shows that some row
# stays broken whatever is chosen.

_MOST_PIVOTS: Final = 200_000
"""Most pivots of a program. It ends a program at the same place on every machine, as a limit by the
clock would not."""
_NOTHING: Final = 1e-40
"""Coefficients below this are left out of what a solver is asked, because they trouble its scaling.
Bounds are computed with them."""
_BROKEN: Final = 1e-7
"""Least share of its size by which a row has to stay broken before a program counts as
infeasible."""
_SCALINGS: Final = 3
"""Times that rows and variables are scaled in turn. More times bring coefficients a little closer
to 1, and take longer."""


def solve(
    program: LinearProgram,
    meter: Meter | None = None,
    *,
    time_limit_s: float = math.inf,
    start: ProgramBasis | None = None,
) -> Solution:
    """Solve a program by GLOP.

    Args:
        program: what to minimise.
        meter: is told of the work done.
        time_limit_s: seconds by the clock after which the solver stops with what it has.
        start: the basis of a similar program, from which GLOP begins.
    """
    found, is_denied = _solved(program, time_limit_s, start)
    if is_denied:
        broken, _ = _solved(_least_broken(program), time_limit_s)
        found = replace(found, pivots=found.pivots + broken.pivots)
        if broken.bound > _BROKEN:
            found = replace(found, bound=math.inf, infeasible=True)
    if meter is not None:
        meter.spend(program_s(len(program.rows.values), len(program.rows.lower), found.pivots))
    return found


def _solved(
    program: LinearProgram, time_limit_s: float, start: ProgramBasis | None = None
) -> tuple[Solution, bool]:
    """Ask the solver once, and compute the bound of what it says.

    If a solver refuses a program, nothing is proven but what prices of 0 prove.

    Returns:
        What it found; and whether it says that the program has no solution, which is not proven
        yet.
    """
    from ortools.math_opt import result_pb2
    from pybind11_abseil.status import StatusNotOk

    scaled, row_scale, column_scale = _near_one(program)
    try:
        result, names = _ask(scaled, time_limit_s, start)
    except StatusNotOk:
        if start is not None:  # GLOP may fail from a basis and succeed without one
            return _solved(program, time_limit_s)
        bound = safe_bound(program, np.zeros(len(program.rows.lower)))[0]
        empty = Solution(bound=min(bound, sys.float_info.max), x=None, reduced_costs=None)
        return empty, False
    says_none_fits = result.termination.reason in (
        result_pb2.TERMINATION_REASON_INFEASIBLE,
        result_pb2.TERMINATION_REASON_INFEASIBLE_OR_UNBOUNDED,
    )
    pivots = result.solve_stats.simplex_iterations
    nothing = Solution(bound=-math.inf, x=None, reduced_costs=None, pivots=pivots)
    x = prices = None
    if result.solutions and not says_none_fits:
        best = result.solutions[0]
        if best.HasField("primal_solution"):
            x = _dense_of(best.primal_solution.variable_values, len(program.cost)) * column_scale
            x = np.clip(x, program.lower, program.upper)  # GLOP may end far outside of the limits
        if best.HasField("dual_solution"):
            prices = _dense_of(best.dual_solution.dual_values, len(program.rows.lower)) * row_scale
    bound, reduced = safe_bound(program, first_prices(program) if prices is None else prices)
    if math.isinf(bound) and bound > 0:
        return replace(nothing, bound=bound, infeasible=True), False
    shown = None if prices is None or math.isinf(bound) else reduced
    basis = None if x is None else ProgramBasis.read(result.solutions[0], names)
    solution = replace(nothing, bound=bound, x=x, reduced_costs=shown, basis=basis)
    return solution, x is None and says_none_fits


def _least_broken(program: LinearProgram) -> LinearProgram:
    """The program whose minimum says how far rows stay broken, whatever is chosen.

    It has one variable more, ``s``. Every row may be broken by ``s`` times its largest coefficient,
    and ``s`` is minimised. If the minimum is above 0, the given program has no solution.
    """
    rows, size = program.rows, len(program.cost)
    count = len(rows.lower)
    largest = np.zeros(count)
    np.maximum.at(largest, rows.row, np.abs(rows.values))
    parts = []
    for sign, limits in ((1.0, rows.lower), (-1.0, rows.upper)):
        kept = np.isfinite(limits)
        inside = kept[rows.row]
        number = np.cumsum(kept) - 1
        parts.append(
            Rows(
                row=np.concatenate([number[rows.row[inside]], number[kept]]),
                column=np.concatenate([rows.column[inside], np.full(kept.sum(), size)]),
                values=np.concatenate([rows.values[inside], sign * largest[kept]]),
                lower=limits[kept] if sign > 0 else np.full(kept.sum(), -math.inf),
                upper=limits[kept] if sign < 0 else np.full(kept.sum(), math.inf),
            )
        )
    return replace(
        program,
        cost=np.append(np.zeros(size), 1.0),
        upper=np.append(program.upper, math.inf),
        lower=np.append(np.broadcast_to(program.lower, size), 0.0),
        rows=Rows.stack(parts),
    )


# ------------------------------------------------------------------ asking the solver


def _near_one(program: LinearProgram) -> tuple[LinearProgram, FloatArray, FloatArray]:
    """The same program with coefficients near 1, which solvers need.

    Factors are powers of two, so that scaling rounds nothing. Variables of groups keep their scale.

    Returns:
        The program; the factor that each row was multiplied by; and the factor that each variable
        of the new program has to be multiplied by to get that of the given one.
    """
    rows = program.rows
    # Where two equal numbers are subtracted, rounding may leave 1e-170. Beside ordinary numbers
    # such a coefficient would move the middle of its row so far that solvers refuse the program.
    values = np.where(np.abs(rows.values) < _NOTHING, 0.0, rows.values)
    sizes = np.abs(values)
    log = np.where(sizes > 0, np.log2(np.where(sizes > 0, sizes, 1.0)), 0.0)
    row_log, column_log = np.zeros(len(rows.lower)), np.zeros(len(program.cost))
    fixed = np.arange(len(program.cost)) < (0 if program.groups is None else len(program.groups))
    for _ in range(_SCALINGS):
        row_log -= _middle(log + row_log[rows.row] + column_log[rows.column], rows.row, row_log)
        shift = _middle(log + row_log[rows.row] + column_log[rows.column], rows.column, column_log)
        column_log -= np.where(fixed, 0.0, shift)
    row_scale, column_scale = np.exp2(np.round(row_log)), np.exp2(np.round(column_log))
    scaled = replace(
        program,
        cost=program.cost * column_scale,
        lower=program.lower / column_scale,
        upper=program.upper / column_scale,
        rows=replace(
            rows,
            values=values * row_scale[rows.row] * column_scale[rows.column],
            lower=rows.lower * row_scale,
            upper=rows.upper * row_scale,
        ),
    )
    return scaled, row_scale, column_scale


def _middle(log: FloatArray, index: IntArray, like: FloatArray) -> FloatArray:
    """Half-way between the least and the largest logarithm of each row (or variable).

    Args:
        log: logarithm of each coefficient.
        index: its row (or variable).
        like: an array with one entry per row (or variable).

    Returns:
        An array like ``like``, with 0 for rows without coefficients.
    """
    least, largest = np.full_like(like, np.inf), np.full_like(like, -np.inf)
    np.minimum.at(least, index, log)
    np.maximum.at(largest, index, log)
    empty = np.isinf(least)
    return np.where(empty, 0.0, (np.where(empty, 0.0, least) + np.where(empty, 0.0, largest)) / 2)


def _ask(
    program: LinearProgram, time_limit_s: float, start: ProgramBasis | None
) -> tuple[Any, list[bytes]]:
    """Solve a program through MathOpt's protocol buffers.

    MathOpt's Python classes would take longer than the solvers do.

    Returns:
        The result, a ``SolveResultProto``; and the names of the rows of the program.
    """
    from ortools.math_opt import callback_pb2, model_parameters_pb2, parameters_pb2
    from ortools.math_opt.core.python import solver

    order = np.lexsort((program.rows.column, program.rows.row))
    row, column = program.rows.row[order], program.rows.column[order]
    names = row_names(row, column, len(program.rows.lower))
    begin = None if start is None else start.write(len(program.cost), names)
    parameters = parameters_pb2.SolveParametersProto(iteration_limit=_MOST_PIVOTS)
    if begin is not None:
        parameters.lp_algorithm = parameters_pb2.LP_ALGORITHM_DUAL_SIMPLEX
    if math.isfinite(time_limit_s):
        parameters.time_limit.FromMilliseconds(max(round(1000 * time_limit_s), 10))
    result = solver.solve(
        _model_of(program, order),
        parameters_pb2.SOLVER_TYPE_GLOP,
        parameters_pb2.SolverInitializerProto(),
        parameters,
        model_parameters_pb2.ModelSolveParametersProto(initial_basis=begin),
        None,
        callback_pb2.CallbackRegistrationProto(),
        None,
        None,
    )
    return result, names


def _dense_of(vector: Any, size: int) -> FloatArray:
    """A sparse vector of MathOpt's protocol as an array of ``size`` numbers."""
    dense = np.zeros(size)
    dense[np.array(vector.ids, dtype=np.int64)] = np.array(vector.values)
    return dense


def _model_of(program: LinearProgram, order: IntArray) -> object:
    """A program as MathOpt's ``ModelProto``; ``order`` sorts coefficients by row and variable."""
    from ortools.math_opt import model_pb2

    rows, size = program.rows, len(program.cost)
    proto = model_pb2.ModelProto()
    proto.variables.ids.extend(range(size))
    proto.variables.lower_bounds.extend(program.lower.tolist())
    proto.variables.upper_bounds.extend(program.upper.tolist())
    proto.variables.integers.extend([False] * size)
    proto.linear_constraints.ids.extend(range(len(rows.lower)))
    proto.linear_constraints.lower_bounds.extend(rows.lower.tolist())
    proto.linear_constraints.upper_bounds.extend(rows.upper.tolist())
    priced = np.flatnonzero(program.cost)
    proto.objective.linear_coefficients.ids.extend(priced.tolist())
    proto.objective.linear_coefficients.values.extend(program.cost[priced].tolist())
    matrix = proto.linear_constraint_matrix
    matrix.row_ids.extend(rows.row[order].tolist())
    matrix.column_ids.extend(rows.column[order].tolist())
    matrix.coefficients.extend(rows.values[order].tolist())
    return proto
