"""Explanations agree with pricing the changed plan from scratch."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType
from costmodels.workload import Optimizer
from planner import load_system, load_workload, plan
from planner.errors import InvalidInputError
from planner.explain.explainer import Change, Explainer, constraint_costs
from planner.problem import Constraints, PlanningProblem, TableConstraint
from planner.report.comparison import changes
from planner.rules.moved_bytes import received_bytes
from tests.strategies import make_placement, make_table, make_topology, make_workload


@pytest.fixture(scope="module")
def explainer() -> Explainer:
    """A plan for two hosts."""
    workload, topology = (
        load_workload("small_demo"),
        load_system("h100_sxm", gpus=8, gpus_per_host=4),
    )
    found = plan(workload, topology, time_limit_s=5, max_evaluations=20, with_baselines=False)
    return Explainer(PlanningProblem(workload=workload, topology=topology), found.plan)


def _priced(explainer: Explainer, changed: Plan) -> float:
    problem = explainer.problem
    pipeline = CostPipeline(problem.workload, problem.topology)
    return pipeline.estimate(changed).time.time_s


def _with(explainer: Explainer, change: Change) -> Plan:
    return Plan(
        placements=tuple(
            change.after if p.table == change.table else p for p in explainer.plan.placements
        )
    )


def test_every_option_costs_what_its_plan_costs(explainer: Explainer) -> None:
    """The plan with the option forced, priced by the full pipeline, from scratch."""
    for placement in explainer.plan.placements[:3]:
        told = explainer.table(placement.table)
        assert sum(o.is_chosen for o in told.options) == 1
        for option in told.options[:6]:
            if option.plan_time_s == math.inf:
                continue
            forced = Plan(
                placements=tuple(
                    option.placement if p.table == placement.table else p
                    for p in explainer.plan.placements
                )
            )
            assert _priced(explainer, forced) == pytest.approx(option.plan_time_s, rel=1e-9)


def test_options_are_ranked_and_all_different(explainer: Explainer) -> None:
    """Fastest first; what does not fit comes last."""
    told = explainer.table(explainer.plan.placements[0].table)
    times = [o.plan_time_s for o in told.options]
    fitting = [t for t in times if t is not None]
    assert fitting == sorted(fitting)
    assert times[: len(fitting)] == fitting
    assert len({o.placement for o in told.options}) == len(told.options)


def test_options_priced_a_few_at_a_time_are_told_alike(
    explainer: Explainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large problems have too much work for all options at once."""
    name = explainer.plan.placements[0].table
    together = explainer.table(name)
    monkeypatch.setattr("planner.search.improve.best_place._FEWEST", 3)
    monkeypatch.setattr("planner.search.improve.best_place._MOST_NUMBERS", 1)
    assert explainer.table(name) == together


def test_changes_cost_what_they_say(explainer: Explainer) -> None:
    """Of tables on critical ranks only, each changed alone."""
    changes = explainer.changes(limit=4)
    assert changes
    assert {c.table for c in changes} <= set(explainer.critical_tables())
    for change in changes:
        assert _priced(explainer, _with(explainer, change)) == pytest.approx(change.plan_time_s)
        assert change.moved_bytes >= 0


def test_a_bad_plan_has_changes_that_help() -> None:
    """Everything on one rank: moving any large table away makes it faster."""
    workload, topology = load_workload("dlrm_dcnv2_mlperf"), load_system("h100_sxm", gpus=8)
    workload = replace(workload, tables=workload.tables[20:26])
    pinned = Constraints(tables=(TableConstraint(pattern="*", ranks=(3,)),))
    found = plan(workload, topology, constraints=pinned, max_evaluations=20, with_baselines=False)
    explainer = Explainer(PlanningProblem(workload=workload, topology=topology), found.plan)
    best = explainer.changes(limit=1)[0]
    assert best.plan_time_s < explainer.plan_time_s


@given(data=st.data())
def test_bytes_to_move_are_the_cells_that_a_rank_does_not_hold_yet(data: st.DataObject) -> None:
    """Counted one cell at a time, for every pair of placements of a table of 7 x 12."""
    table = make_table("t", num_embeddings=7, embedding_dim=12)
    topology = make_topology(2, 2)
    workload = make_workload(table, optimizer=Optimizer.SGD)
    kinds = (
        (ShardingType.TABLE_WISE, 1, 4),
        (ShardingType.COLUMN_WISE, 3, 4),
        (ShardingType.ROW_WISE, 0, 4),
        (ShardingType.DATA_PARALLEL, 0, 4),
        (ShardingType.TABLE_ROW_WISE, 1, 2),
    )
    both = []
    for _ in range(2):
        kind, pieces, places = data.draw(st.sampled_from(kinds))
        where = tuple(data.draw(st.integers(0, places - 1)) for _ in range(max(pieces, 1)))
        widths = (4, 4, 4) if pieces == 3 else (12,)
        both.append(make_placement(table, kind, topology, where=where, column_widths=widths))
    before, after = both
    cells = [
        {
            (s.rank, row, column)
            for s in placement.shards
            for row in range(s.row_offset, s.row_offset + s.num_rows)
            for column in range(s.col_offset, s.col_offset + s.num_cols)
        }
        for placement in (before, after)
    ]
    received = received_bytes(before, after, workload.tables[0], workload)
    assert received == 4.0 * len(cells[1] - cells[0])


def test_changes_tell_the_bytes_that_their_tables_move(explainer: Explainer) -> None:
    """As :func:`planner.report.comparison.changes` counts them, which has a count of its own."""
    workload = explainer.problem.workload
    for change in explainer.changes(limit=4):
        (moved,) = changes(workload, explainer.plan, _with(explainer, change))
        assert change.moved_bytes == pytest.approx(moved.received_bytes)


def test_an_unknown_table_is_answered_with_a_near_one(explainer: Explainer) -> None:
    """One clear error."""
    name = explainer.plan.placements[0].table
    with pytest.raises(InvalidInputError, match=f"did you mean '{name}'"):
        explainer.table(name + "x")


def test_a_pin_costs_what_planning_without_it_gains() -> None:
    """All large tables on one rank is dear; a rule that holds anyway costs nothing."""
    workload, topology = load_workload("dlrm_dcnv2_mlperf"), load_system("h100_sxm", gpus=4)
    workload = replace(workload, tables=workload.tables[22:24])
    rules = (
        TableConstraint(pattern="*", ranks=(3,)),
        TableConstraint(pattern="*", sharding_types=tuple(ShardingType)),
    )
    problem = PlanningProblem(
        workload=workload, topology=topology, constraints=Constraints(tables=rules)
    )
    costs = {c.constraint: c for c in constraint_costs(problem)}
    pin = costs["*: ranks 3"]
    assert pin.gain_s is not None
    assert pin.gain_s > 0
    others = [c.gain_s for name, c in costs.items() if name != "*: ranks 3"]
    assert all(g is not None and abs(g) < pin.gain_s / 10 for g in others)
