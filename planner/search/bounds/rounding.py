"""The plans that a search begins with: rounded from solutions of the bound, and greedy ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from costmodels.datatypes import IntArray
from planner.search.base import Record
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.relaxation import Relaxation
from planner.search.bounds.roundable import Roundable
from planner.search.common.leave_out import SearchPart
from planner.search.construct.greedy import greedy_plans
from planner.search.construct.placer import POWERS, Pressure, place_options
from planner.space.effort import placing_s
from planner.space.evaluation import Assignment

_WORTH_ROUNDING: Final = 1.10
"""Factor on the least bound of all sets of sharding types, up to which the solution of a set is
rounded to plans. Sets above it are less likely to have the best plan."""
_SLACKS: Final = (0.02, 0.15)
"""Shares by which the loads of a solution are raised to get the room that whole shards are packed
into. With little room the options are close to the bound, with more of it they can be packed."""


class Starts:
    """Makes the plans that one search begins with.

    Args:
        bounds: solves the rank-free problem.
        record: is offered every plan.
        without: parts of the search to leave out.

    Attributes:
        found: all plans that were rounded so far.
    """

    def __init__(
        self, bounds: RankFreeBound, record: Record, without: frozenset[SearchPart]
    ) -> None:
        """Make no plan yet."""
        self.found: list[Assignment] = []
        self._bounds, self._model, self._record = bounds, bounds.model, record
        self._roundable = Roundable(bounds)
        self._without = without
        self._meter = record.evaluate.meter
        self._space = bounds.space
        self._placing_s = placing_s(self._space.num_tables, self._space.world_size)

    def greedy(self, most_s: float) -> list[Assignment]:
        """Make the plans of the greedy planners.

        Args:
            most_s: nominal seconds after which no further one is made, once any plan fits.

        Returns:
            The best plan of the search so far, if there is one.
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
        """Round the relaxations whose bounds are close to the least one, by increasing bound.

        Args:
            relaxed: the relaxation of each set of sharding types.
            most_s: nominal seconds after which no further relaxation is rounded, once one is.

        Returns:
            The plans.
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
                    made += self.round(self._roundable.packable(relaxation, slack))
        return made

    def round(self, relaxation: Relaxation) -> list[Assignment]:
        """Plans of the options that have the largest shares in a relaxation."""
        self._model.use_cuts(self._bounds.cuts.get(relaxation.types, []))
        return self.place(self._roundable.within_memory(relaxation).choice(self._space))

    def place(self, choice: IntArray) -> list[Assignment]:
        """Plans of one option per table, ``[T]``: one for each exponent of the pressure."""
        peaks = self._model.mean[self._space.first[:-1] + choice].sum(axis=0)
        targets = self._model.targets(peaks)
        made: list[Assignment] = []
        for power in POWERS:
            first = not made and (self._record.best is None or not self.found)
            if (self._record.stopped and not first) or SearchPart.ROUNDING in self._without:
                break  # one plan is rounded even if nothing more may be done
            pressure = Pressure(targets=targets, power=power)
            self._meter.spend(self._placing_s)
            made.append(place_options(self._model, choice, pressure))
            self._record.consider(made[-1], "rounding")
        self.found += made
        return made
