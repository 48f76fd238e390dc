"""What a search still plans with when much of a budget is spent."""

from __future__ import annotations

import math

import pytest

from planner.objectives import objective_named
from planner.space.effort import Meter
from planner.space.evaluation import Budget, Evaluator
from tests.planner import cases


@pytest.mark.parametrize(
    ("most_s", "time_limit_s", "planned_s"),
    [(7.0, None, 7.0), (7.0, 10.0, 7.0), (1e6, 10.0, 10.0), (math.inf, 10.0, 10.0)],
)
def test_a_time_limit_counts_where_it_is_likely_to_end_the_search(
    most_s: float, time_limit_s: float | None, planned_s: float
) -> None:
    """Shares of a budget of work that the clock never lets it use up would be no limits at all."""
    meter = Meter(most_s, time_limit_s)
    assert meter.planned_s == planned_s
    assert meter.left_s == planned_s
    meter.spend(3.0)
    assert meter.left_s == planned_s - 3.0


def test_a_quick_machine_has_a_little_left_until_the_clock_ends_its_search() -> None:
    """Only the budget of work says that nothing is left."""
    meter = Meter(30.0, 10.0)
    meter.spend(20.0)
    assert meter.left_s == pytest.approx(1.0)
    assert not meter.is_empty
    meter.spend(9.5)
    assert meter.left_s == pytest.approx(0.5)
    meter.spend(0.5)
    assert meter.left_s == 0.0
    assert meter.is_empty


def test_without_limits_there_is_no_end() -> None:
    """Neither is planned then."""
    meter = Meter()
    meter.spend(1e9)
    assert math.isinf(meter.left_s)
    assert math.isinf(meter.planned_s)


def test_searches_with_much_work_and_little_time_share_out_the_time() -> None:
    """A user may set both; the parts of the search are kept to what the clock allows."""
    space = cases.tiny(0)
    objective = objective_named("iteration", space)
    both = Evaluator(space, objective, Budget(time_limit_s=2.0, max_evaluations=10**9))
    assert both.meter.planned_s == 2.0
    assert both.meter.most_s > 1000.0
    work_alone = Evaluator(space, objective, Budget(max_evaluations=100))
    assert work_alone.meter.planned_s == work_alone.meter.most_s
