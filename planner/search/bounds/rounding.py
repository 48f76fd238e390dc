"""Plans from what a bound says of options, and from greedy planners: the starts of a search."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from costmodels.datatypes import IntArray
from planner.search.base import Record
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.relaxation import Relaxation
from planner.search.common.leave_out import SearchPart
from planner.search.construct.greedy import greedy_plans
from planner.search.construct.placer import POWERS, Pressure, place_options
from planner.space.effort import placing_s
from planner.space.evaluation import Assignment

_WORTH_ROUNDING: Final = 1.10
"""Sets of sharding types whose bound is within this factor of the least are rounded to plans."""
_SLACKS: Final = (0.02, 0.15)
"""How far above the bound's loads options are sought that can be packed."""


class Starts:
    """The plans that one search begins with.

    Args:
        bounds: the rank-free problem, with its model.
        record: is offered every plan.
        without: parts to leave out.
    """

    def __init__(
        self, bounds: RankFreeBound, record: Record, without: frozenset[SearchPart]
    ) -> None:
        """No plan yet."""
        self.found: list[Assignment] = []
        self._bounds, self._model, self._record = bounds, bounds.model, record
        self._without = without
        self._meter = record.evaluate.meter
        self._space = bounds.space
        self._placing_s = placing_s(self._space.num_tables, self._space.world_size)

    def greedy(self, most_s: float) -> list[Assignment]:
        """Plans of the greedy planners; the best is a start.

        Args:
            most_s: nominal seconds after which no further one is made, once any plan fits.
        """
        if SearchPart.GREEDY in self._without:
            return []
        until_s = self._meter.spent_s + most_s
        for proposal in greedy_plans(self._model):
            self._meter.spend(self._placing_s)
            late = self._meter.spent_s > until_s and self._record.best is not None
            if self._record.stopped or late:
                break
            self._record.consider(proposal, "greedy")
        return [] if self._record.best is None else [self._record.best]

    def promising(self, relaxed: Iterable[Relaxation], most_s: float) -> list[Assignment]:
        """Plans from the relaxations whose bounds are close to the least, the best one first.

        Args:
            relaxed: of each set of sharding types.
            most_s: nominal seconds after which no further one is rounded.
        """
        ordered = sorted(relaxed, key=lambda r: r.bound)
        limit = min(ordered[0].bound * _WORTH_ROUNDING, self._record.value)
        until_s = self._meter.spent_s + most_s
        made: list[Assignment] = []
        for relaxation in (r for r in ordered if r.bound <= limit and r.shares is not None):
            if made and self._meter.spent_s > until_s:
                break
            made += self.round(relaxation)
            for slack in _SLACKS:
                if not self._record.stopped:
                    made += self.round(self._bounds.packable(relaxation, slack))
        return made

    def round(self, relaxation: Relaxation) -> list[Assignment]:
        """Plans from the options of a relaxation."""
        self._model.use_cuts(self._bounds.cuts.get(relaxation.types, []))
        return self.place(self._bounds.listed(relaxation).choice(self._space))

    def place(self, choice: IntArray) -> list[Assignment]:
        """Plans from one option per table."""
        peaks = self._model.mean[self._space.first[:-1] + choice].sum(axis=0)
        targets = self._model.targets(peaks)
        made: list[Assignment] = []
        for power in POWERS:
            first = not made and (self._record.best is None or not self.found)
            if (self._record.stopped and not first) or SearchPart.ROUNDING in self._without:
                break  # however little may be done, one plan is rounded, also beside one in use
            pressure = Pressure(targets=targets, power=power)
            self._meter.spend(self._placing_s)
            made.append(place_options(self._model, choice, pressure))
            self._record.consider(made[-1], "rounding")
        self.found += made
        return made
