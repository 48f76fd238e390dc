"""Searches that end soon: plans come before proofs."""

from __future__ import annotations

import statistics

import pytest

from costmodels.sharding import ShardingType
from planner import api
from planner.problem import Constraints
from tests.planner import cases

SHAPES = ((1, 4), (2, 2), (2, 4), (4, 4))
COLUMNS = Constraints(
    kernels=cases.DEVICE_ONLY.kernels,
    sharding_types=(ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE),
)
CLEAR = (2, 10)
"""Where proofs before plans cost 6 to 8 %, as they do with seed 11."""


def ratio(seed: int) -> float:
    """What all types find over what whole tables and columns do, both with 1,000 evaluations."""
    model = cases.synthetic(12 + 2 * (seed % 6), seed=seed, batch=4096)
    system = cases.topology(*SHAPES[seed % 4])
    few, every = (
        api.plan(model, system, constraints=c, max_evaluations=1000, with_baselines=False)
        for c in (COLUMNS, cases.DEVICE_ONLY)
    )
    return every.solver.value / few.solver.value


@pytest.mark.parametrize("seed", CLEAR)
def test_proofs_do_not_come_before_plans(seed: int) -> None:
    assert ratio(seed) <= 1.03


@pytest.mark.slow
def test_more_sharding_types_make_plans_no_worse_on_average() -> None:
    """Single plans are up to 1.4 % worse or 0.4 % better, as it happens."""
    assert statistics.geometric_mean(ratio(seed) for seed in range(12)) <= 1.005
