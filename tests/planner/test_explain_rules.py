"""What an explanation recommends may be done, and no other change of one table is faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from costmodels.sharding import ComputeKernel, Plan, ShardingType, TablePlacement
from planner.api import estimate
from planner.errors import InvalidInputError
from planner.explain.explainer import Change, Explainer, least_moved
from planner.problem import (
    Constraints,
    CountLimit,
    Level,
    MemoryLimit,
    PlanningProblem,
    TableGroup,
)
from tests.differential.case import Case
from tests.differential.drawing.problems import draw, draw_unusual
from tests.differential.judging.enumerator import Enumerator
from tests.differential.judging.rules import broken_rules
from tests.planner import cases
from tests.strategies import make_placement

GIB = 2**30
WHOLE = Constraints(kernels=(ComputeKernel.FUSED,), sharding_types=(ShardingType.TABLE_WISE,))


def explained(ranks: tuple[int, ...], rules: Constraints = WHOLE) -> Explainer:
    """Tables ``t0``, ``t1`` ... of 1 GiB, each whole on its rank of four."""
    rows = GIB // (64 * 4 + 4)
    tables = tuple(cases.table(f"t{i}", rows, 64, 100.0) for i in range(len(ranks)))
    topology = cases.topology(1, 4)
    plan = Plan(
        placements=tuple(
            make_placement(table, ShardingType.TABLE_WISE, topology, where=(rank,))
            for table, rank in zip(tables, ranks, strict=True)
        )
    )
    workload = cases.workload(tables, batch=16_384)
    problem = PlanningProblem(workload=workload, topology=topology, constraints=rules)
    return Explainer(problem, plan)


def places(changes: tuple[Change, ...]) -> dict[str, tuple[int, ...]]:
    """Where each changed table goes."""
    return {change.table: change.after.ranks for change in changes}


def test_a_table_may_move_without_being_cut_in_another_way() -> None:
    """Both tables lie on rank 0, and there is one way to cut them."""
    explainer = explained((0, 0))
    best = explainer.changes()[0]
    assert best.after.sharding_type is ShardingType.TABLE_WISE
    assert best.after.ranks != (0,)
    assert best.plan_time_s < 0.9 * explainer.plan_time_s
    assert best.moved_bytes == pytest.approx(GIB, rel=1e-5)


def test_tables_of_a_group_are_not_recommended_to_part() -> None:
    """The third table is free to go."""
    group = TableGroup(patterns=("t0", "t1"))
    assert set(places(explained((0, 0, 0)).changes())) == {"t0", "t1", "t2"}
    rules = replace(WHOLE, together=(group,))
    assert set(places(explained((0, 0, 0), rules).changes())) == {"t2"}


def test_ten_changes_are_told_unless_more_are_asked_for() -> None:
    """Of twelve tables, each of which is named when it has been looked at."""
    explainer, seen = explained((0,) * 12), []
    assert len(explainer.changes(progress=seen.append)) == 10
    assert seen == [f"t{i}" for i in range(12)]
    assert len(explainer.changes(limit=12)) == 12


def test_an_unknown_name_is_answered_with_five_tables_at_most() -> None:
    for count, told in ((5, "t0, t1, t2, t3, t4"), (6, "t0, t1, t2, t3, t4, ...")):
        with pytest.raises(InvalidInputError) as caught:
            explained((0,) * count).table("something else")
        assert str(caught.value) == f"--table 'something else': no such table; tables are {told}"


def test_options_without_places_are_counted() -> None:
    """One shard for each rank, and two ranks that have one: two pieces find places, four do not."""
    types = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
    limit = CountLimit(most=1, counts_shards=True)
    rules = replace(WHOLE, sharding_types=types)
    for counts, stuck, pieces in (((), 0, {1, 2, 4}), ((limit,), 1, {1, 2})):
        told = explained((0, 1, 2), replace(rules, counts=counts)).table("t0")
        assert told.num_stuck == stuck
        assert {len(o.placement.shards) for o in told.options} == pieces


@pytest.mark.parametrize(
    ("rules", "ranks"),
    [
        (replace(WHOLE, apart=(TableGroup(patterns=("t*",)),)), (0, 1, 2)),
        (replace(WHOLE, counts=(CountLimit(most=1),)), (0, 1, 2)),
        (
            replace(WHOLE, memory=(MemoryLimit(most_bytes=GIB, level=Level.RANK, places=(1, 2)),)),
            (0, 0),
        ),
    ],
    ids=["apart", "count", "memory"],
)
def test_places_that_constraints_close_are_not_recommended(
    rules: Constraints, ranks: tuple[int, ...]
) -> None:
    """Ranks 1 and 2 hold a table each, or are too small for one; rank 3 is free."""
    assert places(explained(ranks, rules).changes())["t0"] == (3,)


def test_an_option_goes_by_the_name_that_shares_the_collectives_of_the_others() -> None:
    """Column-wise in one piece has the same shard as table-wise, and collectives of its own."""
    types = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
    rules = replace(WHOLE, sharding_types=types)
    change = next(c for c in explained((0, 0, 1, 2), rules).changes() if c.after.ranks == (3,))
    assert change.after.sharding_type is ShardingType.TABLE_WISE


@pytest.mark.parametrize(
    ("level", "most", "own"),
    [
        *((Level.RANK, 1, (0, 1, 2)), (Level.RANK, 2, (0, 0, 3))),
        *((Level.HOST, 2, (0, 1, 3)), (Level.HOST, 3, (0, 1, 2))),
    ],
)
def test_one_of_several_pieces_moves_wherever_a_limit_on_shards_lets_it(
    level: Level, most: int, own: tuple[int, ...]
) -> None:
    """Three equal pieces on two hosts of three ranks, against all places of each piece."""
    table, topology = cases.table("t", 1000, 12, 1.0), cases.topology(2, 3)
    limit = CountLimit(most=most, level=level, counts_shards=True)
    kind = ShardingType.COLUMN_WISE
    rules = replace(WHOLE, sharding_types=(kind,), counts=(limit,))
    workload = cases.workload((table,))
    start = make_placement(table, kind, topology, where=own, column_widths=(4, 4, 4))
    problem = PlanningProblem(workload=workload, topology=topology, constraints=rules)
    explainer = Explainer(problem, Plan(placements=(start,)))
    located = explainer.space.located(0, start)
    assert located is not None
    rest = explainer._pipeline.plan_work(Plan(placements=()))
    found = [way.places for way in explainer._placer.moved((0, located[0]), located[1], rest)]
    per_place = 1 if level is Level.RANK else 3
    every = [(*own[:i], at, *own[i + 1 :]) for i in range(3) for at in range(6) if at != own[i]]
    kept = [w for w in every if max(Counter(at // per_place for at in w).values()) <= most]
    assert sorted(found) == sorted(kept)


@pytest.mark.parametrize(
    ("widths", "before", "after", "told"),
    [
        ((4, 4, 4), (0, 1, 2), (2, 0, 1), (0, 1, 2)),
        ((4, 4, 4), (0, 1, 2), (3, 2, 0), (0, 3, 2)),
        ((8, 4), (0, 1), (1, 0), (1, 0)),
        ((6, 6), (0, 1), (1, 0), (0, 1)),
        ((6, 6), (0, 1), (3, 0), (0, 3)),
    ],
)
def test_equal_pieces_go_where_their_cells_are(
    widths: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...], told: tuple[int, ...]
) -> None:
    """Pieces of other widths keep their places, for that would be another plan."""
    table, topology = cases.table("t", 1000, 12, 1.0), cases.topology(1, 4)
    start, placement = (
        make_placement(table, ShardingType.COLUMN_WISE, topology, where=where, column_widths=widths)
        for where in (before, after)
    )
    problem = PlanningProblem(workload=cases.workload((table,)), topology=topology)
    found = least_moved(placement, problem, Plan(placements=(start,)))
    assert found.ranks == told
    assert Counter((s.rank, s.num_cols) for s in found.shards) == Counter(
        (s.rank, s.num_cols) for s in placement.shards
    )


def test_equal_pieces_on_hosts_go_to_the_hosts_that_have_their_cells() -> None:
    """Each piece is cut by rows over the two ranks of its host."""
    table, topology = cases.table("t", 1000, 12, 1.0), cases.topology(2, 2)
    start, placement = (
        make_placement(table, ShardingType.GRID_SHARD, topology, where=where, column_widths=(6, 6))
        for where in ((0, 1), (1, 0))
    )
    problem = PlanningProblem(workload=cases.workload((table,)), topology=topology)
    assert placement.ranks == (2, 3, 0, 1)
    assert least_moved(placement, problem, Plan(placements=(start,))) == start


@pytest.mark.parametrize(
    ("drawn", "seed"),
    [*((draw, s) for s in (29, 34, 109)), *((draw_unusual, s) for s in (11, 35, 97))],
)
def test_no_change_of_one_table_gains_more_than_the_one_that_is_told(
    drawn: Callable[[int], Case], seed: int
) -> None:
    """Held against every placement of the table that rules and memory allow beside the others."""
    case = replace(drawn(seed), moves=None, scenarios=(), objective="iteration")
    space, rng = Enumerator(case, mirrors=False), np.random.default_rng(seed)
    plans = (space.random_plan(rng) for _ in range(1000))
    plan = next(p for p in plans if allowed(space, p))
    problem = PlanningProblem(
        workload=case.workload, topology=case.topology, constraints=case.constraints
    )
    now_s = space.judge.price(plan)
    changes = Explainer(problem, plan).changes(limit=1000)
    assert changes
    for change in changes:
        after = with_table(plan, change.after)
        assert allowed(space, after)
        price = estimate(case.workload, case.topology, after).estimate.time.time_s
        assert change.plan_time_s == pytest.approx(price, rel=1e-9)
        index = [t.name for t in case.workload.tables].index(change.table)
        ways = [with_table(plan, placement) for placement in space.choices[index]]
        least_s = min(space.judge.price(way) for way in ways if allowed(space, way))
        assert min(change.plan_time_s, now_s) <= least_s * (1 + 1e-9)


def with_table(plan: Plan, placement: TablePlacement) -> Plan:
    """The plan with another placement of one table."""
    return Plan(
        placements=tuple(placement if p.table == placement.table else p for p in plan.placements)
    )


def allowed(space: Enumerator, plan: Plan) -> bool:
    """Whether a plan keeps all rules and fits."""
    return not broken_rules(space.case, plan) and not space.judge.overfull(plan)
