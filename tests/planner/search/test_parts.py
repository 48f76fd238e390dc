"""Parts of strategies: incremental equals from scratch, scores equal what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.sharding import Spread
from planner.objectives import objective_named
from planner.search.common.linear import LinearModel
from planner.search.construct import walk
from planner.search.construct.placer import MEMORY_WEIGHT, Placer, place_options, pressure
from planner.search.construct.walk import count_assignments, every_assignment, table_choices
from planner.search.random import random_assignment
from planner.space.evaluation import SearchSpace
from tests.planner import cases


def world(seed: int, *, hosts: int = 2, local: int = 2) -> tuple[SearchSpace, LinearModel]:
    system = cases.topology(hosts, local)
    system = cases.unequal(system, seed) if seed % 2 else system
    space = cases.space(cases.synthetic(8, seed=seed), system)
    return space, LinearModel(space, objective_named("iteration", space))


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


@pytest.mark.parametrize("seed", [0, 1])
def test_placing_alike_shards_at_once_equals_one_by_one(seed: int) -> None:
    space, model = world(seed, hosts=1, local=4)
    start = random_assignment(space, np.random.default_rng(1))
    peaks = model.loads(space.work(start)).max(axis=0)
    row = model.columns[0] / 5
    together, single = (Placer(model, model.targets(peaks), 8.0) for _ in range(2))
    for placer in (together, single):
        for table, option in enumerate(start.options):
            placer.add(table, option)
    ranks = together.add_pieces(0, row, 5)
    one_by_one = sorted(single.add_pieces(0, row)[0] for _ in range(5))
    assert sorted(ranks) == one_by_one
    assert together.loads == pytest.approx(single.loads)


def test_rounding_respects_limits_where_it_can() -> None:
    space, model = world(3)
    choice = np.array([0] * space.num_tables)
    placed = place_options(model, choice, 4.0)
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
    listed = list(walk.placings(widths, list(range(places)), ordered=ordered))
    assert len(listed) == len(set(listed))
    counted = walk.most_placings(widths, places, ordered=ordered)
    assert counted >= len(listed)
    assert len(runs) > 1 or counted == len(listed)


def test_pressure_has_a_weight_for_every_tangent() -> None:
    """Thirty scenarios have three hundred tangents; there were weights for 254."""
    for num_tangents in (1, 254, 300):
        loads = np.ones((2, num_tangents + 2))
        found = pressure(loads, np.ones(num_tangents + 2), 4.0)
        assert found.tolist() == pytest.approx([num_tangents + 2 * MEMORY_WEIGHT] * 2)
