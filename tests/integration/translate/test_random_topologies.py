"""Random plans on random CUDA clusters, 1 to 16 hosts with and without pods, as TorchRec sees them.

Each case takes the way of a real one: TorchRec's topology becomes ours, options are enumerated, one
of each table is placed at random, and the plan goes back through TorchRec's validators and torch's
checks of shard metadata.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("torchrec")

from torch.distributed._shard.sharding_spec._internals import (
    check_tensor,
    validate_non_overlapping_shards_metadata,
)
from torchrec.distributed.planner.planners import (
    to_sharding_plan,
    validate_compute_kernels,
    validate_modules_inclusion_in_sharding_plan,
    validate_rank_assignment,
)
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ParameterSharding

from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, place
from planner.integrations.torchrec_plan import to_sharding_options
from planner.integrations.torchrec_topology import topology_from_torchrec
from planner.integrations.torchrec_workload import describe_model
from planner.options.enumeration import enumerate_options
from planner.options.torchrec_rules import layout_problems
from planner.problem import PlanningProblem
from tests.integration.builders import make_topology
from tests.integration.models import Model, bags, sequences, torchrec_topology
from tests.integration.translate.test_enumerated_layouts import places
from tests.merged_pieces import merged_pieces

pytestmark = pytest.mark.torchrec

BATCH = 8
DIMS = (4, 8, 12, 16, 24, 32, 64, 96, 128, 256)
NODE_TYPES = ("table_row_wise", "table_column_wise")


@dataclass(frozen=True)
class Case:
    """A cluster of pods of hosts of ranks, tables as (rows, dim), unpooled rows, and a seed."""

    num_pods: int
    pod_size: int
    local: int
    pooled: tuple[tuple[int, int], ...]
    unpooled: tuple[int, ...]
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    pod_size = draw(st.sampled_from((1, 1, 1, 2, 4, 8)))
    tables = st.tuples(st.integers(1, 5000), st.sampled_from(DIMS))
    return Case(
        num_pods=draw(st.integers(1, 16 // pod_size)),
        pod_size=pod_size,
        local=draw(st.sampled_from((1, 2, 4, 8))),
        pooled=tuple(draw(st.lists(tables, min_size=1, max_size=4))),
        unpooled=tuple(draw(st.lists(st.integers(1, 300), max_size=1))),
        seed=draw(st.integers(0, 2**16)),
    )


def check(case: Case) -> None:
    world = case.num_pods * case.pod_size * case.local
    model = Model(
        bags([(f"p{i}", rows, dim) for i, (rows, dim) in enumerate(case.pooled)]),
        sequences([(f"u{i}", n, 16) for i, n in enumerate(case.unpooled)])
        if case.unpooled
        else None,
    )
    described = describe_model(model, batch_size=BATCH)
    assert described is not None
    theirs = torchrec_topology(world, case.local, pod_size=case.pod_size)
    ours = topology_from_torchrec(theirs, make_topology(), rates_from_base=True)
    group = ours.local_world_size
    assert group == case.pod_size * case.local
    problem = PlanningProblem(
        workload=described.workload, topology=ours, constraints=described.constraints
    )
    listed = enumerate_options(problem, CostPipeline(described.workload, ours)).tables
    rng = np.random.default_rng(case.seed)
    placements = []
    for table, found in zip(described.workload.tables, listed, strict=True):
        option = found.options[rng.integers(len(found.options))]
        where = places(option, ours.num_hosts, group, rng)
        placements.append(
            place(
                option,
                table.num_embeddings,
                where,
                world_size=world,
                local_world_size=group,
            )
        )
    plan = merged_pieces(Plan(placements=tuple(placements)))
    assert layout_problems(plan, described.workload, ours) == []
    sharders = get_default_sharders()
    options = to_sharding_options(plan, described, theirs)
    sharding_plan = to_sharding_plan(options, theirs)
    validate_modules_inclusion_in_sharding_plan(sharding_plan, model, sharders)
    validate_rank_assignment(sharding_plan, theirs)
    validate_compute_kernels(options)
    for found, option in zip(described.tables, options, strict=True):
        sharding = sharding_plan.plan[found.path][found.parameter_name]
        check_metadata(sharding, list(option.tensor.shape), case.local, group, world)


def check_metadata(
    sharding: ParameterSharding, shape: list[int], local: int, group: int, world: int
) -> None:
    """What torch asks of a sharded tensor, and TorchRec of ranks and devices."""
    if sharding.sharding_spec is None:
        assert sharding.sharding_type == "data_parallel"
        assert sharding.ranks == list(range(world))
        return
    shards = sharding.sharding_spec.shards
    validate_non_overlapping_shards_metadata(shards)
    check_tensor(shards, shape)
    assert [s.placement.rank() for s in shards] == sharding.ranks
    assert all(s.placement.device().index == s.placement.rank() % local for s in shards)
    assert sum(math.prod(s.shard_sizes) for s in shards) == math.prod(shape)
    if sharding.sharding_type in NODE_TYPES:
        assert len({rank // group for rank in sharding.ranks}) == 1


@given(cases())
def test_random_plans_are_accepted(case: Case) -> None:
    check(case)


@pytest.mark.slow
@settings(max_examples=5000, suppress_health_check=list(HealthCheck))
@given(cases())
def test_five_thousand_random_plans_are_accepted(case: Case) -> None:
    check(case)
