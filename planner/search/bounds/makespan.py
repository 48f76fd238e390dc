"""A bound for objectives that are sums of largest loads, from how shards can share a rank.

With all phases added up by weight, every shard has one cost, and no rank's costs exceed the value
of the plan: a makespan problem with a choice of options. Is there a plan of value z? What all
ranks carry anyway, ``u``, leaves ``z - u`` for the other shards of each rank. Within an interval of
u, that room is at most ``z`` less its lower end ``a``, and every plan satisfies

- no shard is larger than ``z - a``;
- the mean over ranks is at most z;
- ``sum_o y[o] sum_s f(cost[s] / (z - a)) <= W`` for each dual feasible function f: one whose
  values add up to at most 1 wherever the arguments do (Fekete and Schepers, Mathematical
  Programming 91, 2001; Carlier, Clautiaux and Moukrim, Computers & Operations Research 34, 2007).

Where no choice of whole options satisfies them in any interval, z is a bound. Intervals are halved
where they do not decide. Memory is left out, so the bound holds with and without it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from planner.search.bounds.cutting_stock import CELLS, worth_by_size
from planner.search.common.milp import MilpProgram, Rows
from planner.search.common.programs import effort_of, solve
from planner.search.common.schedule import USUAL, Schedule
from planner.space.effort import Meter
from planner.space.evaluation import SearchSpace

_SAFETY: Final = 1e-6
"""Share taken off the bound for the solver's tolerances."""
_CLOSE_RATIO: Final = 2e-3
"""Bound and value this close are not told apart, nor intervals of u this narrow halved."""
_MOST_NODES: Final = 60
_ROUNDS: Final = 5
_CUTS: Final = 4
_VIOLATION: Final = 1e-6
_MOST_SIZES: Final = 60
"""With more sizes than this, column generation takes longer than it is worth."""
_WHOLE_NODES: Final = 100
"""Nodes of one mixed-integer program; what is not solved by then is not decided."""
_STEPS: Final = (*range(1, 20), 24, 29, 39)
_THRESHOLDS: Final = (*(i / 50 for i in range(1, 25)), *(1 / i - 1e-6 for i in range(3, 16)))
_CHOICES: Final = 3
_OTHERS: Final = 16
_ROUNDING: Final = 1e-12
SHRINK: Final = 1e-9
"""Share taken off sizes, so that rounding never makes a shard larger than it is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packing:
    """``bound`` is proven; ``choices`` of options could not be ruled out above it.

    ``others`` were ruled out only together with what all ranks carry; kept for few tables alone.
    Both with the last one first.
    """

    bound: float
    choices: tuple[IntArray, ...]
    others: tuple[IntArray, ...]


class Makespan:
    """The makespan problem of a search space under one price per unit of work."""

    def __init__(
        self,
        space: SearchSpace,
        prices: FloatArray,
        meter: Meter | None = None,
        *,
        schedule: Schedule = USUAL,
    ) -> None:
        """Keep what each shard costs.

        Args:
            space: options and places.
            prices: seconds (or whatever is minimised) per unit of each work column.
            meter: told of the work done.
            schedule: up to how many tables whole options are chosen.
        """
        self._space, self._schedule = space, schedule
        self._meter = Meter() if meter is None else meter
        costs = space.pool @ prices
        rows = [r.ravel() for r in space.rows]
        self._owner = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
        self._cost = costs[np.concatenate(rows)]
        self._uniform: BoolArray = np.array([o.is_uniform for o in space.options])
        starts = np.cumsum([0, *(len(r) for r in rows[:-1])])
        self._largest = np.maximum.reduceat(self._cost, starts)
        everywhere = np.minimum.reduceat(self._cost, starts)
        self._base = np.where(self._uniform, everywhere, 0.0)
        self._mean = np.add.reduceat(self._cost, starts) / space.world_size
        self._placed = ~self._uniform[self._owner]
        self._seen: dict[tuple[int, ...], bool] = {}

    def bound(self, low: float, high: float, stopped: Callable[[], bool]) -> Packing:
        """Raise a bound ``low`` towards ``high``, the value of a known plan, by bisection."""
        top = high
        self._seen.clear()
        while top > low * (1 + _CLOSE_RATIO) and not stopped():
            at = (low + top) / 2
            if self._ruled_out(at, stopped):
                low = at
            else:
                top = at
        seen = list(reversed(self._seen.items()))
        few = self._space.num_tables <= self._schedule.packing_others_tables
        return Packing(
            bound=low * (1 - _SAFETY),
            choices=tuple(np.array(c) for c, left in seen if left)[:_CHOICES],
            others=tuple(np.array(c) for c, left in seen if not left)[: _OTHERS if few else 0],
        )

    def _ruled_out(self, z: float, stopped: Callable[[], bool]) -> bool:
        """Whether there is no plan of value z; False also where that is left undecided."""
        open_intervals = [(0.0, z)]
        nodes = 0
        while open_intervals:
            nodes += 1
            if nodes > _MOST_NODES or stopped():
                return False
            low, high = open_intervals.pop()
            shares = self._shares(z, low, high)
            if shares is None:
                continue
            pairs = itertools.pairwise(self._space.first)
            choice = tuple(int(np.argmax(shares[a:b])) for a, b in pairs)
            base = float(self._base @ shares)
            self._seen[choice] = base - low <= _CLOSE_RATIO * z
            if self._seen[choice]:
                return False
            middle = (low + base) / 2
            open_intervals += [(low, middle), (middle, high)]
        return True

    def _shares(self, z: float, low: float, high: float) -> FloatArray | None:
        """A choice that satisfies all rows with ``low <= u <= high``, None if there is none."""
        room = z - low
        fits = np.where(self._uniform, self._largest <= z, self._largest <= room * (1 + _ROUNDING))
        rows = [self._mean / z, self._base / z, -self._base / z]
        limits = [1.0, high / z, -low / z]
        sizes = np.minimum(self._cost / room, 1.0) * (1 - SHRINK)
        known = np.array([self._by_option(values) for values in _dual_feasible(sizes)])
        whole = self._space.num_tables <= self._schedule.packing_whole_tables
        shares: FloatArray | None = None
        for integer in (False, True) if whole else (False,):
            for _ in range(_ROUNDS):
                program = self._program(rows, limits, fits, whole=integer)
                solution = solve(program)
                self._meter.spend(effort_of(program, solution))
                if solution.infeasible:
                    return None
                if solution.x is None:
                    break
                shares = solution.x
                new = self._broken(known, shares, sizes)
                if not new:
                    break
                rows += new
                limits += [1.0] * len(new)
        return self._base * 0.0 if shares is None else shares

    def _broken(self, known: FloatArray, shares: FloatArray, sizes: FloatArray) -> list[FloatArray]:
        """Rows that the shares break: of the known functions, or else of one made for them."""
        load = known @ shares
        worst = np.argsort(-load)[:_CUTS]
        broken = [known[i] for i in worst if load[i] > 1 + _VIOLATION]
        if broken:
            return broken
        cells = np.floor(sizes * CELLS).astype(np.int64)
        taken = np.where(self._placed & (cells > 0), shares[self._owner], 0.0)
        amounts: FloatArray = np.bincount(cells, taken, CELLS + 1).astype(float)
        used = np.flatnonzero(amounts > _VIOLATION)
        if not len(used) or len(used) > _MOST_SIZES:
            return []
        needed, worth = worth_by_size(used, amounts[used])
        if needed <= self._space.world_size * (1 + _VIOLATION):
            return []
        return [self._by_option(worth[cells])]

    def _by_option(self, values: FloatArray) -> FloatArray:
        """``[options]``: values of shards that are placed, summed, over the number of ranks."""
        placed = np.where(self._placed, values, 0.0)
        return np.bincount(self._owner, placed, len(self._uniform)) / self._space.world_size

    def _program(
        self, rows: list[FloatArray], limits: list[float], fits: BoolArray, *, whole: bool
    ) -> MilpProgram:
        count = len(fits)
        upper = np.array(limits)
        below = Rows.dense(np.array(rows), np.full(len(rows), -math.inf), upper)
        scale = float(self._mean.max())
        return MilpProgram(
            cost=self._mean / scale,
            upper=fits.astype(float),
            rows=Rows.stack([Rows.one_of_each(self._space.table_of), below]),
            integer=np.full(count, whole),
            groups=self._space.table_of,
            max_nodes=_WHOLE_NODES,
        )


def _dual_feasible(sizes: FloatArray) -> list[FloatArray]:
    """Values of dual feasible functions at ``sizes`` (0..1): three known families.

    All are increasing; sizes come a little smaller than they are, for rounding's sake.
    """
    found = [np.floor((k + 1) * sizes) / k for k in _STEPS]
    for least in _THRESHOLDS:
        dropped = np.where(sizes < least, 0.0, sizes)
        found.append(np.where(sizes > 1 - least, 1.0, dropped))
        most = math.floor(1 / least)
        small = np.floor(sizes / least) / most
        large = 1 - np.floor((1 - sizes) / least) / most
        found.append(np.where(sizes <= 0.5, small, large))
    return found
