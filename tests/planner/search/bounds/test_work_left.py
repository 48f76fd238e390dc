"""What is begun with little of a budget left: few greedy plans."""

from __future__ import annotations

import math

import pytest

from planner.objectives import objective_named
from planner.search.base import Record
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.rounding import Starts
from planner.search.common.linear import LinearModel
from planner.space.effort import Meter
from planner.space.evaluation import Assignment, Budget, Evaluator
from tests.planner import cases


def greedy_starts(most_s: float) -> list[float]:
    """Work spent when each greedy plan is made, until so much is spent."""
    space = cases.space(cases.synthetic(5), cases.topology(2, 2), cases.DEVICE_ONLY)
    objective = objective_named("iteration", space)
    record = Record(Evaluator(space, objective, Budget()))
    consider, spent_s = record.consider, []

    def kept(assignment: Assignment, phase: str) -> None:
        spent_s.append(record.evaluate.meter.spent_s)
        consider(assignment, phase)
        assert math.isfinite(record.value), "the first one fits already"

    record.consider = kept  # type: ignore[method-assign]
    bounds = RankFreeBound(LinearModel(space, objective))
    Starts(bounds, record).greedy(most_s)
    return spent_s


def test_greedy_plans_are_made_as_long_as_there_is_work_left_for_them() -> None:
    """One at least, for a search begins with a plan."""
    every = greedy_starts(math.inf)
    assert len(every) > 4
    for most in (1, 2, 3):
        assert greedy_starts(every[most - 1]) == every[:most]
        assert greedy_starts(0.5 * (every[most - 1] + every[most])) == every[:most]
    assert greedy_starts(0.0) == every[:1]


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
    assert meter.spent_s < meter.most_s
    meter.spend(9.5)
    assert meter.left_s == pytest.approx(0.5)
    meter.spend(0.5)
    assert meter.left_s == 0.0
    assert meter.spent_s >= meter.most_s


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
