"""Linear and mixed-integer programs as arrays: OR-Tools proposes, what is proven is checked here.

A linear bound follows from the solver's row prices by weak duality
(:mod:`planner.search.common.safe_bounds`); that nothing fits counts only where the same computation
shows that some rows stay broken whatever is chosen. A mixed-integer bound is the solver's own, less
:data:`WHOLE_TOLERANCE`.
"""

from __future__ import annotations

import contextlib
import math
import sys
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from planner.search.common.basis import Basis, row_names
from planner.search.common.quiet import QUIET
from planner.space.effort import program_s

WHOLE_TOLERANCE: Final = 2e-6
"""Share taken off bounds of mixed-integer programs: HiGHS keeps rows within 1e-6, prices within
1e-7, and our programs have coefficients and solutions near 1."""
_MOST_NODES: Final = 500
"""Nodes of one mixed-integer program: an end that does not depend on the clock."""
_NOTHING: Final = 1e-40
"""Coefficients below are left out of what a solver is asked; bounds are computed with them."""
_MOST_PIVOTS: Final = 200_000
"""The same of one linear program."""
_BROKEN: Final = 1e-7
"""Rows count as broken beyond this share of their size."""
_SCALINGS: Final = 3
_PIVOTS_PER_NODE: Final = 4
"""Rows for each pivot of a node, about."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Constraints ``lower <= A x <= upper``; entry i of A is ``values[i]`` at (row, column)."""

    row: IntArray
    column: IntArray
    values: FloatArray
    lower: FloatArray
    upper: FloatArray

    @staticmethod
    def dense(matrix: FloatArray, lower: FloatArray, upper: FloatArray) -> Rows:
        """From a dense matrix ``[rows, columns]``."""
        row, column = np.nonzero(matrix)
        return Rows(row=row, column=column, values=matrix[row, column], lower=lower, upper=upper)

    @staticmethod
    def one_of_each(groups: IntArray) -> Rows:
        """The first variables add up to 1 in each group; groups ascend from 0."""
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
        """One below the other."""
        sizes = np.cumsum([0] + [len(p.lower) for p in parts])
        return Rows(
            row=np.concatenate([p.row + s for p, s in zip(parts, sizes[:-1], strict=True)]),
            column=np.concatenate([p.column for p in parts]),
            values=np.concatenate([p.values for p in parts]),
            lower=np.concatenate([p.lower for p in parts]),
            upper=np.concatenate([p.upper for p in parts]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MilpProgram:
    """Minimise ``cost @ x`` over ``lower <= x <= upper`` and the rows, with so many nodes at most.

    ``groups``, where given, are ascending numbers of the first variables: exactly one variable of
    each group is 1 in every solution with whole variables, and their sum in every other. Rows have
    to say so too.
    """

    cost: FloatArray
    upper: FloatArray
    rows: Rows
    integer: BoolArray
    lower: FloatArray = field(default_factory=lambda: np.zeros(1))
    groups: IntArray | None = None
    max_nodes: int | None = _MOST_NODES

    def __post_init__(self) -> None:
        """One lower limit for each variable."""
        object.__setattr__(self, "lower", np.broadcast_to(self.lower, self.cost.shape))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """``bound`` is proven, minus infinity where nothing is; infinite if ``infeasible`` is proven.

    ``x``, ``reduced_costs`` and ``basis`` are None where the solver has none; ``reduced_costs`` are
    proven too. ``pivots`` and ``nodes`` say how much work it was.
    """

    bound: float
    x: FloatArray | None
    reduced_costs: FloatArray | None
    basis: Basis | None = None
    infeasible: bool = False
    pivots: int = 0
    nodes: int = 0


def solve(
    program: MilpProgram,
    *,
    time_limit_s: float = math.inf,
    gap_ratio: float = 1e-4,
    start: Basis | None = None,
) -> Solution:
    """Solve by GLOP if continuous, else by HiGHS.

    Args:
        program: what to minimise.
        time_limit_s: the solver stops then, with what it has.
        gap_ratio: HiGHS stops at this relative gap.
        start: of a similar program, where GLOP begins.
    """
    found = _solved(program, time_limit_s, gap_ratio, start)
    if not found.denied:
        return found.solution
    broken = _solved(_least_broken(program), time_limit_s, 0.0)
    work = found.solution.pivots + broken.solution.pivots
    nodes = found.solution.nodes + broken.solution.nodes
    if broken.solution.bound > _BROKEN:
        return Solution(
            bound=math.inf, x=None, reduced_costs=None, infeasible=True, pivots=work, nodes=nodes
        )
    return replace(found.solution, pivots=work, nodes=nodes)


def node_s(program: MilpProgram) -> float:
    """Nominal seconds of a node: some pivots, and what comes with it."""
    rows = len(program.rows.lower)
    return program_s(0, rows, rows // _PIVOTS_PER_NODE, 1)


def effort_of(program: MilpProgram, solution: Solution) -> float:
    """Nominal seconds that a solution took."""
    entries, rows = len(program.rows.values), len(program.rows.lower)
    return program_s(entries, rows, solution.pivots, solution.nodes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Answer:
    """What a solver says, with the bound computed here; ``denied``: it says nothing fits."""

    solution: Solution
    denied: bool


def _solved(
    program: MilpProgram, time_limit_s: float, gap_ratio: float, start: Basis | None = None
) -> _Answer:
    from planner.search.common.safe_bounds import safe_bound

    whole = bool(program.integer.any())
    scaled, row_scale, column_scale = _near_one(program)
    try:
        result, names = _ask(scaled, time_limit_s, gap_ratio, start)
    except _refusals():
        if start is not None:  # GLOP may lose its way from there, and find it from nowhere
            return _solved(program, time_limit_s, gap_ratio)
        bound = -math.inf if whole else safe_bound(program, np.zeros(len(program.rows.lower)))[0]
        empty = Solution(bound=min(bound, sys.float_info.max), x=None, reduced_costs=None)
        return _Answer(solution=empty, denied=False)
    pivots, nodes = result.solve_stats.simplex_iterations, result.solve_stats.node_count
    nothing = Solution(bound=-math.inf, x=None, reduced_costs=None, pivots=pivots, nodes=nodes)
    x = prices = None
    if result.solutions and not _says_none_fits(result):
        best = result.solutions[0]
        if best.HasField("primal_solution"):
            x = _dense(best.primal_solution.variable_values, len(program.cost)) * column_scale
            x = np.clip(x, program.lower, program.upper)  # GLOP may end far outside of them
        if not whole and best.HasField("dual_solution"):
            prices = _dense(best.dual_solution.dual_values, len(program.rows.lower)) * row_scale
    if not whole:
        proposed = np.zeros(len(program.rows.lower)) if prices is None else prices
        bound, reduced = safe_bound(program, proposed)
        if math.isinf(bound) and bound > 0:
            none = replace(nothing, bound=bound, infeasible=True)
            return _Answer(solution=none, denied=False)
        shown = None if prices is None or math.isinf(bound) else reduced
        basis = None if x is None else Basis.read(result.solutions[0], names)
        solution = replace(nothing, bound=bound, x=x, reduced_costs=shown, basis=basis)
        return _Answer(solution=solution, denied=x is None and _says_none_fits(result))
    denied = _says_none_fits(result)
    bound = float(result.termination.objective_bounds.dual_bound)
    bound = -math.inf if denied or not math.isfinite(bound) else bound
    bound -= WHOLE_TOLERANCE * max(abs(bound), 1.0) if math.isfinite(bound) else 0.0
    return _Answer(solution=replace(nothing, bound=bound, x=x), denied=denied)


def _least_broken(program: MilpProgram) -> MilpProgram:
    """How far rows stay broken at least, as a share of their size, whatever is chosen.

    Each row may be broken by ``s`` times its largest coefficient, and ``s`` is minimised. Above 0
    there is no solution.
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
        integer=np.append(program.integer, False),
    )


# ------------------------------------------------------------------ asking


def _near_one(program: MilpProgram) -> tuple[MilpProgram, FloatArray, FloatArray]:
    """The same program with coefficients near 1, and the factors of its rows and variables.

    Factors are powers of two, so that nothing is rounded. Whole variables stay as they are.
    """
    rows = program.rows
    # Rounding leaves differences of 1e-170 where there is none. One of them beside ordinary numbers
    # would move the middle of its row so far that the solvers refuse the program.
    values = np.where(np.abs(rows.values) < _NOTHING, 0.0, rows.values)
    sizes = np.abs(values)
    log = np.where(sizes > 0, np.log2(np.where(sizes > 0, sizes, 1.0)), 0.0)
    row_log, column_log = np.zeros(len(rows.lower)), np.zeros(len(program.cost))
    fixed = program.integer.copy()
    if program.groups is not None:
        fixed[: len(program.groups)] = True
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
    """Half-way between the least and the largest of each row (or column); 0 for empty ones."""
    least, largest = np.full_like(like, np.inf), np.full_like(like, -np.inf)
    np.minimum.at(least, index, log)
    np.maximum.at(largest, index, log)
    empty = np.isinf(least)
    return np.where(empty, 0.0, (np.where(empty, 0.0, least) + np.where(empty, 0.0, largest)) / 2)


def _ask(
    program: MilpProgram, time_limit_s: float, gap_ratio: float, start: Basis | None
) -> tuple[Any, list[bytes]]:
    """MathOpt's protocol directly: its Python classes take longer than the solvers do.

    Returns:
        The result, and the names of the rows of a continuous program.
    """
    from ortools.math_opt import callback_pb2, model_parameters_pb2, parameters_pb2
    from ortools.math_opt.core.python import solver

    whole = bool(program.integer.any())
    quiet = QUIET if whole else contextlib.nullcontext()
    order = np.lexsort((program.rows.column, program.rows.row))
    row, column = program.rows.row[order], program.rows.column[order]
    names = [] if whole else row_names(row, column, len(program.rows.lower))
    begin = None if start is None or whole else start.write(len(program.cost), names)
    parameters = parameters_pb2.SolveParametersProto()
    if whole:
        parameters.relative_gap_tolerance = gap_ratio
        if program.max_nodes is not None:
            parameters.node_limit = program.max_nodes
    else:
        parameters.iteration_limit = _MOST_PIVOTS
    if begin is not None:
        parameters.lp_algorithm = parameters_pb2.LP_ALGORITHM_DUAL_SIMPLEX
    if math.isfinite(time_limit_s):
        parameters.time_limit.FromMilliseconds(max(round(1000 * time_limit_s), 10))
    model = model_parameters_pb2.ModelSolveParametersProto(initial_basis=begin)
    with quiet:
        result = solver.solve(
            _proto(program, order),
            parameters_pb2.SOLVER_TYPE_HIGHS if whole else parameters_pb2.SOLVER_TYPE_GLOP,
            parameters_pb2.SolverInitializerProto(),
            parameters,
            model,
            None,
            callback_pb2.CallbackRegistrationProto(),
            None,
            None,
        )
    return result, names


def _refusals() -> type[Exception]:
    """What MathOpt raises where a solver refuses a program, for numbers out of its range say."""
    from pybind11_abseil.status import StatusNotOk

    return cast("type[Exception]", StatusNotOk)


def _says_none_fits(result: Any) -> bool:
    from ortools.math_opt import result_pb2

    return result.termination.reason in (
        result_pb2.TERMINATION_REASON_INFEASIBLE,
        result_pb2.TERMINATION_REASON_INFEASIBLE_OR_UNBOUNDED,
    )


def _dense(vector: Any, size: int) -> FloatArray:
    """A sparse vector of the protocol as an array."""
    dense = np.zeros(size)
    dense[np.array(vector.ids, dtype=np.int64)] = np.array(vector.values)
    return dense


def _proto(program: MilpProgram, order: IntArray) -> object:
    """In MathOpt's protocol; ``order`` sorts the coefficients by row and variable."""
    from ortools.math_opt import model_pb2

    rows, size = program.rows, len(program.cost)
    proto = model_pb2.ModelProto()
    proto.variables.ids.extend(range(size))
    proto.variables.lower_bounds.extend(program.lower.tolist())
    proto.variables.upper_bounds.extend(program.upper.tolist())
    proto.variables.integers.extend(program.integer.tolist())
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
