"""Whatever our enumeration offers for CUDA, TorchRec's own validators accept, and it tiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torchrec")

from torchrec.distributed.planner.planners import (
    validate_compute_kernels,
    validate_modules_inclusion_in_sharding_plan,
    validate_rank_assignment,
)
from torchrec.distributed.sharding_plan import get_default_sharders

from costmodels.pipeline import CostPipeline
from costmodels.sharding import Plan, ShardingOption, ShardingType, Spread, check_plan, place
from planner.integrations.torchrec_plan import to_sharding_options, to_sharding_plan
from planner.integrations.torchrec_workload import ModelDescription, describe_model
from planner.options.enumeration import enumerate_options
from planner.options.torchrec_rules import layout_problems
from planner.problem import PlanningProblem
from tests.integration.builders import make_topology
from tests.integration.models import Model, bags, sequences, torchrec_topology
from tests.merged_pieces import merged_pieces

pytestmark = pytest.mark.torchrec

BATCH = 8
SHAPES = st.tuples(st.integers(1, 300), st.sampled_from((4, 8, 12, 16, 24, 32, 64, 128)))


def describe(pooled: list[tuple[int, int]], unpooled: list[int]) -> tuple[Model, ModelDescription]:
    model = Model(
        bags([(f"p{i}", rows, dim) for i, (rows, dim) in enumerate(pooled)]),
        sequences([(f"u{i}", rows, 16) for i, rows in enumerate(unpooled)]) if unpooled else None,
    )
    described = describe_model(model, batch_size=BATCH)
    assert described is not None
    return model, described


def places(option: ShardingOption, hosts: int, local: int, rng: np.random.Generator) -> tuple:
    """Random places of an option, as a search may choose them."""
    if option.spread is Spread.HOSTS:
        return tuple(int(h) for h in rng.integers(0, hosts, option.num_pieces))
    if option.sharding_type is ShardingType.TABLE_COLUMN_WISE:
        host = int(rng.integers(0, hosts))
        return tuple(int(r) for r in host * local + rng.integers(0, local, option.num_pieces))
    return tuple(int(r) for r in rng.integers(0, hosts * local, option.num_pieces))


@settings(max_examples=settings().max_examples // 2)  # each looks at dozens of plans
@given(
    pooled=st.lists(SHAPES, min_size=1, max_size=3),
    unpooled=st.lists(st.integers(1, 90), max_size=1),
    hosts=st.integers(1, 4),
    local=st.integers(1, 4),
    seed=st.integers(0, 2**16),
)
def test_every_enumerated_option_is_accepted(
    pooled: list[tuple[int, int]], unpooled: list[int], hosts: int, local: int, seed: int
) -> None:
    model, described = describe(pooled, unpooled)
    workload, world = described.workload, hosts * local
    ours, theirs = make_topology(num_hosts=hosts, local=local), torchrec_topology(world, local)
    problem = PlanningProblem(workload=workload, topology=ours)
    listed = [t.options for t in enumerate_options(problem, CostPipeline(workload, ours)).tables]
    rng, sharders = np.random.default_rng(seed), get_default_sharders()
    for turn in range(max(len(options) for options in listed)):
        chosen = [options[turn % len(options)] for options in listed]
        placed = Plan(
            placements=tuple(
                place(
                    option,
                    table.num_embeddings,
                    places(option, hosts, local, rng),
                    world_size=world,
                    local_world_size=local,
                )
                for option, table in zip(chosen, workload.tables, strict=True)
            )
        )
        plan = merged_pieces(placed)
        check_plan(plan, workload, world)
        assert layout_problems(plan, workload, ours) == []
        sharding_plan = to_sharding_plan(
            plan, workload, compute_device="cuda", local_world_size=local
        )
        validate_modules_inclusion_in_sharding_plan(sharding_plan, model, sharders)
        validate_rank_assignment(sharding_plan, theirs)
        options = to_sharding_options(plan, described, theirs)
        validate_compute_kernels(options)
