"""The last step of a search prices a piece on every rank, which takes long with many of them."""

from __future__ import annotations

import numpy as np
import pytest

from planner.objectives.phases import SynchronizedPhases
from planner.search.construct.greedy import list_greedy, lookup_cost
from planner.search.improve.single_changes import single_changes
from planner.space.effort import priced_s
from planner.space.evaluation import Budget, Evaluator
from tests.planner import cases


@pytest.mark.parametrize(("share", "prices"), [(0.9, False), (50.0, True)])
def test_no_step_begins_that_its_work_does_not_allow(share: float, *, prices: bool) -> None:
    """1,000 tables on 8,192 ranks took 102 s under a limit of 30 s."""
    space = cases.space(cases.synthetic(12), cases.topology(2, 8))
    evaluate = Evaluator(space, SynchronizedPhases(space), Budget())
    costs = np.array([lookup_cost(t) for t in space.problem.workload.tables])
    start = list_greedy(space, costs)
    step_s = priced_s(space.world_size, space.work(start).size)
    most_s = evaluate.meter.spent_s + share * step_s
    single_changes(evaluate, start, lambda: False, most_s=most_s)
    assert (evaluate.num_evaluations > space.world_size) is prices
