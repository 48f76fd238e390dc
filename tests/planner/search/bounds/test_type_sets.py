"""Sets of sharding types that each get a program."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.sharding import ComputeKernel, ShardingType
from planner.problem import Constraints, TableConstraint
from planner.search.bounds.bound_program import (
    Relaxation,
    type_sets,
    usual_optional_types,
)
from tests.planner import cases


def test_every_plan_has_a_set_of_types_and_there_are_few() -> None:
    """Sets are those that leave every table an option; optional types are in each of them."""
    space = cases.space(cases.synthetic(4), cases.topology(2, 2), cases.DEVICE_ONLY)
    kinds = {o.sharding_type for o in space.options}
    assert len(type_sets(space)) == 2 ** len(kinds) - 1, "every table may have every type"
    assert type_sets(space)[0] == kinds
    replicated = frozenset({ShardingType.DATA_PARALLEL})
    some = type_sets(space, replicated)
    assert len(some) == 2 ** (len(kinds) - 1)
    assert all(replicated <= types for types in some)
    with cases.scheduled(type_sets=4, few_tables=3):
        left_open = usual_optional_types(space)
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
    with cases.scheduled(type_sets=4):
        assert usual_optional_types(limited) == frozenset()


@pytest.mark.parametrize("most", [3, 4])
def test_many_tables_may_be_replicated_in_every_set(most: int) -> None:
    """Four tables are many where three are few; where four are few, every set says it exactly."""
    space = cases.space(cases.synthetic(4), cases.topology(1, 2), cases.DEVICE_ONLY)
    replicated = {ShardingType.DATA_PARALLEL} if most < 4 else set()
    with cases.scheduled(few_tables=most):
        assert usual_optional_types(space) == replicated


def test_a_set_leaves_every_table_an_option() -> None:
    """One table may have two types and the other one of them, which is therefore in every set."""
    whole, rows = ShardingType.TABLE_WISE, ShardingType.ROW_WISE
    rules = Constraints(
        sharding_types=(whole, rows),
        kernels=(ComputeKernel.FUSED,),
        tables=(TableConstraint(pattern="b", sharding_types=(rows,)),),
    )
    tables = (cases.table("a"), cases.table("b"))
    space = cases.space(cases.workload(tables), cases.topology(1, 2), rules)
    assert type_sets(space) == [{whole, rows}, {rows}]
    assert type_sets(space, frozenset({rows})) == [{whole, rows}, {rows}]
    assert type_sets(space, frozenset({whole})) == [{whole, rows}]


def test_a_relaxation_without_a_solution_names_the_first_options() -> None:
    """Where it has one, each table has the option with the largest share."""
    space = cases.space(cases.synthetic(2), cases.topology(1, 2), cases.DEVICE_ONLY)
    assert Relaxation(types=None, bound=0.0).choice(space).tolist() == [0, 0]
    shares = np.zeros(len(space.options))
    shares[space.first[:-1] + np.array([2, 1])] = 0.6
    shares[space.first[:-1] + np.array([1, 2])] = 0.4
    assert Relaxation(types=None, bound=0.0, shares=shares).choice(space).tolist() == [2, 1]
