"""The bound of plans under a limit on moves: never above their optimum, and close to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType
from costmodels.workload import Feature
from planner import PlanningProblem, SearchSettings, load_system, plan, solve
from planner.objectives import objective_named
from planner.problem import Constraints, MoveLimit
from planner.rules.moved_bytes import MoveBudget, received_bytes
from planner.search.bounds.move_bound import MoveBound, _least_move
from planner.search.common.linear import LinearModel
from planner.search.construct.walk import every_assignment
from planner.space.effort import Meter
from planner.space.evaluation import Budget, Evaluator, SearchSpace
from tests.planner import cases
from tests.strategies import make_placement, make_table, make_topology, make_workload

TW = ShardingType.TABLE_WISE


def small(rng: np.random.Generator) -> SearchSpace:
    """Three tables on two hosts of one rank, or on one host of two."""
    tables = tuple(
        cases.table(f"t{i}", int(10 ** rng.uniform(3, 6)), 16 * int(rng.integers(1, 5)), pooling)
        for i, pooling in enumerate(rng.uniform(1.0, 60.0, 3).tolist())
    )
    hosts = int(rng.integers(1, 3))
    limits = Constraints(kernels=(ComputeKernel.FUSED, ComputeKernel.DENSE))
    return cases.space(
        cases.workload(tables, batch=2048), cases.topology(hosts, 2 // hosts), limits
    )


def limited(space: SearchSpace, limit: MoveLimit) -> SearchSpace:
    return SearchSpace(replace(space.problem, move_limit=limit), space.pipeline, space.listing)


@pytest.mark.parametrize("seed", cases.first(range(8), 3))
def test_no_bound_is_above_the_optimum_within_the_limit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    free = small(rng)
    evaluate = Evaluator(free, objective_named("phases", free), Budget())
    plans, values = list[Plan](), list[float]()
    for found, works in every_assignment(free):
        plans += [free.plan(a) for a in found]
        values += evaluate.values(works).tolist()
    start = plans[int(rng.integers(len(plans)))]
    tables = free.problem.workload.tables
    moved = np.array(
        [
            [
                received_bytes(
                    start.placement(t.name), p.placement(t.name), t, free.problem.workload
                )
                for t in tables
            ]
            for p in plans
        ]
    )
    total = float(sum(t.weight_bytes for t in tables))
    limits = [MoveLimit(start=start, max_tables=k) for k in (1, 2)]
    limits += [
        MoveLimit(start=start, max_bytes=share * total)
        for share in (0.0, *rng.uniform(0.1, 1.2, 6))
    ]
    shares = []
    for limit in limits:
        few = (moved > 0.5).sum(axis=1) <= (
            len(tables) if limit.max_tables is None else limit.max_tables
        )
        light = moved.sum(axis=1) <= (np.inf if limit.max_bytes is None else limit.max_bytes)
        optimum = float(np.min(np.array(values)[few & light]))
        space = limited(free, limit)
        assert space.rules.budget is not None
        objective = objective_named("phases", space)
        for scale in (1.0, 3.0):
            model, most = LinearModel(space, objective), scale * optimum
            moves = MoveBound(model, space.rules.budget, Meter(), most=most)
            bound = moves.bound(None, [objective.always()])
            assert 0.96 * optimum < bound <= optimum * (1 + 1e-9)
            shares.append(bound / optimum)
    assert np.mean(shares) > 0.98, "weaker than it was, which no plan below it would tell"


@pytest.mark.parametrize("most", cases.first((1, 3), 1))
def test_few_moves_leave_the_busiest_rank_its_load(most: int) -> None:
    often = (Feature(name="f", pooling_factor=80.0),)
    tables = [
        make_table(f"t{i}", num_embeddings=10**6, embedding_dim=128, features=often)
        for i in range(12)
    ]
    workload, topology = make_workload(*tables), load_system("h100_sxm", gpus=4)
    best = plan(workload, topology, max_evaluations=100, with_baselines=False)
    crowded = [make_placement(t, TW, topology) for t in tables]
    start = replace(best.plan, placements=tuple(crowded))
    limit = MoveLimit(start=start, max_tables=most)
    problem = PlanningProblem(workload=workload, topology=topology, move_limit=limit)
    settings = SearchSettings(max_evaluations=500, with_baselines=False)
    found = solve(problem, search=settings).solver
    assert found.bound is not None
    assert best.bound is not None
    assert found.bound <= found.value * (1 + 1e-9)
    assert found.bound > 0.9 * found.value
    assert found.bound > 1.1 * best.bound


def test_what_an_option_has_to_move_at_least() -> None:
    table, topology = make_table("t", num_embeddings=1000, embedding_dim=16), make_topology()
    workload = make_workload(table)
    start = Plan(placements=(make_placement(table, TW, topology, where=(2,)),))
    budget = MoveBudget(MoveLimit(start=start, max_tables=1), workload, topology)

    def option(kind: ShardingType, *widths: int) -> ShardingOption:
        return ShardingOption(
            table="t", sharding_type=kind, kernel=ComputeKernel.FUSED, column_widths=widths
        )

    total = budget.table_bytes(option(TW, 16), (0,))
    assert total > 0
    assert _least_move(budget, option(TW, 16)) == (total, (2,))
    halves = option(ShardingType.COLUMN_WISE, 8, 8)
    assert _least_move(budget, halves) == (total / 2, (2, 2))
