"""Ranks of different speed: loads and bounds are below every plan, and plans follow the speeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.uncertainty import UNSCALED
from costmodels.workload import Pipeline
from planner import load_system, plan
from planner.objectives import objective_named
from planner.objectives.iteration import IterationTime
from planner.problem import NO_CONSTRAINTS
from planner.search.common.linear import LinearModel
from planner.search.random import random_assignment
from tests.planner import cases

PIPELINES = tuple(Pipeline)


@pytest.mark.parametrize("seed", cases.first(range(10), 5))
@pytest.mark.parametrize("objective", ["iteration", "phases"])
def test_loads_are_below_the_phases_of_each_rank(seed: int, objective: str) -> None:
    """Also where rows of a cache are fetched first, which takes as long on a slow device."""
    rng = np.random.default_rng(seed)
    system = cases.unequal(cases.topology(1 + seed % 2, 3), seed)
    system = replace(system, price_per_device_usd_per_hour=2.0)
    workload = replace(cases.synthetic(6, seed=seed), pipeline=PIPELINES[seed % len(PIPELINES)])
    rules = cases.DEVICE_ONLY if seed % 3 else NO_CONSTRAINTS
    space = cases.space(workload, system, rules)
    model = LinearModel(space, objective_named(objective, space))
    tightest = 0.0
    for _ in range(12):
        work = space.work(random_assignment(space, rng))
        for row in work:
            model.add_tangents(row)
        phases = space.pipeline.phases.times(work)[:, model.used]
        loads = model.phase_maxima(model.loads(work))
        assert (loads <= phases * (1 + 1e-9) + 1e-15).all()
        slowest = int(np.argmin(system.speeds()))
        if phases[slowest, 1] > 0:
            tightest = max(tightest, loads[slowest, 1] / phases[slowest, 1])
    assert tightest > 0.95, "lookups of the slowest rank are counted as slow as they are"


@pytest.mark.parametrize("seed", cases.first(range(8), 4))
def test_the_floor_waits_for_the_longest_dense_part(seed: int) -> None:
    """Beside stage times computed for plans: nothing is longer, and the dense part is as long."""
    rng = np.random.default_rng(seed)
    system = cases.unequal(cases.topology(2, 2), seed)
    workload = replace(cases.dlrm(256), pipeline=PIPELINES[seed % len(PIPELINES)])
    space = cases.space(workload, system, cases.DEVICE_ONLY)
    objective = objective_named("iteration", space)
    assert isinstance(objective, IterationTime)
    stages = space.pipeline._stages
    assert stages.slowest_dense == int(np.argmin(system.speeds()))
    for _ in range(6):
        assignment = random_assignment(space, rng)
        work = space.work(assignment)
        types = frozenset(
            space.option(t, i).sharding_type for t, i in enumerate(assignment.options)
        )
        value, least = float(objective.values(work)), objective.separable_value(work, types)
        assert least is not None
        assert least <= value * (1 + 1e-9)
        times = stages.times(work, UNSCALED)
        top_s = float(np.max(times.top_forward_s + times.top_backward_s))
        assert least >= top_s
        assert least > 0.6 * value


def test_slow_ranks_look_up_less() -> None:
    """Half as fast, a rank of the best plan gets about half the work, and the gap is small.

    The batch is so large that work outweighs the floors of fused calls: the best plan has tables
    cut by rows beside whole ones, and no bound knows that the slowest rank has both calls.
    """
    system = replace(load_system("h100_sxm", gpus=8), speed_by_rank_ratio=(1.0, 0.5) * 4)
    workload = cases.synthetic(40, seed=3, batch=8192)
    result = plan(workload, system, max_evaluations=1600, with_baselines=False)
    assert result.gap_ratio is not None
    assert result.gap_ratio < 0.05
    space = cases.space(workload, system)
    work = space.work(space.assignment(result.plan))
    seconds = space.pipeline.phases.times(work)[:, 1]
    own = seconds * system.speeds()
    assert seconds.max() < 1.15 * seconds.mean()
    assert own[::2].mean() > 1.7 * own[1::2].mean()
