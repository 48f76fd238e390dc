"""Linear and mixed-integer programs, and their solutions, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from planner.search.common.basis import Basis

_MOST_NODES: Final = 500
"""Most nodes of a mixed-integer program, unless the program says otherwise. The limit ends it at
the same place on every machine, as a limit by the clock would not."""


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
class MilpProgram:
    """Minimise ``cost @ x`` subject to ``lower <= x <= upper`` and the rows.

    Attributes:
        cost: of each variable, ``[variables]``.
        upper: largest value of each variable; infinite for none.
        rows: constraints on several variables.
        integer: True for variables that have to be whole numbers.
        lower: least value of each variable.
        groups: the group of each of the first variables, ascending from 0; None if there are none.
            The variables of a group add up to 1, which the rows have to say too. Bounds are higher
            if they know it.
        max_nodes: most nodes of the search tree, if any variable is whole; None for no limit.
    """

    cost: FloatArray
    upper: FloatArray
    rows: Rows
    integer: BoolArray
    lower: FloatArray = field(default_factory=lambda: np.zeros(1))
    groups: IntArray | None = None
    max_nodes: int | None = _MOST_NODES

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
            well; None for mixed-integer programs, and if the solver gave no prices.
        basis: where a similar program can begin; None if the solver has none.
        infeasible: whether it is proven that there is no solution.
        pivots: pivots of the simplex method that it took.
        nodes: nodes of the search tree that it took.
    """

    bound: float
    x: FloatArray | None
    reduced_costs: FloatArray | None
    basis: Basis | None = None
    infeasible: bool = False
    pivots: int = 0
    nodes: int = 0
