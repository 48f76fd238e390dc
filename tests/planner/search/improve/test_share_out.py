"""Sharing out pieces between two places: all ways are tried, constraints hold, books are kept."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from costmodels.sharding import ComputeKernel, ShardingType, Spread
from planner.problem import Constraints, TableConstraint
from planner.search.construct.partial_plan import PartialPlan
from planner.search.improve import ruin as module
from planner.search.improve.ruin import Turns, share_out
from planner.space.effort import Meter, sharing_s
from planner.space.evaluation import Assignment, SearchSpace
from tests.planner import cases
from tests.planner.search.improve.test_ruin import field_at, world

RANKS = Constraints(
    tables=(
        TableConstraint(pattern="t1", sharding_types=(ShardingType.TABLE_COLUMN_WISE,)),
        TableConstraint(pattern="t2", ranks=(1, 3)),
        TableConstraint(pattern="t3", kernels=(ComputeKernel.FUSED_UVM_CACHING,)),
        TableConstraint(pattern="t[4-7]", sharding_types=(ShardingType.COLUMN_WISE,)),
    )
)
HOSTS = Constraints(
    tables=(
        TableConstraint(pattern="t[0-2]", sharding_types=(ShardingType.TABLE_ROW_WISE,)),
        TableConstraint(pattern="t[3-6]", sharding_types=(ShardingType.GRID_SHARD,)),
        TableConstraint(pattern="t7", ranks=(0, 1, 2)),
    )
)
SPREADS = ((Spread.RANKS, RANKS), (Spread.HOSTS, HOSTS))
SEEDS = cases.first(range(24), 8)


def field_of(seed: int, constraints: Constraints) -> PartialPlan:
    """A random plan of nine tables on two hosts of three ranks, every second time unequal ones."""
    space, model = world(seed, constraints)
    return field_at(space, model, seed)


def pairs(space: SearchSpace, spread: Spread) -> list[tuple[int, int]]:
    """All pairs of ranks or of hosts."""
    count = space.world_size if spread is Spread.RANKS else space.num_hosts
    return list(itertools.combinations(range(count), 2))


def free_pieces(
    space: SearchSpace, plan: Assignment, places: tuple[int, int], spread: Spread
) -> Iterator[tuple[int, int]]:
    """Table and number of each piece on these two places that is free to be on either of them."""
    local = space.local_world_size
    apart = spread is Spread.RANKS and places[0] // local != places[1] // local
    for table, (index, at) in enumerate(zip(plan.options, plan.places, strict=True)):
        option = space.option(table, index)
        tied = option.sharding_type is ShardingType.TABLE_COLUMN_WISE and apart
        if option.spread is spread and len(set(option.column_widths)) == 1 and not tied:
            yield from ((table, piece) for piece, place in enumerate(at) if place in places)


def ways(
    space: SearchSpace, plan: Assignment, places: tuple[int, int], spread: Spread
) -> Iterator[Assignment]:
    """Every plan in which the free pieces of these two places are on either of them."""
    free = list(free_pieces(space, plan, places, spread))
    for chosen in itertools.product(places, repeat=len(free)):
        moved = [list(p) for p in plan.places]
        for (table, piece), place in zip(free, chosen, strict=True):
            moved[table][piece] = place
        way = Assignment(options=plan.options, places=tuple(tuple(p) for p in moved))
        if space.keeps_rules(way):
            yield way


@pytest.mark.parametrize(("spread", "constraints"), SPREADS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_best_of_all_ways_is_found(
    seed: int, spread: Spread, constraints: Constraints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_ENTRIES", 2**30)
    field = field_of(seed, constraints)
    space, model = field.space, field.model
    for places in pairs(space, spread):
        before, value = field.assignment, field.smooth
        better = share_out(field, places, spread, np.random.default_rng(seed), Meter())
        other = PartialPlan(model, field.scale[:, 0], field.power, field.thrift)
        least = value
        for way in ways(space, before, places, spread):
            other.load(way)
            least = min(least, other.smooth)
        assert field.smooth == pytest.approx(least, rel=1e-8)
        assert better == (field.smooth < value)


@pytest.mark.parametrize(("spread", "constraints"), SPREADS)
def test_books_are_kept_and_places_allowed(spread: Spread, constraints: Constraints) -> None:
    changes = 0
    for seed in range(12):
        field = field_of(seed, constraints)
        space, rng = field.space, np.random.default_rng(seed)
        for places in [*pairs(space, spread), *pairs(space, spread)]:
            options, overflow = list(field.options), field.overflow
            changes += share_out(field, places, spread, rng, Meter())
            assert field.options == options
            assert field.overflow <= overflow * (1 + 1e-9) + 1e-6
            assert space.keeps_rules(field.assignment)
        again = PartialPlan(field.model, field.scale[:, 0], field.power, field.thrift)
        again.load(field.assignment)
        assert again.smooth == pytest.approx(field.smooth, rel=1e-9)
        assert again.on_rank == field.on_rank
        assert field.loads == pytest.approx(again.loads, rel=1e-7, abs=1e-6)
    assert changes > 8


def test_of_many_pieces_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    field = field_of(0, RANKS)
    entries = 2 * len(field.loads)
    monkeypatch.setattr(module, "_MOST_ENTRIES", entries << 4)
    for places in pairs(field.space, Spread.RANKS):
        value, meter = field.smooth, Meter()
        better = share_out(field, places, Spread.RANKS, np.random.default_rng(1), meter)
        assert better == (field.smooth < value)
        assert meter.spent_s <= sharing_s(entries << 4)


def test_turns_follow_what_gains() -> None:
    turns = Turns(3, np.random.default_rng(0))
    counts = np.bincount([turns.draw() for _ in range(600)])
    assert (counts > 150).all()
    for _ in range(100):
        turns.count(0, 0.0, 1e-3)
        turns.count(1, 1e-4, 1e-3)
        turns.count(2, 0.0, 1e-3)
    counts = np.bincount([turns.draw() for _ in range(600)])
    assert counts[1] > 350
    assert counts[0] > 80  # steps that change options never die out
    assert counts[2] > 10
