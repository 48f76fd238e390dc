"""Programs that begin where a similar one ended prove the same as those that begin anew."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from pybind11_abseil.status import StatusNotOk
from scipy.optimize import linprog

from costmodels.datatypes import FloatArray
from planner.search.common import lp
from planner.search.common.lp import LinearProgram, ProgramBasis, Rows, row_names, solve


def _dense(program: LinearProgram) -> FloatArray:
    matrix = np.zeros((len(program.rows.lower), len(program.cost)))
    np.add.at(matrix, (program.rows.row, program.rows.column), program.rows.values)
    return matrix


def _least(program: LinearProgram) -> float:
    """By SciPy's solver, from the rows written out."""
    found = linprog(
        program.cost,
        A_ub=_dense(program),
        b_ub=program.rows.upper,
        bounds=np.column_stack([np.broadcast_to(program.lower, len(program.cost)), program.upper]),
    )
    return math.inf if found.status == 2 else float(found.fun)


def _drawn(rng: np.random.Generator) -> LinearProgram:
    """Rows ``A x <= b`` that may leave nothing, and a cost that no variable lowers without end."""
    size, count = int(rng.integers(2, 8)), int(rng.integers(1, 7))
    rows = rng.normal(size=(count, size))
    return LinearProgram(
        cost=rng.normal(size=size),
        upper=rng.uniform(0.5, 2.0, size),
        rows=Rows.dense(rows, np.full(count, -math.inf), rng.normal(size=count) + 0.5),
    )


def _changed(rng: np.random.Generator, program: LinearProgram) -> LinearProgram:
    """A row more, a row less or other limits of the variables."""
    way = rng.integers(3)
    if way == 0:
        row = rng.normal(size=(1, len(program.cost)))
        more = Rows.dense(row, np.array([-math.inf]), rng.normal(size=1))
        return replace(program, rows=Rows.stack([more, program.rows]))
    if way == 1 and len(program.rows.lower) > 1:
        left = _dense(program)[1:], program.rows.upper[1:]
        rows = Rows.dense(left[0], np.full(len(left[1]), -math.inf), left[1])
        return replace(program, rows=rows)
    return replace(program, upper=program.upper * rng.uniform(0.0, 1.5, len(program.upper)))


@pytest.mark.parametrize("seed", range(40))
def test_bounds_are_the_same_from_anywhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = _drawn(rng)
    basis = solve(program).basis
    for _ in range(4):
        program = _changed(rng, program)
        found = solve(program, start=basis)
        assert found.bound == pytest.approx(_least(program), rel=1e-6, abs=1e-6)
        assert found.infeasible is math.isinf(found.bound)
        basis = found.basis or basis


def test_a_similar_program_takes_fewer_pivots() -> None:
    rng = np.random.default_rng(3)
    tables, count = 30, 8
    groups = np.repeat(np.arange(tables), 5)
    loads = np.hstack([rng.random((count, len(groups))), -np.ones((count, 1))])
    ones = Rows.one_of_each(groups)
    program = LinearProgram(
        cost=np.append(np.zeros(len(groups)), 1.0),
        upper=np.append(np.ones(len(groups)), math.inf),
        rows=Rows.stack([ones, Rows.dense(loads, np.full(count, -math.inf), np.zeros(count))]),
        groups=groups,
    )
    first = solve(program)
    upper = program.upper.copy()
    upper[np.argmax(first.x[:-1] if first.x is not None else [])] = 0.0
    narrower = replace(program, upper=upper)
    anew, further = solve(narrower), solve(narrower, start=first.basis)
    assert further.bound == pytest.approx(anew.bound, rel=1e-9)
    assert further.pivots < 0.5 * anew.pivots


def test_a_basis_of_other_variables_is_of_no_use() -> None:
    assert ProgramBasis(variables=[2, 2], rows={}).write(3, [b"row"]) is None


@pytest.mark.parametrize("known", [{}, {b"a": 5, b"b": 5}, {b"a": 3, b"b": 3}])
def test_as_many_are_between_their_limits_as_there_are_rows(known: dict[bytes, int]) -> None:
    proto = ProgramBasis(variables=[5, 2, 2], rows=known).write(3, [b"a", b"b"])
    statuses = [*proto.variable_status.values, *proto.constraint_status.values]
    assert statuses.count(5) == 2


def test_rows_are_named_by_their_variables() -> None:
    row, column = np.array([0, 0, 2]), np.array([1, 4, 1])
    names = row_names(row, column, 3)
    assert len(set(names)) == 3
    assert names == row_names(row, column, 3)
    assert row_names(np.array([0, 0]), np.array([1, 4]), 1) == names[:1]


def test_a_solver_that_refuses_a_basis_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _drawn(np.random.default_rng(1))
    known = solve(program)
    ask, starts = lp._ask, []

    def refusing(program: LinearProgram, time_limit_s: float, start: ProgramBasis | None) -> object:
        starts.append(start)
        if start is not None:
            raise StatusNotOk(1, "ABNORMAL")
        return ask(program, time_limit_s, start)

    monkeypatch.setattr(lp, "_ask", refusing)
    assert solve(program, start=known.basis).bound == known.bound
    assert starts == [known.basis, None]
