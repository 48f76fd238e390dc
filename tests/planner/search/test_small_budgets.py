"""Searches that end soon: plans come before proofs."""

from __future__ import annotations

import statistics

import pytest

from costmodels.sharding import ShardingType
from planner import api
from planner.objectives import objective_named
from planner.problem import Constraints
from planner.search import auto
from planner.search.base import Record
from planner.space.evaluation import Budget, Evaluator
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


@pytest.mark.parametrize("seed", cases.first(CLEAR, 1))
def test_proofs_do_not_come_before_plans(seed: int) -> None:
    assert ratio(seed) <= 1.03


@pytest.mark.slow
def test_more_sharding_types_make_plans_no_worse_on_average() -> None:
    """Single plans are up to 1.4 % worse or 0.4 % better, as it happens."""
    assert statistics.geometric_mean(ratio(seed) for seed in range(12)) <= 1.005


def test_early_plans_leave_work_for_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 tables on 512 ranks spent all work before the bounds; that of all sets stayed: 59 %."""
    space = cases.space(cases.synthetic(6), cases.topology(2, 2), cases.DEVICE_ONLY)
    objective = objective_named("iteration", space)
    record = Record(Evaluator(space, objective, Budget(max_evaluations=10_000)))
    run = auto._Run(record, 0, None, is_second=True)
    run._bound_at_once()
    taken: list[float] = []
    monkeypatch.setattr(run.improver, "cycle", lambda *_, most_s, **__: taken.append(most_s))
    run._early_plans()
    assert sum(taken) <= 0.3 * run.meter.planned_s


def test_a_search_without_proofs_has_a_plan_though_tangents_are_added() -> None:
    """A plan of an early descent had loads of fewer tangents than the model: IndexError."""
    space = cases.space(cases.synthetic(8), cases.topology(1, 8))
    budget = Budget(max_evaluations=3000)
    evaluate = Evaluator(space, objective_named("iteration", space), budget)
    assert auto.Auto(is_second=True).search(Record(evaluate), seed=0).assignments
