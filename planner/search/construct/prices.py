"""Plans from the options that are cheapest at sampled prices of the phases.

The options of a plan follow from a few numbers: what a second of each phase is worth, how large a
piece may be, and what a byte costs. Each table takes its cheapest option at these prices, and a
greedy rule places the pieces. The numbers are sampled log-uniformly at first, then around the best
point so far (a (1 + 1) evolution strategy). So plans are found which are far from the solution of
the bound, and to which no single change of a good plan leads.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from planner.search.base import Record
from planner.search.common.linear import LinearModel
from planner.search.construct.placer import Pressure, place_options
from planner.space.effort import placing_s
from planner.space.evaluation import Assignment

_PRICE: Final = (0.2, 5.0)
"""Range of the price of a phase, as a factor on its slope in the objective."""
_PIECE: Final = (0.6, 1.6)
"""Range of the size from which on a piece is penalised, as a share of the phase's maximum in the
solution of the bound. A piece of size 1 alone takes as long as that maximum."""
_WEIGHT: Final = (1e-3, 10.0)
"""Range of the weight of that penalty."""
_BYTES: Final = (1e-3, 1.0)
"""Range of the price of filling all memory of one kind, as a share of the objective."""
_POWER: Final = (3.0, 30.0)
"""Range of the exponent of the pressure by which pieces are placed."""
_STEEP: Final = 6
"""Exponent of the penalty on the size of pieces: pieces a little below the sampled size cost
little, those a little above it much."""
_MOST: Final = 30.0
"""Pieces above this many times the sampled size count as this many, so that powers stay finite."""
_FIRST: Final = 12
"""Samples drawn from the whole ranges before any are drawn around the best point."""
_ANYWHERE: Final = 0.25
"""Share of the later samples that are drawn from the whole ranges. They can leave a poor best
point; the others improve a good one."""
_STEP: Final = 0.25
"""Standard deviation of the other samples around the best point, as a share of each range."""
_HOPELESS: Final = 1.03
"""Options are not placed if the objective would be above the best plan by this factor even with all
loads spread evenly. Placing takes far longer than this test."""
_CLOSE: Final = 1.12
"""Cycles may begin with plans within this factor of the best plan."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sampled:
    """What a sampled point says.

    Attributes:
        choice: ``[T]`` index of the option of each table.
        power: exponent of the pressure by which pieces are placed.
    """

    choice: IntArray
    power: float


class PriceSearch:
    """Samples prices for the options of one model.

    A point is the logarithm of all sampled numbers.

    Args:
        model: tangents, and the cuts in use.
        uniform: ``[n]`` True for options that load every rank.
        allowed: ``[n]`` True for options to choose from.
        phases: ``[K']`` maxima of the phases in use in the solution of the bound.
        limits: device bytes and host bytes per rank.
        rng: draws all samples.
    """

    def __init__(
        self,
        model: LinearModel,
        uniform: BoolArray,
        allowed: BoolArray,
        phases: FloatArray,
        limits: FloatArray,
        rng: np.random.Generator,
    ) -> None:
        """Work out what does not change from sample to sample."""
        self.model, self._rng = model, rng
        maxima = np.maximum(phases, 1e-6 * max(float(phases.max(initial=0.0)), 1e-30))
        slopes = model.slopes_of(maxima)
        self._value = float(slopes @ maxima)
        self._means = np.where(allowed[:, None], model.phase_maxima(model.mean) * slopes, np.inf)
        pieces = model.phase_maxima(model.extreme(np.maximum))
        self._pieces = np.where(uniform[:, None], 0.0, pieces)
        self._shares = self._pieces / maxima
        self._bytes = model.mean[:, -2:] / limits
        ranges = [*([_PRICE] * len(slopes)), _PIECE, _WEIGHT, _BYTES, _BYTES, _POWER]
        self._low, high = np.log(np.array(ranges)).T
        self._width = high - self._low
        self._best, self._best_value, self._count = self._low, np.inf, 0

    def sample(self) -> tuple[FloatArray, _Sampled]:
        """Draw a point, to be given back to :meth:`tell`, and work out what it says."""
        rng, size = self._rng, len(self._low)
        if self._count < _FIRST or rng.random() < _ANYWHERE:
            point = self._low + self._width * rng.random(size)
        else:
            moved = self._best + _STEP * self._width * rng.normal(size=size)
            point = np.clip(moved, self._low, self._low + self._width)
        self._count += 1
        *prices, piece, weight, device, host, power = np.exp(point).tolist()
        large = np.minimum(self._shares / piece, _MOST) ** _STEEP
        penalty = weight * large.sum(axis=-1) / self.model.space.num_tables
        penalty += self._bytes @ np.array([device, host])
        cost = self._means @ np.array(prices) + penalty * self._value
        pairs = itertools.pairwise(self.model.space.first)
        choice = np.array([np.argmin(cost[a:b]) for a, b in pairs], dtype=np.int64)
        return point, _Sampled(choice=choice, power=power)

    def tell(self, point: FloatArray, value: float) -> None:
        """Say what value a point has led to; later samples are drawn around the best point."""
        if value < self._best_value:
            self._best, self._best_value = point, value

    def least(self, choice: IntArray) -> float:
        """What the objective would be if all loads were spread evenly over ranks.

        A phase still takes at least its largest piece.

        Args:
            choice: ``[T]`` index of the option of each table.
        """
        flats = self.model.space.first[:-1] + choice
        means = self.model.phase_maxima(self.model.mean[flats].sum(axis=0))
        return float(self.model.paths(np.maximum(means, self._pieces[flats].max(axis=0))).max())


def explore(prices: PriceSearch, record: Record, count: int) -> list[Assignment]:
    """Make plans from samples.

    Args:
        prices: gives the samples.
        record: is offered every plan.
        count: number of samples.

    Returns:
        The plans that are close to the best one.
    """
    model = prices.model
    found: dict[Assignment, None] = {}
    for _ in range(count):
        if record.stopped or record.proven:
            break
        point, sampled = prices.sample()
        value = prices.least(sampled.choice)
        if value < record.value * _HOPELESS:
            peaks = model.mean[model.space.first[:-1] + sampled.choice].sum(axis=0)
            record.evaluate.meter.spend(placing_s(model.space.num_tables, model.space.world_size))
            pressure = Pressure(targets=model.targets(peaks), power=sampled.power)
            plan = place_options(model, sampled.choice, pressure)
            value = record.consider(plan, "prices")
            if value < record.value * _CLOSE:
                found[plan] = None
        else:
            value *= _HOPELESS
        prices.tell(point, value)
    return list(found)
