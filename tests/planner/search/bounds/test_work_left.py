"""What is begun with little work left: few nodes of whole programs, few greedy plans."""

from __future__ import annotations

import math

import pytest

from planner.objectives import objective_named
from planner.search.base import Record
from planner.search.bounds import bound
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.relaxation import type_sets
from planner.search.bounds.rounding import Starts
from planner.search.common.leave_out import SearchPart
from planner.search.common.linear import LinearModel
from planner.search.common.programs import MilpProgram, Solution, node_s, solve
from planner.space.effort import Meter
from planner.space.evaluation import Assignment, Budget, Evaluator
from tests.planner import cases


@pytest.mark.parametrize(("nodes_left", "most"), [(0.0, 1), (1.5, 1), (5.5, 5), (1e9, None)])
def test_whole_programs_get_the_nodes_that_are_paid_for(
    nodes_left: float, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at least, so that there is an answer; never more than a program allows by itself."""
    asked: list[MilpProgram] = []

    def kept(program: MilpProgram, **how: float) -> Solution:
        asked.append(program)
        return solve(program, **how)

    monkeypatch.setattr(bound, "solve", kept)
    space = cases.tiny(0)
    model = LinearModel(space, objective_named("iteration", space))
    (types, *_) = type_sets(space)
    RankFreeBound(model).solve_whole(types, rounds=1)
    allowed = asked[0].max_nodes
    meter = Meter(nodes_left * node_s(asked[0]))
    RankFreeBound(model, meter=meter).solve_whole(types, rounds=1)
    assert asked[1].max_nodes == (allowed if most is None else most)
    assert meter.spent_s > 0
    RankFreeBound(model, meter=Meter(0.0)).relax(types, rounds=1)
    assert not asked[2].integer.any()
    assert asked[2].max_nodes == allowed, "a linear program has no nodes"


def greedy_starts(most_s: float, without: frozenset[SearchPart] = frozenset()) -> list[float]:
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
    found = Starts(bounds, record, without).greedy(most_s)
    assert found == ([record.best] if spent_s else [])
    return spent_s


def test_greedy_plans_are_made_as_long_as_there_is_work_left_for_them() -> None:
    """One at least, for a search begins with a plan."""
    every = greedy_starts(math.inf)
    assert len(every) > 4
    for most in (1, 2, 3):
        assert greedy_starts(every[most - 1]) == every[:most]
        assert greedy_starts(0.5 * (every[most - 1] + every[most])) == every[:most]
    assert greedy_starts(0.0) == every[:1]
    assert greedy_starts(math.inf, frozenset({SearchPart.GREEDY})) == []
