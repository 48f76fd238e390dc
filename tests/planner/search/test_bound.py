"""The bound is below every plan, whatever the plan."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from costmodels.floors.phases import ALL_REDUCE
from costmodels.sharding import ShardingType
from costmodels.workload import Pipeline
from planner.objectives import objective_named
from planner.problem import TableConstraint
from planner.search.base import Record
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.bound_program import type_sets
from planner.search.bounds.rounding import Starts
from planner.search.common.linear import LinearModel
from planner.search.common.lp import LinearProgram, Rows, solve
from planner.search.construct.walk import every_assignment
from planner.search.random import random_assignment
from planner.space.evaluation import Budget, Evaluator
from tests.planner import cases

REPLICATED = frozenset({ShardingType.DATA_PARALLEL})


@pytest.mark.parametrize("seed", cases.first(range(14), 4))
def test_every_bound_is_below_every_plan_of_a_tiny_case(seed: int) -> None:
    space = cases.tiny(seed)
    objective = objective_named("iteration", space)
    model = LinearModel(space, objective)
    optional = frozenset({ShardingType.DATA_PARALLEL} if seed % 2 else ())
    bounds = RankFreeBound(model, optional=optional)
    best: dict[frozenset[ShardingType], float] = {}
    for assignments, works in every_assignment(space):
        values = np.where(space.overflow_ratio(works) <= 0, objective.values(works), np.inf)
        for assignment, value in zip(assignments, values, strict=True):
            types = frozenset(
                space.option(t, i).sharding_type for t, i in enumerate(assignment.options)
            )
            best[types] = min(best.get(types, math.inf), float(value))
    general = bounds.relax(None)
    assert general.bound <= min(best.values()) * (1 + 1e-9)
    for types in type_sets(space, optional):
        assert types is not None
        covered = [types, types - optional]
        least = min(best.get(s, math.inf) for s in covered)
        assert bounds.relax(types).bound <= least * (1 + 1e-9)


@pytest.mark.parametrize("seed", cases.first(range(8), 3))
def test_cuts_are_below_random_plans_and_touch_some(seed: int) -> None:
    model_workload = cases.synthetic(5, seed=seed, batch=10 ** (1 + seed % 4))
    space = cases.space(model_workload, cases.topology(2, 2 + seed % 3), cases.DEVICE_ONLY)
    objective = objective_named("iteration", space)
    model = LinearModel(space, objective)
    rng = np.random.default_rng(seed)
    closest = 0.0
    for _ in range(40):
        assignment = random_assignment(space, rng)
        work = space.work(assignment)
        for row in work:
            model.add_tangents(row)
        phases = model.all_phases(model.phase_maxima(model.loads(work).max(axis=0)))
        types = frozenset(
            space.option(t, i).sharding_type for t, i in enumerate(assignment.options)
        )
        value = float(objective.values(work))
        always = objective.always()
        assert always.base + always.slopes @ phases <= value * (1 + 1e-9)
        cut = objective.cut(phases, types)
        assert cut is not None
        assert cut.base + cut.slopes @ phases <= value * (1 + 1e-9)
        closest = max(closest, (cut.base + cut.slopes @ phases) / value)
        loose = objective.cut(phases, types - REPLICATED, REPLICATED)
        if loose is not None:
            assert loose.base + loose.slopes @ phases <= value * (1 + 1e-9)
    assert closest > 0.9


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("pipeline", [Pipeline.SPARSE_DIST, Pipeline.HUGECTR])
def test_bounds_see_an_all_reduce_that_compute_could_hide(
    pipeline: Pipeline, optional: bool
) -> None:
    """Most of the time of these plans is the all-reduce of the tables that have to be replicated.

    Under ``hugectr`` it runs beside the backward lookup, which is much shorter here.
    """
    kinds = {"t0": ShardingType.TABLE_WISE, "t[1-9]": ShardingType.DATA_PARALLEL}
    tables = tuple(TableConstraint(pattern=t, sharding_types=(k,)) for t, k in kinds.items())
    rules = replace(cases.DEVICE_ONLY, tables=tables)
    workload = replace(cases.synthetic(6, batch=64), pipeline=pipeline)
    space = cases.space(workload, cases.topology(4, 2), rules)
    objective = objective_named("iteration", space)
    rng = np.random.default_rng(0)
    values = [float(objective.values(space.work(random_assignment(space, rng)))) for _ in range(9)]
    work = space.work(random_assignment(space, rng))
    assert space.pipeline.phases.times(work).max(axis=0)[ALL_REDUCE] > 0.5 * min(values)
    types = frozenset(o.sharding_type for o in space.options)
    bounds = RankFreeBound(
        LinearModel(space, objective), optional=REPLICATED if optional else frozenset()
    )
    assert 0.9 * min(values) < bounds.relax(types).bound <= min(values) * (1 + 1e-9)


def test_tangents_are_below_the_phases() -> None:
    space = cases.space(cases.synthetic(6), cases.topology(2, 2))
    objective = objective_named("iteration", space)
    model = LinearModel(space, objective)
    rng = np.random.default_rng(0)
    for _ in range(20):
        work = space.work(random_assignment(space, rng))
        model.add_tangents(work[0])
        phases = space.pipeline.phases.times(work)[:, model.used]
        assert (model.phase_maxima(model.loads(work)) <= phases * (1 + 1e-9) + 1e-15).all()


def test_the_bound_of_a_space_without_room_is_infinite() -> None:
    space = cases.space(cases.synthetic(6), cases.topology(2, 2, hbm_gib=8, ddr_gib=1))
    space.pipeline.device_limits[:] = 1e6
    bounds = RankFreeBound(LinearModel(space, objective_named("iteration", space)))
    assert math.isinf(bounds.relax(None).bound)


def test_programs_agree_with_arithmetic() -> None:
    rows = Rows.dense(np.array([[1.0, 1.0]]), np.array([1.5]), np.array([np.inf]))
    cost, upper = np.array([1.0, 3.0]), np.array([1.0, 1.0])
    loose = solve(LinearProgram(cost=cost, upper=upper, rows=rows))
    assert loose.bound == pytest.approx(2.5)
    assert loose.reduced_costs is not None
    impossible = Rows.dense(np.array([[1.0, 1.0]]), np.array([3.0]), np.array([np.inf]))
    none = solve(LinearProgram(cost=cost, upper=upper, rows=impossible))
    assert none.infeasible
    assert math.isinf(none.bound)


def test_options_are_rounded_within_the_memory_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bound for unlisted host kernels too allows more memory than a plan of listed ones has."""
    monkeypatch.setattr("planner.options.enumeration._EVERY", 0)
    monkeypatch.setattr("planner.options.enumeration._SMALL_RATIO", 0.05)
    small = tuple(cases.table(f"s{i}", 140_000, 64) for i in range(80))
    large = tuple(cases.table(f"l{i}", 72_000_000, 64, 20.0) for i in range(5))
    workload = cases.workload(small + large)
    space = cases.space(workload, cases.topology(1, 2, hbm_gib=40, ddr_gib=400))
    assert space.listing.left_out_tables
    model = LinearModel(space, objective_named("iteration", space))
    bounds = RankFreeBound(model)
    device = space.mean_work @ space.device
    room = float(space.pipeline.device_limits.mean())
    found = bounds.relax(None)
    assert found.shares is not None
    assert found.shares @ device > 1.001 * room, "the case does not need what it tests"
    starts = Starts(bounds, Record(Evaluator(space, model.objective, Budget())))
    packable = starts.packable(found, 0.15)
    assert packable.shares is not None
    assert packable.shares @ device <= room * (1 + 1e-4)
    for solution in (found, packable):
        assert device[space.first[:-1] + starts.choice(solution)].sum() <= room * (1 + 1e-4)
