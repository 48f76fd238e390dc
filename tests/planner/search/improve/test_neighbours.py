"""Where choices are few, no change of one table is overlooked, whatever the plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.objectives import objective_named
from planner.search.base import Record
from planner.search.construct.walk import table_choices
from planner.search.improve import neighbours
from planner.search.improve.neighbours import Neighbours
from planner.search.random import random_assignment
from planner.space.evaluation import Assignment, Budget, Evaluator, SearchSpace
from tests.planner import cases


def improved(space: SearchSpace, seed: int, *, most: int | None = None) -> tuple[Record, float]:
    """The record after looking at the neighbours of a random plan, and that plan's value."""
    evaluate = Evaluator(space, objective_named("phases", space), Budget(max_evaluations=most))
    record = Record(evaluate)
    start = record.consider(random_assignment(space, np.random.default_rng(seed)), "start")
    Neighbours(space, record).improve()
    return record, start


def with_choice(plan: Assignment, table: int, choice: tuple[int, tuple[int, ...]]) -> Assignment:
    """The plan with another option and other places of one table."""
    options, places = list(plan.options), list(plan.places)
    options[table], places[table] = choice
    return replace(plan, options=tuple(options), places=tuple(places))


@pytest.mark.parametrize("seed", range(6))
def test_no_change_of_one_table_is_better(seed: int) -> None:
    space = cases.tiny(seed)
    record, start = improved(space, seed)
    assert record.value <= start
    best = record.best
    assert best is not None
    changes = [
        record.evaluate.value(with_choice(best, table, choice))
        for table in range(space.num_tables)
        for choice in table_choices(space, table)
    ]
    assert min(changes) == pytest.approx(record.value, rel=1e-9)


def test_some_random_plan_is_improved() -> None:
    found = [improved(cases.tiny(seed), seed) for seed in range(6)]
    assert any(record.value < 0.99 * start for record, start in found)


def test_many_choices_are_left_to_other_moves() -> None:
    space = cases.space(cases.synthetic(40), cases.topology(2, 8))
    record, start = improved(space, 0)
    assert record.value == start
    assert record.evaluate.num_evaluations == 1


def test_it_ends_with_its_share_of_the_budget() -> None:
    space = cases.tiny(0)
    free, _ = improved(space, 0)
    short, _ = improved(space, 0, most=1)
    assert short.evaluate.num_evaluations < free.evaluate.num_evaluations


def test_pairs_of_tables_are_left_out_where_not_all_can_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the time for them would be lost to the other moves, mostly for nothing."""
    space = cases.space(cases.synthetic(8), cases.topology(1, 3), cases.DEVICE_ONLY)

    def evaluations(most: int | None, together: tuple[tuple[int, int], ...]) -> int:
        monkeypatch.setattr(neighbours, "_TOGETHER", together)
        record, _ = improved(space, 0, most=most)
        return record.evaluate.num_evaluations

    alone, pairs = (), ((2, 192),)
    assert evaluations(500, pairs) == evaluations(500, alone) == evaluations(None, alone)
    assert evaluations(None, pairs) > 10 * evaluations(None, alone)
