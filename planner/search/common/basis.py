"""Where a linear program's solution lies, so that a similar program begins there.

A basis says which variables and rows lie between their limits. A search solves many programs in a
row that differ in a few rows or limits; from the last one's basis the next one takes a fraction of
the pivots. A basis only says where to begin: what a program proves does not depend on it.

This module and those that solve programs import nothing of plans and their prices: a process that
only solves programs (:mod:`planner.search.common.solver_process`) starts in half the time without.
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
    """MathOpt's status of each variable, ``[size]``, and of each row, by its name."""

    variables: Sequence[int]
    rows: Mapping[bytes, int]

    @staticmethod
    def read(found: Any, names: Sequence[bytes]) -> Basis | None:
        """Of a solution in MathOpt's protocol, whose rows have these names; None if it has none."""
        if not found.HasField("basis"):
            return None
        rows = found.basis.constraint_status
        status = np.zeros(len(names), dtype=np.int64)
        status[np.array(rows.ids, dtype=np.int64)] = np.array(rows.values)
        by_name = dict(zip(names, status.tolist(), strict=True))
        return Basis(variables=list(found.basis.variable_status.values), rows=by_name)

    def write(self, size: int, names: Sequence[bytes]) -> Any:
        """For a program with ``size`` variables and rows of these names; None if it fits no more.

        Rows that are new lie between their limits. As many variables and rows have to as there are
        rows, so some of the last rows may have to change sides.
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
    """A digest of the variables of each of ``count`` rows: every box keeps those of its program.

    ``row`` ascends, and ``column`` within a row.
    """
    ends = np.searchsorted(row, np.arange(count + 1))
    return [
        hashlib.blake2b(column[a:b].tobytes(), digest_size=8).digest()
        for a, b in itertools.pairwise(ends)
    ]
