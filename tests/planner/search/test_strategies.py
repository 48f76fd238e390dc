"""Every strategy, found by its file, keeps the same rules."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import planner.search as strategies
from costmodels import discovery
from costmodels.sharding import ShardingType, check_plan
from planner.errors import InvalidInputError
from planner.objectives import objective_named
from planner.options.torchrec_rules import layout_problems
from planner.problem import Constraints, TableConstraint
from planner.search.base import (
    OPTIMALITY_GAP,
    AbstractStrategy,
    Record,
    SearchOutcome,
    SearchProgress,
)
from planner.space.evaluation import Budget, Evaluator, SearchSpace
from planner.support.status import Status
from tests.planner import cases

pytestmark = pytest.mark.usefixtures("no_process_beside")

NAMES = discovery.names(strategies)
BASELINES = [n for n in NAMES if n not in ("auto", "exhaustive")]


def run(
    name: str,
    space: SearchSpace,
    *,
    objective: str = "iteration",
    seed: int = 0,
    most: int | None = 800,
    **hooks: object,
) -> SearchOutcome:
    target = objective_named(objective, space)
    evaluate = Evaluator(space, target, Budget(max_evaluations=most))
    strategy = discovery.load(strategies, name, AbstractStrategy)()
    return strategy.search(Record(evaluate, **hooks), seed=seed)  # type: ignore[arg-type]


@functools.cache
def tiny_optimum(seed: int) -> float:
    """Found by pricing every plan."""
    return run("exhaustive", cases.tiny(seed), most=None).values[0]


def middling() -> SearchSpace:
    return cases.space(cases.synthetic(7, seed=3), cases.topology(2, 2))


def test_all_are_found() -> None:
    expected = {"auto", "exhaustive", "random", "torchrec_greedy", "split_hottest", "size_greedy"}
    assert expected <= set(NAMES)
    assert not any(n.startswith("_") or n in ("base", "parts") for n in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_plans_tile_fit_and_run_in_torchrec(name: str) -> None:
    space = cases.tiny(2) if name == "exhaustive" else middling()
    problem = space.problem
    outcome = run(name, space, most=None if name == "exhaustive" else 120)
    assert outcome.assignments
    for assignment, value in zip(outcome.assignments, outcome.values, strict=True):
        plan = space.plan(assignment)
        check_plan(plan, problem.workload, problem.topology.world_size)
        assert not layout_problems(plan, problem.workload, problem.topology)
        assert space.pipeline.memory(plan).fits
        again = float(space.pipeline.iteration_times(space.pipeline.plan_work(plan)))
        assert value == pytest.approx(again, rel=1e-9)
    assert list(outcome.values) == sorted(outcome.values)
    assert len({a.options for a in outcome.assignments}) == len(outcome.assignments)


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_outcome(name: str) -> None:
    space = cases.tiny(1) if name == "exhaustive" else middling()
    most = None if name == "exhaustive" else 100
    first, second = (run(name, space, seed=5, most=most) for _ in range(2))
    assert first.assignments == second.assignments
    assert first.values == second.values
    assert first.bound == second.bound


@pytest.mark.parametrize("name", [n for n in NAMES if n != "exhaustive"])
def test_bounds_are_below_the_optimum_of_tiny_cases(name: str) -> None:
    for seed in (0, 3, 6):
        space = cases.tiny(seed)
        optimum = tiny_optimum(seed)
        outcome = run(name, space, most=100)
        if outcome.values:
            assert outcome.values[0] >= optimum * (1 - 1e-9)
        if outcome.bound is not None:
            assert outcome.bound <= optimum * (1 + 1e-9)
        if outcome.termination is Status.OPTIMAL:
            assert outcome.values[0] == pytest.approx(optimum, rel=2e-4)


def test_auto_is_at_least_as_good_as_every_baseline() -> None:
    space = cases.space(cases.synthetic(12, seed=1), cases.topology(2, 2))
    best = run("auto", space, most=150).values[0]
    for name in BASELINES:
        outcome = run(name, space, most=80)
        assert not outcome.values or best <= outcome.values[0] * (1 + 1e-12), name


def test_auto_ends_by_itself_with_a_small_gap() -> None:
    space = cases.space(cases.synthetic(3, seed=2), cases.topology(1, 2))
    outcome = run("auto", space, most=None)
    assert outcome.termination in (Status.GAP, Status.OPTIMAL)
    assert outcome.bound is not None
    assert outcome.bound <= outcome.values[0] <= outcome.bound * 1.05


def test_auto_plans_around_tight_memory() -> None:
    model = cases.synthetic(10, seed=4)
    roomy = cases.topology(2, 2)
    total = model.weight_bytes / cases.GIB
    space = cases.space(model, cases.topology(2, 2, hbm_gib=0.2 * total + 0.5))
    outcome = run("auto", space, most=100)
    assert space.pipeline.memory(space.plan(outcome.assignments[0])).fits
    free = run("auto", cases.space(model, roomy), most=100)
    assert outcome.values[0] >= free.values[0] * 0.98


def test_progress_is_monotone_and_should_stop_is_obeyed() -> None:
    lines: list[SearchProgress] = []
    outcome = run("auto", middling(), progress=lines.append, should_stop=lambda: len(lines) > 6)
    assert outcome.termination is Status.INTERRUPTED
    assert outcome.assignments
    found = [p.incumbent for p in lines if p.incumbent is not None]
    bounds = [p.bound for p in lines if p.bound is not None]
    assert found == sorted(found, reverse=True)
    assert bounds == sorted(bounds)
    assert lines == list(outcome.progress)


def test_a_plan_comes_before_any_bound_and_a_cut_ends_the_first_one() -> None:
    lines: list[SearchProgress] = []
    whole = run("auto", middling(), most=200, progress=lines.append)
    assert lines[0].incumbent is not None
    assert lines[0].bound is None
    found: list[SearchProgress] = []
    cut = run("auto", middling(), most=200, progress=found.append, should_stop=lambda: bool(found))
    assert cut.values[0] <= lines[0].incumbent
    assert cut.bound is not None
    assert whole.bound is not None
    assert cut.bound <= whole.bound


@pytest.mark.parametrize("name", NAMES)
def test_stopping_at_once_leaves_at_most_one_plan_and_no_proof(name: str) -> None:
    """A strategy either asks and is interrupted, or prices a single plan and never has to ask."""
    asked: list[int] = []
    outcome = run(name, cases.tiny(2), should_stop=lambda: not asked.append(1))
    ended = Status.INTERRUPTED if asked else Status.HEURISTIC
    assert outcome.termination is ended
    assert len(outcome.assignments) <= 1
    assert outcome.bound is None or outcome.bound < (1 - OPTIMALITY_GAP) * outcome.values[0]
    assert len(asked) <= 3, "it goes on after it was told to stop"


def test_constraints_are_obeyed_by_all() -> None:
    rules = Constraints(
        tables=(
            TableConstraint(pattern="t0", ranks=(1,)),
            TableConstraint(pattern="t1", sharding_types=(ShardingType.TABLE_COLUMN_WISE,)),
            TableConstraint(pattern="t2", hosts=(1,)),
            TableConstraint(pattern="t3", sharding_types=(ShardingType.TABLE_ROW_WISE,)),
        )
    )
    space = cases.space(cases.synthetic(6, seed=7), cases.topology(2, 2), rules)
    for name in NAMES:
        if name == "exhaustive":
            continue
        outcome = run(name, space, most=80)
        if name == "torchrec_greedy":  # TorchRec knows no ranks, so that its plan is refused
            assert not outcome.assignments
            continue
        plan = space.plan(outcome.assignments[0])
        assert set(plan.placement("t0").ranks) == {1}
        assert plan.placement("t1").sharding_type is ShardingType.TABLE_COLUMN_WISE
        assert len({r // 2 for r in plan.placement("t1").ranks}) == 1
        assert set(plan.placement("t2").ranks) <= {2, 3}
        assert plan.placement("t3").sharding_type is ShardingType.TABLE_ROW_WISE


def test_exhaustive_refuses_what_it_cannot_finish() -> None:
    with pytest.raises(InvalidInputError, match="auto"):
        run("exhaustive", cases.space(cases.synthetic(12), cases.topology(2, 4)))


def test_random_draws_differ_by_seed() -> None:
    space = middling()
    values = {run("random", space, seed=s, most=1).values for s in range(6)}
    assert len(values) > 1
    assert np.isfinite(max(v[0] for v in values if v))
