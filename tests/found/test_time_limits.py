"""A time limit holds for programs, baselines and reports too; all by a clock of the tests."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import planner.search.bounds.bound as bound_module
import planner.space.budget as budget_module
from costmodels.distribution import laws as hottest_module
from costmodels.distribution.zipf import Zipf
from costmodels.pipeline import CostPipeline
from planner import api, io
from planner.errors import StoppedError
from planner.options.torchrec_default import torchrec_default
from planner.problem import PlanningProblem
from planner.search.base import Record
from planner.search.bounds.bound import RankFreeBound
from planner.search.common.linear import LinearModel
from planner.search.common.lp import Solution, first_prices, safe_bound
from planner.settings import SearchSettings
from planner.solving import assumed
from planner.solving.prepare import search_objective, search_space
from planner.space.budget import Deadline
from planner.space.evaluation import Budget, Evaluator
from tests.planner import cases


@pytest.fixture(scope="module")
def problem() -> PlanningProblem:
    return io.load_problem("small_demo", "h100_sxm", gpus=8)


def bounds_of(problem: PlanningProblem, limit_s: float | None = None) -> RankFreeBound:
    space = search_space(problem, CostPipeline, every_kernel=False)
    objective = search_objective("iteration", space, SearchSettings().robust)
    record = Record(Evaluator(space, objective, Budget(time_limit_s=limit_s)))
    return RankFreeBound(LinearModel(space, objective), record=record)


def test_a_linear_program_gets_the_seconds_that_are_left(
    problem: PlanningProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GLOP ran as long as it liked: 6 s after the end of a search of 10,000 tables."""
    limits: list[float] = []
    solve: Any = getattr(bound_module, "solve")  # noqa: B009 - it is imported there

    def limited(*args: object, time_limit_s: float, **options: object) -> Solution:
        limits.append(time_limit_s)
        found: Solution = solve(*args, time_limit_s=time_limit_s, **options)
        return found

    monkeypatch.setattr(bound_module, "solve", limited)
    bounds_of(problem, 7.0).relax(None)
    assert limits
    assert all(0.01 <= limit_s < 7.0 for limit_s in limits)
    limits.clear()
    bounds_of(problem).relax(None)
    assert set(limits) == {math.inf}


def test_a_program_that_the_clock_cuts_still_proves_something(problem: PlanningProblem) -> None:
    """The prices that are computed without a solver prove nearly what its first program proves."""
    bounds = bounds_of(problem)
    program = bounds.builder.build(None, [], [], [bounds.model.objective.always()])
    floor = safe_bound(program, first_prices(program))[0] * bounds.builder.scale
    solved = bounds_of(problem).relax(None, rounds=1).bound
    assert 0.9 * solved <= floor <= solved * (1 + 1e-6)
    nothing = safe_bound(program, np.zeros(len(program.rows.lower)))[0] * bounds.builder.scale
    assert nothing < 0.1 * solved


def test_without_a_solution_the_floor_is_the_bound(
    problem: PlanningProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*args: object, **options: object) -> Solution:
        return Solution(bound=0.5, x=None, reduced_costs=None)

    monkeypatch.setattr(bound_module, "solve", cut)
    bounds = bounds_of(problem)
    assert bounds.relax(None).bound == pytest.approx(0.5 * bounds.builder.scale)


def test_torchrec_s_plan_is_left_as_it_is_when_time_is_over(problem: PlanningProblem) -> None:
    """It took 20 s for 10,000 tables, whatever the limit."""
    asked = replace(problem, workload=replace(problem.workload, name="not walked before"))
    with pytest.raises(StoppedError):
        torchrec_default(asked, lambda: True)
    whole = torchrec_default(asked)
    assert whole.plan is not None
    assert torchrec_default(asked, lambda: True) is whole  # what is known takes no time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that a deadline has left each time it is asked, the last one for ever."""
    left: list[float] = [100.0]
    monkeypatch.setattr(Deadline, "left_s", property(lambda _: left[0]))
    return left


def test_what_follows_the_search_is_left_out_by_name(
    problem: PlanningProblem, clock: list[float]
) -> None:
    """The search ends as late as the limit; no baseline is made, and one plan is priced."""
    clock[0] = -1.0
    search = SearchSettings(time_limit_s=100.0, max_evaluations=50)
    result = api.solve(problem, search=search)
    assert result.baselines == ()
    assert result.unfit_baselines == ()
    assert result.runners_up == ()
    told = [text for text in result.warnings if "left no time to compare with" in text]
    assert len(told) == 1
    assert "torchrec_greedy, split_hottest" in told[0]
    clock[0] = 100.0
    whole = api.solve(problem, search=search)
    assert len(whole.baselines) + len(whole.unfit_baselines) == 5
    assert not [text for text in whole.warnings if "left no time" in text]


def test_a_search_that_listing_left_little_time_says_so(
    problem: PlanningProblem, clock: list[float]
) -> None:
    """Options of 10,000 tables are listed for longer than a limit of 10 s; nothing said so."""
    search = SearchSettings(time_limit_s=100.0, max_evaluations=50, with_baselines=False)
    clock[0] = -1.0
    late = [text for text in api.solve(problem, search=search).warnings if "listing" in text]
    assert len(late) == 1
    assert "left the search 5 s of the time limit of 100 s" in late[0]
    clock[0] = 100.0
    assert not [text for text in api.solve(problem, search=search).warnings if "listing" in text]


def test_what_was_assumed_is_priced_only_while_there_is_time(
    problem: PlanningProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to ten further prices of the plan followed the search, whatever was left of the limit."""
    plan = api.solve(problem, search=SearchSettings(max_evaluations=50)).plan
    keys: dict[str, tuple[str, ...]] = {"training.optimizer": (), "training.index_bytes": ()}
    left = [True, False]
    found = assumed.priced_assumptions(problem, plan, keys, left.pop)
    assert [a.time_s is None for a in found] == [True, False]
    monkeypatch.setattr("planner.models.pipeline_of", None)
    late = assumed.priced_assumptions(problem, plan, keys, lambda: False)
    assert [a.key for a in late] == [a.key for a in found]
    assert all(a.time_s is None for a in late)


def test_the_time_to_price_a_plan_is_told_by_the_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan was priced to see how long that takes: one second in ten for 10,000 tables."""
    now = [0.0]
    monkeypatch.setattr(budget_module.time, "perf_counter", lambda: now[0])
    deadline = Deadline(100.0, num_plans=9, num_baselines=0)
    now[0] = 20.0
    space: Any = SimpleNamespace(num_tables=10, options=range(100))
    assert deadline.for_search(space) == pytest.approx(80.0 - 9 * 2.0)
    now[0] = 98.5
    assert not deadline.can_price


def test_hot_rows_of_all_tables_are_computed_once() -> None:
    """Computed again for each option they took a fifth of a command about 10,000 tables."""
    tables = tuple(cases.table(f"t{i}", 10_000 + 7 * i, 32, 5.0) for i in range(64))
    laws = [Zipf(num_embeddings=t.num_embeddings, exponent=1.03) for t in tables]
    workload = cases.workload(
        tuple(replace(t, distribution=law) for t, law in zip(tables, laws, strict=True))
    )
    before = hottest_module.hottest_share.cache_info().misses
    search_space(PlanningProblem(workload=workload, topology=cases.topology(2, 4)), CostPipeline)
    kinds = 2  # parts: of a host, and of all ranks
    assert 64 <= hottest_module.hottest_share.cache_info().misses - before <= 64 * kinds
