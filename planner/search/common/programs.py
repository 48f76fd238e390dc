"""Solves linear programs: GLOP proposes solutions and prices, what they prove is computed here.

The bound of a program is computed from the solver's row prices, by weak duality
(:mod:`planner.search.common.safe_bounds`). If the solver says that a program has no solution, that
counts only if the same computation shows that some row stays broken whatever is chosen.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from planner.search.common.lp import LinearProgram, ProgramBasis, Rows, Solution, row_names
from planner.search.common.safe_bounds import first_prices, safe_bound
from planner.space.effort import program_s

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
    *,
    time_limit_s: float = math.inf,
    start: ProgramBasis | None = None,
) -> Solution:
    """Solve a program by GLOP.

    Args:
        program: what to minimise.
        time_limit_s: seconds by the clock after which the solver stops with what it has.
        start: the basis of a similar program, from which GLOP begins.
    """
    found = _solved(program, time_limit_s, start)
    if not found.denied:
        return found.solution
    broken = _solved(_least_broken(program), time_limit_s)
    work = found.solution.pivots + broken.solution.pivots
    if broken.solution.bound > _BROKEN:
        return Solution(bound=math.inf, x=None, reduced_costs=None, infeasible=True, pivots=work)
    return replace(found.solution, pivots=work)


def effort_of(program: LinearProgram, solution: Solution) -> float:
    """Nominal seconds of the work that a solution took."""
    entries, rows = len(program.rows.values), len(program.rows.lower)
    return program_s(entries, rows, solution.pivots)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Answer:
    """What a solver says, with the bound that was computed here.

    Attributes:
        solution: what it found.
        denied: whether the solver says that the program has no solution, which is not proven yet.
    """

    solution: Solution
    denied: bool


def _solved(
    program: LinearProgram, time_limit_s: float, start: ProgramBasis | None = None
) -> _Answer:
    """Ask the solver once, and compute the bound of what it says.

    If a solver refuses a program, nothing is proven but what prices of 0 prove.
    """
    scaled, row_scale, column_scale = _near_one(program)
    try:
        result, names = _ask(scaled, time_limit_s, start)
    except refusals():
        if start is not None:  # GLOP may fail from a basis and succeed without one
            return _solved(program, time_limit_s)
        bound = safe_bound(program, np.zeros(len(program.rows.lower)))[0]
        empty = Solution(bound=min(bound, sys.float_info.max), x=None, reduced_costs=None)
        return _Answer(solution=empty, denied=False)
    pivots = result.solve_stats.simplex_iterations
    nothing = Solution(bound=-math.inf, x=None, reduced_costs=None, pivots=pivots)
    x = prices = None
    if result.solutions and not _says_none_fits(result):
        best = result.solutions[0]
        if best.HasField("primal_solution"):
            x = dense_of(best.primal_solution.variable_values, len(program.cost)) * column_scale
            x = np.clip(x, program.lower, program.upper)  # GLOP may end far outside of the limits
        if best.HasField("dual_solution"):
            prices = dense_of(best.dual_solution.dual_values, len(program.rows.lower)) * row_scale
    bound, reduced = safe_bound(program, first_prices(program) if prices is None else prices)
    if math.isinf(bound) and bound > 0:
        return _Answer(solution=replace(nothing, bound=bound, infeasible=True), denied=False)
    shown = None if prices is None or math.isinf(bound) else reduced
    basis = None if x is None else ProgramBasis.read(result.solutions[0], names)
    solution = replace(nothing, bound=bound, x=x, reduced_costs=shown, basis=basis)
    return _Answer(solution=solution, denied=x is None and _says_none_fits(result))


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
        lower=np.append(program.lower, 0.0),
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
    from ortools.math_opt import parameters_pb2

    order = np.lexsort((program.rows.column, program.rows.row))
    row, column = program.rows.row[order], program.rows.column[order]
    names = row_names(row, column, len(program.rows.lower))
    begin = None if start is None else start.write(len(program.cost), names)
    parameters = parameters_pb2.SolveParametersProto(iteration_limit=_MOST_PIVOTS)
    if begin is not None:
        parameters.lp_algorithm = parameters_pb2.LP_ALGORITHM_DUAL_SIMPLEX
    if math.isfinite(time_limit_s):
        parameters.time_limit.FromMilliseconds(max(round(1000 * time_limit_s), 10))
    return _run(model_of(program, order), parameters, begin), names


def _run(model: object, parameters: Any, start: Any = None) -> Any:
    """What GLOP says of a model: a ``SolveResultProto``.

    Args:
        model: a ``ModelProto``.
        parameters: a ``SolveParametersProto``.
        start: the basis to begin with, a ``BasisProto``; None for none.
    """
    from ortools.math_opt import callback_pb2, model_parameters_pb2, parameters_pb2
    from ortools.math_opt.core.python import solver

    return solver.solve(
        model,
        parameters_pb2.SOLVER_TYPE_GLOP,
        parameters_pb2.SolverInitializerProto(),
        parameters,
        model_parameters_pb2.ModelSolveParametersProto(initial_basis=start),
        None,
        callback_pb2.CallbackRegistrationProto(),
        None,
        None,
    )


def refusals() -> type[Exception]:
    """What MathOpt raises if a solver refuses a program, for example for numbers out of range."""
    from pybind11_abseil.status import StatusNotOk

    return cast("type[Exception]", StatusNotOk)


def _says_none_fits(result: Any) -> bool:
    """Whether the solver says that the program has no solution."""
    from ortools.math_opt import result_pb2

    return result.termination.reason in (
        result_pb2.TERMINATION_REASON_INFEASIBLE,
        result_pb2.TERMINATION_REASON_INFEASIBLE_OR_UNBOUNDED,
    )


def dense_of(vector: Any, size: int) -> FloatArray:
    """A sparse vector of MathOpt's protocol as an array of ``size`` numbers."""
    dense = np.zeros(size)
    dense[np.array(vector.ids, dtype=np.int64)] = np.array(vector.values)
    return dense


def model_of(program: LinearProgram, order: IntArray | None = None) -> object:
    """A program as MathOpt's ``ModelProto``.

    Args:
        program: any program.
        order: sorts its coefficients by row and variable; None to sort them here.
    """
    from ortools.math_opt import model_pb2

    rows, size = program.rows, len(program.cost)
    order = np.lexsort((rows.column, rows.row)) if order is None else order
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
