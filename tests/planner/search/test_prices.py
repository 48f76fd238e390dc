"""Sampled prices: legal choices, the best point followed, nothing but better plans kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.objectives.phases import SynchronizedPhases
from planner.search.base import Record
from planner.search.bounds.bound import RankFreeBound
from planner.search.common.linear import LinearModel
from planner.search.construct.placer import PriceSearch, explore
from planner.search.improve.ruin import Cycle
from planner.space.evaluation import Assignment, Budget, Evaluator, SearchSpace
from tests.planner import cases


def _parts(
    seed: int = 0, hbm_gib: float = 80.0
) -> tuple[SearchSpace, LinearModel, RankFreeBound, PriceSearch]:
    space = cases.space(cases.synthetic(12, seed), cases.topology(1, 4, hbm_gib=hbm_gib))
    model = LinearModel(space, SynchronizedPhases(space))
    bounds = RankFreeBound(model)
    relaxation = bounds.relax(None)
    assert relaxation.phases is not None
    allowed = np.ones(len(space.options), dtype=bool)
    allowed[space.first[:-1]] = False
    prices = PriceSearch(
        model,
        allowed,
        relaxation.phases[model.used],
        bounds.builder.limits,
        np.random.default_rng(seed),
    )
    return space, model, bounds, prices


def test_choices_are_of_the_allowed_options() -> None:
    """One per table, never one that is not allowed; not always the same."""
    space, _, _, prices = _parts()
    counts = np.diff(space.first)
    seen = set()
    for _ in range(40):
        point, choice, power = prices.sample()
        prices.tell(point, 1.0)
        assert (choice >= 1).all()
        assert (choice < counts).all()
        assert 3.0 <= power <= 30.0 + 1e-9
        seen.add(tuple(choice.tolist()))
    assert len(seen) > 5


def test_later_samples_gather_around_the_best_point() -> None:
    """The median distance to it is smaller than between first samples."""
    _, _, _, prices = _parts(1)
    points = []
    for i in range(200):
        point, *_ = prices.sample()
        prices.tell(point, 0.0 if i == 0 else 1.0)
        points.append(point)
    away = np.abs(np.array(points) - points[0]).mean(axis=1)
    assert np.median(away[20:]) < np.median(away[1:12])


def test_what_options_add_up_to_is_no_more_than_what_plans_cost() -> None:
    """``least`` is a lower bound on every plan with these options, whatever the places."""
    space, _, bounds, prices = _parts(2)
    record = Record(Evaluator(space, SynchronizedPhases(space), Budget()))
    found = explore(prices, record, 60)
    assert found
    for plan in found:
        least = prices.least(np.array(plan.options))
        assert least <= record.evaluate.value(plan) * (1 + 1e-9)
    values = [record.evaluate.value(p) for p in found]
    assert record.value == min(values)
    assert record.value >= bounds.relax(None).bound


def test_of_plans_that_do_not_fit_the_least_overfull_is_kept() -> None:
    """And cycles that begin with it end with plans that fit."""
    seen, fitting = 0, 0
    for seed in range(12):
        tables = cases.synthetic(12, seed).tables
        room = sum(t.weight_bytes for t in tables) / 4 / 2**30
        space, _, bounds, prices = _parts(seed, hbm_gib=1.02 * room)
        record = Record(Evaluator(space, SynchronizedPhases(space), Budget()))
        tried: list[float] = []
        consider = record.consider

        def watched(plan: Assignment, phase: str, told: Any = consider) -> float:
            tried.append(float(space.overflow_ratio(space.work(plan)[None])[0]))  # noqa: B023
            return float(told(plan, phase))

        record.consider = watched  # type: ignore[method-assign]
        found = explore(prices, record, 12)
        if found and np.isinf(record.value):
            (least,) = found
            assert space.overflow_ratio(space.work(least)[None])[0] == min(tried) > 0
            every = np.ones(len(space.options), dtype=bool)
            cycle = Cycle(record, least, bounds.cuts.get(None, []), every, np.random.default_rng(0))
            cycle.run(60)
            seen, fitting = seen + 1, fitting + bool(np.isfinite(record.value))
    assert seen >= 3
    assert fitting >= seen / 2
