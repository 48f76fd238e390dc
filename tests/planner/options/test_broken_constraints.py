"""What given plans do that constraints do not allow, beside another judge of the same rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.sharding import ComputeKernel, Plan, ShardingType
from planner.options.table_limits import broken_constraints
from planner.problem import NO_CONSTRAINTS, Constraints, PlanningProblem, TableConstraint
from tests.differential.case import Case
from tests.differential.drawing.options import placements
from tests.differential.drawing.problems import draw
from tests.differential.judging.rules import broken_rules
from tests.planner.cases import first

NUM_PLANS = 25


def without_memory(case: Case) -> Case:
    return replace(case, constraints=replace(case.constraints, memory=()), moves=None)


def said(case: Case, plan: Plan) -> tuple[str, ...]:
    problem = PlanningProblem(
        workload=case.workload, topology=case.topology, constraints=case.constraints
    )
    return broken_constraints(problem, plan)


@pytest.mark.parametrize("seed", first([4119, *range(4100, 4119), *range(4120, 4140)], 15))
def test_a_line_stands_for_every_plan_that_breaks_a_rule_and_for_no_other(seed: int) -> None:
    case = without_memory(draw(seed))
    free = replace(case, constraints=NO_CONSTRAINTS)
    choices = [list(placements(free, table)) for table in case.workload.tables]
    rng = np.random.default_rng(seed)
    for _ in range(NUM_PLANS):
        plan = Plan(placements=tuple(own[int(rng.integers(len(own)))] for own in choices))
        assert bool(said(case, plan)) == bool(broken_rules(case, plan)), said(case, plan)
        assert said(free, plan) == ()


def test_a_pair_is_not_named_beside_its_kernel() -> None:
    case = without_memory(draw(0))
    table, pairs = case.workload.tables[0], ((ShardingType.ROW_WISE, ComputeKernel.DENSE),)
    rules = Constraints(
        kernels=(ComputeKernel.DENSE,), tables=(TableConstraint(pattern=table.name, pairs=pairs),)
    )
    free = replace(case, constraints=NO_CONSTRAINTS)
    first_ones = (next(iter(placements(free, t))) for t in case.workload.tables)
    asked = {"kernel": ComputeKernel.FUSED, "sharding_type": ShardingType.TABLE_WISE}
    plan = Plan(placements=tuple(replace(p, **asked) for p in first_ones))
    line = said(replace(case, constraints=rules), plan)[0]
    assert line == f"table {table.name!r} has the kernel fused"
