"""Sets of sharding types that each get a program."""

from __future__ import annotations

import pytest

from costmodels.sharding import ComputeKernel, ShardingType
from planner.problem import Constraints
from planner.search.bounds.relaxation import optional_types, type_sets, usual_optional_types
from planner.search.common.schedule import Schedule
from tests.planner import cases


def test_every_plan_has_a_set_of_types_and_there_are_few() -> None:
    """Sets are those that leave every table an option; optional types are in each of them."""
    schedule = Schedule(type_sets=4, few_options=0)
    space = cases.space(cases.synthetic(4), cases.topology(2, 2), cases.DEVICE_ONLY)
    kinds = {o.sharding_type for o in space.options}
    assert len(type_sets(space)) == 2 ** len(kinds) - 1, "every table may have every type"
    assert type_sets(space)[0] == kinds
    replicated = frozenset({ShardingType.DATA_PARALLEL})
    some = type_sets(space, replicated)
    assert len(some) == 2 ** (len(kinds) - 1)
    assert all(replicated <= types for types in some)
    left_open = optional_types(space, replicated, schedule)
    assert replicated <= left_open
    assert len(type_sets(space, left_open)) <= 4 < len(type_sets(space, replicated))
    counts = {k: sum(o.sharding_type is k for o in space.options) for k in kinds}
    closed = kinds - left_open
    assert max(counts[k] for k in left_open - replicated) <= min(counts[k] for k in closed)
    limited = cases.space(
        cases.synthetic(2),
        cases.topology(1, 2),
        Constraints(
            sharding_types=(ShardingType.TABLE_WISE, ShardingType.ROW_WISE),
            kernels=(ComputeKernel.FUSED,),
        ),
    )
    assert optional_types(limited, schedule=schedule) == frozenset()


@pytest.mark.parametrize("most", [3, 4])
def test_many_tables_may_be_replicated_in_every_set(most: int) -> None:
    """Four tables are many where three are few; where four are few, every set says it exactly."""
    space = cases.space(cases.synthetic(4), cases.topology(1, 2), cases.DEVICE_ONLY)
    replicated = {ShardingType.DATA_PARALLEL} if most < 4 else set()
    assert usual_optional_types(space, Schedule(replicated_tables=most)) == replicated
