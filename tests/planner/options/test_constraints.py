"""Rules on groups and counts: checked as arrays, kept by every strategy, optimal if small."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.sharding import ComputeKernel, Plan, Spread
from planner.errors import InvalidInputError
from planner.objectives import objective_named
from planner.problem import (
    Constraints,
    CountLimit,
    Level,
    MoveLimit,
    PlanningProblem,
    TableConstraint,
    TableGroup,
)
from planner.rules.placement_rules import PlacementRules, Usage
from planner.search.base import Record, SearchOutcome
from planner.search.construct.walk import count_assignments, every_assignment
from planner.search.random import random_assignment
from planner.solving.run import BASELINES, strategy_named
from planner.space.evaluation import Assignment, Budget, Evaluator, SearchSpace
from tests.planner import cases

NAMES = ("t0", "t1", "t2")


@st.composite
def rules(draw: st.DrawFn, names: tuple[str, ...] = NAMES) -> Constraints:
    """One to three rules on a few tables."""
    levels = st.sampled_from(list(Level))
    groups = st.builds(
        TableGroup,
        patterns=st.lists(st.sampled_from(names), min_size=2, max_size=3, unique=True).map(tuple),
        level=levels,
    )
    counts = st.builds(
        CountLimit, most=st.integers(1, 3), level=levels, counts_shards=st.booleans()
    )
    return Constraints(
        together=tuple(draw(st.lists(groups, max_size=1))),
        apart=tuple(draw(st.lists(groups, max_size=1))),
        counts=tuple(draw(st.lists(counts, max_size=1))),
    )


def broken(space: SearchSpace, plan: Plan) -> list[str]:
    """Every rule that a plan breaks, judged from its shards alone."""
    local = space.local_world_size
    limits = space.problem.constraints
    lines = []

    def places(table: str, level: Level) -> list[int]:
        ranks = plan.placement(table).ranks
        return [r if level is Level.RANK else r // local for r in ranks]

    names = [t.name for t in space.problem.workload.tables]
    for g in limits.together:
        used = {p for n in names if g.matches(n) for p in places(n, g.level)}
        lines += ["together"] if len(used) > 1 else []
    for g in limits.apart:
        for a, b in itertools.combinations([n for n in names if g.matches(n)], 2):
            if set(places(a, g.level)) & set(places(b, g.level)):
                lines.append("apart")
    for c in limits.counts:
        found = [
            p
            for n in names
            for p in (places(n, c.level) if c.counts_shards else set(places(n, c.level)))
        ]
        if any(found.count(p) > c.most for p in found):
            lines.append("count")
    return lines


def small(seed: int, limits: Constraints) -> SearchSpace | None:
    """A random problem under these rules; None if they contradict each other."""
    free = cases.tiny(2 * seed + 1)
    try:
        return cases.space(free.problem.workload, free.problem.topology, limits)
    except InvalidInputError:
        return None


@given(seed=st.integers(0, 30), limits=rules())
def test_the_check_equals_a_look_at_the_shards(seed: int, limits: Constraints) -> None:
    space = small(seed, limits)
    if space is None:
        return
    rng = np.random.default_rng(seed)
    for _ in range(20):
        found = random_assignment(space, rng)
        assert space.keeps_rules(found) == (not broken(space, space.plan(found)))


@given(seed=st.integers(0, 30), limits=rules())
def test_a_move_is_allowed_if_the_plan_after_it_keeps_the_rules(
    seed: int, limits: Constraints
) -> None:
    space = small(seed, limits)
    if space is None:
        return
    rng = np.random.default_rng(seed)
    start, other = (random_assignment(space, rng) for _ in range(2))
    if seed % 2:
        moves = MoveLimit(start=space.plan(random_assignment(space, rng)), max_tables=2)
        problem = replace(space.problem, move_limit=moves)
        space = SearchSpace(problem, space.pipeline, space.listing)
    usage = space.usage(start)
    for table in range(space.num_tables):
        options, places = list(start.options), list(start.places)
        options[table], places[table] = other.options[table], other.places[table]
        after = Assignment(options=tuple(options), places=tuple(places))
        move = [(table, space.option(table, options[table]), places[table])]
        assert usage.allows(move) == space.usage(after).kept


def search(name: str, space: SearchSpace, *, most: int | None = 300) -> SearchOutcome:
    """One strategy on one space."""
    evaluate = Evaluator(space, objective_named("iteration", space), Budget(max_evaluations=most))
    return strategy_named(name).search(Record(evaluate), seed=0)


def filtered_optimum(space: SearchSpace) -> float:
    """The least value over every plan of the space that keeps the rules, judged from its shards."""
    free = SearchSpace(
        PlanningProblem(workload=space.problem.workload, topology=space.problem.topology),
        space.pipeline,
        space.listing,
    )
    evaluate = Evaluator(free, objective_named("iteration", free), Budget())
    best = np.inf
    for found, works in every_assignment(free):
        values = evaluate.values(works)
        for i in np.argsort(values):
            if values[i] >= best:
                break
            if not broken(space, free.plan(found[i])):
                best = float(values[i])
    return best


@given(seed=st.integers(0, 30), limits=rules())
def test_the_optimum_under_rules_is_that_of_the_filtered_plans(
    seed: int, limits: Constraints
) -> None:
    space = small(seed, limits)
    if space is None or count_assignments(space, 20_000) > 20_000:
        return
    found = search("exhaustive", space, most=None)
    best = filtered_optimum(space)
    assert found.values[:1] == ((pytest.approx(best),) if np.isfinite(best) else ())
    if found.assignments:
        assert not broken(space, space.plan(found.assignments[0]))


@pytest.mark.parametrize(("most", "fits_beside"), [(2, False), (3, True)])
def test_a_host_takes_a_block_where_all_of_its_shards_are_within_the_limit(
    most: int, fits_beside: bool
) -> None:
    """One shard of another table is on the first of two hosts of two ranks; a block has two."""
    limits = Constraints(counts=(CountLimit(most=most, level=Level.HOST, counts_shards=True),))
    usage = Usage(PlacementRules(limits, ["t0", "t1"], cases.topology(2, 2)), [None, None])
    usage.hold(0, np.array([1, 0, 0, 0]))
    assert usage.free_for(1, Spread.HOSTS).tolist() == [fits_beside, True]


@pytest.mark.parametrize("seed", cases.first((3, 5, 2, 0, 1, 4), 3))
def test_auto_keeps_rules_that_bind_and_its_bound_holds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.search.auto.can_price_all", lambda *_: False)
    limits = [
        Constraints(together=(TableGroup(patterns=("t0", "t1")),)),
        Constraints(apart=(TableGroup(patterns=("t*",)),)),
        Constraints(counts=(CountLimit(most=2, counts_shards=True),)),
        Constraints(
            together=(TableGroup(patterns=("t0", "t2"), level=Level.HOST),),
            apart=(TableGroup(patterns=("t0", "t1")),),
        ),
        Constraints(counts=(CountLimit(most=1, patterns=("t0", "t1")),)),
        Constraints(
            apart=(TableGroup(patterns=("t0", "t1"), level=Level.HOST),),
            tables=(TableConstraint(pattern="t1", hosts=(0,)),),
        ),
    ][seed]
    few = replace(limits, kernels=(ComputeKernel.DENSE, ComputeKernel.FUSED))
    space = cases.space(cases.tiny(seed).problem.workload, cases.topology(2, 2), few)
    best = search("exhaustive", space, most=None)
    found = search("auto", space)
    assert found.assignments
    assert found.values[0] == pytest.approx(best.values[0], rel=1e-6)
    assert found.bound is not None
    assert found.bound <= best.values[0] * (1 + 1e-9)


def test_every_strategy_keeps_the_rules_or_finds_nothing() -> None:
    limits = Constraints(
        together=(
            TableGroup(patterns=("t0", "t1")),
            TableGroup(patterns=("t7", "t8"), level=Level.HOST),
        ),
        apart=(
            TableGroup(patterns=("t2", "t3", "t4")),
            TableGroup(patterns=("t5", "t6"), level=Level.HOST),
        ),
        counts=(CountLimit(most=6), CountLimit(most=9, level=Level.HOST, patterns=("t*",))),
        tables=(TableConstraint(pattern="t2", ranks=(1,)),),
    )
    space = cases.space(cases.synthetic(10, seed=3), cases.topology(2, 2), limits)
    for name in (*BASELINES, "random", "auto"):
        for found in search(name, space, most=100).assignments:
            assert not broken(space, space.plan(found)), name
    assert search("auto", space, most=100).assignments
