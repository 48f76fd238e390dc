"""The bound by patterns: never above a plan, and as high as it should be."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from benchmarks.search.additive import AdditivePhases, space_of
from benchmarks.search.patterns import linear_model
from costmodels.datatypes import FloatArray
from planner.search.auto import Auto
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.patterns.beside import PatternsBeside, Request, answer
from planner.search.bounds.patterns.master import Master
from planner.search.bounds.patterns.pattern_bound import PatternBound
from planner.search.bounds.patterns.pricing import Pricing, Worth
from planner.search.bounds.patterns.task import PatternTask
from planner.search.common.growing_program import GrowingProgram
from planner.search.common.leave_out import SearchPart
from planner.search.common.milp import MilpProgram, Rows
from planner.search.common.programs import solve_below
from planner.search.common.schedule import USUAL
from planner.search.construct.walk import every_assignment
from planner.search.exhaustive import Exhaustive
from planner.space.effort import Meter
from planner.space.evaluation import Budget, Evaluator, SearchSpace
from tests.planner.cases import first

CASES = ("2x2", "2x4", "3x2", "3x3", "4x2")
SEEDS = first(range(12), 1)
FORCED = replace(
    USUAL,
    pattern_ranks=2,
    pattern_tables_per_rank=9.0,
    pattern_work_s=0.0,
    pattern_gap_ratio=0.0,
)
"""As usual, but with patterns also where programs would be better."""


def task_of(space: SearchSpace, *, worse: float) -> tuple[PatternTask, float]:
    """The task with a known plan that is made worse than the best by a factor; and the best."""
    found = Exhaustive().search(space, Evaluator(space, AdditivePhases(), Budget()), seed=0)
    best = float(found.values[0])
    task = PatternTask.of(linear_model(space), found.assignments[0], worse * best)
    assert task is not None
    return task, best


def proven(task: PatternTask, targets: int) -> float:
    bound = PatternBound(task, 0.0, Meter())
    for _ in range(targets):
        if not bound.advance(lambda: False):
            break
    return bound.bound


# -- the whole bound ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_bound_is_never_above_the_best_plan(case: str, seed: int) -> None:
    task, best = task_of(space_of(case, seed), worse=1.2)
    assert 0.0 < proven(task, 20) <= best * (1 + 1e-9)


@pytest.mark.parametrize(
    ("case", "seed", "boxes"), [("2x4", 1, 60), ("3x4", 0, 80), ("3x4", 7, 280), ("3x3", 0, 100)]
)
def test_patterns_prove_what_means_over_ranks_cannot(case: str, seed: int, boxes: int) -> None:
    """Within 1 % of the best plan, from up to 14 % below it, with twice the boxes it takes."""
    space = space_of(case, seed)
    task, best = task_of(space, worse=1.02)
    start = RankFreeBound(linear_model(space)).relax(None).bound
    assert start < 0.92 * best
    bound = PatternBound(task, start, Meter())
    while bound.advance(lambda: False):
        assert bound.num_boxes <= boxes
    assert bound.bound > 0.99 * best


@pytest.mark.parametrize("seed", [0, 3])
def test_the_rank_with_most_memory_counts_for_all(seed: int) -> None:
    """The second rank has no room for the largest piece, which the best plan has on the first."""
    space = space_of("2x2", seed)
    largest = float(space.pool_device.max())
    space.pipeline.device_limits[:] = (8.0 * largest, 0.5 * largest)
    task, best = task_of(space, worse=1.2)
    assert 0.9 * best < proven(task, 20) <= best * (1 + 1e-9)


def test_every_target_is_proven_by_itself() -> None:
    task, best = task_of(space_of("2x4", 1), worse=1.05)
    bound, last = PatternBound(task, 0.5 * best, Meter()), 0.0
    while bound.advance(lambda: False):
        assert bound.bound > last
        last = bound.bound
    assert 0.5 * best < last <= best


def test_a_proof_that_is_ended_keeps_what_was_proven() -> None:
    task, best = task_of(space_of("2x4", 1), worse=1.05)
    bound = PatternBound(task, 0.5 * best, Meter())
    assert bound.advance(lambda: False)
    before = bound.bound
    assert not bound.advance(lambda: True)
    assert bound.bound == before


def test_there_is_no_task_without_loads_or_with_loads_below_zero() -> None:
    space = space_of("2x2", 0)
    model = linear_model(space)
    found = Exhaustive().search(space, Evaluator(space, AdditivePhases(), Budget()), seed=0)
    plan, value = found.assignments[0], float(found.values[0])
    assert PatternTask.of(model, plan, value) is not None
    assert PatternTask.of(model, plan, 0.0) is None
    model.columns = -model.columns
    model._extremes.clear()
    assert PatternTask.of(model, plan, value) is None


# -- the program of a box -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_of_a_box_is_below_what_its_program_proves_with_all_patterns(seed: int) -> None:
    """Every pattern of every plan is added, so that none is missing."""
    space = space_of("2x2", seed)
    model = linear_model(space)
    task, best = task_of(space, worse=1.5)
    master = Master(task, Meter())
    rooms, values = [], []
    for assignments, works in every_assignment(space):
        evaluated = np.atleast_1d(AdditivePhases().values(works))
        for assignment, value in zip(assignments, evaluated, strict=True):
            plan = PatternTask.of(model, assignment, 1.5 * best)
            assert plan is not None
            for pattern in plan.known:
                master.add(pattern)
            rooms.append(rooms_of(plan))
            values.append((value - task.base_s) / task.unit_s)
    rng = np.random.default_rng(seed)
    for at in rng.permutation(len(rooms))[:20]:
        low = rooms[at] * rng.uniform(0.0, 1.0, len(rooms[at]))
        high = np.minimum(rooms[at] * rng.uniform(1.0, 1.5, len(rooms[at])), 50.0)
        found = master.solve(low, high)
        assert found is not None
        inside = [
            v
            for r, v in zip(rooms, values, strict=True)
            if (r >= low - 1e-12).all() and (r <= high + 1e-12).all()
        ]
        assert found.bound <= min(inside) * (1 + 1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_narrowing_keeps_every_plan_that_is_good_enough(seed: int) -> None:
    space = space_of("2x2", seed)
    model, (task, best) = linear_model(space), task_of(space, worse=1.5)
    master = Master(task, Meter())
    size = task.num_loads
    most = 0.9
    high = master.narrowed(np.zeros(size), np.ones(size), most)
    for assignments, works in every_assignment(space):
        for assignment, value in zip(assignments, AdditivePhases().values(works), strict=True):
            plan = PatternTask.of(model, assignment, 1.5 * best)
            assert plan is not None
            if (value - task.base_s) / task.unit_s <= most:
                assert high is not None
                assert (rooms_of(plan) <= high * (1 + 1e-6)).all()


def rooms_of(task: PatternTask) -> FloatArray:
    """The rooms of the known plan of a task, piece by piece."""
    loads = np.zeros((task.world_size, task.num_loads))
    for rank, pattern in enumerate(task.known):
        for option, count in pattern.items():
            loads[rank] += count * task.sizes[option, :-1]
    return np.asarray(loads.max(axis=0))


# -- the best pattern -----------------------------------------------------------------------------


def drawn(seed: int) -> tuple[PatternTask, Worth]:
    """Five tables with one option each, of one or two pieces, and what pieces are worth."""
    rng = np.random.default_rng(seed)
    count = 5
    task = PatternTask(
        first=np.arange(count + 1),
        pieces=rng.integers(1, 3, count),
        sizes=rng.choice([0.2, 0.34, 0.5, 0.51, 0.05, 0.75], (count, 3)),
        uniform=np.zeros((count, 2)),
        mean=np.zeros((count, 2)),
        phase=np.arange(2),
        world_size=4,
        base_s=0.0,
        unit_s=1.0,
        known=(),
    )
    return task, Worth(piece=rng.uniform(0.0, 1.0, count), room=np.array([1.0, 0.9, 1.0]))


def best_pattern(task: PatternTask, worth: Worth) -> float:
    """The most that whole pieces within the limits are worth, by looking at all sets of them."""
    return max(
        float(np.array(counts) @ worth.piece)
        for counts in itertools.product(*(range(p + 1) for p in task.pieces))
        if (np.array(counts) @ task.sizes <= worth.room + 1e-12).all()
    )


@pytest.mark.parametrize("seed", first(range(60), 8))
def test_no_pattern_is_worth_more_than_is_proven(seed: int) -> None:
    task, worth = drawn(seed)
    best = best_pattern(task, worth)
    most, pattern = Pricing(task, Meter()).most(worth, 0.0, 1e-6)
    whole = all(s.max() > 0.1 for s in task.sizes / worth.room)
    assert best <= most * (1 + 1e-9)
    assert most <= best * (1 + 1e-4) or not whole
    assert sum(c * worth.piece[o] for o, c in pattern.items()) <= most * (1 + 1e-6)


@pytest.mark.parametrize("seed", first(range(60), 8))
def test_what_is_enough_is_proven_and_no_more(seed: int) -> None:
    task, worth = drawn(seed)
    best = best_pattern(task, worth)
    most, pattern = Pricing(task, Meter()).most(worth, 1.5 * best, 1e-6)
    whole = all(s.max() > 0.1 for s in task.sizes / worth.room)
    assert most >= 1.5 * best * (1 - 1e-9)
    if whole:
        assert most <= 1.5 * best * (1 + 1e-4)
        assert pattern == {}


@pytest.mark.parametrize("seed", first(range(60), 8))
def test_a_beam_search_finds_patterns_that_fit_and_are_worth_enough(seed: int) -> None:
    task, worth = drawn(seed)
    best = best_pattern(task, worth)
    found = Pricing(task, Meter()).good(worth, 0.8 * best)
    assert found
    for pattern in found:
        options, counts = np.array(list(pattern)), np.array(list(pattern.values()))
        assert (counts @ task.sizes[options] <= worth.room * (1 + 1e-6)).all()
        assert (counts <= task.pieces[options]).all()
        assert counts @ worth.piece[options] > 0.8 * best * (1 - 1e-9)


# -- programs -------------------------------------------------------------------------------------


def test_a_growing_program_agrees_with_one_that_is_solved_from_scratch() -> None:
    rng = np.random.default_rng(4)
    rows, size = 4, 6
    matrix = rng.uniform(0.1, 1.0, (rows, size))
    cost, least = rng.uniform(0.5, 2.0, size), rng.uniform(0.5, 1.0, rows)
    start = MilpProgram(
        cost=cost,
        upper=np.full(size, 5.0),
        rows=Rows.dense(matrix, least, np.full(rows, math.inf)),
        integer=np.zeros(size, dtype=bool),
    )
    growing = GrowingProgram(start)
    for _ in range(20):
        values = rng.uniform(0.0, 0.5, rows)
        growing.add(np.arange(rows), values, 5.0)
        matrix, cost = np.column_stack([matrix, values]), np.append(cost, 0.0)
        upper = np.where(cost > 0, rng.uniform(1.0, 5.0, len(cost)), rng.uniform(0, 0.2, len(cost)))
        found = growing.solve(np.zeros(len(cost)), upper)
        expected = linprog(
            cost, A_ub=-matrix, b_ub=-least, bounds=list(zip(0 * upper, upper, strict=True))
        )
        assert found is not None
        assert found.value == pytest.approx(expected.fun, rel=1e-6)
        proven_value = growing.bound(np.zeros(len(cost)), upper, found.prices)
        assert proven_value == pytest.approx(expected.fun, rel=1e-6)
        assert proven_value <= expected.fun * (1 + 1e-9)


@pytest.mark.parametrize("seed", first(range(40), 6))
def test_a_program_below_a_cutoff_is_solved_as_far_as_it_matters(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cost, size = -rng.uniform(0.1, 1.0, 6), rng.uniform(0.15, 0.7, (2, 6))
    program = MilpProgram(
        cost=cost,
        upper=np.ones(6),
        rows=Rows.dense(size, np.full(2, -math.inf), np.ones(2)),
        integer=np.ones(6, dtype=bool),
    )
    best = min(
        float(cost @ x)
        for x in map(np.array, itertools.product((0, 1), repeat=6))
        if (size @ x <= 1).all()
    )
    found = solve_below(program, 0.0, gap_ratio=0.0)
    assert found.x is not None
    assert float(cost @ found.x) == pytest.approx(best)
    assert best - 1e-4 < found.bound <= best
    beyond = solve_below(program, 1.5 * best, gap_ratio=0.0)
    assert beyond.x is None
    assert beyond.bound == pytest.approx(1.5 * best, abs=1e-4)


@pytest.mark.parametrize("below", [1e-7, 1e-5, 9e-5, 2e-4])
def test_a_cutoff_leaves_out_no_solution_where_costs_are_whole_numbers(below: float) -> None:
    """The best solution costs a little less than the cutoff."""
    size = np.array([[1 / 3, 1 / 6, 1 / 9, 1 / 9], [0.0, 1 / 6, 1 / 8, 1 / 4]])
    program = MilpProgram(
        cost=-np.ones(4),
        upper=np.array([2.0, 4.0, 1.0, 4.0]),
        rows=Rows.dense(size, np.full(2, -math.inf), np.ones(2)),
        integer=np.ones(4, dtype=bool),
    )
    best = min(
        -float(sum(x))
        for x in itertools.product(*(range(int(u) + 1) for u in program.upper))
        if (size @ np.array(x) <= 1 + 1e-12).all()
    )
    assert solve_below(program, best + below, gap_ratio=1e-6).bound <= best + 1e-9


def test_a_box_in_which_a_table_fits_nowhere_is_proven() -> None:
    """Once rooms are narrowed to what good plans have, the piece fits on no rank."""
    task = PatternTask(
        first=np.array([0, 1, 2]),
        pieces=np.array([1, 0]),
        sizes=np.array([[0.7, 0.0], [0.0, 0.0]]),
        uniform=np.array([[0.0], [0.5]]),
        mean=np.array([[0.7 / 3], [0.0]]),
        phase=np.array([0]),
        world_size=3,
        base_s=0.0,
        unit_s=1.0,
        known=(),
    )
    assert Master(task, Meter()).narrowed(np.zeros(1), np.ones(1), 0.9) is None
    assert proven(task, 20) > 0.99


# -- beside the search ----------------------------------------------------------------------------


def test_a_search_with_patterns_beside_it_is_never_proven_wrong() -> None:
    space = space_of("4x4", 3)
    evaluate = Evaluator(space, AdditivePhases(), Budget(max_evaluations=4_000))
    parts = frozenset({SearchPart.EXHAUSTIVE, SearchPart.SECOND})
    found = Auto(parts, schedule=FORCED).search(space, evaluate, seed=0)
    best = Exhaustive().search(space, Evaluator(space, AdditivePhases(), Budget()), seed=0)
    assert found.bound is not None
    assert 0.5 * best.values[0] < found.bound <= best.values[0] * (1 + 1e-9)
    assert any(line.phase == "patterns" for line in found.progress)
    assert found.bound > 0.98 * found.values[0]


def test_a_proof_takes_no_more_work_than_it_is_given() -> None:
    task, best = task_of(space_of("2x4", 1), worse=1.05)
    replies = list(answer(Request(task=task, bound=0.5 * best, most_s=0.05)))
    assert replies[-1].spent_s < 1.0
    longer = list(answer(Request(task=task, bound=0.5 * best, most_s=60.0)))
    assert longer[-1].bound >= replies[-1].bound
    assert longer[-1].bound > 0.97 * best


def test_patterns_are_for_many_ranks_and_few_tables() -> None:
    worth = {case: is_worth_it(case) for case in ("26x64", "26x32", "26x16", "300x64")}
    assert worth == {"26x64": True, "26x32": True, "26x16": False, "300x64": False}


def is_worth_it(case: str) -> bool:
    from planner.search.base import Record
    from planner.search.construct.greedy import offer_first

    space = space_of(case)
    record = Record(Evaluator(space, AdditivePhases(), Budget(max_evaluations=10_000)), None, None)
    offer_first(space, record)
    record.raise_bound(0.5 * record.value, "a bound")
    return PatternsBeside.worth_it(linear_model(space), record, USUAL)
