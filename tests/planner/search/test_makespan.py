"""The packing bound: its functions are dual feasible, and no plan lies below it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.system_models import default_models
from costmodels.units import GIB
from planner.objectives import objective_named
from planner.options.enumeration import enumerate_options
from planner.problem import Constraints, PlanningProblem, TableConstraint
from planner.search.bounds.makespan import Makespan, _dual_feasible
from planner.search.construct.walk import count_assignments, every_assignment
from planner.space.evaluation import ROUNDED, Assignment, SearchSpace
from planner.torchrec_terms import TorchrecPricing
from tests.strategies import make_device, make_table, make_topology, make_workload


@given(
    parts=st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=12),
    fullness=st.floats(0.3, 1.0),
)
def test_functions_add_up_to_one_where_sizes_do(parts: list[float], fullness: float) -> None:
    sizes = np.array(parts) / sum(parts) * fullness * (1 - ROUNDED)
    for values in _dual_feasible(sizes):
        assert values.sum() <= 1 + 1e-9


def space_of(by_phase: bool, num_hosts: int, hbm_gib: float = 40.0) -> SearchSpace:
    tables = [
        make_table("a", num_embeddings=2_000_000, embedding_dim=64),
        make_table("b", num_embeddings=500_000, embedding_dim=96),
        make_table("c", num_embeddings=50, embedding_dim=32),
    ]
    workload = make_workload(*tables, batch_size_per_rank=512)
    topology = make_topology(num_hosts, 2, device=make_device(hbm_capacity_bytes=hbm_gib * GIB))
    few = TableConstraint(pattern="*", min_column_width=32, kernels=("dense", "fused"))  # type: ignore[arg-type]
    problem = PlanningProblem(
        workload=workload, topology=topology, constraints=Constraints(tables=(few,))
    )
    pipeline = TorchrecPricing(by_phase=by_phase)(workload, topology, default_models(topology))
    return SearchSpace(problem, pipeline, enumerate_options(problem, pipeline))


def least_value(space: SearchSpace, name: str) -> float:
    objective = objective_named(name, space)
    values: list[float] = []
    seen: set[Assignment] = set()
    for assignments, works in every_assignment(space):
        fits = space.overflow_ratio(works) <= 0
        values += list(np.where(fits, objective.values(works), np.inf))
        seen.update(assignments)
    assert len(seen) == len(values) == count_assignments(space, 10**6), "each plan exactly once"
    return float(min(values))


@pytest.mark.parametrize(
    ("name", "num_hosts"),
    list(itertools.product(("torchrec", "torchrec-critical-path"), (1, 2))),
)
def test_bound_is_below_the_best_plan(name: str, num_hosts: int) -> None:
    space = space_of(name != "torchrec", num_hosts)
    best = least_value(space, name)
    prices = objective_named(name, space).prices
    assert prices is not None
    found = Makespan(space, prices).bound(0.2 * best, 2.0 * best, lambda: False)
    assert 0.987 * best < found.bound <= best * (1 + 1e-9)
    assert all(len(c) == space.num_tables for c in (*found.choices, *found.others))
