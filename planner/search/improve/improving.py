"""The methods that find better plans once there is one: cycles, and sampled prices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray
from planner.search.base import Record
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.relaxation import Relaxation, TypeSet, uses
from planner.search.common.linear import LinearModel
from planner.search.common.schedule import USUAL, Schedule
from planner.search.construct.prices import PriceSearch, explore
from planner.search.improve.ruin import LATE_STAGES, STAGES, Cycles
from planner.space.effort import insertion_s
from planner.space.evaluation import Assignment, SearchSpace

_INSERTIONS: Final = 2.5
"""Tables that a step of a cycle is taken to put back when its length is planned. A step takes out
one to five tables, and puts back fewer of them if one fits nowhere. Sharing out pieces takes no
longer."""


_PROMISING: Final = 1.05
"""Factor on the objective of the best plan, up to which a first cycle begins with the best start of
a set of sharding types. Cycles from worse starts hardly ever come near the best plan: with 100
tables on 64 ranks they took half of all work for nothing."""
_SAMPLED: Final = 2
"""Plans from sampled prices that cycles begin with, where the effort is more than usual."""


class Improver:
    """Improves the plans of one search.

    Each method takes an *effort*: 1 is its usual amount of work.

    Args:
        space: options and places.
        record: is offered every plan.
        bounds: solves the rank-free problem; its model and cuts are used.
        relaxed: the relaxation of each set of sharding types; the search changes it on the way.
        rng: of all random choices.
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
        schedule: Schedule = USUAL,
    ) -> None:
        """Improve nothing yet."""
        self._space, self._record, self._rng = space, record, rng
        self._bounds, self._relaxed = bounds, relaxed
        self._model: LinearModel = bounds.model
        self._schedule = schedule
        self._cycles = Cycles(space, record, rng)
        self._prices: dict[tuple[TypeSet | None, int], PriceSearch] = {}

    @property
    def done(self) -> bool:
        """Whether the search has to end, or the best plan is proven optimal."""
        return self._record.stopped or self._record.proven

    def forget(self) -> None:
        """Forget the sampled prices, so that others are found."""
        self._prices = {}

    def cycle(
        self, start: Assignment, effort: float, *, late: bool = False, most_s: float = math.inf
    ) -> None:
        """Run a cycle of ruin and recreate.

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
        if steps < 1 or self.done:
            return
        types = self._types(start)
        known = self._relaxed.values()
        allowed = allowed_options(self._space, known, self._record.value) & uses(types, self._space)
        self._cycles.run(start, self._bounds.cuts.get(types, []), allowed, steps, stages)

    def short_cycle(self, start: Assignment, most_s: float) -> None:
        """Run a cycle that takes about ``most_s`` nominal seconds, or less."""
        self.cycle(start, self._schedule.least_effort, late=True, most_s=most_s)

    def around(self, effort: float) -> None:
        """Run a cycle that begins with the best plan."""
        if self._record.best is not None:
            self.cycle(self._record.best, effort, late=True)

    def explore(self, effort: float) -> None:
        """Make plans at sampled prices of the phases, and run cycles from the best of them.

        They have the sharding types of the best plan, and of the sets of types with the least
        bounds: good plans of other types are hardly reached by changes of a few tables.
        """
        best = self._record.best
        if best is None or self.done:
            return
        schedule = self._schedule
        count = max(int(effort * schedule.samples), 1)
        own = self._relaxation(self._types(best))
        others = sorted((r for r in self._relaxed.values() if r is not own), key=lambda r: r.bound)
        found: list[Assignment] = []
        for relaxation in (own, *others[: schedule.starts - 1]):
            if relaxation.bound < self._record.value:
                self._model.use_cuts(self._bounds.cuts.get(relaxation.types, []))
                prices = self._sampler(relaxation)
                found += [] if prices is None else explore(prices, self._record, count)
        found.sort(key=lambda a: (self._record.evaluate.value(a), a.options, a.places))
        for start in found[: _SAMPLED if effort > 1 else 1]:
            self.cycle(start, schedule.least_effort)

    def families(self, starts: list[Assignment]) -> list[Assignment]:
        """The best plan of each set of sharding types that is not far from the best of all."""
        value = self._record.evaluate.value
        best: dict[TypeSet, Assignment] = {}
        for start in sorted(dict.fromkeys(starts), key=lambda a: (value(a), a.options)):
            if value(start) <= _PROMISING * self._record.value:
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
                self._bounds.builder.uniform,
                uses(relaxation.types, self._space),
                relaxation.phases[self._model.used],
                self._bounds.builder.limits,
                self._rng,
            )
        return self._prices.get(key)


def allowed_options(space: SearchSpace, known: Iterable[Relaxation], incumbent: float) -> BoolArray:
    """``[n]`` True for options that can be part of a plan better than the best one.

    Args:
        space: the options.
        known: the solutions of all sets of sharding types. An option is allowed if, in any of them,
            the bound plus its reduced cost is not above the incumbent. If none is, all are.
        incumbent: the objective of the best plan.
    """
    allowed = np.zeros(len(space.options), dtype=bool)
    for other in known:
        if other.reduced_costs is not None:
            lifted = other.bound + np.maximum(other.reduced_costs, 0.0)
            allowed |= uses(other.types, space) & (lifted <= incumbent)
    return allowed if allowed.any() else np.ones_like(allowed)
