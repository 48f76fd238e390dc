"""A search beside the search: it gets everything, its plan counts, and it ends with the first."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, final

import numpy as np
import pytest

from costmodels.errors import InvalidValueError
from planner import io
from planner.objectives import objective_named
from planner.objectives.iteration import IterationTime
from planner.objectives.phases import SynchronizedPhases
from planner.search.auto import Auto
from planner.search.base import (
    AbstractStrategy,
    Record,
    SearchOutcome,
)
from planner.search.improve import second_search
from planner.search.improve.second_search import SecondSearch, answer
from planner.space.evaluation import Assignment, Budget, Evaluator, SearchSpace
from planner.support import processes
from tests.planner import cases

ROOT = Path(__file__).resolve().parents[4]
ALONE = Auto(is_second=True)


def _space(tables: int = 26, ranks: int = 8) -> SearchSpace:
    return cases.space(cases.synthetic(tables), cases.topology(1, ranks))


def _evaluator(space: SearchSpace, budget: Budget) -> Evaluator:
    return Evaluator(space, SynchronizedPhases(space), budget)


def _no_process(*, quiet: bool) -> None:
    raise OSError(quiet)


@pytest.fixture(scope="module")
def theirs() -> Assignment | None:
    """What the other process finds."""
    evaluate = _evaluator(_space(6, 2), Budget(max_evaluations=80))
    with contextlib.closing(SecondSearch(ALONE, evaluate, seed=3)) as second:
        return second.plan(lambda: False)


def test_the_other_process_finds_what_this_one_would(theirs: Assignment | None) -> None:
    """Same strategy, same seed, same space: the same plan, byte for byte."""
    space = _space(6, 2)
    seed = 3 + second_search._OTHER_SEED
    assert theirs == answer(ALONE, space, SynchronizedPhases(space), seed, 80, None)


@pytest.mark.parametrize("name", io.names("systems"))
def test_every_shipped_system_can_be_sent(name: str) -> None:
    """Also once plans were priced on it: else the second search would wait for the first one."""
    space = cases.space(cases.synthetic(4), io.load_system(name, gpus=4))
    objective = IterationTime(space)
    work = np.repeat(space.mean_work[:1, None], space.world_size, axis=1)
    assert np.isfinite(objective.values(work)).all()
    pickle.dumps((space, objective))


def test_it_is_cut_off_with_the_first_search() -> None:
    """Neither an error nor a plan, and at once."""
    evaluate = _evaluator(_space(), Budget())
    with contextlib.closing(SecondSearch(ALONE, evaluate, seed=0)) as second:
        assert second.plan(lambda: True) is None


@pytest.mark.parametrize(
    ("tables", "ranks", "budget", "worth"),
    [
        (26, 8, Budget(), True),
        (26, 8, Budget(max_evaluations=10_000), True),
        (26, 8, Budget(max_evaluations=100), False),
        (6, 8, Budget(), False),
    ],
)
def test_where_it_is_worth_it(tables: int, ranks: int, budget: Budget, worth: bool) -> None:
    """Not for little work; the clock and the cores of the machine have no say."""
    assert SecondSearch.worth_it(_evaluator(_space(tables, ranks), budget)) is worth


def test_without_a_process_it_runs_afterwards(
    theirs: Assignment | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the plan that the other process would have found."""
    monkeypatch.setattr(processes, "_started", _no_process)
    evaluate = _evaluator(_space(6, 2), Budget(max_evaluations=80))
    with contextlib.closing(SecondSearch(ALONE, evaluate, seed=3)) as second:
        assert second.plan(lambda: False) == theirs
    assert theirs is not None


@pytest.mark.parametrize("is_local", [False, True])
def test_classes_of_the_main_module_are_searched_with_afterwards(
    is_local: bool, theirs: Assignment | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is defined in a script, a notebook or a function, and cannot be imported."""

    class Mine(SynchronizedPhases):
        pass

    if not is_local:
        Mine.__module__, Mine.__qualname__ = "__main__", "Mine"
        monkeypatch.setattr(sys.modules["__main__"], "Mine", Mine, raising=False)
    space = _space(6, 2)
    evaluate = Evaluator(space, Mine(space), Budget(max_evaluations=80))
    with contextlib.closing(SecondSearch(ALONE, evaluate, seed=3)) as second:
        assert second.plan(lambda: False) == theirs


def test_its_plan_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The better of both plans is the outcome, whichever search found it."""
    space = _space(8, 4)
    budget = Budget(max_evaluations=1)
    strategy = Auto()
    alone = ALONE.search(Record(_evaluator(space, Budget(max_evaluations=60))), seed=7919)
    given: list[Assignment] = []

    class Instant:
        worth_it = staticmethod(lambda *_: True)

        def __init__(self, *_: object) -> None:
            given.append(alone.assignments[0])

        def plan(self, _: object) -> Assignment:
            return given[0]

        def close(self) -> None:
            given.append(given[0])

    monkeypatch.setattr("planner.search.auto.SecondSearch", Instant)
    found = strategy.search(Record(_evaluator(space, budget)), seed=0)
    assert len(given) == 2
    assert found.assignments[0] == alone.assignments[0]


@pytest.mark.parametrize(
    "most", [100, pytest.param(None, marks=pytest.mark.slow)], ids=["by work", "by themselves"]
)
def test_two_runs_are_the_same(most: int | None) -> None:
    """However the two processes take turns."""
    space = _space(5, 2)
    runs = []
    for _ in range(2):
        evaluate = Evaluator(space, objective_named("phases", space), Budget(max_evaluations=most))
        with cases.scheduled(second_size=0, further_s=0.0):
            assert SecondSearch.worth_it(evaluate)
            runs.append(Auto().search(Record(evaluate), seed=1))
    assert runs[0].assignments[0] == runs[1].assignments[0]
    assert runs[0].values == runs[1].values


@final
class Noted(AbstractStrategy):
    """Finds nothing and notes the budget that it is given."""

    budgets: ClassVar[list[Budget]] = []

    def search(self, record: Record, *, seed: int) -> SearchOutcome:
        """No plan."""
        self.budgets.append(record.evaluate.budget)
        return record.outcome(proves=False)


def test_a_time_limit_holds_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second ends a little before the first has to, however long it takes to start."""
    monkeypatch.setattr(processes, "_started", _no_process)
    clock = [1000.0]
    monkeypatch.setattr(second_search, "time", SimpleNamespace(time=lambda: clock[0]))
    evaluate = _evaluator(_space(6, 2), Budget(time_limit_s=20.0, max_evaluations=700))
    monkeypatch.setattr(Evaluator, "seconds", property(lambda _: 5.0))
    second = SecondSearch(Noted(), evaluate, seed=0)
    clock[0] += 4.0  # the other process needed so long to begin
    Noted.budgets.clear()
    assert second.plan(lambda: False) is None
    (budget,) = Noted.budgets
    assert budget.time_limit_s == pytest.approx(20.0 - 5.0 - second_search._MARGIN_S - 4.0)
    assert budget.max_evaluations == 700


def test_a_second_search_that_is_out_of_time_prices_hardly_anything() -> None:
    space = _space(6, 2)
    Noted.budgets.clear()
    late_s, objective = time.time() - 1.0, SynchronizedPhases(space)
    assert answer(Noted(), space, objective, 0, None, late_s) is None
    (budget,) = Noted.budgets
    assert budget.time_limit_s is not None
    assert budget.time_limit_s < 0


@final
class Raising(AbstractStrategy):
    """Ends with an error."""

    __slots__ = ("_error",)

    def __init__(self, error: Exception) -> None:
        """Keep what is raised."""
        self._error = error

    def search(self, record: Record, *, seed: int) -> SearchOutcome:
        """Raise at once."""
        del record, seed
        raise self._error


def test_an_error_of_the_other_process_is_told() -> None:
    """It lost the plans of second searches without a word."""
    evaluate = _evaluator(_space(6, 2), Budget(max_evaluations=80))
    broken = Raising(IndexError("no such load"))  # a fault of the planner
    with (
        contextlib.closing(SecondSearch(broken, evaluate, seed=3)) as second,
        pytest.warns(RuntimeWarning, match=r"(?s)please report it.*IndexError: no such load"),
    ):
        assert second.plan(lambda: False) is None


def test_a_wrong_time_that_only_the_other_process_meets_is_an_error() -> None:
    """It was a warning with a traceback, which asked to report a fault of the planner."""
    evaluate = _evaluator(_space(6, 2), Budget(max_evaluations=80))
    refusing = Raising(InvalidValueError("an all-reduce takes nan s"))  # that of a cost model
    with (
        contextlib.closing(SecondSearch(refusing, evaluate, seed=3)) as second,
        pytest.raises(InvalidValueError, match="an all-reduce takes nan s"),
    ):
        second.plan(lambda: False)


SCRIPT = """
from tests.planner.search.improve.test_second_search import ALONE, _evaluator, _space
from planner.search.improve.second_search import SecondSearch
from planner.space.evaluation import Budget
print("the script")
second = SecondSearch(ALONE, _evaluator(_space(6, 2), Budget(max_evaluations=80)), seed=3)
print(second.plan(lambda: False))
second.close()
"""


def test_a_script_needs_no_guard(theirs: Assignment | None, tmp_path: Path) -> None:
    """The other process does not run it once more; a worker of a study may begin a search too."""
    script, alone = tmp_path / "script.py", {**os.environ, "PYTHONPATH": str(ROOT)}
    script.write_text(SCRIPT)
    told = subprocess.run([sys.executable, script], check=True, capture_output=True, env=alone)
    assert told.stdout.decode().splitlines() == ["the script", str(theirs)]
    with processes.WorkerPool(1) as pool:
        ((_, found),) = pool.run(_beside, [3])
        assert found.result() == theirs


def _beside(seed: int) -> Assignment | None:
    evaluate = _evaluator(_space(6, 2), Budget(max_evaluations=80))
    with contextlib.closing(SecondSearch(ALONE, evaluate, seed=seed)) as second:
        assert second._has_begun
        return second.plan(lambda: False)
