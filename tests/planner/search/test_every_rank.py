"""Programs with every rank hold for every plan, and prove small cases outright."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, ShardingType, Spread
from planner.objectives import objective_named
from planner.problem import Constraints, TableConstraint
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.relaxation import type_sets
from planner.search.bounds.rows.every_rank import EveryRank, ranks_interchangeable
from planner.search.common.linear import LinearModel
from planner.search.common.programs import solve
from planner.solving.prepare import search_space
from planner.space.evaluation import SearchSpace
from tests.planner import cases


def _space(seed: int) -> SearchSpace:
    return search_space(cases.two_tables(seed), CostPipeline)


def _bound(bounds: RankFreeBound, least: float, most: float) -> float:
    """Least over the sets of sharding types; ``most`` where no plan is below it."""
    found = []
    for types in type_sets(bounds.space):
        bounds.relax(types)
        program, unit = bounds.whole_program(types, bound=least, incumbent=most)
        solution = solve(program)
        found.append(most if solution.infeasible else min(solution.bound * unit, most))
    return min(found)


@pytest.mark.parametrize("seed", cases.first(range(8), 1))
@pytest.mark.parametrize("name", ["phases", "iteration"])
def test_programs_with_every_rank_are_below_every_plan(seed: int, name: str) -> None:
    space = _space(seed)
    objective = objective_named(name, space)
    best = cases.least_value(space, objective)
    bounds = RankFreeBound(LinearModel(space, objective))
    assert _bound(bounds, 0.0, 2 * best) <= best * (1 + 1e-9)


def test_they_prove_what_programs_without_ranks_do_not() -> None:
    """Half the gap or more, in most of these small cases, which have one."""
    closed = []
    for seed in (1, 3, 9):
        space = _space(seed)
        objective = objective_named("phases", space)
        best = cases.least_value(space, objective)
        bounds = RankFreeBound(LinearModel(space, objective))
        plain = min(bounds.solve_whole(t).bound for t in type_sets(space))
        assert plain < best * (1 - 2e-4)
        gained = _bound(bounds, plain, 2 * best) - plain
        closed.append(gained / (best - plain))
    assert np.median(closed) > 0.5


@pytest.mark.parametrize("seed", [0, 1])
def test_options_and_pieces_are_whole_and_no_place_has_more_than_all_of_them(seed: int) -> None:
    """Pieces on each place come last but for the objective, which is between bound and plan."""
    space = _space(seed)
    bounds = RankFreeBound(LinearModel(space, objective_named("phases", space)))
    program, unit = bounds.whole_program(None, bound=1e-4, incumbent=3e-4)
    pieces = [
        float(option.num_pieces)
        for option in space.options
        if not option.is_uniform
        for _ in range(space.num_hosts if option.spread is Spread.HOSTS else space.world_size)
    ]
    size, count = len(program.cost), len(space.options)
    last = np.arange(size) == size - 1
    of_pieces = (np.arange(size) >= size - 1 - len(pieces)) & ~last
    assert program.upper[of_pieces].tolist() == pieces
    assert program.integer.tolist() == ((np.arange(size) < count) | of_pieces).tolist()
    assert program.cost.tolist() == last.astype(float).tolist()
    assert program.upper[-1] * unit == pytest.approx(3e-4, rel=1e-6)
    assert program.rows.lower[-1] * unit == pytest.approx(1e-4, rel=1e-6)
    assert program.rows.column[program.rows.row == len(program.rows.lower) - 1].tolist() == [
        size - 1
    ]


def test_without_every_rank_there_are_shares_maxima_least_loads_means_and_the_objective() -> None:
    space = _space(1)
    model = LinearModel(space, objective_named("phases", space))
    program, _ = RankFreeBound(model).program(None, special=())
    least_loads = model.num_tangents + 2
    others = len(model.used) + least_loads + model.num_tangents + 1
    assert len(program.cost) == len(space.options) + others


def test_ranks_that_differ_are_not_renumbered() -> None:
    problem = cases.two_tables(0)
    assert ranks_interchangeable(search_space(problem, CostPipeline))
    slow = replace(problem.topology, speed_by_rank_ratio=(1.0, 0.5, 1.0))
    small = replace(problem.topology, hbm_capacity_by_rank_bytes=(4e10, 8e10, 8e10))
    for topology in (slow, small):
        space = search_space(replace(problem, topology=topology), CostPipeline)
        assert not ranks_interchangeable(space)
        bounds = RankFreeBound(LinearModel(space, objective_named("phases", space)))
        assert math.isinf(bounds.ranks_size)
    pinned = Constraints(tables=(TableConstraint(pattern="*", ranks=(0, 1)),))
    assert not ranks_interchangeable(
        search_space(replace(problem, constraints=pinned), CostPipeline)
    )


def test_of_plans_that_differ_in_numbers_alone_one_is_left() -> None:
    """The one whose ranks and hosts fall in what they hold, the largest table counting most.

    Tables that may lie on whole hosts as well have no part in it. All places of three tables on two
    hosts of three ranks are looked at.
    """
    tables = tuple(cases.table(f"t{i}", 200_000, 32 * (i + 1), 8.0) for i in range(3))
    kinds = (ShardingType.TABLE_WISE, ShardingType.TABLE_ROW_WISE)
    only = Constraints(sharding_types=kinds, kernels=(ComputeKernel.FUSED,))
    hosts, local = 2, 3
    space = cases.space(cases.workload(tables, batch=4096), cases.topology(hosts, local), only)
    model = LinearModel(space, objective_named("phases", space))
    every_rank, first = EveryRank(model), 11
    rows = every_rank._ordered(first)
    of_table = [
        first + int(np.flatnonzero((every_rank._option == flat) & (every_rank._place == 0))[0])
        for flat, option in enumerate(space.options)
        if option.sharding_type is ShardingType.TABLE_WISE
    ]
    left: dict[tuple[object, ...], int] = {}
    for ranks in itertools.product(range(hosts * local), repeat=3):
        x = np.zeros(first + every_rank.size)
        x[[at + rank for at, rank in zip(of_table, ranks, strict=True)]] = 1.0
        holds = [tuple(int(ranks[t] == r) for t in (2, 1, 0)) for r in range(hosts * local)]
        by_host = [holds[h * local : (h + 1) * local] for h in range(hosts)]
        fallen = sorted((sorted(h, reverse=True) for h in by_host), reverse=True)
        allowed = all(row.values @ x[row.column] <= row.upper[0] for row in rows)
        assert allowed is (by_host == fallen)
        same = tuple(map(tuple, fallen))
        left[same] = left.get(same, 0) + allowed
    assert set(left.values()) == {1}


def test_hosts_are_renumbered_as_wholes() -> None:
    """The key falls within a host and from host to host, not from rank to rank of all hosts.

    In the best plan the host of the widest table holds the two narrow ones too, whose key is less
    than that of the other host; the sixth table loads both ranks of that one.
    """
    widths = {"widest": 96, "wide_a": 80, "wide_b": 80, "narrow_a": 48, "narrow_b": 48, "host": 64}
    tables = tuple(cases.table(name, 200_000, width, 8.0) for name, width in widths.items())
    rules = tuple(
        TableConstraint(
            pattern=name,
            sharding_types=(
                ShardingType.TABLE_ROW_WISE if name == "host" else ShardingType.TABLE_WISE,
            ),
        )
        for name in widths
    )
    only = Constraints(kernels=(ComputeKernel.FUSED,), tables=rules)
    space = cases.space(cases.workload(tables, batch=4096), cases.topology(2, 2), only)
    objective = objective_named("phases", space)
    best = cases.least_value(space, objective)
    found = _bound(RankFreeBound(LinearModel(space, objective)), 0.0, 2 * best)
    assert 0.9999 * best <= found <= best * (1 + 1e-9)
