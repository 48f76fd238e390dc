"""A linear program that gets more variables and other limits, and is solved again each time.

GLOP keeps its basis from one solution to the next, so that most solutions take few pivots. What a
solution proves is computed from its prices (:mod:`planner.search.common.safe_bounds`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from planner.search.common.milp import MilpProgram
from planner.search.common.programs import dense_of, model_of, refusals
from planner.search.common.safe_bounds import safe_bound
from planner.space.effort import Meter, again_s

_MOST_PIVOTS: Final = 50_000
"""Most pivots of one solution; a program that needs more counts as not solved."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Optimum:
    """A solution of a program within some limits.

    Attributes:
        value: its cost.
        x: the value of each variable.
        prices: one per row; what they prove, :meth:`GrowingProgram.bound` computes.
    """

    value: float
    x: FloatArray
    prices: FloatArray


class GrowingProgram:
    """A program with continuous variables, all of them between finite limits.

    Args:
        program: its rows, which stay, and its first variables. The limits of a variable may be
            narrowed in each solution, and widened again up to these.
        meter: is told of the work done.
    """

    def __init__(self, program: MilpProgram, meter: Meter | None = None) -> None:
        """Solve nothing yet."""
        self._meter = Meter() if meter is None else meter
        self._program = program
        self._new: list[tuple[IntArray, FloatArray, float]] = []
        self._solver: Any = None
        self._told: tuple[FloatArray, FloatArray] = (program.lower, program.upper)
        self._told_values = len(program.rows.values)

    @property
    def size(self) -> int:
        """Number of variables."""
        return len(self._program.cost) + len(self._new)

    def add(self, rows: IntArray, values: FloatArray, upper: float) -> None:
        """Add a variable of cost 0, from 0 to ``upper``, with these values in these rows."""
        self._new.append((rows, values, upper))

    def solve(self, lower: FloatArray, upper: FloatArray) -> Optimum | None:
        """Solve within limits, ``[size]`` each; None if the solver finds no solution."""
        had_solver = self._solver is not None
        found = self._solved(lower, upper)
        if found is None and had_solver:  # it may succeed from no basis where it fails from one
            self._solver = None
            found = self._solved(lower, upper)
        return found

    def bound(self, lower: FloatArray, upper: FloatArray, prices: FloatArray) -> float:
        """The least cost that these prices prove for solutions within these limits."""
        self._merge()
        return safe_bound(replace(self._program, lower=lower, upper=upper), prices)[0]

    def reduced(self, prices: FloatArray, count: int) -> FloatArray:
        """Cost of each of the first ``count`` variables less what its rows pay for it."""
        rows = self._program.rows
        mine = rows.column < count
        paid = prices[rows.row[mine]] * rows.values[mine]
        return self._program.cost[:count] - np.bincount(rows.column[mine], paid, count)

    # -- private ----------------------------------------------------------------------------------

    def _solved(self, lower: FloatArray, upper: FloatArray) -> Optimum | None:
        from ortools.math_opt import callback_pb2, model_parameters_pb2, parameters_pb2

        dual = self._solver is not None and len(lower) == len(self._told[0])
        try:
            self._update(lower, upper)
            parameters = parameters_pb2.SolveParametersProto(
                presolve=parameters_pb2.EMPHASIS_OFF,
                iteration_limit=_MOST_PIVOTS,
                # Other limits leave a basis dual feasible, and new variables primal feasible.
                lp_algorithm=parameters_pb2.LP_ALGORITHM_DUAL_SIMPLEX
                if dual
                else parameters_pb2.LP_ALGORITHM_PRIMAL_SIMPLEX,
            )
            result = self._solver.solve(
                parameters,
                model_parameters_pb2.ModelSolveParametersProto(),
                None,
                callback_pb2.CallbackRegistrationProto(),
                None,
                None,
            )
        except refusals():
            self._solver = None
            return None
        rows = self._program.rows
        pivots = result.solve_stats.simplex_iterations
        self._meter.spend(again_s(len(self._program.cost), len(rows.lower), pivots))
        if not result.solutions or not result.solutions[0].HasField("dual_solution"):
            return None
        best = result.solutions[0]
        x = dense_of(best.primal_solution.variable_values, len(self._program.cost))
        prices = dense_of(best.dual_solution.dual_values, len(rows.lower))
        return Optimum(value=float(self._program.cost @ x), x=x, prices=prices)

    def _update(self, lower: FloatArray, upper: FloatArray) -> None:
        """Tell the solver of new variables and limits, or build it."""
        from ortools.math_opt import model_update_pb2

        self._merge()
        (least, most), self._told = self._told, (lower.copy(), upper.copy())
        first, self._told_values = self._told_values, len(self._program.rows.values)
        if self._solver is None:
            self._solver = _begun(replace(self._program, lower=lower, upper=upper))
            return
        known = len(least)
        update = model_update_pb2.ModelUpdateProto()
        for part, old, new in (
            (update.variable_updates.lower_bounds, least, lower[:known]),
            (update.variable_updates.upper_bounds, most, upper[:known]),
        ):
            changed = np.flatnonzero(old != new)
            part.ids.extend(changed.tolist())
            part.values.extend(new[changed].tolist())
        count = len(lower) - known
        variables = update.new_variables
        variables.ids.extend(range(known, known + count))
        variables.lower_bounds.extend(lower[known:].tolist())
        variables.upper_bounds.extend(upper[known:].tolist())
        variables.integers.extend([False] * count)
        rows = self._program.rows
        order = first + np.lexsort((rows.column[first:], rows.row[first:]))
        matrix = update.linear_constraint_matrix_updates
        matrix.row_ids.extend(rows.row[order].tolist())
        matrix.column_ids.extend(rows.column[order].tolist())
        matrix.coefficients.extend(rows.values[order].tolist())
        if not self._solver.update(update):
            self._solver = _begun(replace(self._program, lower=lower, upper=upper))

    def _merge(self) -> None:
        """Take new variables into the program."""
        if not self._new:
            return
        program, known = self._program, len(self._program.cost)
        rows, sizes = program.rows, [len(r) for r, _, _ in self._new]
        more = np.zeros(len(sizes))
        self._program = replace(
            program,
            cost=np.concatenate([program.cost, more]),
            lower=np.concatenate([program.lower, more]),
            upper=np.concatenate([program.upper, [u for _, _, u in self._new]]),
            rows=replace(
                rows,
                row=np.concatenate([rows.row, *(r for r, _, _ in self._new)]),
                column=np.concatenate(
                    [rows.column, np.repeat(known + np.arange(len(sizes)), sizes)]
                ),
                values=np.concatenate([rows.values, *(v for _, v, _ in self._new)]),
            ),
            integer=np.zeros(known + len(sizes), dtype=bool),
        )
        self._new = []


def _begun(program: MilpProgram) -> Any:
    """A solver that begins this program without a basis."""
    from ortools.math_opt import parameters_pb2
    from ortools.math_opt.core.python import solver

    glop, start = parameters_pb2.SOLVER_TYPE_GLOP, parameters_pb2.SolverInitializerProto()
    return solver.new(glop, model_of(program), start)
