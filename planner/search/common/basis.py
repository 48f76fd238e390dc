"""The basis of a solved linear program, from which the solver begins a similar program.

A basis says which variables and rows are strictly between their limits in a solution, and at which
limit the others are. A search solves many programs in a row that differ in a few rows or limits. If
the solver begins a program with the basis of the last one, it needs a fraction of the pivots. A
basis only says where to begin: what a program proves does not depend on it.

This module and those that solve programs import nothing about plans and prices. Without these
imports, a process that only proves starts in half the time.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from costmodels.datatypes import IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Basis:
    """The statuses of a solution, as numbers of MathOpt's ``BasisStatusProto``.

    Attributes:
        variables: the status of each variable, ``[variables]``.
        rows: the status of each row, by the row's name (see :func:`row_names`).
    """

    variables: Sequence[int]
    rows: Mapping[bytes, int]

    @staticmethod
    def read(found: Any, names: Sequence[bytes]) -> Basis | None:
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
        return Basis(variables=list(found.basis.variable_status.values), rows=by_name)

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
