"""The space of plans for TorchRec's objectives: every option that can be part of the best plan.

A bound has to hold over all options that TorchRec's enumerator would try. With kernels in host
memory these are about a hundred for each table. Most of them are ruled out here, before their work
is counted, by comparing a lower bound with the value of a plan that is quick to find.

The bound: for an option, let ``c`` be the seconds of all its shards and ``b`` their device bytes.
Let ``B`` be the device bytes of all W ranks together, and ``y >= 0`` any price of a byte, in
seconds. The value of a plan, as TorchRec's rating or as its critical path, is then at least

- ``L(y) = (sum over tables of the least c + y b, minus y B) / W``. The value is at least the mean
  of ``c`` over ranks, and the bytes of a plan that fits are at most ``B`` (weak duality);
- the seconds of any single shard.

An option is therefore in no plan better than a known one of value v if its ``c + y b`` is more than
``W (v - L(y))`` above the least of its table, or if one of its shards takes longer than v. The
options that are left include all those of the known plan, and of every plan that is as good.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from planner.options.enumeration import enumerate_options
from planner.problem import PlanningProblem
from planner.search.common.linear import LinearModel
from planner.search.construct.placer import Pressure, place_options
from planner.space.evaluation import Assignment, SearchSpace
from planner.torchrec_terms.options import ColumnMaxima, EveryOption
from planner.torchrec_terms.pipeline import TorchrecPipeline

_POWER: Final = 16.0
_CEILINGS: Final = (1.0, 0.7, 0.5, 0.35, 0.25)
"""Quick plans avoid shards that take longer than this share of the mean load of a rank."""
_DEARER: Final = (1.0, 1.02, 1.1, 1.5, 4.0, 30.0)
"""Quick plans are made at these prices of a byte, until one fits; as multiples of the price at
which the bound is highest."""
_SHARES: Final = (0.0, 0.1, 1.0, 10.0)
"""The prices if the bound is highest at price 0: what filling all devices costs, divided by the
seconds of all shards at price 0."""
_CLOSE: Final = 1.003
"""A quick plan is good enough if its value is at most this many times the bound."""
_STEPS: Final = 40
_ROUNDING: Final = 1e-9


def torchrec_space(
    problem: PlanningProblem, pipeline: TorchrecPipeline, *, every_kernel: bool = False
) -> SearchSpace:
    """The space of every option that can be part of a plan at least as good as a quick one.

    If rules couple tables, or no quick plan is found, no option is ruled out in this way.

    Args:
        problem: workload, system and constraints.
        pipeline: counts work in TorchRec's estimates, for one of its objectives.
        every_kernel: as in :func:`planner.options.enumeration.enumerate_options`; used if no
            options are ruled out.

    Raises:
        InvalidInputError: in the cases of :func:`planner.options.enumeration.enumerate_options`.
    """
    if not problem.has_rules:
        left = _Pruning(problem, pipeline).left()
        if left is not None:
            return left
    return SearchSpace(
        problem, pipeline, enumerate_options(problem, pipeline, every_kernel=every_kernel)
    )


class _Quick(NamedTuple):
    """The value of a plan, and the plan with the space whose options it numbers."""

    value: float = math.inf
    plan: tuple[SearchSpace, Assignment] | None = None


_value = attrgetter("value")


class _Pruning:
    """Rules options out by comparing a quick plan with the bound ``L(y)`` of the module."""

    def __init__(self, problem: PlanningProblem, pipeline: TorchrecPipeline) -> None:
        self._problem = problem
        self._pipeline = pipeline
        self._every = EveryOption(problem, pipeline)
        self._columns = self._every.columns
        self._ranks = problem.topology.world_size
        # At least one byte, because prices are divided by it; more room only weakens the bound.
        self._room = max(float(pipeline.device_limits.sum()), 1.0)
        self._fits = self._columns.fullest_bytes <= float(pipeline.device_limits.max())
        self._fits &= self._columns.host_bytes <= max(pipeline.machine.ddr_limits_bytes)

    def left(self) -> SearchSpace | None:
        """The space of options that are not ruled out; None if no plan can fit.

        If no quick plan is found, its value is infinite, and every option is left.
        """
        if not np.logical_or.reduceat(self._fits, self._every.first[:-1]).all():
            return None
        price = self._best_price()
        if price is None:
            return None
        found = self._quick_plan(price)
        known = found.value
        keep = self._columns.largest_s <= known * (1 + _ROUNDING)
        for y in {0.0, price}:
            prices = self._priced(y)
            slack = self._ranks * (known * (1 + _ROUNDING) - self._bound(y))
            keep &= prices - self._every.each_table(prices) <= slack
        space = SearchSpace(self._problem, self._pipeline, self._every.chosen(keep))
        if found.plan is not None:
            space.known = _known_in(space, *found.plan)
        return space

    def _priced(self, price: float) -> FloatArray:
        """``c + y b`` of each option."""
        return np.asarray(self._columns.total_s + price * self._columns.device_bytes)

    def _bound(self, price: float) -> float:
        """``L(y)`` in seconds."""
        least = np.minimum.reduceat(self._priced(price), self._every.first[:-1]).sum()
        return (float(least) - price * self._room) / self._ranks

    def _cheapest(self, price: float, largest_s: float = math.inf) -> IntArray:
        """``[T]`` number of each table's cheapest option among those that fit on a device.

        An option with a shard of more than ``largest_s`` seconds is taken only if no other fits.
        """
        prices = self._priced(price)
        far = float(prices.max()) * len(prices) + 1.0
        shown = np.where(self._columns.largest_s <= largest_s, prices, prices + far)
        shown = np.where(self._fits, shown, np.inf)
        return self._every.cheapest(shown)

    def _best_price(self) -> float | None:
        """Seconds per byte at which ``L`` is greatest; None if the smallest options do not fit.

        ``L`` is concave. It rises with the price as long as the cheapest options take more bytes
        than there are, and falls from there on, so that bisection finds the price.
        """
        bytes_ = self._columns.device_bytes

        def overfull(rows: IntArray) -> bool:
            return float(bytes_[rows].sum()) > self._room

        if overfull(self._every.cheapest(np.where(self._fits, bytes_, np.inf))):
            return None
        if not overfull(self._cheapest(0.0)):
            return 0.0
        low = high = self._bound(0.0) / self._room
        while overfull(self._cheapest(high)):
            low, high = high, 4.0 * high
        if low == high:
            low = 0.0
        for _ in range(_STEPS):
            middle = math.sqrt(low * high) if low > 0 else high / 8
            if overfull(self._cheapest(middle)):
                low = middle
            else:
                high = middle
            if high < low * (1 + _ROUNDING):
                break
        return high

    def _quick_plan(self, price: float) -> _Quick:
        """The best of some plans that are quick to make; its value is infinite if none fits."""
        best, bound = _Quick(), self._bound(price)
        for tried in self._prices(price):
            mean = max(self._bound(tried), bound)
            choices = [self._cheapest(tried, ceiling * mean) for ceiling in _CEILINGS]
            keep = np.zeros(len(self._columns.total_s), dtype=bool)
            keep[np.concatenate(choices)] = True
            space = SearchSpace(self._problem, self._pipeline, self._every.chosen(keep))
            if len(space.options) < keep.sum():
                continue
            model = LinearModel(space, ColumnMaxima(space))
            number = np.cumsum(keep) - 1
            for choice in choices:
                best = min(best, _placed(model, number[choice] - space.first[:-1]), key=_value)
                if best.value <= _CLOSE * bound:
                    return best
            if best.plan is not None:
                break
        return best

    def _prices(self, price: float) -> Iterator[float]:
        """Prices of a byte at which quick plans are made, the least first."""
        full = self._bound(0.0) * self._ranks / self._room
        if price > 0:
            yield from (factor * price for factor in _DEARER)
        else:
            yield from (share * full for share in _SHARES)


def _placed(model: LinearModel, choice: IntArray) -> _Quick:
    space = model.space
    peaks = model.mean[space.first[:-1] + choice].sum(axis=0)
    pressure = Pressure(targets=model.targets(peaks), power=_POWER)
    plan = place_options(model, choice, pressure)
    work = space.work(plan)
    fits = space.overflow_ratio(work) <= 0 and space.keeps_rules(plan)
    return _Quick(float(model.objective.values(work)), (space, plan)) if fits else _Quick()


def _known_in(space: SearchSpace, other: SearchSpace, plan: Assignment) -> Assignment:
    """A plan of the space ``other``, numbered as in ``space``, which has all its options."""
    options = [other.option(t, i) for t, i in enumerate(plan.options)]
    found = tuple(t.options.index(o) for t, o in zip(space.tables, options, strict=True))
    return replace(plan, options=found)
