"""Planning from a plan in use: never worse than taking the moves that ``explain`` names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from costmodels.sharding import Plan, Spread
from planner import api
from planner.explain.explainer import Explainer
from planner.objectives import objective_named
from planner.problem import MoveLimit, PlanningProblem
from planner.rules.placement_rules import cell_bytes
from planner.space.evaluation import Budget, Evaluator, SearchSpace
from tests.planner import cases

SHAPES = ((1, 4), (2, 2), (2, 4), (4, 1))
STARTS = ("size_greedy", "lookup_greedy", "random")


def case(seed: int) -> tuple[PlanningProblem, Plan, MoveLimit]:
    """A random problem, a plan in use that is not good, and a limit on what moves."""
    rng = np.random.default_rng(seed)
    model = cases.synthetic(int(rng.integers(5, 14)), seed=seed, batch=4096)
    system = cases.topology(*SHAPES[seed % len(SHAPES)])
    start = api.plan(
        model,
        system,
        strategy=STARTS[seed % len(STARTS)],
        constraints=cases.DEVICE_ONLY,
        max_evaluations=50,
        with_baselines=False,
        seed=seed,
    ).plan
    size = float(sum(t.weight_bytes for t in model.tables))
    limit = (
        MoveLimit(start=start, max_tables=int(rng.integers(1, 5)))
        if rng.random() < 0.5
        else MoveLimit(start=start, max_bytes=float(rng.choice([0.02, 0.1, 0.4])) * size)
    )
    problem = PlanningProblem(workload=model, topology=system, constraints=cases.DEVICE_ONLY)
    return problem, start, limit


def moved(problem: PlanningProblem, start: Plan, plan: Plan) -> list[float]:
    """Bytes that ranks receive for each table, cell by cell."""
    found = []
    for table in problem.workload.tables:
        old, new = start.placement(table.name), plan.placement(table.name)
        cells = sum(s.num_rows * s.num_cols for s in new.shards)
        for s, o in itertools.product(new.shards, old.shards):
            if s.rank == o.rank:
                rows = min(s.row_offset + s.num_rows, o.row_offset + o.num_rows)
                cols = min(s.col_offset + s.num_cols, o.col_offset + o.num_cols)
                rows -= max(s.row_offset, o.row_offset)
                cols -= max(s.col_offset, o.col_offset)
                cells -= max(rows, 0) * max(cols, 0)
        found.append(cells * cell_bytes(table, problem.workload))
    return found


def within(problem: PlanningProblem, limit: MoveLimit, plan: Plan) -> bool:
    received = moved(problem, limit.start, plan)
    most_bytes = np.inf if limit.max_bytes is None else limit.max_bytes * (1 + 1e-9)
    most_tables = np.inf if limit.max_tables is None else limit.max_tables
    return sum(received) <= most_bytes and sum(r > 0.5 for r in received) <= most_tables


def explained(problem: PlanningProblem, limit: MoveLimit) -> float:
    """Iteration time after greedy application of ``explain``'s best moves within the limit."""
    plan = limit.start
    while True:
        explainer = Explainer(problem, plan)
        for change in explainer.changes(limit=1000):
            if change.plan_time_s >= explainer.plan_time_s * (1 - 1e-9):
                return explainer.plan_time_s
            changed = Plan(
                placements=tuple(
                    change.after if p.table == change.table else p for p in plan.placements
                )
            )
            if within(problem, limit, changed):
                plan = changed
                break
        else:
            return explainer.plan_time_s


def replanned(problem: PlanningProblem, limit: MoveLimit) -> float:
    """With about a seventh of the default budget."""
    result = api.plan(
        problem.workload,
        problem.topology,
        constraints=problem.constraints,
        moves=limit,
        max_evaluations=500,
        with_baselines=False,
    )
    assert within(problem, limit, result.plan)
    return result.estimate.time.time_s


FEW = (8, 17, 23)
"""The first has a long chain of moves; in the second, one of them takes a table that moved before
to other places; in the last, a table has pieces of two widths."""


@pytest.mark.parametrize(
    "seed", [*FEW, *(pytest.param(i, marks=pytest.mark.slow) for i in range(30) if i not in FEW)]
)
def test_never_worse_than_the_moves_that_explain_names(seed: int) -> None:
    problem, _, limit = case(seed)
    assert replanned(problem, limit) <= explained(problem, limit) * (1 + 1e-9)


def test_one_large_table_is_found_among_many() -> None:
    """The move of most gain takes the limit, not the first one that gains anything."""
    problem = PlanningProblem(
        workload=cases.dlrm(), topology=cases.topology(2, 2), constraints=cases.DEVICE_ONLY
    )
    start = api.plan(
        problem.workload, problem.topology, strategy="size_greedy", with_baselines=False
    ).plan
    best = Explainer(problem, start).changes(limit=1)[0]
    limit = MoveLimit(start=start, max_tables=1)
    assert replanned(problem, limit) <= best.plan_time_s * (1 + 1e-9)


def _every_change(space: SearchSpace, start: Plan, table: int) -> Iterator[np.ndarray]:
    """Work of the plan with the table cut and placed in every other way."""
    home = space.assignment(start)
    work = space.work(home)
    ranks, rows = space.placed_rows(table, home.options[table], home.places[table])
    np.subtract.at(work, ranks, rows)
    for index, option in enumerate(space.tables[table].options):
        places = {
            Spread.UNIFORM: range(0),
            Spread.RANKS: range(space.world_size),
            Spread.HOSTS: range(space.num_hosts),
        }[option.spread]
        count = 0 if option.spread is Spread.UNIFORM else option.num_pieces
        for chosen in itertools.product(places, repeat=count):
            changed = work.copy()
            ranks, rows = space.placed_rows(table, index, chosen)
            np.add.at(changed, ranks, rows)
            yield changed


@pytest.mark.parametrize("seed", [2, *(pytest.param(i, marks=pytest.mark.slow) for i in range(6))])
def test_one_move_is_within_two_percent_of_the_best_of_all(seed: int) -> None:
    """Every option of every table on every combination of ranks, one table at a time."""
    model = cases.synthetic(5, seed=seed, batch=4096)
    system = cases.topology(*((1, 4), (2, 2), (1, 3))[seed % 3])
    space = cases.space(model, system, cases.DEVICE_ONLY)
    start = api.plan(
        model,
        system,
        strategy="size_greedy",
        constraints=cases.DEVICE_ONLY,
        with_baselines=False,
    ).plan
    evaluate = Evaluator(space, objective_named("iteration", space), Budget())
    best = np.inf
    for t in range(space.num_tables):
        changes = _every_change(space, start, t)
        while some := list(itertools.islice(changes, 512)):
            best = min(best, float(evaluate.values(np.stack(some)).min()))
    found = replanned(space.problem, MoveLimit(start=start, max_tables=1))
    assert found <= best * 1.02
