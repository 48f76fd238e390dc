"""Plans are translated into spaces with other options, and stay where nothing changes."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.sharding import Spread, check_plan
from planner.objectives import objective_named
from planner.problem import NO_CONSTRAINTS, Constraints, TableConstraint
from planner.search.construct.handed import translated
from planner.space.evaluation import Assignment, SearchSpace
from tests.planner.cases import space, synthetic, topology

SHAPES = ((1, 1), (1, 2), (1, 8), (2, 4), (3, 2), (4, 1), (4, 8), (6, 4))
"""(hosts, ranks per host)."""


def _random_plan(found: SearchSpace, rng: np.random.Generator) -> Assignment:
    """Any option of each table, and places that TorchRec and the constraints allow."""
    options, places = [], []
    for t, table in enumerate(found.tables):
        for index in rng.permutation(len(table.options)).tolist():
            where = _random_places(found, t, index, rng)
            if where is not None:
                options.append(index)
                places.append(where)
                break
    return Assignment(options=tuple(options), places=tuple(places))


def _random_places(
    found: SearchSpace, t: int, index: int, rng: np.random.Generator
) -> tuple[int, ...] | None:
    """None where none of a few draws is allowed."""
    option, local = found.option(t, index), found.local_world_size
    hosts = option.spread is Spread.HOSTS
    allowed = np.flatnonzero(found.may_use_host[t] if hosts else found.may_use_rank[t])
    for _ in range(20):
        near = allowed
        if option.keeps_pieces_on_host:
            near = allowed[allowed // local == int(rng.choice(allowed)) // local]
        where = tuple(rng.choice(near, option.num_pieces).tolist())
        if option.may_be_at(where, local):
            return where
    return None


def _constraints(shape: tuple[int, int], seed: int) -> Constraints:
    """None, or some tables on the last host alone and others off rank 0."""
    hosts, local = shape
    ranks = tuple(range(1, hosts * local))
    if seed % 2 == 0 or len(ranks) < 2:
        return NO_CONSTRAINTS
    last = tuple(range((hosts - 1) * local, hosts * local))
    tables = (
        TableConstraint(pattern="t[0-2]", ranks=ranks),
        TableConstraint(pattern="t3", ranks=last),
    )
    return Constraints(tables=tables)


@pytest.mark.parametrize("seed", range(12))
def test_a_plan_becomes_one_of_a_space_with_other_rules(seed: int) -> None:
    """Whatever the tables, the hosts and ranks, and where tables may be."""
    rng = np.random.default_rng(seed)
    model = synthetic(7, seed=seed)
    shape = SHAPES[int(rng.integers(len(SHAPES)))]
    one, other = (space(model, topology(*shape), _constraints(shape, seed + i)) for i in range(2))
    for _ in range(5):
        priced = objective_named("iteration", other)
        found = translated(other, one.plan(_random_plan(one, rng)), priced)
        assert found is not None
        assert other.keeps_rules(found)
        check_plan(other.plan(found), model, other.world_size)
        assert np.isfinite(priced.values(other.work(found)[None])).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_stays_as_it_is_in_its_own_space(seed: int) -> None:
    """Options, places and value."""
    rng = np.random.default_rng(seed)
    model, shape = synthetic(7, seed=seed), SHAPES[2 + seed]
    one = space(model, topology(*shape))
    for _ in range(5):
        plan = one.plan(_random_plan(one, rng))
        found = translated(one, plan, objective_named("iteration", one))
        assert found is not None
        assert one.plan(found) == plan
