"""The bound of plans under a limit on moves: never above their optimum, and close to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.sharding import ComputeKernel, Plan, ShardingOption, ShardingType
from costmodels.workload import Feature
from planner import PlanningProblem, SearchSettings, load_system, plan, solve
from planner.problem import MoveLimit
from planner.rules.moved_bytes import MoveBudget
from planner.search.bounds.move_bound import _least_move
from tests.differential.problems import _with_plan_in_use, draw
from tests.differential.run import Settings, checked
from tests.strategies import make_placement, make_table, make_topology, make_workload

TW = ShardingType.TABLE_WISE


@pytest.mark.parametrize("seed", [200_007, 200_011, 200_042, 200_057, 200_101, 200_160])
def test_no_bound_is_above_the_optimum_within_the_limit(seed: int) -> None:
    case = draw(seed)
    if case.moves is None:
        case = _with_plan_in_use(np.random.default_rng(seed), case)
    assert case.moves is not None
    verdict = checked(case, Settings(max_evaluations=200))
    assert verdict.faults == ()


def test_few_moves_leave_the_busiest_rank_its_load() -> None:
    often = (Feature(name="f", pooling_factor=80.0),)
    tables = [
        make_table(f"t{i}", num_embeddings=10**6, embedding_dim=128, features=often)
        for i in range(12)
    ]
    workload, topology = make_workload(*tables), load_system("h100_sxm", gpus=4)
    best = plan(workload, topology, time_limit_s=2.0, with_baselines=False)
    crowded = [make_placement(t, TW, topology) for t in tables]
    start = replace(best.plan, placements=tuple(crowded))

    def outcome(most: int) -> tuple[float, float]:
        limit = MoveLimit(start=start, max_tables=most)
        problem = PlanningProblem(workload=workload, topology=topology, move_limit=limit)
        settings = SearchSettings(max_evaluations=400, with_baselines=False)
        found = solve(problem, search=settings).solver
        assert found.bound is not None
        return found.value, found.bound

    unlimited = best.bound
    assert unlimited is not None
    for most in (1, 3):
        value, bound = outcome(most)
        assert bound <= value * (1 + 1e-9)
        assert bound > 0.9 * value
        assert bound > 1.1 * unlimited


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
