"""A bound for objectives that are sums of largest loads, from how shards can share a rank.

If all phases are added up by their weights, every shard has one cost, and the costs on no rank add
up to more than the objective of the plan. That is a makespan problem in which options are chosen
too. Is there a plan with objective z? Let ``u`` be what uniform options put on every rank. Then the
other shards of a rank have the room ``z - u``. If u is in an interval from ``a`` to ``b``, the room
is at most ``z - a``, and every plan satisfies:

- no shard costs more than ``z - a``;
- the mean cost over ranks is at most z;
- ``sum_o y[o] sum_s f(cost[s] / (z - a)) <= W`` for each dual feasible function f, that is, one
  whose values add up to at most 1 if its arguments do (Fekete and Schepers, Mathematical
  Programming 91, 2001; Carlier, Clautiaux and Moukrim, Computers & Operations Research 34, 2007).

If no choice of whole options satisfies this in any interval, no plan has objective z or less.
Intervals in which there is a choice are halved. Memory is not looked at, which can only lower the
bound.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import FloatArray, IntArray
from planner.search.common.lp import LinearProgram, Rows, solve
from planner.space.effort import Meter
from planner.space.evaluation import FITTING, ROUNDED, SearchSpace

_SAFETY: Final = 1e-6
"""Share taken off the bound, because solvers keep rows only within their tolerances. Rows that are
broken by less are not added."""
_CLOSE_RATIO: Final = 2e-3
"""Share of the objective within which the bisection of z ends, and within which u has to be at the
lower end of its interval for a choice to count. A smaller share takes more programs."""
_MOST_NODES: Final = 60
"""Most intervals of u that are looked at for one z; z is not ruled out if they do not decide."""
_ROUNDS: Final = 5
"""Most programs for one interval, each with the rows that the last solution breaks."""
_CUTS: Final = 4
"""Most rows that are added at a time, those that are broken most."""
_STEPS: Final = (*range(1, 20), 24, 29, 39)
"""Parameters k of the first family of dual feasible functions, which rounds down to multiples of
1/k. Each is one more row to check."""
_THRESHOLDS: Final = (*(i / 50 for i in range(1, 25)), *(1 / i - 1e-6 for i in range(3, 16)))
"""Parameters of the other two families, sizes below 1/2: an even grid, and a little below the unit
fractions, where pieces of just that size still count."""
_CHOICES: Final = 3
"""Most choices of options that are returned for plans, the newest ones."""
_OTHERS: Final = 16
"""Most choices that are returned of those that were ruled out, the newest ones."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packing:
    """What the packing bound says.

    Attributes:
        bound: no plan has a smaller objective.
        choices: choices of options, ``[T]`` each, that could not be ruled out above the bound; the
            newest first. Good plans may have these options.
        others: choices that were ruled out only because of what uniform options put on every rank;
            the newest first.
    """

    bound: float
    choices: tuple[IntArray, ...]
    others: tuple[IntArray, ...]


class Makespan:
    """The makespan problem of a search space, with one price per unit of each kind of work."""

    def __init__(self, space: SearchSpace, prices: FloatArray, meter: Meter | None = None) -> None:
        """Work out what each shard costs.

        Args:
            space: options and places.
            prices: ``[F]`` how much of the objective a unit of each column of work is.
            meter: is told of the work done.
        """
        self._space = space
        self._meter = Meter() if meter is None else meter
        rows = [r.ravel() for r in space.rows]
        owner = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
        cost = (space.pool @ prices)[np.concatenate(rows)]
        starts = np.cumsum([0, *(len(r) for r in rows[:-1])])
        self._largest = np.maximum.reduceat(cost, starts)
        self._base = np.where(space.is_uniform, np.minimum.reduceat(cost, starts), 0.0)
        self._mean = np.add.reduceat(cost, starts) / space.world_size
        placed = ~space.is_uniform[owner]
        self._owner, self._cost = owner[placed], cost[placed]  # of shards that are placed

    def bound(self, low: float, high: float, stopped: Callable[[], bool]) -> Packing:
        """Raise a bound by bisection.

        Args:
            low: a proven bound.
            high: the objective of a known plan.
            stopped: is asked often; True ends the bisection.
        """
        top = high
        self._seen: dict[tuple[int, ...], bool] = {}
        while top > low * (1 + _CLOSE_RATIO) and not stopped():
            at = (low + top) / 2
            if self._ruled_out(at, stopped):
                low = at
            else:
                top = at
        seen = list(reversed(self._seen.items()))
        return Packing(
            bound=low * (1 - _SAFETY),
            choices=tuple(np.array(c) for c, left in seen if left)[:_CHOICES],
            others=tuple(np.array(c) for c, left in seen if not left)[:_OTHERS],
        )

    def _ruled_out(self, z: float, stopped: Callable[[], bool]) -> bool:
        """Whether it is proven that no plan has objective z; False also if that is undecided."""
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
            chosen = self._space.least_options(-shares) - self._space.first[:-1]
            choice = tuple(chosen.tolist())
            base = float(self._base @ shares)
            self._seen[choice] = base - low <= _CLOSE_RATIO * z
            if self._seen[choice]:
                return False
            middle = (low + base) / 2
            open_intervals += [(low, middle), (middle, high)]
        return True

    def _shares(self, z: float, low: float, high: float) -> FloatArray | None:
        """Shares of options, ``[n]``, that satisfy all rows with ``low <= u <= high``.

        Returns:
            None if there are none. If the solver gives up, shares of 0 stand for an unknown choice.
        """
        room = z - low
        fits = self._largest <= np.where(self._space.is_uniform, z, room * FITTING)
        rows = [self._mean / z, self._base / z, -self._base / z]
        limits = [1.0, high / z, -low / z]
        sizes = np.minimum(self._cost / room, 1.0) * (1 - ROUNDED)
        sums = [np.bincount(self._owner, v, len(fits)) for v in _dual_feasible(sizes)]
        known, of_table = np.array(sums) / self._space.world_size, self._space.table_of
        cost, one = self._mean / float(self._mean.max()), Rows.one_of_each(of_table)
        shares: FloatArray | None = None
        for _ in range(_ROUNDS):
            stacked = Rows.stack([one, Rows.dense(np.array(rows), -math.inf, np.array(limits))])
            program = LinearProgram(
                cost=cost, upper=fits.astype(float), rows=stacked, groups=of_table
            )
            solution = solve(program, self._meter)
            if solution.infeasible:
                return None
            if solution.x is None:
                break
            shares = solution.x
            load = known @ shares
            new = [known[i] for i in np.argsort(-load)[:_CUTS] if load[i] > 1 + _SAFETY]
            if not new:
                break
            rows += new
            limits += [1.0] * len(new)
        return self._base * 0.0 if shares is None else shares


def _dual_feasible(sizes: FloatArray) -> list[FloatArray]:
    """Values of dual feasible functions of three known families, one array per function.

    All of them are increasing, so that sizes which are a little too small keep them valid.

    Args:
        sizes: of every shard, from 0 to 1.
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
