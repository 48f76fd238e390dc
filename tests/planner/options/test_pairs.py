"""Combinations of sharding type and kernel that a table may have: none other is in any plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, ShardingType
from costmodels.workload import Feature
from planner import api
from planner.errors import InfeasibleError
from planner.options.enumeration import enumerate_options
from planner.options.table_limits import table_limits
from planner.options.torchrec_rules import legal_types_and_kernels
from planner.problem import Constraints, Level, PlanningProblem, TableConstraint, TableGroup
from planner.solving.prepare import search_pipeline
from tests import strategies

Pair = tuple[ShardingType, ComputeKernel]

NAMES = ("t0", "t1", "t2")
TABLES = [strategies.make_table(n, num_embeddings=400 * (i + 1)) for i, n in enumerate(NAMES)]
EVERY = [(t, k) for t, kernels in legal_types_and_kernels(TABLES[0]).items() for k in kernels]
SOME = st.lists(st.sampled_from(EVERY), min_size=1, max_size=4, unique=True)


def problem(pairs: list[list[Pair]]) -> PlanningProblem:
    limits = tuple(
        TableConstraint(pattern=n, pairs=tuple(found))
        for n, found in zip(NAMES, pairs, strict=True)
    )
    return PlanningProblem(
        workload=strategies.make_workload(*TABLES),
        topology=strategies.make_topology(2, 2),
        constraints=Constraints(tables=limits),
    )


@given(st.lists(SOME, min_size=3, max_size=3), st.sampled_from(["iteration", "torchrec"]))
def test_plans_have_allowed_pairs_alone(pairs: list[list[Pair]], objective: str) -> None:
    asked = problem(pairs)
    result = api.solve(
        asked,
        search=api.SearchSettings(objective=objective, max_evaluations=20, with_baselines=False),
    )
    for found in (result.best, *result.runners_up):
        for placed, allowed in zip(found.plan.placements, pairs, strict=True):
            assert (placed.sharding_type, placed.kernel) in allowed


@given(st.lists(SOME, min_size=3, max_size=3))
def test_every_allowed_pair_is_listed_by_its_own_name_or_by_one_that_stands_for_it(
    pairs: list[list[Pair]],
) -> None:
    asked = problem(pairs)
    pipeline = search_pipeline(asked, CostPipeline)
    listing = enumerate_options(asked, pipeline, every_kernel=True)
    for table, allowed in zip(listing.tables, pairs, strict=True):
        listed = {(o.sharding_type, o.kernel) for o in table.options}
        wanted = {(listing.names.get(kind, kind), kernel) for kind, kernel in allowed}
        assert listed == wanted


def test_a_type_is_left_with_the_kernels_of_its_pairs() -> None:
    pairs = [
        (ShardingType.ROW_WISE, ComputeKernel.FUSED_UVM),
        (ShardingType.TABLE_WISE, ComputeKernel.FUSED),
    ]
    first = table_limits(problem([pairs, EVERY, EVERY]))[0]
    assert first.kernels == {kind: (kernel,) for kind, kernel in pairs}


@given(st.lists(SOME, min_size=3, max_size=3), st.booleans())
def test_a_full_listing_leaves_no_table_without_its_host_kernels(
    pairs: list[list[Pair]], is_grouped: bool
) -> None:
    asked = problem(pairs)
    if is_grouped:
        whole = [*pairs[0], (ShardingType.TABLE_WISE, ComputeKernel.FUSED)]
        asked = problem([whole, whole, EVERY])
        group = TableGroup(patterns=NAMES[:2], level=Level.RANK)
        asked = replace(asked, constraints=replace(asked.constraints, together=(group,)))
    pipeline = search_pipeline(asked, CostPipeline)
    assert enumerate_options(asked, pipeline, every_kernel=True).has_every_kernel


def test_a_table_whose_inputs_fit_nowhere_is_refused_beside_one_with_pairs() -> None:
    pairs = [
        (ShardingType.ROW_WISE, ComputeKernel.FUSED_UVM_CACHING),
        (ShardingType.TABLE_WISE, ComputeKernel.FUSED),
    ]
    feature = Feature(name="many", pooling_factor=1e6)
    large = strategies.make_table("t1", features=(feature,))
    workload = strategies.make_workload(TABLES[0], large, TABLES[2], batch_size_per_rank=200_000)
    asked = replace(problem([pairs, EVERY, EVERY]), workload=workload)
    with pytest.raises(InfeasibleError, match="'t1' exceeds the device memory of an empty rank"):
        api.solve(asked)
