"""Rows of special ranks hold for every plan, and lift the bound where shards do not mix."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator

import numpy as np
import pytest

from costmodels.pipeline import CostPipeline
from planner.objectives import objective_named
from planner.objectives.phases import SynchronizedPhases
from planner.search.base import Record
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.proving import Prover
from planner.search.bounds.relaxation import Relaxation, TypeSet, type_sets
from planner.search.common.linear import LinearModel
from planner.search.common.milp import MilpProgram, Rows
from planner.search.common.quiet import QUIET
from planner.search.common.solver_process import SolverProcess
from planner.search.construct.walk import every_assignment
from planner.solving.prepare import search_space
from planner.space.evaluation import Budget, Evaluator, SearchSpace
from tests.planner import cases


def _space(seed: int) -> SearchSpace:
    return search_space(cases.two_tables(seed), CostPipeline)


@pytest.mark.parametrize("seed", cases.first(range(5), 1))
@pytest.mark.parametrize("name", ["phases", "iteration"])
def test_bounds_with_special_ranks_are_below_every_plan(seed: int, name: str) -> None:
    """Linear and whole, for any number of special ranks, against all plans."""
    space = _space(seed)
    objective = objective_named(name, space)
    best = cases.least_value(space, objective)
    bounds = RankFreeBound(LinearModel(space, objective))
    found = []
    for types in type_sets(space):
        plain = bounds.relax(types)
        for special in ((0,), (1,), (0, 1)):
            linear = bounds.relax(types, special=special)
            whole = bounds.solve_whole(types, special=special)
            solved = math.isfinite(linear.bound)  # the simplex may end without a proof
            assert not solved or linear.bound >= plain.bound * (1 - 1e-6)
            found.append((special, linear.bound, whole.bound))
    for special in ((0,), (1,), (0, 1)):
        assert min(b for s, b, _ in found if s == special) <= best * (1 + 1e-9)
        assert min(b for s, _, b in found if s == special) <= best * (1 + 1e-9)


def test_a_rank_that_is_full_in_one_phase_lifts_the_bound() -> None:
    """In some of the small cases, and by more than the solver's tolerance."""

    def lifts() -> Iterator[float]:
        for seed in range(8):
            space = _space(seed)
            bounds = RankFreeBound(LinearModel(space, objective_named("phases", space)))
            for types in type_sets(space):
                plain, linear = bounds.relax(types), bounds.relax(types, special=(0, 1))
                yield linear.bound / plain.bound

    assert any(lift > 1.001 for lift in lifts())


@pytest.mark.parametrize("seed", cases.first((1, 0, 2, 3), 1))
def test_what_is_proven_beside_the_search_is_below_every_plan(seed: int) -> None:
    """The prover raises the least bound and stays below the optimum."""
    space = _space(seed)
    objective = SynchronizedPhases(space.pipeline)
    best = cases.least_value(space, objective)
    bounds = RankFreeBound(LinearModel(space, objective))
    relaxed: dict[TypeSet | None, Relaxation] = {
        types: bounds.relax(types) for types in type_sets(space)
    }
    before = min(r.bound for r in relaxed.values())
    prover = Prover(bounds, relaxed)
    try:
        for _ in range(30):
            if not prover.start(best, 30.0):
                break
            prover.finish(lambda: False)
        assert before <= prover.bound <= best * (1 + 1e-9)
        assert prover.bound >= (0.9973 if seed == 0 else 0.9999) * best, "it was stronger"
    finally:
        prover.close()


def test_the_phases_objective_is_never_above_the_iteration() -> None:
    """It leaves out launches and start-up costs, which only add."""
    space = _space(1)
    phases, iteration = (objective_named(n, space) for n in ("phases", "iteration"))
    for _, works in every_assignment(space):
        assert (phases.values(works) <= iteration.values(works) * (1 + 1e-9)).all()


def _program(least: float) -> MilpProgram:
    """The least integer that is no less than ``least``."""
    rows = Rows.dense(np.ones((1, 1)), np.array([least]), np.array([math.inf]))
    return MilpProgram(
        cost=np.ones(1), upper=np.array([math.inf]), rows=rows, integer=np.ones(1, dtype=bool)
    )


def test_the_process_solves_what_it_is_given_and_ends() -> None:
    """Several programs in a row, twice; closed in between."""
    with contextlib.closing(SolverProcess()) as process:
        for least in (2.5, 6.5):
            process.start([_program(least), _program(1 + least)], time_limit_s=30, gap_ratio=1e-4)
            found = process.result(lambda: False)
            expected = [math.ceil(least), math.ceil(1 + least)]
            assert [s.bound for s in found] == pytest.approx(expected, rel=1e-5)
            process.close()


def test_a_process_that_is_ended_gives_no_solutions() -> None:
    """Neither an error nor a wrong figure."""
    process = SolverProcess()
    process.start([_program(2.5)], time_limit_s=30, gap_ratio=1e-4)
    process.close()
    assert len(process.result(lambda: False)) == 0
    process.close()


def test_the_record_gets_the_bound() -> None:
    """``advance`` begins, then waits and takes."""
    space = _space(0)
    objective = SynchronizedPhases(space.pipeline)
    record = Record(Evaluator(space, objective, Budget()))
    assignments, works = next(iter(every_assignment(space)))
    record.keep_best_of(list(assignments), record.evaluate.values(works), "test")
    bounds = RankFreeBound(LinearModel(space, objective))
    prover = Prover(bounds, {None: bounds.relax(None)})
    try:
        assert prover.advance(record)
        prover.advance(record)
        assert record.bound is not None
        assert record.bound <= cases.least_value(space, objective) * (1 + 1e-9)
    finally:
        prover.close()


def test_what_a_solver_prints_is_kept_off_standard_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """HiGHS does at times; entered twice, as from two threads, it ends with the outer one."""
    with QUIET:
        with QUIET:
            os.write(1, b"inner\n")
        os.write(1, b"outer\n")
    os.write(1, b"after\n")
    written = capfd.readouterr()
    assert written.out == "after\n"
    assert written.err == ""
