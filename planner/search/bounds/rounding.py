"""The plans that a search begins with: rounded from solutions of the bound, and greedy ones."""

import itertools
import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from planner.search.base import Record
from planner.search.bounds.bound import RankFreeBound
from planner.search.bounds.bound_program import Relaxation
from planner.search.common.lp import TOLERANCE, Rows
from planner.search.construct.greedy import list_plans, split_walk
from planner.search.construct.placer import POWERS, place_options
from planner.space.effort import placing_s
from planner.space.evaluation import Assignment

_PRICES: Final = 60
"""Prices of device memory that are tried; each halves the interval of prices, so that after so many
it is as narrow as numbers can tell."""
_LEAST_ROOM: Final = 1e-60
"""Least room of a phase, so that loads can be divided by it even if a phase has no work at all."""
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

    Attributes:
        found: all plans that were rounded so far.
    """

    def __init__(self, bounds: RankFreeBound, record: Record) -> None:
        """Make no plan yet."""
        self.found: list[Assignment] = []
        self._bounds, self._model, self._record = bounds, bounds.model, record
        self._meter = record.evaluate.meter
        self._space = space = bounds.space
        self._placing_s = placing_s(space.num_tables, space.world_size)
        limit = max(float(space.pipeline.device_limits.mean()), 1.0)
        self._size: FloatArray | None = None  # as a share of all device memory, where it matters
        self._rows: list[Rows] = []
        if bounds.builder.unlisted_bytes > 0:
            self._size = np.asarray(space.mean_work @ space.device / limit)
            self._rows = [Rows.dense(self._size[None], -math.inf, 1.0)]

    def greedy(self, most_s: float) -> None:
        """Make the plans of the greedy planners.

        Args:
            most_s: nominal seconds after which no further one is made, once any plan fits.
        """
        until_s = self._meter.spent_s + most_s
        for proposal in itertools.chain(list_plans(self._space), split_walk(self._model)):
            self._meter.spend(self._placing_s)
            late = self._meter.spent_s > until_s and self._record.best is not None
            if self._record.stopped or late:
                break
            self._record.consider(proposal, "greedy")

    def promising(self, relaxed: Iterable[Relaxation], most_s: float) -> None:
        """Round the relaxations whose bounds are close to the least one, by increasing bound.

        Args:
            relaxed: the relaxation of each set of sharding types.
            most_s: nominal seconds after which no further relaxation is rounded, once one is.
        """
        ordered = sorted(relaxed, key=lambda r: r.bound)
        limit = min(ordered[0].bound * _WORTH_ROUNDING, self._record.value)
        until_s, made = self._meter.spent_s + most_s, False
        for relaxation in (r for r in ordered if r.bound <= limit and r.shares is not None):
            if made and self._meter.spent_s > until_s:
                break
            made = bool(self.round(relaxation)) or made
            for slack in _SLACKS:
                if not self._record.stopped:
                    self.round(self.packable(relaxation, slack))

    def round(self, relaxation: Relaxation) -> list[Assignment]:
        """Plans of the options that have the largest shares in a relaxation."""
        self._model.use_cuts(self._bounds.cuts.get(relaxation.types, []))
        return self.place(self.choice(relaxation))

    def place(self, choice: IntArray) -> list[Assignment]:
        """Plans of one option per table, ``[T]``: one for each exponent of the pressure."""
        made: list[Assignment] = []
        for power in POWERS:
            first = not made and (self._record.best is None or not self.found)
            if self._record.stopped and not first:
                break  # one plan is rounded even if nothing more may be done
            self._meter.spend(self._placing_s)
            made.append(place_options(self._model, choice, power))
            self._record.consider(made[-1], "rounding")
        self.found += made
        return made

    def packable(self, relaxation: Relaxation, slack_ratio: float) -> Relaxation:
        """A solution whose shards can be packed as wholes.

        In a solution the share of a giant shard is small, but in a plan the shard is whole. Let the
        room of a phase be its largest load in the solution, raised by ``slack_ratio``. Then no
        shard may be larger than the room. A rank has room for one shard that is larger than half of
        it, or for two that are larger than a third.
        """
        if relaxation.shares is None:
            return relaxation
        model, builder = self._model, self._bounds.builder
        groups = model.phase_maxima(builder.peaks(relaxation.shares)[-1])
        room = np.maximum(groups * (1 + slack_ratio), 1e-9 * float(groups.max()) + _LEAST_ROOM)
        room = room[model.phase_index]
        share = model.largest[:, : len(room)] / room
        kept = builder.uniform | (share <= 1.0).all(axis=-1)
        taken = np.where(share > 0.5, 1.0, np.where(share > 1 / 3, 0.5, 0.0))
        counted = taken * builder.shards[:, None] / self._space.world_size
        rows = Rows.dense(counted.T, -math.inf, 1.0)
        return self._bounds.relax(relaxation.types, kept=kept, more=[rows, *self._rows], rounds=4)

    def choice(self, relaxation: Relaxation) -> IntArray:
        """``[T]`` the option of each table with the largest share, if these may fit into memory.

        Kernels in host memory may be left out of the list of options. The bound holds for plans
        with them too, and therefore allows more device memory than there is
        (:attr:`planner.search.bounds.bound_program.RankFreeProgram.unlisted_bytes`). Such a
        solution often cannot be rounded to a plan. Then the program is solved once more within the
        memory there is. If nothing fits there, each table takes the option with the smallest sum of
        its reduced cost and of a price for its device memory. The price is the smallest one at
        which all options fit: the Lagrangian relaxation of the limit.
        """
        size, shares = self._size, relaxation.shares
        if size is None or shares is None or shares @ size <= 1 + TOLERANCE:
            return relaxation.choice(self._space)
        fitted = self._bounds.relax(relaxation.types, more=self._rows, rounds=2)
        if fitted.shares is not None:
            return fitted.choice(self._space)
        costs = np.zeros(len(size))
        if relaxation.reduced_costs is not None:
            costs = np.abs(relaxation.reduced_costs)
        low, high = 0.0, (float(costs.max()) + 1.0) / float(size[size > 0].min(initial=1.0))
        for _ in range(_PRICES):
            middle = 0.5 * (low + high)
            fits = float(size[self._space.least_options(costs + middle * size)].sum()) <= 1.0
            low, high = (low, middle) if fits else (middle, high)
        return self._space.least_options(costs + high * size) - self._space.first[:-1]
