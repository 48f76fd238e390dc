"""Programs with whole options, against the same ones written down in full."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from costmodels.datatypes import BoolArray
from planner.objectives import objective_named
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.bound_program import TypeSet, type_sets
from planner.search.common.linear import LinearModel
from tests.planner.search.bounds.test_bounds_from_scratch import ROUNDS, Written
from tests.planner.search.bounds.test_bounds_from_scratch import space_of as space_named

UNIT = 1e-4
"""Seconds that are 1 for the solver."""


def least(bounds: RankFreeBound, types: TypeSet | None, *, kept: BoolArray | None) -> float:
    """The least objective: variables are shares of options, maxima of phases, the objective."""
    base, space = Written(bounds, types), bounds.space
    size = base.options + base.phases + 1
    inside = np.array([types is None or o.sharding_type in types for o in space.options])
    inside = inside if kept is None else inside & kept
    unit = np.where(base.is_limit, 1.0, UNIT)
    seconds = np.arange(size) >= base.options
    rows = np.array(base.rows)
    scaled = np.where(seconds, rows, rows / unit[:, None])
    most = np.array(base.most) / unit
    one = np.zeros((space.num_tables, size))
    one[space.table_of, np.arange(base.options)] = 1.0
    upper = np.full(size, np.inf)
    upper[: base.options] = inside
    found = milp(
        (np.arange(size) == size - 1).astype(float),
        bounds=Bounds(0.0, upper),
        constraints=[LinearConstraint(scaled, -np.inf, most), LinearConstraint(one, 1.0, 1.0)],
    )
    return math.inf if found.status == 2 else float(found.fun) * UNIT


@pytest.mark.parametrize(
    ("name", "objective"),
    [("tiny 0", "phases"), ("tiny 3", "iteration"), ("little device memory", "phases")],
)
def test_programs_say_what_is_written(name: str, objective: str) -> None:
    """Over all options and over some of them."""
    space = space_named(name)
    bounds = RankFreeBound(LinearModel(space, objective_named(objective, space)))
    rng = np.random.default_rng(0)
    for types in (None, type_sets(space)[0], type_sets(space)[-1]):
        for kept in (None, rng.random(len(space.options)) < 0.7):
            linear = bounds.relax(types, kept=kept, rounds=ROUNDS).bound
            assert linear == pytest.approx(least(bounds, types, kept=kept), rel=3e-4)
