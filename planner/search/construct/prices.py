"""Plans from options that are cheapest at sampled prices of the phases.

A plan's options follow from few numbers: what a second of each phase is worth, how large a piece
may be, what a byte costs. They are sampled log-uniformly at first, then around the best found
(a (1 + 1) evolution strategy); options are the cheapest at these prices, places greedy. So plans
far from the relaxation's are reached that no single change of a good plan leads to.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
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
"""Least and most worth of a phase, as a factor on its slope in the objective."""
_PIECE: Final = (0.6, 1.6)
"""Size from which on pieces are penalised, as a share of the phase's maximum in the relaxation."""
_WEIGHT: Final = (1e-3, 10.0)
"""Weight of that penalty."""
_BYTES: Final = (1e-3, 1.0)
"""Worth of filling all memory, beside the objective."""
_POWER: Final = (3.0, 30.0)
"""Exponent of the pressure that places follow."""
_STEEP: Final = 6
_MOST: Final = 30.0
_FIRST: Final = 12
_ANYWHERE: Final = 0.25
"""Share of later samples that are drawn anywhere."""
_STEP: Final = 0.25
"""Standard deviation of the others around the best, as a share of the range."""
_HOPELESS: Final = 1.03
"""Options whose means alone are this far above the best plan are not placed."""
_CLOSE: Final = 1.12
"""Plans within this factor of the best one are improved by a descent."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sampled:
    choice: IntArray
    power: float


class PriceSearch:
    """Samples prices for the options of one model.

    Args:
        model: tangents and the cut in use.
        uniform: ``[n]`` options that load every rank.
        allowed: ``[n]`` options to choose from.
        phases: ``[K']`` maxima that the relaxation has.
        limits: device and host bytes per rank.
        rng: of all samples.
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
        self._model, self._rng = model, rng
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
        """A point, to be given back to :meth:`tell`, and what it says of options and places."""
        rng, size = self._rng, len(self._low)
        if self._count < _FIRST or rng.random() < _ANYWHERE:
            point = self._low + self._width * rng.random(size)
        else:
            moved = self._best + _STEP * self._width * rng.normal(size=size)
            point = np.clip(moved, self._low, self._low + self._width)
        self._count += 1
        *prices, piece, weight, device, host, power = np.exp(point).tolist()
        large = np.minimum(self._shares / piece, _MOST) ** _STEEP
        penalty = weight * large.sum(axis=-1) / self._model.space.num_tables
        penalty += self._bytes @ np.array([device, host])
        cost = self._means @ np.array(prices) + penalty * self._value
        pairs = itertools.pairwise(self._model.space.first)
        choice = np.array([np.argmin(cost[a:b]) for a, b in pairs], dtype=np.int64)
        return point, _Sampled(choice=choice, power=power)

    def tell(self, point: FloatArray, value: float) -> None:
        """What came of a point."""
        if value < self._best_value:
            self._best, self._best_value = point, value

    def least(self, choice: IntArray) -> float:
        """The objective if all ranks were loaded alike, but for the largest piece."""
        flats = self._model.space.first[:-1] + choice
        means = self._model.phase_maxima(self._model.mean[flats].sum(axis=0))
        return float(self._model.paths(np.maximum(means, self._pieces[flats].max(axis=0))).max())


def explore(
    prices: PriceSearch,
    model: LinearModel,
    record: Record,
    descend: Callable[[Assignment], Assignment],
    count: int,
) -> list[Assignment]:
    """Plans from ``count`` samples, best first; those close to the best plan are descended from.

    Args:
        prices: what is sampled.
        model: the one it samples for.
        record: is offered every plan.
        descend: a quick descent.
        count: of samples.
    """
    found: dict[Assignment, float] = {}
    for _ in range(count):
        if record.stopped or record.proven:
            break
        point, sampled = prices.sample()
        value = prices.least(sampled.choice)
        if value < record.value * _HOPELESS:
            peaks = model.mean[model.space.first[:-1] + sampled.choice].sum(axis=0)
            pressure = Pressure(targets=model.targets(peaks), power=sampled.power)
            record.evaluate.meter.spend(placing_s(model.space.num_tables, model.space.world_size))
            plan = place_options(model, sampled.choice, pressure)
            value = record.consider(plan, "prices")
            if value < record.value * _CLOSE:
                plan = descend(plan)
                value = min(value, record.consider(plan, "prices"))
                found[plan] = value
        else:
            value *= _HOPELESS
        prices.tell(point, value)
    return sorted(found, key=lambda a: (found[a], a.options, a.places))
