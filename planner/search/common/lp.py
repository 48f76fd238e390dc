"""Linear programs, and their solutions, as arrays."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
