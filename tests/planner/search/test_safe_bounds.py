"""Bounds hold for every feasible point, whatever prices are proposed and whatever the scale."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from costmodels.datatypes import FloatArray, IntArray
from planner.search.common.lp import LinearProgram, Rows, safe_bound, solve
from tests.planner import cases


def _random_program(rng: np.random.Generator) -> tuple[LinearProgram, FloatArray]:
    """A program and a point that keeps all its rows exactly; coefficients over 24 decades."""
    groups = np.sort(rng.integers(0, 3, 8)).astype(np.int64)
    groups = np.unique(groups, return_inverse=True)[1].astype(np.int64)
    size = len(groups) + int(rng.integers(1, 6))
    scale = 10.0 ** rng.uniform(-12, 12, size)
    x = np.zeros(size)
    for group in range(int(groups[-1]) + 1):
        x[rng.choice(np.flatnonzero(groups == group))] = 1.0
    rest = slice(len(groups), size)
    x[rest] = rng.integers(0, 9, size - len(groups)) / scale[rest]
    upper = np.where(rng.random(size) < 0.5, np.inf, x + rng.random(size) / scale)
    upper[: len(groups)] = 1.0
    parts = [
        Rows(
            row=groups,
            column=np.arange(len(groups)),
            values=np.ones(len(groups)),
            lower=np.ones(int(groups[-1]) + 1),
            upper=np.ones(int(groups[-1]) + 1),
        )
    ]
    for _ in range(int(rng.integers(1, 8))):
        matrix = rng.normal(size=(1, size)) * scale * (rng.random(size) < 0.6)
        at = sum(
            (Fraction(a) * Fraction(b) for a, b in zip(matrix[0], x, strict=True)), Fraction(0)
        )
        below = np.nextafter(float(at), -np.inf) if rng.random() < 0.7 else -np.inf
        above = np.nextafter(float(at), np.inf) if rng.random() < 0.7 else np.inf
        parts.append(Rows.dense(matrix, np.array([below]), np.array([above])))
    cost = np.abs(rng.normal(size=size)) * scale
    program = LinearProgram(
        cost=cost,
        upper=upper,
        rows=Rows.stack(parts),
        groups=groups if rng.random() < 0.7 else None,
    )
    return program, x


def _value(cost: FloatArray, x: FloatArray) -> Fraction:
    return sum((Fraction(a) * Fraction(b) for a, b in zip(cost, x, strict=True)), Fraction(0))


@pytest.mark.parametrize("seed", range(300))
def test_any_prices_give_a_bound_below_every_feasible_point(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program, x = _random_program(rng)
    value = _value(program.cost, x)
    proposed = rng.normal(size=len(program.rows.lower)) * 10.0 ** rng.uniform(-14, 14)
    for prices in (proposed, np.zeros_like(proposed), np.full_like(proposed, np.nan)):
        bound, reduced = safe_bound(program, prices)
        assert bound == -math.inf or Fraction(bound) <= value
        if math.isfinite(bound) and program.groups is not None:
            chosen = np.flatnonzero(x[: len(program.groups)])
            assert Fraction(bound) + Fraction(float(reduced[chosen].max())) <= value * (
                1 + Fraction(1, 10**9)
            )


@pytest.mark.parametrize("seed", cases.first(range(200), 80))
def test_solved_programs_are_bounded_below_a_known_point_and_never_infeasible(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    program, x = _random_program(rng)
    solution = solve(program)
    assert not solution.infeasible
    assert solution.bound == -math.inf or Fraction(solution.bound) <= _value(program.cost, x)


@pytest.mark.parametrize("seed", range(60))
def test_bounds_are_close_to_the_optimum_of_ordinary_programs(seed: int) -> None:
    """The objective as an endless variable over the largest of several loads, as in searches."""
    rng = np.random.default_rng(seed)
    tables, options, loads = 12, 5, 7
    groups: IntArray = np.repeat(np.arange(tables), options).astype(np.int64)
    size = tables * options + 1
    matrix = np.zeros((loads, size))
    unit = 10.0 ** rng.uniform(-9, 3)
    matrix[:, :-1] = rng.random((loads, size - 1)) * unit
    matrix[:, -1] = -1.0
    one = Rows(
        row=groups,
        column=np.arange(size - 1),
        values=np.ones(size - 1),
        lower=np.ones(tables),
        upper=np.ones(tables),
    )
    below = Rows.dense(matrix, np.full(loads, -np.inf), np.zeros(loads))
    program = LinearProgram(
        cost=np.eye(size)[-1],
        upper=np.append(np.ones(size - 1), np.inf),
        rows=Rows.stack([one, below]),
        groups=groups,
    )
    solution = solve(program)
    assert solution.x is not None
    shares = np.clip(solution.x[:-1].reshape(tables, options), 0.0, 1.0)
    shares /= shares.sum(axis=1, keepdims=True)
    value = float((matrix[:, :-1] @ shares.ravel()).max())
    assert value * (1 - 1e-5) <= solution.bound <= value * (1 + 1e-12)


def test_a_program_without_a_solution_is_told_by_a_proof() -> None:
    """Two rows that contradict each other, near and far from 1."""
    for unit in (1.0, 1e-10, 1e12):
        matrix = np.array([[unit, unit], [unit, unit]])
        rows = Rows.dense(matrix, np.array([3 * unit, -np.inf]), np.array([np.inf, 1.5 * unit]))
        program = LinearProgram(cost=np.ones(2), upper=np.full(2, np.inf), rows=rows)
        assert solve(program).infeasible
