"""Where TorchRec cannot run the best plan of all, the answer is the best of those that it runs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from planner.solving.run import runs
from tests.differential.asking import Run, ask
from tests.differential.case import Case
from tests.differential.drawing.problems import draw, draw_rare, draw_unusual
from tests.differential.judging.enumerator import Enumerator

_SAME = 1e-6
SHOWN = (9_900_026, 9_900_031, 9_900_109, 9_900_116)
"""Problems whose best plan of all is one that TorchRec does not run correctly."""


def best_that_runs(case: Case) -> tuple[float, float]:
    """The least value of all plans, and the least of those that TorchRec runs correctly."""
    space = Enumerator(case)
    least = best = math.inf
    for index, _ in space.fitting():
        values = space.priced(index)
        least = min(least, float(values.min(initial=math.inf)))
        for i in np.argsort(values):
            if values[i] >= best:
                break
            if runs(space.plan([int(choice[i]) for choice in index]), case.workload):
                best = float(values[i])
    return least, best


def check(case: Case) -> bool:
    """Hold the answer against all plans; returns whether the best of all is not one that runs."""
    answer = ask(case, Run.USERS, max_evaluations=2000, floors=False)
    if answer.plan is None:
        return False
    least, best = best_that_runs(case)
    if math.isinf(best):
        return False
    assert runs(answer.plan, case.workload)
    assert answer.value <= best * (1 + _SAME)
    return best > least * (1 + _SAME)


@pytest.mark.parametrize("seed", SHOWN)
def test_the_best_plan_that_runs_is_found(seed: int) -> None:
    assert check(draw(seed)), "the case shows nothing"


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [draw, draw_rare, draw_unusual])
@pytest.mark.parametrize("start", range(9_910_000, 9_910_200, 50))
def test_drawn_problems(drawn: Callable[[int], Case], start: int) -> None:
    for seed in range(start, start + 50):
        check(drawn(seed))
