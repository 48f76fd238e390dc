"""What changed between two sets of statistics, what that costs, and how long a plan lasts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from costmodels.distribution.zipf import Zipf
from costmodels.workload import Feature, Table, Workload
from planner import api
from planner.cli.commands.drift import DayFile, Drift
from planner.drift.changes import assess, table_changes, trend
from planner.errors import InvalidInputError, StoppedError
from planner.problem import MoveLimit, PlanningProblem
from planner.settings import SearchSettings
from planner.support.status import Status
from tests.planner import cases

SYSTEM = cases.topology(1, 4)
SEARCH = SearchSettings(max_evaluations=50, with_baselines=False)


def with_table(model: Workload, index: int, **changes: object) -> Workload:
    tables = list(model.tables)
    tables[index] = replace(tables[index], **changes)  # type: ignore[arg-type]
    return replace(model, tables=tuple(tables))


def pooled(table: Table, factor: float) -> tuple[Feature, ...]:
    return tuple(replace(f, pooling_factor=f.pooling_factor * factor) for f in table.features)


def test_what_changed_is_told_table_by_table() -> None:
    before = cases.synthetic(5, seed=3)
    table = before.tables[1]
    skewed = Zipf(num_embeddings=table.num_embeddings, exponent=1.4)
    now = with_table(before, 1, features=pooled(table, 3.0), distribution=skewed)
    assert table_changes(before, before, world_size=4) == ()
    (change,) = table_changes(before, now, world_size=4)
    assert change.table == table.name
    assert change.now.pooling_factor == pytest.approx(3.0 * change.before.pooling_factor)
    indices = 4 * before.batch_size_per_rank * table.pooling_factor
    assert change.before.num_unique_rows == table.distribution.expected_unique_rows(indices)
    assert change.now.hot_ratio > change.before.hot_ratio


def test_a_new_plan_is_found_where_the_load_moves() -> None:
    before = cases.synthetic(8, seed=1, batch=16384)
    problem = PlanningProblem(workload=before, topology=SYSTEM, constraints=cases.DEVICE_ONLY)
    plan = api.solve(problem, search=SEARCH).plan
    small = min(range(8), key=lambda i: before.tables[i].pooling_factor)
    now = with_table(before, small, features=pooled(before.tables[small], 60.0))
    found = assess(problem, now, MoveLimit(start=plan), search=SEARCH)
    assert found.before_s < found.now_s
    assert found.new_s < 0.98 * found.now_s
    assert found.saved_ratio == pytest.approx(1 - found.new_s / found.now_s)
    move = found.result.reshard
    assert move is not None
    assert found.payback_s == pytest.approx(move.time_s / (found.now_s - found.new_s) * found.new_s,
                                            abs=found.new_s)  # fmt: skip
    same = assess(problem, before, MoveLimit(start=plan), search=SEARCH)
    assert same.changes == ()
    assert same.now_s == same.before_s
    assert same.new_s <= same.now_s
    with pytest.raises(InvalidInputError, match="same tables"):
        assess(problem, cases.synthetic(7), MoveLimit(start=plan), search=SEARCH)


def a_drift() -> tuple[PlanningProblem, Workload, MoveLimit]:
    """A problem, its workload with another load, and the plan in use."""
    before = cases.synthetic(8, seed=1, batch=16384)
    problem = PlanningProblem(workload=before, topology=SYSTEM, constraints=cases.DEVICE_ONLY)
    plan = api.solve(problem, search=SEARCH).plan
    now = with_table(before, 0, features=pooled(before.tables[0], 60.0))
    return problem, now, MoveLimit(start=plan)


def test_a_search_that_was_stopped_gives_no_answer() -> None:
    asked = 0

    def counted() -> bool:
        nonlocal asked
        asked += 1
        return False

    given = a_drift()
    assess(*given, search=SEARCH, should_stop=counted)
    left = asked // 2

    def stop() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    with pytest.raises(StoppedError, match="before it was known what a new plan saves"):
        assess(*given, search=SEARCH, should_stop=stop)


def test_a_search_that_the_clock_has_cut_is_told() -> None:
    found = assess(*a_drift(), search=SEARCH)
    solver = replace(found.result.solver, status=Status.TIME_LIMIT)
    cut = replace(found, result=replace(found.result, solver=solver))
    first = {DayFile(path=Path("today.json"), day=1): found}
    both = {**first, DayFile(path=Path("today.json"), day=2): cut}
    told = [Drift(days=d, threshold_ratio=0.05, before=None).warnings for d in (first, both)]
    assert told[0] == ()
    assert len(told[1]) == 1
    assert told[1][0].startswith("--time-limit cut the search of 1 of 2 days")


def test_a_plan_that_is_no_faster_moves_no_table() -> None:
    found = assess(*a_drift(), search=SEARCH)
    move = found.result.reshard
    assert move is not None
    same = replace(found, now_s=found.new_s)
    assert found.move is move
    assert same.move is None


def test_a_line_says_how_long_a_plan_lasts() -> None:
    line = trend([10.0, 11.0, 13.0], [0.01, 0.02, 0.04])
    assert line is not None
    assert line.slope_per_day == pytest.approx(0.01)
    assert line.days_until(0.06) == pytest.approx((2.0, 2.0, 2.0), abs=1e-6)
    assert line.days_until(0.03) == (0.0, 0.0, 0.0)
    noisy = trend([0.0, 1.0, 2.0, 3.0], [0.00, 0.03, 0.01, 0.04])
    assert noisy is not None
    soonest, likely, latest = noisy.days_until(0.10)
    assert soonest < likely < latest
    assert trend([5.0], [0.1]) is None
    level = trend([0.0, 1.0], [0.1, 0.1])
    assert level is not None
    assert level.days_until(0.2)[1] == math.inf
