"""Linear and mixed-integer programs as arrays, solved by OR-Tools."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.evaluation import BoolArray, FloatArray, IntArray

_MOST_NODES: Final = 500
"""Nodes of one mixed-integer program: an end that does not depend on the clock."""


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
class Program:
    """Minimise ``cost @ x`` over ``0 <= x <= upper`` and the rows, with so many nodes at most."""

    cost: FloatArray
    upper: FloatArray
    rows: Rows
    integer: BoolArray
    max_nodes: int | None = _MOST_NODES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """``bound`` is proven; ``x`` and ``reduced_costs`` are None where the solver has none."""

    bound: float
    x: FloatArray | None
    reduced_costs: FloatArray | None
    infeasible: bool = False


def solve(program: Program, *, time_limit_s: float = math.inf, gap_ratio: float = 1e-4) -> Solution:
    """Solve by GLOP if continuous, else by HiGHS.

    Speaks MathOpt's protocol directly: its Python classes take longer to build and to read than the
    solvers take to solve.

    Args:
        program: what to minimise.
        time_limit_s: HiGHS stops then and reports what it has proven.
        gap_ratio: HiGHS stops at this relative gap.
    """
    from ortools.math_opt import (
        callback_pb2,
        model_parameters_pb2,
        parameters_pb2,
        result_pb2,
    )
    from ortools.math_opt.core.python import solver

    whole = bool(program.integer.any())
    quiet = _STANDARD_OUTPUT if whole else contextlib.nullcontext()
    parameters = parameters_pb2.SolveParametersProto()
    if whole:
        parameters.relative_gap_tolerance = gap_ratio
    if whole and program.max_nodes is not None:
        parameters.node_limit = program.max_nodes
    if math.isfinite(time_limit_s):
        parameters.time_limit.FromMilliseconds(max(round(1000 * time_limit_s), 10))
    with quiet:
        result = solver.solve(
            _proto(program),
            parameters_pb2.SOLVER_TYPE_HIGHS if whole else parameters_pb2.SOLVER_TYPE_GLOP,
            parameters_pb2.SolverInitializerProto(),
            parameters,
            model_parameters_pb2.ModelSolveParametersProto(),
            None,
            callback_pb2.CallbackRegistrationProto(),
            None,
            None,
        )
    if result.termination.reason in (
        result_pb2.TERMINATION_REASON_INFEASIBLE,
        result_pb2.TERMINATION_REASON_INFEASIBLE_OR_UNBOUNDED,
    ):
        return Solution(bound=math.inf, x=None, reduced_costs=None, infeasible=True)
    x = reduced = None
    if result.solutions and result.solutions[0].HasField("primal_solution"):
        best = result.solutions[0]
        x = np.array(best.primal_solution.variable_values.values)
        if not whole and best.HasField("dual_solution"):
            reduced = np.array(best.dual_solution.reduced_costs.values)
    bound = float(result.termination.objective_bounds.dual_bound)
    return Solution(bound=bound, x=x, reduced_costs=reduced)


class _StandardOutput:
    """Sends what is written to standard output elsewhere, to standard error, while it is entered.

    HiGHS prints a line of its own now and then, and callers print results there for others to read.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = 0
        self._kept: int | None = None

    def __enter__(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._entered += 1
            if self._entered == 1:
                self._kept = os.dup(1)
                os.dup2(2, 1)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._entered -= 1
            if self._entered == 0 and self._kept is not None:
                kept, self._kept = self._kept, None
                os.dup2(kept, 1)
                os.close(kept)


_STANDARD_OUTPUT: Final = _StandardOutput()


def _proto(program: Program) -> object:
    from ortools.math_opt import model_pb2

    rows, size = program.rows, len(program.cost)
    proto = model_pb2.ModelProto()
    proto.variables.ids.extend(range(size))
    proto.variables.lower_bounds.extend([0.0] * size)
    proto.variables.upper_bounds.extend(program.upper.tolist())
    proto.variables.integers.extend(program.integer.tolist())
    proto.linear_constraints.ids.extend(range(len(rows.lower)))
    proto.linear_constraints.lower_bounds.extend(rows.lower.tolist())
    proto.linear_constraints.upper_bounds.extend(rows.upper.tolist())
    priced = np.flatnonzero(program.cost)
    proto.objective.linear_coefficients.ids.extend(priced.tolist())
    proto.objective.linear_coefficients.values.extend(program.cost[priced].tolist())
    order = np.lexsort((rows.column, rows.row))
    matrix = proto.linear_constraint_matrix
    matrix.row_ids.extend(rows.row[order].tolist())
    matrix.column_ids.extend(rows.column[order].tolist())
    matrix.coefficients.extend(rows.values[order].tolist())
    return proto
