"""The methods that find better plans once there is one: descents, cycles, sampled prices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Final

import numpy as np

from planner.search.base import Record
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.relaxation import Relaxation, TypeSet, uses
from planner.search.common.leave_out import SearchPart
from planner.search.common.linear import LinearModel
from planner.search.common.schedule import USUAL, Schedule
from planner.search.construct.prices import PriceSearch, explore
from planner.search.improve.local_search import Guide, LocalSearch, guide_of
from planner.search.improve.moves import PlanState
from planner.search.improve.partial_plan import Menu
from planner.search.improve.ruin import LATE_STAGES, STAGES, Cycles
from planner.space.effort import insertion_s
from planner.space.evaluation import Assignment, SearchSpace

_INSERTIONS: Final = 2.5
"""Tables that a step of a cycle is taken to put back when its length is planned. A step takes out
one to five tables, and puts back fewer of them if one fits nowhere. Sharing out pieces takes no
longer."""


class Improver:
    """Improves the plans of one search.

    Each method takes an *effort*: 1 is its usual amount of work.

    Args:
        space: options and places.
        record: is offered every plan.
        bounds: solves the rank-free problem; its model and cuts are used.
        relaxed: the relaxation of each set of sharding types; the search changes it on the way.
        rng: of all random choices.
        without: parts of the search to leave out.
        schedule: how the search shares out its work.
    """

    def __init__(
        self,
        space: SearchSpace,
        record: Record,
        bounds: RankFreeBound,
        relaxed: Mapping[TypeSet | None, Relaxation],
        *,
        rng: np.random.Generator,
        without: frozenset[SearchPart],
        schedule: Schedule = USUAL,
    ) -> None:
        """Improve nothing yet."""
        self._space, self._record, self._rng = space, record, rng
        self._bounds, self._relaxed = bounds, relaxed
        self._model: LinearModel = bounds.model
        self._without, self._schedule = without, schedule
        self._prices: dict[tuple[TypeSet | None, int], PriceSearch] = {}

    @cached_property
    def _cycles(self) -> Cycles:
        """Made when first needed, because the menu of many options takes a while."""
        shares_out = SearchPart.SHARING not in self._without
        menu = Menu(self._space)
        return Cycles(self._space, menu, self._record, self._rng, shares_out=shares_out)

    @property
    def done(self) -> bool:
        """Whether the search has to end, or the best plan is proven optimal."""
        return self._record.stopped or self._record.proven

    def forget(self) -> None:
        """Forget the sampled prices, so that others are found."""
        self._prices = {}

    def improve(self, starts: list[Assignment]) -> None:
        """Descend from the best of these plans; each has other options than those before."""
        value = self._record.evaluate.value
        tried: set[tuple[int, ...]] = set()
        for start in sorted(dict.fromkeys(starts), key=lambda a: (value(a), a.options)):
            if self.done or len(tried) == self._schedule.starts:
                return
            if start.options in tried:
                continue
            tried.add(start.options)
            self._descend(start)

    def cycle(
        self, start: Assignment, effort: float, *, late: bool = False, most_s: float = math.inf
    ) -> None:
        """Run a cycle of ruin and recreate, and a descent from the plan that it ends with.

        Args:
            start: the plan to begin with.
            effort: of the cycle.
            late: whether to leave out the first stages, which would spoil a good plan.
            most_s: nominal seconds; the cycle has fewer steps if it would take longer.
        """
        stages = LATE_STAGES if late else STAGES
        entries = self._space.world_size * (self._model.num_tangents + 2)
        step_s = _INSERTIONS * insertion_s(entries) * len(stages)
        steps = int(min(effort * self._schedule.steps(self._space.num_tables), most_s / step_s))
        if steps < 1 or self.done or SearchPart.CYCLES in self._without:
            return
        types = self._types(start)
        guide = self._guide(self._relaxation(types))
        inside = uses(types, self._space)
        cuts = self._bounds.cuts.get(types, [])
        self._descend(self._cycles.run(start, cuts, guide.allowed & inside, steps, stages))

    def short_cycle(self, start: Assignment, most_s: float) -> None:
        """Run a cycle that takes about ``most_s`` nominal seconds, or less."""
        self.cycle(start, self._schedule.least_effort, late=True, most_s=most_s)

    def around(self, effort: float) -> None:
        """Run a cycle that begins with the best plan."""
        if self._record.best is not None:
            self.cycle(self._record.best, effort, late=True)

    def explore(self, effort: float) -> None:
        """Make plans at sampled prices of the phases, and run cycles from the best of them."""
        best = self._record.best
        if best is None or self.done or SearchPart.PRICES in self._without:
            return
        relaxation = self._relaxation(self._types(best))
        self._model.use_cuts(self._bounds.cuts.get(relaxation.types, []))
        prices = self._sampler(relaxation)
        if prices is None:
            return

        def descend(start: Assignment) -> Assignment:
            state = PlanState(self._model, start)
            self._local_search(start).descend(state)
            return state.assignment

        schedule = self._schedule
        count = max(int(effort * schedule.samples), 1)
        found = explore(prices, self._model, self._record, descend, count)
        for start in found[: min(schedule.starts, 1 + count // schedule.samples)]:
            self.cycle(start, schedule.least_effort)

    def families(self, starts: list[Assignment]) -> list[Assignment]:
        """The best plan of each set of sharding types, the best of all first."""
        value = self._record.evaluate.value
        best: dict[TypeSet, Assignment] = {}
        for start in sorted(dict.fromkeys(starts), key=lambda a: (value(a), a.options)):
            if np.isfinite(value(start)):
                best.setdefault(self._types(start), start)
        return list(best.values())[: self._schedule.starts]

    # -- private ----------------------------------------------------------------------------------

    def _types(self, start: Assignment) -> TypeSet:
        """The set of sharding types whose bound and cuts hold for a plan."""
        types = frozenset(
            self._space.option(t, i).sharding_type for t, i in enumerate(start.options)
        )
        return types if types in self._relaxed else self._with_optional(types)

    def _with_optional(self, types: TypeSet) -> TypeSet:
        """The set of sharding types that plans with exactly these types belong to."""
        known = (t for t in self._relaxed if t is not None)
        optional = self._bounds.optional
        return next((t for t in known if t - optional == types - optional), types)

    def _relaxation(self, types: TypeSet) -> Relaxation:
        """The relaxation of a set of sharding types, or the one of least bound if it has none."""
        known = self._relaxed.get(types)
        return known or min(self._relaxed.values(), key=lambda r: r.bound)

    def _sampler(self, relaxation: Relaxation) -> PriceSearch | None:
        """What samples prices for a relaxation; a new one once the model got more tangents."""
        key = relaxation.types, self._model.num_tangents
        if key not in self._prices and relaxation.phases is not None:
            self._prices[key] = PriceSearch(
                self._model,
                self._bounds.uniform,
                uses(relaxation.types, self._space),
                relaxation.phases[self._model.used],
                self._bounds.limits,
                self._rng,
            )
        return self._prices.get(key)

    def _descend(self, start: Assignment) -> None:
        """Descend from a plan that keeps the rules; moves keep them only if they hold before."""
        if self._space.keeps_rules(start) and SearchPart.DESCENT not in self._without:
            self._local_search(start).improve(start, "descent")

    def _guide(self, relaxation: Relaxation) -> Guide:
        return guide_of(self._model, relaxation, self._relaxed.values(), self._record.value)

    def _local_search(self, start: Assignment) -> LocalSearch:
        """A local search with the cuts that hold for the sharding types of a plan."""
        types = self._types(start)
        self._model.use_cuts(self._bounds.cuts.get(types, []))
        return LocalSearch(
            self._model, self._record, self._guide(self._relaxation(types)), self._rng
        )
