"""The numbers that decide how a search shares out its work are few, and each of them says what."""

from __future__ import annotations

import ast
import itertools
from dataclasses import fields
from inspect import getsource

from planner.search.common.schedule import USUAL, Schedule

MOST = 25
"""Fields of the schedule. There were 79, of which most decided nothing."""


def test_a_search_has_few_numbers_and_each_says_what_it_decides() -> None:
    names = [field.name for field in fields(Schedule)]
    assert len(names) <= MOST
    body = next(n for n in ast.parse(getsource(Schedule)).body if isinstance(n, ast.ClassDef)).body
    told = [
        first.target.id
        for first, then in itertools.pairwise(body)
        if isinstance(first, ast.AnnAssign)
        and isinstance(first.target, ast.Name)
        and isinstance(then, ast.Expr)
    ]
    assert told == names


def test_a_cycle_has_a_few_steps_for_each_table() -> None:
    assert USUAL.steps(10) == 10 * USUAL.steps_per_table
    assert USUAL.steps(10_000) == USUAL.most_steps
