"""The bound from patterns, on instances of which every plan is priced."""

from __future__ import annotations

import pytest

from benchmarks.search.additive import AdditivePhases, space_of
from benchmarks.search.pattern_bound import PatternBound
from benchmarks.search.patterns import linear_model
from planner.search.bounds.bound import RankFreeBound
from planner.search.exhaustive import Exhaustive
from planner.space.evaluation import Budget, Evaluator
from tests.planner.cases import first

CASES = ("2x2", "2x4", "3x2", "3x3", "4x2")


def bounds(case: str, seed: int, boxes: int) -> tuple[float, float, float]:
    """Of means over ranks, of patterns before and after boxes, as shares of the best plan.

    The known plan is made worse than the best one, so that boxes have to tell them apart.
    """
    space = space_of(case, seed)
    evaluate = Evaluator(space, AdditivePhases(), Budget())
    best = float(Exhaustive().search(space, evaluate, seed=0).values[0])
    model = linear_model(space)
    means = RankFreeBound(model).relax(None).bound
    room = float(space.pipeline.device_limits.max())
    patterns = PatternBound(model, device_room=room, incumbent=1.2 * best)
    before = patterns.bound
    patterns.advance(boxes, lambda: False)
    return means / best, before / best, patterns.bound / best


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", first(range(12), 1))
def test_the_bound_is_never_above_the_best_plan(case: str, seed: int) -> None:
    _, before, after = bounds(case, seed, 30)
    assert 0.0 < before <= after <= 1 + 1e-9


def test_patterns_prove_what_means_over_ranks_cannot() -> None:
    means, _, after = bounds("2x4", 1, 60)
    assert means < 0.9
    assert after > 0.999
