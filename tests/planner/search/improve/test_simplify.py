"""Ties: no table is cut where the plan is as fast with the table whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.sharding import ShardingType
from planner import api, load_system, load_workload
from planner.objectives import objective_named
from planner.search.improve.afterwards import simplified
from planner.search.random import random_assignment
from planner.space.evaluation import Budget, Evaluator
from tests.planner import cases

WHOLE = {ShardingType.TABLE_WISE, ShardingType.DATA_PARALLEL}


@pytest.mark.parametrize("gpus", [1, 8])
def test_a_plan_that_waits_for_the_host_cuts_no_small_table(gpus: int) -> None:
    """The demo model is bound by launches on any number of ranks of a host."""
    system = load_system("h100_sxm", gpus=gpus)
    model = load_workload("small_demo")
    found = api.plan(model, system, max_evaluations=100, with_baselines=False)
    assert {p.sharding_type for p in found.plan.placements} <= WHOLE


@pytest.mark.parametrize("seed", range(8))
def test_a_simpler_plan_is_as_fast_as_fits_and_has_fewer_shards(seed: int) -> None:
    """With a slow host all plans tie, otherwise most do not."""
    model = replace(cases.synthetic(6, seed=seed), cuda_graph=seed % 2 == 0)
    space = cases.space(model, cases.topology(*((1, 4), (2, 2))[seed % 2]))
    evaluate = Evaluator(space, objective_named("iteration", space), Budget())
    rng = np.random.default_rng(seed)
    start = random_assignment(space, rng)
    while not np.isfinite(evaluate.value(start)):
        start = random_assignment(space, rng)
    found = simplified(evaluate, start)
    assert evaluate.value(found) <= evaluate.value(start) * (1 + 1e-8)
    assert space.keeps_rules(found)
    shards = [sum(len(p.shards) for p in space.plan(a).placements) for a in (start, found)]
    assert shards[1] <= shards[0]
