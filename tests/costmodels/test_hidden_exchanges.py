"""The floor where the bottom of the dense part hides the exchanges of vectors."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.distribution.uniform import Uniform
from costmodels.iteration.base import FloatArray
from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingType
from costmodels.workload import Feature, Pipeline
from planner.objectives.iteration import IterationTime
from tests.strategies import (
    make_dense,
    make_device,
    make_placement,
    make_table,
    make_topology,
    make_workload,
)


def iteration_and_floor(*, bottom: tuple[int, ...]) -> tuple[float, float, FloatArray]:
    """Seconds of an iteration, its floor, and seconds ``[2, 2]`` of the lookups of each rank.

    One rank has the longer forward lookup: of few rows, many times each. The other has the longer
    backward lookup: of many rows, seldom twice.
    """
    few = make_table(
        "few", num_embeddings=500, features=(Feature(name="few_f", pooling_factor=60.0),)
    )
    many = make_table("many", num_embeddings=10**7, distribution=Uniform(num_embeddings=10**7))
    dense = make_dense(bottom_mlp=bottom)
    workload = make_workload(
        few, many, local_batch_size=65536, dense=dense, pipeline=Pipeline.HUGECTR
    )
    topology = make_topology(1, 2, device=make_device(sort_rate_per_s=1e12))
    kind = ShardingType.TABLE_WISE
    placements = (
        make_placement(few, kind, topology, where=(0,)),
        make_placement(many, kind, topology, where=(1,)),
    )
    pipeline = CostPipeline(workload, topology)
    work = pipeline.plan_work(Plan(placements=placements))
    objective = IterationTime(pipeline, {(p.sharding_type, p.kernel) for p in placements})
    floor_s = objective.separable_value(work, frozenset({kind}))
    assert floor_s is not None
    times = pipeline.iteration_times(work[None])
    return float(times[0]), floor_s, np.asarray(pipeline.phase_times(work)[:, :2])


def test_the_floor_is_no_more_than_a_plan_whose_lookups_need_not_wait_for_one_another() -> None:
    """It was 3.8 % above: it gave one rank the longer of both lookups."""
    time_s, floor_s, lookups = iteration_and_floor(bottom=(1024, 64))
    assert lookups.argmax(axis=0).tolist() == [0, 1]
    assert floor_s <= time_s
    assert floor_s > 0.98 * time_s


def test_lookups_of_two_ranks_add_up_where_the_exchanges_are_not_hidden() -> None:
    time_s, floor_s, lookups = iteration_and_floor(bottom=(64, 64))
    assert lookups.argmax(axis=0).tolist() == [0, 1]
    assert floor_s == pytest.approx(time_s, rel=1e-9)
