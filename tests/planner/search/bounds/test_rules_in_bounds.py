"""Bounds know of rules between tables: what meets on one place, and how many shards there are."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from planner.objectives import objective_named
from planner.problem import Constraints, CountLimit, Level, TableGroup
from planner.rules.placement_rules import PlacementRules
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.proofs import linear_floor
from planner.search.common.linear import LinearModel
from planner.search.construct.walk import every_assignment
from planner.space.evaluation import SearchSpace
from tests.planner import cases


def _tied(seed: int, level: Level, *, hosts: int = 2) -> SearchSpace:
    """Three tables of which two share a rank or a host of two ranks."""
    model = cases.synthetic(3, seed=seed, batch=4096)
    group = TableGroup(patterns=("t0", "t1"), level=level)
    rules = replace(cases.DEVICE_ONLY, together=(group,))
    return cases.space(model, cases.topology(hosts, 2), rules)


def _least(space: SearchSpace) -> float:
    """The least iteration of all plans that fit and keep the rules, which the fastest are asked."""
    objective, best = objective_named("iteration", space), math.inf
    for assignments, works in every_assignment(space):
        fits = space.overflow_ratio(works) <= 0
        values = np.where(fits, objective.values(works), np.inf)
        faster = (int(i) for i in np.argsort(values) if values[i] < best)
        kept = next((i for i in faster if space.keeps_rules(assignments[i])), None)
        best = best if kept is None else float(values[kept])
    return best


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("seed", cases.first(range(8), 3))
def test_the_bound_is_below_every_plan_that_keeps_the_rules(seed: int, level: Level) -> None:
    space = _tied(seed, level)
    floor = linear_floor(space, objective_named("iteration", space))
    assert floor.value <= _least(space) * (1 + 1e-9)


@pytest.mark.parametrize("level", Level)
def test_tables_tied_together_raise_the_bound(level: Level) -> None:
    """Without the rule, the same tables could be on different ranks."""
    tied = _tied(2, level, hosts=4)
    free = replace(tied.problem, constraints=cases.DEVICE_ONLY)
    apart = cases.space(free.workload, free.topology, cases.DEVICE_ONLY)
    found = []
    for space in (tied, apart):
        model = LinearModel(space, objective_named("phases", space))
        found.append(RankFreeBound(model).relax(None).bound)
    assert found[0] > 1.01 * found[1]


LIMITS = (
    CountLimit(most=1, level=Level.RANK),
    CountLimit(most=1, level=Level.HOST, patterns=("t0", "t2")),
    CountLimit(most=1, level=Level.RANK, counts_shards=True),
    CountLimit(most=3, level=Level.HOST, counts_shards=True),
)


def _limited(seed: int, limit: CountLimit) -> SearchSpace:
    model = cases.synthetic(3, seed=seed, batch=4096)
    rules = replace(cases.DEVICE_ONLY, counts=(limit,))
    return cases.space(model, cases.topology(2, 2), rules)


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@pytest.mark.parametrize("seed", cases.first(range(8), 2))
def test_the_bound_is_below_every_plan_that_keeps_a_limit(seed: int, limit: CountLimit) -> None:
    space = _limited(seed, limit)
    floor = linear_floor(space, objective_named("iteration", space))
    assert floor.value <= _least(space) * (1 + 1e-9)


def test_a_limit_on_shards_raises_the_bound() -> None:
    """Four ranks of one shard each: none of the three tables is cut in more than two."""
    found = []
    for most in (1, 20):
        limit = CountLimit(most=most, level=Level.RANK, counts_shards=True)
        space = _limited(0, limit)
        model = LinearModel(space, objective_named("phases", space))
        found.append(RankFreeBound(model).relax(None).bound)
    assert found[0] > 1.01 * found[1]


def test_rules_that_share_a_table_tie_all_of_theirs() -> None:
    """And what shares a rank shares its host."""
    rank, host = Level.RANK, Level.HOST
    groups = ((("a", "b"), rank), (("d", "e"), rank), (("b", "c"), host), (("e", "f", "d"), rank))
    rules = PlacementRules(
        Constraints(together=tuple(TableGroup(patterns=p, level=level) for p, level in groups)),
        list("abcdefg"),
        cases.topology(2, 2),
    )

    def names(level: Level) -> set[str]:
        return {"".join(np.array(list("abcdefg"))[m]) for m in rules.tied(level)}

    assert names(rank) == {"ab", "def"}
    assert names(host) == {"abc", "def"}
    assert PlacementRules(Constraints(), ["a", "b"], cases.topology()).tied(host) == []
