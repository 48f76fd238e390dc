"""Plans handed on to other ranks are plans there, and the same plans where nothing changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.sharding import Spread, check_plan
from planner.objectives import objective_named
from planner.problem import NO_CONSTRAINTS, Constraints, TableConstraint
from planner.search.construct.handed import HandedPlan, translated
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
def test_a_handed_plan_is_a_plan_of_the_other_problem(seed: int) -> None:
    """Whatever the tables, the two numbers of hosts and ranks, and where tables may be."""
    rng = np.random.default_rng(seed)
    model = synthetic(7, seed=seed)
    shapes = [SHAPES[int(i)] for i in rng.integers(len(SHAPES), size=2)]
    one, other = (
        space(model, topology(*s), _constraints(s, seed + i)) for i, s in enumerate(shapes)
    )
    for _ in range(5):
        plan = _random_plan(one, rng)
        handed = HandedPlan.of(one.plan(plan), model, one.problem.topology)
        assert handed is not None
        priced = objective_named("iteration", other)
        found = translated(other, handed, priced)
        assert other.keeps_rules(found)
        check_plan(other.plan(found), model, other.world_size)
        assert np.isfinite(priced.values(other.work(found)[None])).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_handed_to_its_own_problem_stays_as_it_is(seed: int) -> None:
    """Options, places and value."""
    rng = np.random.default_rng(seed)
    model, shape = synthetic(7, seed=seed), SHAPES[2 + seed]
    one = space(model, topology(*shape))
    for _ in range(5):
        plan = _random_plan(one, rng)
        handed = HandedPlan.of(one.plan(plan), model, one.problem.topology)
        assert handed is not None
        assert one.plan(translated(one, handed, objective_named("iteration", one))) == one.plan(
            plan
        )


def test_tables_that_shared_a_rank_are_spread_over_the_new_ones() -> None:
    """Twice the ranks: each old rank's tables on its two new ranks, the heaviest apart."""
    model = synthetic(8, seed=1)
    halved = replace(model, batch_size_per_rank=model.batch_size_per_rank // 2)
    one, other = space(model, topology(1, 2)), space(halved, topology(1, 4))
    whole = [
        next(
            i
            for i, o in enumerate(t.options)
            if len(o.column_widths) == 1 and o.spread is Spread.RANKS
        )
        for t in one.tables
    ]
    start = Assignment(options=tuple(whole), places=tuple((t % 2,) for t in range(8)))
    handed = HandedPlan.of(one.plan(start), model, one.problem.topology)
    assert handed is not None
    found = translated(other, handed, objective_named("iteration", other))
    assert [p[0] // 2 for p in found.places] == [t % 2 for t in range(8)]
    assert {p[0] for p in found.places} == {0, 1, 2, 3}
    work = other.work(found)
    assert (
        objective_named("iteration", other).values(work[None])[0]
        < objective_named("iteration", one).values(one.work(start)[None])[0]
    )
