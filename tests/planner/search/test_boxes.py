"""Bounds of boxes hold for every plan inside, and rise above those of the whole space."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.datatypes import FloatArray
from costmodels.floors.floor import Leaf
from costmodels.pipeline import CostPipeline
from costmodels.sharding import ComputeKernel, Plan, ShardingType
from costmodels.topology import Topology
from costmodels.workload import Workload
from planner import load_system
from planner.objectives import objective_named
from planner.objectives.iteration import IterationTime
from planner.problem import PlanningProblem
from planner.search.base import Record
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.bound_program import Relaxation, TypeSet, type_sets
from planner.search.bounds.boxes import _SAMPLES, _chord
from planner.search.bounds.proofs import Branching
from planner.search.common.linear import LinearModel
from planner.search.construct.walk import count_assignments
from planner.search.random import random_assignment
from planner.solving.prepare import search_space
from planner.space.evaluation import Budget, Evaluator, SearchSpace
from planner.space.objective import JudgedWork
from tests.planner import cases
from tests.strategies import make_placement, make_table, make_workload, planned_workloads


def _system(name: str, hosts: int, local: int) -> Topology:
    return load_system(name, gpus=hosts * local, gpus_per_host=local)


def _space(workload: Workload, topology: Topology) -> SearchSpace:
    """With the models of the system, measured curves among them."""
    problem = PlanningProblem(workload=workload, topology=topology, constraints=cases.DEVICE_ONLY)
    return search_space(problem, CostPipeline)


REPLICATED = frozenset({ShardingType.DATA_PARALLEL})
SYSTEMS = (
    ("h100_sxm", 1, 4),
    ("h100_sxm", 2, 2),
    ("h100_sxm", 4, 1),
    ("a100_80gb_sxm", 2, 2),
    ("v100_32gb_sxm", 1, 3),
    ("gb200", 2, 2),
)


@functools.cache
def _small(seed: int) -> SearchSpace:
    """Two tables on a measured system; batches from tiny to large, where curves bend most."""
    name, hosts, local = SYSTEMS[seed % len(SYSTEMS)]
    workload = cases.synthetic(2, seed=seed, batch=(16, 512, 8192, 65536)[seed % 4])
    return _space(workload, _system(name, hosts, local))


@functools.cache
def _least_s(seed: int) -> float:
    """The best of all plans of a small problem; infinite where they are too many to try."""
    space = _small(seed)
    if count_assignments(space, 10_000) > 10_000:
        return math.inf
    return cases.least_value(space, objective_named("iteration", space))


def _branching(space: SearchSpace, objective: IterationTime, optional: TypeSet) -> Branching:
    bounds = RankFreeBound(LinearModel(space, objective), optional=optional)
    relaxed: dict[TypeSet | None, Relaxation] = {}
    for types in type_sets(space, optional):
        assert types is not None
        relaxed[types] = bounds.relax(types)
    return Branching(bounds, relaxed)


@pytest.mark.parametrize("seed", cases.first(range(8), 2))
@pytest.mark.parametrize("slack", [1.0, 1.3])
def test_the_bound_of_all_boxes_is_below_the_best_plan(seed: int, slack: float) -> None:
    """Whatever the incumbent: the best plan itself, or one that is 30 % slower."""
    space, best = _small(seed), _least_s(seed)
    if math.isinf(best):
        pytest.skip("too many plans to try them all")
    objective = objective_named("iteration", space)
    assert isinstance(objective, IterationTime)
    optional = frozenset({ShardingType.DATA_PARALLEL} if seed % 2 else ())
    branching = _branching(space, objective, optional)
    before = branching.bound(math.inf)
    for _ in range(12):
        branching.step(best * slack)
        assert branching.bound(best * slack) <= best * slack
        if slack > 1:
            assert branching.bound(best * slack) <= best * (1 + 1e-6)
    assert branching.bound(best * slack) >= before


@pytest.mark.parametrize("seed", cases.first(range(12), 3))
def test_cuts_of_a_box_are_below_random_plans_inside(seed: int) -> None:
    """Boxes around the phases of random plans, narrow and wide."""
    name, hosts, local = SYSTEMS[seed % len(SYSTEMS)]
    workload = cases.synthetic(6, seed=seed, batch=(64, 1024, 16384)[seed % 3])
    space = _space(workload, _system(name, hosts, local))
    objective = objective_named("iteration", space)
    assert isinstance(objective, IterationTime)
    rng = np.random.default_rng(seed)
    model = LinearModel(space, objective)
    closest, compared = 0.0, 0
    for _ in range(20):
        assignment = random_assignment(space, rng)
        work = space.work(assignment)
        for row in work:
            model.add_tangents(row)
        phases = model.all_phases(model.phase_maxima(model.loads(work).max(axis=0)))
        exact = space.pipeline.phases.times(work).max(axis=0)
        types = frozenset(
            space.option(t, i).sharding_type for t, i in enumerate(assignment.options)
        )
        value = float(objective.values(work))
        width = 10.0 ** rng.uniform(-3, 1)
        box = cases.box(objective, types, exact / (1 + width), exact * (1 + width))
        if box is None:
            continue
        compared += 1
        at = exact[box.first]
        assert float(box.exact_times(at[None])[0]) <= value * (1 + 1e-9)
        assert float(cases.relaxed(box, at[None])[0]) <= value * (1 + 1e-9)
        cut = box.cut(phases)
        if cut is not None:
            assert cut.base + cut.slopes @ exact <= value * (1 + 1e-9)
            closest = max(closest, (cut.base + cut.slopes @ exact) / value)
        limits = exact / (1 + width), exact * (1 + width)
        loose = cases.box(objective, types - REPLICATED, *limits, REPLICATED)
        if loose is not None:
            at = exact[loose.first]
            assert float(loose.exact_times(at[None])[0]) <= value * (1 + 1e-9)
            held = loose.cut(exact)
            assert held.base + held.slopes @ exact <= value * (1 + 1e-9)
    assert compared > 6
    assert closest > 0.9


@given(
    steps=st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(1e-6, 1e-3)), min_size=1, max_size=6),
    low=st.floats(1e-6, 1e-3),
    wide=st.floats(1e-3, 50.0),
)
def test_a_chord_is_nowhere_above_a_duration_that_rises_in_steps(
    steps: list[tuple[float, float]], low: float, wide: float
) -> None:
    """Also between the samples, where a step may begin right after one."""
    high = low * (1 + wide)

    def duration_s(phase: FloatArray) -> FloatArray:
        starts = [(low + at * (high - low), rise) for at, rise in steps]
        return 1e-4 + sum((rise * (phase > start) for start, rise in starts), np.zeros_like(phase))

    leaf = Leaf(phase=0, is_line=False, duration_s=duration_s, constant_s=0.0, slope_ratio=0.0)
    constant_s, slope = _chord(leaf, low, high)
    at = np.linspace(low, high, 20_001)
    rise_s = float(duration_s(at)[-1] - duration_s(at)[0])
    assert np.all(constant_s + slope * at <= duration_s(at) + 1e-12 * (1e-4 + rise_s))


def test_a_chord_of_a_straight_duration_is_below_it_by_one_sample() -> None:
    """So much it gives away for what may happen between two samples, and no more."""
    line = Leaf(
        phase=0, is_line=False, duration_s=lambda x: 2.0 + 3.0 * x, constant_s=0.0, slope_ratio=0.0
    )
    constant_s, slope = _chord(line, 1.0, 5.0)
    assert slope == pytest.approx(3.0)
    assert constant_s == pytest.approx(2.0 - 3.0 * (5.0 - 1.0) / (_SAMPLES - 1))


def test_chords_meet_the_models_as_boxes_narrow() -> None:
    """Half the width, less than half the distance."""
    space = _space(cases.synthetic(6, batch=1024), _system("h100_sxm", 2, 4))
    objective = objective_named("iteration", space)
    assert isinstance(objective, IterationTime)
    rng = np.random.default_rng(1)
    assignment = random_assignment(space, rng)
    exact = space.pipeline.phases.times(space.work(assignment)).max(axis=0)
    types = frozenset(space.option(t, i).sharding_type for t, i in enumerate(assignment.options))
    distances = []
    for width in (1.0, 0.25, 0.05):
        box = cases.box(objective, types, exact * (1 - 0.5 * width), exact * (1 + width))
        assert box is not None
        at = exact[box.first][None]
        distances.append(float(box.exact_times(at)[0] - cases.relaxed(box, at)[0]))
    assert distances[0] > distances[1] > distances[2] >= -1e-12
    assert distances[2] < 0.01 * float(objective.values(space.work(assignment)))


def test_boxes_close_much_of_the_gap() -> None:
    """On two hosts, where latency is most of a small exchange, they are what makes the bound.

    What every plan has alike, calls of the host and floors of kernels, is no part of the gap.
    """
    space = _space(cases.synthetic(26, seed=1, batch=512), _system("h100_sxm", 2, 8))
    objective = objective_named("iteration", space)
    assert isinstance(objective, IterationTime)
    record = Record(Evaluator(space, objective, Budget()))
    rng = np.random.default_rng(0)
    for _ in range(20):
        record.consider(random_assignment(space, rng), "random")
    from planner.search.construct.greedy import split_walk

    for proposal in split_walk(LinearModel(space, objective)):
        record.consider(proposal, "greedy")
    branching = _branching(space, objective, frozenset())
    before = branching.bound(record.value)
    for _ in range(25):
        branching.step(record.value)
    alike_s = space.pipeline.phases.base_s
    assert branching.bound(record.value) - alike_s > 1.14 * (before - alike_s)


@given(planned_workloads())
def test_the_shortest_iteration_of_a_plans_phases_is_no_longer_than_the_plans(
    case: tuple[Workload, Topology, Plan],
) -> None:
    """Whether tables may be cached or not, with launches counted as boxes count them."""
    workload, topology, plan = case
    pipeline = CostPipeline(workload, topology)
    work = pipeline.plan_work(plan)
    types = frozenset(p.sharding_type for p in plan.placements)
    cached = make_placement(
        workload.tables[0],
        ShardingType.TABLE_WISE,
        topology,
        kernel=ComputeKernel.FUSED_UVM_CACHING,
        cache_load_factor_ratio=0.2,
    )
    time_s = float(pipeline.iteration_times(work))
    for options in ((*plan.placements, cached), plan.placements):
        judged = JudgedWork(pipeline=pipeline, pool=work, options=options)
        shortest_s = IterationTime(judged).separable_value(work, types)
        assert shortest_s is not None
        assert shortest_s <= time_s * (1 + 1e-9)


def test_lookups_wait_for_the_host_where_others_might_be_fetched() -> None:
    """Two small tables: the host is still issuing when a fetch would be done."""
    tables = [make_table(f"t{i}", num_embeddings=10**6, embedding_dim=64) for i in range(2)]
    workload, topology = make_workload(*tables), _system("h100_sxm", 1, 2)
    whole = functools.partial(
        make_placement, sharding_type=ShardingType.TABLE_WISE, topology=topology
    )
    placed = [whole(t) for t in tables]
    pipeline = CostPipeline(workload, topology)
    work = pipeline.plan_work(Plan(placements=tuple(placed)))
    types = frozenset({ShardingType.TABLE_WISE})
    cached = whole(tables[0], kernel=ComputeKernel.FUSED_UVM_CACHING, cache_load_factor_ratio=0.2)
    alone, beside = (
        IterationTime(JudgedWork(pipeline=pipeline, pool=work, options=offered))
        for offered in (placed, [*placed, cached])
    )
    shortest_s = alone.separable_value(work, types)
    assert beside.separable_value(work, types) == pytest.approx(shortest_s, rel=1e-9)
