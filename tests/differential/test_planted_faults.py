"""The kit sees faults that were planted in answers and in the planner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodels.sharding import ComputeKernel, Plan, ShardingType
from planner.problem import TableConstraint
from tests.differential import check as checking
from tests.differential.asking import Answer, Run, ask
from tests.differential.case import Case
from tests.differential.check import Kind, check, faults_of
from tests.differential.drawing.problems import draw
from tests.differential.drawing.small_cases import FUSED_ONLY, case_of
from tests.differential.judging.descent import best_known
from tests.differential.judging.enumerator import Enumerator
from tests.planner.cases import first

pytestmark = pytest.mark.usefixtures("no_process_beside")

# ------------------------------------------------------------------ planted faults


@pytest.fixture(scope="module")
def honest() -> tuple[Case, Enumerator, Answer]:
    """A case that the planner answers right, with a gap between the best plans."""
    case = case_of(1, 2, 16, 32)
    answer = ask(case, Run.USERS, max_evaluations=5000)
    space = Enumerator(case)
    assert faults_of(case, space.optimum(), answer, space) == []
    return case, space, answer


def kinds(answer: Answer, honest: tuple[Case, Enumerator, Answer]) -> set[Kind]:
    case, space, _ = honest
    return {f.kind for f in faults_of(case, space.optimum(), answer, space)}


def test_a_bound_above_the_optimum_is_seen(honest: tuple[Case, Enumerator, Answer]) -> None:
    value = honest[2].value
    assert kinds(replace(honest[2], bound=value * 1.01), honest) == {Kind.BOUND}
    assert kinds(replace(honest[2], bound=value * (1 + 1e-8)), honest) == {Kind.BOUND}
    assert kinds(replace(honest[2], bound=value * (1 + 1e-10)), honest) == set()
    assert kinds(replace(honest[2], bound=np.inf), honest) == {Kind.BOUND}
    assert kinds(replace(honest[2], bound=np.nan), honest) == {Kind.BOUND}
    assert kinds(replace(honest[2], bound=0.0), honest) == set()


def test_a_wrong_value_is_seen(honest: tuple[Case, Enumerator, Answer]) -> None:
    value = honest[2].value
    assert kinds(replace(honest[2], value=value * 0.99), honest) == {Kind.BELOW, Kind.PRICE}
    assert kinds(replace(honest[2], value=value * 1.01), honest) == {Kind.OPTIMAL, Kind.PRICE}
    assert Kind.PRICE in kinds(replace(honest[2], estimate_s=value * 1.001), honest)


def test_a_worse_plan_called_optimal_is_seen(honest: tuple[Case, Enumerator, Answer]) -> None:
    _, space, answer = honest
    rng = np.random.default_rng(0)
    plans = [space.random_plan(rng) for _ in range(50)]
    worse = max(plans, key=space.judge.price)
    value = space.judge.price(worse)
    assert value > 1.001 * answer.value
    wrong = replace(answer, plan=worse, value=value, estimate_s=value)
    assert kinds(wrong, honest) == {Kind.OPTIMAL}
    assert kinds(replace(wrong, is_optimal=False), honest) == set()


def test_a_false_proof_of_impossibility_is_seen(honest: tuple[Case, Enumerator, Answer]) -> None:
    from planner.errors import InfeasibleError, InvalidInputError, NoPlanFoundError

    for error, kind in (
        (InfeasibleError("nothing fits", shortfall_bytes=1.0), Kind.INFEASIBLE),
        (InvalidInputError("contradiction"), Kind.REFUSED),
        (NoPlanFoundError("ended"), Kind.NOT_FOUND),
        (ValueError("oops"), Kind.CRASH),
    ):
        assert kinds(Answer(run=Run.USERS, error=error), honest) == {kind}


def test_broken_rules_memory_and_layouts_are_seen(
    honest: tuple[Case, Enumerator, Answer],
) -> None:
    case, _, answer = honest
    assert answer.plan is not None
    used = answer.plan.placements[0].sharding_type
    others = tuple(t for t in ShardingType if t is not used)
    rule = TableConstraint(pattern="t0", sharding_types=others)
    ruled = replace(case, constraints=replace(FUSED_ONLY, tables=(rule,)))
    tight = replace(
        case,
        topology=replace(case.topology, hbm_capacity_by_rank_bytes=(1.0, 1.0)),
    )
    for changed in (ruled, tight):
        space = Enumerator(changed)
        found = {f.kind for f in faults_of(changed, space.optimum(), answer, space)}
        assert Kind.RULE in found
    broken = replace(
        answer.plan.placements[0],
        sharding_type=ShardingType.TABLE_ROW_WISE,
        kernel=ComputeKernel.FUSED,
        shards=answer.plan.placements[0].shards[:1],
    )
    plan = Plan(placements=(broken, *answer.plan.placements[1:]))
    assert Kind.LAYOUT in kinds(replace(answer, plan=plan), honest)


def test_a_planted_bound_in_the_planner_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way: the search raises its bound by one per cent more than it may."""
    from planner.search.base import Record

    honest_outcome = Record.outcome

    def raised(self: Record, *, proves: bool) -> object:
        found = honest_outcome(self, proves=proves)
        return replace(found, bound=None if found.bound is None else found.bound * 1.01)

    case = case_of(1, 2, 16, 32)
    assert not check(case, runs=(Run.USERS,)).faults
    monkeypatch.setattr(Record, "outcome", raised)
    monkeypatch.setattr("planner.solving.run.guarded", lambda outcome, *_: (outcome, ()))
    assert {f.kind for f in check(case, runs=(Run.USERS,)).faults} == {Kind.BOUND}


def test_an_interrupted_search_may_find_nothing_but_not_prove_it(
    honest: tuple[Case, Enumerator, Answer],
) -> None:
    from planner.errors import InfeasibleError, NoPlanFoundError, StoppedError

    for error, found in (
        (NoPlanFoundError("ended"), set[Kind]()),
        (StoppedError("stopped"), set[Kind]()),
        (InfeasibleError("nothing fits", shortfall_bytes=1.0), {Kind.INFEASIBLE}),
    ):
        assert kinds(Answer(run=Run.CUT, error=error), honest) == found


def test_another_answer_the_second_time_is_seen(
    honest: tuple[Case, Enumerator, Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, _, answer = honest
    texts = iter(["one", "one", "one", "another"])
    monkeypatch.setattr(checking, "ask", lambda *args, **names: replace(answer, text=next(texts)))
    assert check(case, runs=(Run.USERS,), twice=True).faults == ()
    (fault,) = check(case, runs=(Run.USERS,), twice=True).faults
    assert fault.kind is Kind.REPEAT


@pytest.mark.parametrize("seed", first(range(6), 4))
def test_a_descent_is_never_below_the_optimum(seed: int) -> None:
    space = Enumerator(draw(seed), mirrors=False)
    found = best_known(space)
    assert not found.is_exact
    assert found.value >= space.optimum().value * (1 - 1e-12)
    assert found.plan is None or space.judge.price(found.plan) == pytest.approx(found.value)
