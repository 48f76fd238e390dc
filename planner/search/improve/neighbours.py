"""Prices every change of one table, and the best changes of two or three together.

Other methods look at moves from the ranks that set the maxima, and at a few options of each table.
They can miss what a plan pays elsewhere: collectives that only one table starts, or launches on a
rank that is never the slowest. Pricing thousands of plans together takes little longer than pricing
one. So where tables have few choices, all neighbours of a plan are priced by the objective itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from planner.search.base import Record
from planner.search.common.schedule import USUAL, Schedule
from planner.search.construct.walk import (
    Choice,
    Taken,
    choice_works,
    count_choices,
    table_choices,
)
from planner.space.effort import priced_s
from planner.space.evaluation import Assignment, SearchSpace

_TOGETHER: Final = ((2, 192), (3, 32))
"""How many tables are changed together, and how many choices of each are combined: those that are
best as long as the other tables stay as they are. Either all combinations are priced or none: to
price a part of them made no plan better in 30 drawn problems with 4 to 100 tables."""
_MOST_BATCH_ENTRIES: Final = 2_000_000
"""Numbers in the work arrays of plans that are made and priced together. More of them take more
memory, fewer take more calls."""
_GAIN: Final = 1e-9
"""Share of the objective by which a plan has to be better; less is rounding."""


class Neighbours:
    """Looks for better neighbours of the best plan of a search.

    Args:
        space: options and places.
        record: is offered every better plan.
        schedule: how the search shares out its work.
    """

    def __init__(self, space: SearchSpace, record: Record, schedule: Schedule = USUAL) -> None:
        """List nothing until it is needed."""
        self._space, self._record, self._schedule = space, record, schedule
        self._entries = space.world_size * space.pipeline.num_features
        self._seen: set[tuple[int, ...]] = set()
        self._until_s = 0.0

    def improve(self) -> None:
        """Go from the best plan to a better neighbour, again and again until there is none.

        It also ends when its share of the work is spent. A plan whose neighbours have been priced
        before is not looked at again.
        """
        if self._record.stopped:
            return  # even listing the choices would take longer than a small budget
        meter = self._record.evaluate.meter
        self._until_s = meter.spent_s + self._schedule.neighbours_share * meter.planned_s
        current = self._place_of(self._record.best)
        while current is not None and current not in self._seen and not self._over:
            self._seen.add(current)
            current = self._step(current)

    @property
    def _left_s(self) -> float:
        return self._until_s - self._record.evaluate.meter.spent_s

    @property
    def _over(self) -> bool:
        return self._left_s <= 0 or self._record.stopped or self._record.proven

    @cached_property
    def _choices(self) -> list[list[Choice]]:
        """The choices of each table; no table has any if there are too many in all."""
        tables, count = range(self._space.num_tables), 0
        for table in tables:
            count += count_choices(self._space, table)
            if count * self._entries > self._schedule.neighbours_entries:
                return []
        return [list(table_choices(self._space, table)) for table in tables]

    @cached_property
    def _at(self) -> list[dict[Choice, int]]:
        """For each table the position of each of its choices."""
        return [{choice: i for i, choice in enumerate(found)} for found in self._choices]

    @cached_property
    def _works(self) -> list[FloatArray]:
        """For each table the work of each of its choices on each rank, ``[choices, W, F]``."""
        return [choice_works(self._space, t, found) for t, found in enumerate(self._choices)]

    @cached_property
    def _taken(self) -> Taken | None:
        """What each choice counts under the rules that couple tables; None without rules."""
        return Taken.of(self._space, self._choices) if self._space.rules else None

    def _place_of(self, plan: Assignment | None) -> tuple[int, ...] | None:
        """The position of each table's choice in a plan; None if a choice is not listed."""
        if plan is None or not self._choices:
            return None
        pairs = zip(self._at, plan.options, plan.places, strict=True)
        found = [known.get((option, places)) for known, option, places in pairs]
        return tuple(i for i in found if i is not None) if None not in found else None

    def _step(self, current: tuple[int, ...]) -> tuple[int, ...] | None:
        """A better neighbour of a plan; None if there is none, or if the work is spent.

        One table is changed if that helps, otherwise two, otherwise three.

        Args:
            current: the position of each table's choice.
        """
        work = np.sum([w[i] for w, i in zip(self._works, current, strict=True)], axis=0)
        value = self._record.value * (1 - _GAIN)
        best: list[IntArray] = []
        found: list[tuple[float, tuple[int, ...]]] = []
        for t in range(len(current)):
            every = np.arange(len(self._choices[t]))
            works = (work - self._works[t][current[t]])[None] + self._works[t]
            best.append(self._promising(works))
            found.append(self._best(current, {t: every}, works))
        least = min(found)
        if least[0] < value:
            return least[1]
        for count, most in _TOGETHER:
            if self._takes_s(count, [min(len(known), most) for known in best]) > self._left_s:
                continue
            for tables in itertools.combinations(range(len(current)), count):
                if self._over:
                    return None
                kept = [best[t][:most] for t in tables]
                least = self._together(current, work, dict(zip(tables, kept, strict=True)), value)
                if least[0] < value:
                    return least[1]
        return None

    def _takes_s(self, count: int, choices: Sequence[int]) -> float:
        """Nominal seconds of pricing all changes of ``count`` tables together.

        Args:
            count: number of tables that are changed together.
            choices: number of choices of each table that are combined.
        """
        plans = [1, *[0] * count]  # number of plans with 0, 1, ... of the tables so far changed
        for own in choices:
            for changed in range(count, 0, -1):
                plans[changed] += plans[changed - 1] * own
        calls = math.comb(len(choices), count)
        return calls * priced_s(0, self._entries) + priced_s(plans[count], self._entries)

    def _together(
        self,
        current: tuple[int, ...],
        work: FloatArray,
        kept: dict[int, IntArray],
        value: float,
    ) -> tuple[float, tuple[int, ...]]:
        """The best plan in which some tables have any of these choices.

        Args:
            current: the position of each table's choice in the plan that is changed.
            work: ``[W, F]`` the work of that plan.
            kept: for each table that is changed, the positions of the choices to combine.
            value: the search ends with the first batch that has a plan below this objective.

        Returns:
            Its objective, and the position of each table's choice.
        """
        rest = work - np.sum([self._works[t][current[t]] for t in kept], axis=0)
        grids = np.meshgrid(*kept.values(), indexing="ij")
        least = np.inf, current
        size = max(_MOST_BATCH_ENTRIES // self._entries, 1)
        for start in range(0, grids[0].size, size):
            stop = start + size
            part = {t: grid.ravel()[start:stop] for t, grid in zip(kept, grids, strict=True)}
            works = rest[None] + np.sum([self._works[t][i] for t, i in part.items()], axis=0)
            least = min(least, self._best(current, part, works))
            if least[0] < value or self._over:
                break
        return least

    def _promising(self, works: FloatArray) -> IntArray:
        """Positions of plans by their objective, whether or not they fit: others may make room."""
        values = self._record.evaluate.objective.values(works)
        return np.argsort(values, kind="stable")

    def _best(
        self, current: tuple[int, ...], changed: dict[int, IntArray], works: FloatArray
    ) -> tuple[float, tuple[int, ...]]:
        """The best of N plans that keep the rules; offered to the record if it is the best so far.

        Args:
            current: the position of each table's choice in the plan that is changed.
            changed: for each table that is changed, the position of its choice in each of the N
                plans, ``[N]``.
            works: ``[N, W, F]`` the work of each plan.

        Returns:
            Its objective, and the position of each table's choice.
        """
        values = self._record.evaluate.values(works)
        count = len(values)
        index = tuple(changed.get(t, np.full(count, i)) for t, i in enumerate(current))
        if self._taken is not None:
            values = np.where(self._taken.kept(index), values, np.inf)
        at = int(np.argmin(values))
        picked = tuple(int(i[at]) for i in index)
        if values[at] < self._record.value:
            chosen = [self._choices[t][i] for t, i in enumerate(picked)]
            plan = Assignment(
                options=tuple(o for o, _ in chosen), places=tuple(p for _, p in chosen)
            )
            self._record.keep_if_good(plan, float(values[at]), "neighbours")
        return float(values[at]), picked
