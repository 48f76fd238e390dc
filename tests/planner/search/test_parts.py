"""Parts of strategies: incremental equals from scratch, scores equal what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.sharding import ComputeKernel, ShardingType, Spread
from planner.objectives import objective_named
from planner.problem import Constraints
from planner.search.base import Record
from planner.search.common.linear import LinearModel
from planner.search.construct import walk
from planner.search.construct.placer import MEMORY_WEIGHT, Placer, Pressure, place_options
from planner.search.construct.walk import count_assignments, every_assignment, table_choices
from planner.search.improve.local_search import Guide, LocalSearch
from planner.search.improve.moves import Change, Neighbourhood, PlanState, Ruler
from planner.search.random import random_assignment
from planner.space.evaluation import Assignment, Budget, Evaluator, SearchSpace
from tests.planner import cases


def world(seed: int, *, hosts: int = 2, local: int = 2) -> tuple[SearchSpace, LinearModel]:
    system = cases.topology(hosts, local)
    system = cases.unequal(system, seed) if seed % 2 else system
    space = cases.space(cases.synthetic(8, seed=seed), system)
    return space, LinearModel(space, objective_named("iteration", space))


@pytest.mark.parametrize("seed", range(4))
def test_incremental_work_equals_from_scratch(seed: int) -> None:
    space, model = world(seed)
    rng = np.random.default_rng(seed)
    state = PlanState(model, random_assignment(space, rng))
    for _ in range(40):
        table = int(rng.integers(space.num_tables))
        other = random_assignment(space, rng)
        change = Change(table=table, option=other.options[table], places=other.places[table])
        state.apply((change,))
        shards = np.flatnonzero(state.shard_rank >= 0)
        if len(shards):
            state.apply(state.moved([(int(rng.choice(shards)), int(rng.integers(4)))]))
    again = PlanState(model, state.assignment)
    scale = space.pool.max(axis=0)
    assert (np.abs(state.work - again.work) <= 1e-12 * scale).all()
    assert state.loads == pytest.approx(again.loads, rel=1e-7, abs=1e-9)
    assert (state.shard_rank == again.shard_rank).all()
    assert (state.shard_row == again.shard_row).all()
    assert float(objective_of(model, state)) == pytest.approx(float(objective_of(model, again)))


def objective_of(model: LinearModel, state: PlanState) -> np.float64:
    return model.objective.values(state.work)[()]


@pytest.mark.parametrize("seed", range(4))
def test_work_of_an_assignment_equals_work_of_its_plan(seed: int) -> None:
    space, _ = world(seed)
    assignment = random_assignment(space, np.random.default_rng(seed))
    work, planned = space.work(assignment), space.pipeline.plan_work(space.plan(assignment))
    assert space.pipeline.iteration_times(work) == pytest.approx(
        space.pipeline.iteration_times(planned), rel=1e-9
    )
    assert space.assignment(space.plan(assignment)).options == assignment.options
    assert space.assignment(space.plan(assignment)).places == assignment.places


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_the_change_of_the_minorant(seed: int) -> None:
    space, model = world(seed)
    state = PlanState(model, random_assignment(space, np.random.default_rng(seed)))
    ruler = Ruler.at(state)
    around = Neighbourhood(state, ruler)
    rank = around.critical_ranks(1)[0]
    everything = np.ones(len(space.options), dtype=bool)
    prices = np.zeros(len(space.options))
    scored = [
        *around.relocations(rank, 8),
        *around.swaps(rank, 8, None),
        *around.recuts([0, 1, 2], prices, everything, 3),
    ]
    assert scored
    for score, move in scored:
        after = PlanState(model, state.assignment)
        after.apply(move)
        value = after.value - state.value
        tie = around.tie * float(
            ruler.pressure.of(after.loads).sum() - ruler.pressure.of(state.loads).sum()
        )
        assert score == pytest.approx(value + tie, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
def test_placing_alike_shards_at_once_equals_one_by_one(seed: int) -> None:
    space, model = world(seed, hosts=1, local=4)
    state = PlanState(model, random_assignment(space, np.random.default_rng(1)))
    pressure = Pressure(targets=Ruler.at(state).targets, power=8.0)
    row = model.columns[0] / 5
    together, single = (Placer(model, pressure, state.loads) for _ in range(2))
    ranks = together.add_alike(0, row, 5)
    one_by_one = sorted(single.add_to_rank(0, row) for _ in range(5))
    assert sorted(ranks) == one_by_one
    assert together.loads == pytest.approx(single.loads)


def test_descent_never_makes_the_minorant_worse_and_polish_never_the_objective() -> None:
    space, model = world(5)
    objective = model.objective
    evaluate = Evaluator(space, objective, Budget())
    guide = Guide(
        reduced_costs=model.mean[:, :-2].sum(axis=1),
        allowed=np.ones(len(space.options), dtype=bool),
    )
    search = LocalSearch(model, Record(evaluate), guide, np.random.default_rng(0))
    state = PlanState(model, random_assignment(space, np.random.default_rng(2)))
    before = state.value
    search.descend(state)
    assert state.value <= before * (1 + 1e-6)
    value = float(objective.values(state.work))
    search.polish(state)
    assert float(objective.values(state.work)) <= value


def test_local_search_relieves_an_overfull_rank() -> None:
    model_ = cases.workload(tuple(cases.table(f"t{i}", 2_000_000, 64) for i in range(6)))
    only = Constraints(sharding_types=(ShardingType.TABLE_WISE,), kernels=(ComputeKernel.FUSED,))
    space = cases.space(model_, cases.topology(1, 3, hbm_gib=1.6), only)
    model = LinearModel(space, objective_named("iteration", space))
    crowded = PlanState(model, space_assignment(space, rank=0))
    assert float(space.overflow_ratio(crowded.work)) > 0
    evaluate = Evaluator(space, model.objective, Budget())
    guide = Guide(reduced_costs=np.zeros(6), allowed=np.ones(6, dtype=bool))
    search = LocalSearch(model, Record(evaluate), guide, np.random.default_rng(0))
    search.descend(crowded)
    assert float(space.overflow_ratio(crowded.work)) == 0


def space_assignment(space: SearchSpace, *, rank: int) -> Assignment:
    count = space.num_tables
    return Assignment(options=(0,) * count, places=((rank,),) * count)


def test_rounding_respects_limits_where_it_can() -> None:
    space, model = world(3)
    choice = np.array([0] * space.num_tables)
    peaks = model.mean[space.first[:-1] + choice].sum(axis=0)
    placed = place_options(model, choice, Pressure(targets=model.targets(peaks), power=4.0))
    assert placed.options == (0,) * space.num_tables


def test_walking_a_tiny_space_meets_every_assignment_once() -> None:
    space = cases.tiny(2)
    seen = [a for batch, _ in every_assignment(space) for a in batch]
    assert len(seen) == len(set(seen)) == count_assignments(space, 10**7)
    assert count_assignments(space, 3) > 3
    uniform = [c for c in table_choices(space, 0) if not c[1]]
    assert all(space.option(0, i).spread is Spread.UNIFORM for i, _ in uniform)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("runs", [(1,), (3,), (2, 1), (2, 2), (1, 1, 2)])
@pytest.mark.parametrize("places", [1, 2, 4])
def test_places_of_pieces_are_counted_without_listing_them(
    places: int, runs: tuple[int, ...], ordered: bool
) -> None:
    widths = tuple(w for i, n in enumerate(runs) for w in [8 - 4 * (i % 2) + 16 * i] * n)
    listed = list(walk._placings(widths, list(range(places)), ordered=ordered))
    assert walk._count_placings(places, runs, ordered=ordered) == len(listed) == len(set(listed))


def test_pressure_has_a_weight_for_every_tangent() -> None:
    """Thirty scenarios have three hundred tangents; there were weights for 254."""
    for num_tangents in (1, 254, 300):
        loads = np.ones((2, num_tangents + 2))
        pressure = Pressure(targets=np.ones(num_tangents + 2), power=4.0)
        assert pressure.of(loads).tolist() == pytest.approx([num_tangents + 2 * MEMORY_WEIGHT] * 2)
