"""A search that the clock or the user ends has a bound, also where it prices all plans in turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import api, io
from planner.problem import PlanningProblem
from planner.result import PlanningResult
from planner.search.base import Record
from planner.settings import SearchSettings
from planner.space.evaluation import Evaluator
from planner.support.status import Status

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def problem() -> PlanningProblem:
    return io.load_problem(DATA / "no_bound_920002.yaml", "h100_sxm", gpus=2)


@pytest.fixture(scope="module")
def whole(problem: PlanningProblem) -> PlanningResult:
    return api.solve(problem, search=SearchSettings(with_baselines=False))


@pytest.mark.parametrize("strategy", ["auto", "exhaustive"])
def test_a_walk_that_the_clock_cuts_has_a_floor(
    strategy: str,
    problem: PlanningProblem,
    whole: PlanningResult,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock is over once the first batch of plans is priced, as on a busy machine."""
    monkeypatch.setattr(Evaluator, "late", property(lambda self: self.num_evaluations > 0))
    search = SearchSettings(strategy=strategy, time_limit_s=600.0, with_baselines=False)
    result = api.solve(problem, search=search)
    assert result.solver.evaluations < whole.solver.evaluations
    assert result.bound is not None
    assert whole.bound is not None
    best = whole.estimate.time.time_s
    assert 0.99 * best <= result.bound <= best


def test_a_walk_that_the_user_ends_has_a_floor(
    problem: PlanningProblem, whole: PlanningResult
) -> None:
    begun: list[object] = []
    search = SearchSettings(with_baselines=False)
    result = api.solve(
        problem, search=search, progress=begun.append, should_stop=lambda: len(begun) > 3
    )
    assert result.solver.status in (Status.INTERRUPTED, Status.OPTIMAL)
    assert result.bound is not None
    assert 0 < result.bound <= whole.estimate.time.time_s


def test_no_floor_where_the_walk_ends(whole: PlanningResult) -> None:
    assert whole.solver.status is Status.OPTIMAL


def test_nothing_proven_is_no_bound(problem: PlanningProblem) -> None:
    """Minus infinity was kept, and printed as null."""
    seen: list[float | None] = []

    def bound_is_kept(record: Record, bound: float, phase: str) -> None:
        kept(record, bound, phase)
        seen.append(record.bound)

    kept = Record.raise_bound
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Record, "raise_bound", bound_is_kept)
        patch.setattr("planner.search.bounds.proofs._linear_bound", lambda *_: float("-inf"))
        limited = SearchSettings(time_limit_s=600.0, with_baselines=False)
        api.solve(problem, search=limited)
    assert seen[0] is None
    assert seen[-1] is not None
