"""What constraints cost, where every search finds what a script says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from planner.errors import InfeasibleError, NoPlanFoundError, StoppedError
from planner.explain.explainer import ConstraintCost, constraint_costs
from planner.problem import Constraints, PlanningProblem, TableConstraint
from planner.settings import SearchSettings
from planner.support.status import Status
from tests.planner import cases

DONE = Status.OPTIMAL
MEMORY = "one GiB more per rank"
Answers = dict[str, tuple[float | None, Status]]


def costs_of(
    monkeypatch: pytest.MonkeyPatch, kept: tuple[float | None, Status], without: Answers
) -> tuple[list[ConstraintCost], list[str]]:
    """What is told of the tables ``a``, ``b`` and ``c``, each pinned, and what is named on the way.

    Args:
        monkeypatch: puts the script in the place of the search.
        kept: seconds and status of the search with all constraints.
        without: those of the search without the rule on a table, and with more memory.
    """
    given = Constraints(tables=tuple(TableConstraint(pattern=n, ranks=(0,)) for n in "abc"))
    tables = tuple(cases.table(n) for n in "abc")
    topology = cases.topology(1, 2, hbm_gib=8)
    problem = PlanningProblem(workload=cases.workload(tables), topology=topology, constraints=given)

    def solve(asked: PlanningProblem, *, search: SearchSettings, should_stop: object) -> Any:
        assert search.time_limit_s == 3.0
        dropped = {"a", "b", "c"} - {r.pattern for r in asked.constraints.tables}
        if asked.topology.device.hbm_capacity_bytes == 9 * cases.GIB:
            assert not dropped
            time_s, status = without[MEMORY]
        else:
            time_s, status = without[dropped.pop()] if dropped else kept
        assert not dropped
        if time_s is None:
            raise (
                InfeasibleError("none", shortfall_bytes=1.0)
                if status is DONE
                else NoPlanFoundError("none")
            )
        return SimpleNamespace(
            solver=SimpleNamespace(status=status),
            estimate=SimpleNamespace(time=SimpleNamespace(time_s=time_s)),
        )

    monkeypatch.setattr("planner.explain.explainer.api.solve", solve)
    named: list[str] = []
    found = constraint_costs(problem, time_limit_s=3.0, progress=named.append)
    return list(found), named


def test_each_search_is_compared_with_the_one_that_keeps_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The dearest first; what cannot be said stands with what costs nothing."""
    found, named = costs_of(
        monkeypatch,
        (5.0, DONE),
        {
            "a": (4.5, Status.TIME_LIMIT),
            "b": (None, DONE),
            "c": (3.0, DONE),
            MEMORY: (5.25, DONE),
        },
    )
    assert named == ["a: ranks 0", "b: ranks 0", "c: ranks 0", MEMORY]
    assert [(c.constraint, c.kept_s, c.time_s, c.gain_s, c.is_cut) for c in found] == [
        ("c: ranks 0", 5.0, 3.0, 2.0, False),
        ("a: ranks 0", 5.0, 4.5, 0.5, True),
        ("b: ranks 0", 5.0, None, None, False),
        (MEMORY, 5.0, 5.25, -0.25, False),
    ]


def test_without_a_plan_that_keeps_all_nothing_is_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found without a rule is told all the same, and in the order of the rules."""
    answers: Answers = {"a": (4.0, DONE), "b": (None, Status.TIME_LIMIT), "c": (3.0, DONE)}
    found, _ = costs_of(monkeypatch, (None, DONE), {**answers, MEMORY: (2.0, DONE)})
    assert [(c.kept_s, c.time_s, c.gain_s, c.is_cut) for c in found] == [
        (None, seconds, None, False) for seconds in (4.0, None, 3.0, 2.0)
    ]


def test_a_search_by_the_clock_cuts_all_that_is_compared_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: Answers = dict.fromkeys(("a", "b", "c", MEMORY), (1.0, DONE))
    found, _ = costs_of(monkeypatch, (1.0, Status.TIME_LIMIT), answers)
    assert [c.is_cut for c in found] == [True] * 4


def test_a_search_that_is_stopped_names_what_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Answers = dict.fromkeys(("a", "b", "c", MEMORY), (1.0, DONE))
    stopped = (1.0, Status.INTERRUPTED)
    with pytest.raises(StoppedError, match="before it was known what b: ranks 0 costs"):
        costs_of(monkeypatch, (1.0, DONE), {**answers, "b": stopped})
    with pytest.raises(StoppedError, match="before it was known what the plan costs"):
        costs_of(monkeypatch, stopped, answers)
