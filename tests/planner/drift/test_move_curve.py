"""Bytes moved against step time: points within limits, and the table that a limit blocks."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from costmodels.sharding import ComputeKernel, Plan, ShardingType
from planner import api, io
from planner.drift.changes import with_curve
from planner.errors import InvalidInputError
from planner.io.plan.result_json import reshard_text
from planner.problem import MoveLimit, PlanningProblem
from planner.report.sections.base import build_sections
from planner.result import PlanningResult
from planner.settings import SearchSettings
from tests.planner import cases

SYSTEM = cases.topology(1, 4)
SEARCH = SearchSettings(max_evaluations=40, with_baselines=False)


@pytest.fixture(scope="module")
def start() -> Plan:
    """A plan that looks at sizes alone."""
    model = cases.synthetic(8, seed=2, batch=16384)
    return api.plan(
        model,
        SYSTEM,
        strategy="size_greedy",
        constraints=cases.DEVICE_ONLY,
        with_baselines=False,
    ).plan


def replanned(start: Plan, **limits: float) -> PlanningResult:
    model = cases.synthetic(8, seed=2, batch=16384)
    problem = PlanningProblem(
        workload=model,
        topology=SYSTEM,
        constraints=cases.DEVICE_ONLY,
        move_limit=MoveLimit(start=start, **limits),  # type: ignore[arg-type]
    )
    return with_curve(api.solve(problem, search=SEARCH), search=SEARCH, counts=(1, 2, 5, 10))


@pytest.fixture(scope="module")
def free(start: Plan) -> PlanningResult:
    """A new plan without a limit."""
    return replanned(start)


def test_more_tables_are_never_slower(free: PlanningResult) -> None:
    result = free
    assert [p.most_tables for p in result.curve] == [0, 1, 2, 5, None]  # of 8 tables
    times = [p.iteration_s for p in result.curve]
    assert times == sorted(times, reverse=True)
    assert times[-1] == result.estimate.time.time_s < times[0]
    assert result.curve[0].move.moved_bytes == 0
    for point in result.curve:
        if point.most_tables is not None:
            assert point.move.moved_tables <= point.most_tables
        assert point.move.before_s == result.curve[0].move.before_s
    assert result.blocked is None  # nothing limits
    (section,) = build_sections(result, ("moves",))
    assert len(section.rows) == len(result.curve)
    told = io.result_to_json(result)["curve"]
    assert [p["iteration_s"] for p in told] == times


def test_no_point_moves_a_table_where_none_may_move(start: Plan) -> None:
    result = replanned(start, max_tables=0)
    assert [(p.most_tables, p.move.moved_tables) for p in result.curve] == [(0, 0), (None, 0)]


def test_a_better_plan_of_the_curve_comes_with_its_own_figures(free: PlanningResult) -> None:
    """A poor search comes first; what bounds can see of a plan is no more than its time."""
    poor = api.solve(free.problem, search=replace(SEARCH, strategy="random"))
    result = with_curve(poor, search=SEARCH, counts=(1, 5))
    assert result.solver.value < 0.95 * poor.solver.value
    assert result.solver.separable_value != poor.solver.separable_value
    assert result.solver.separable_value is not None
    assert result.solver.separable_value <= result.solver.value


def test_the_blocking_table_is_named(start: Plan, free: PlanningResult) -> None:
    result = replanned(start, max_tables=1)
    assert [p.most_tables for p in result.curve] == [0, None]
    assert free.estimate.time.time_s < 0.99 * result.estimate.time.time_s
    blocked = result.blocked
    assert blocked is not None
    assert blocked.iteration_s < result.estimate.time.time_s
    moved = {p.table for p in result.plan.placements if p != start.placement(p.table)}
    assert blocked.table not in moved
    (section,) = build_sections(result, ("moves",))
    assert any(f"blocks table {blocked.table}:" in note for note in section.notes)


def test_a_curve_needs_a_plan_in_use() -> None:
    result = api.plan(cases.synthetic(2), SYSTEM, max_evaluations=20, with_baselines=False)
    with pytest.raises(InvalidInputError, match="plan in use"):
        with_curve(result, search=SEARCH)
    assert build_sections(result, ("moves",)) == ()


def test_the_diff_holds_what_changes_and_says_what_torchrec_cannot_move() -> None:
    model = cases.workload((cases.table("a"), cases.table("b"), cases.table("c"), cases.table("d")))
    space = cases.space(model, cases.topology(1, 2))
    plan = space.plan(space.assignment(api.plan(model, cases.topology(1, 2), strategy="size_greedy",
                                                with_baselines=False).plan))  # fmt: skip
    a, b, c, d = (replace(p, sharding_type=ShardingType.TABLE_WISE) for p in plan.placements)
    before = Plan(placements=(a, b, c, d))
    moved = replace(a, shards=tuple(replace(s, rank=1 - s.rank) for s in a.shards))
    retyped = replace(b, sharding_type=ShardingType.ROW_WISE)
    slower = replace(c, kernel=ComputeKernel.FUSED_UVM)
    after = Plan(placements=(moved, retyped, slower, d))
    values = json.loads(reshard_text(before, after, model, 2))
    (module,) = values["modules"].values()
    assert list(module["tables"]) == ["a"]
    assert module["tables"]["a"]["ranks"] == [1 - a.shards[0].rank]
    assert module["data_volume_mib"] == pytest.approx(10_000 * 64 * 4 / 2**20)
    assert set(values["restart"]) == {"b", "c"}
    assert "keeps the sharding type" in values["restart"]["b"]
    assert json.loads(reshard_text(before, before, model, 2))["modules"] == {}
