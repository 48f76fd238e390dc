"""A line through the values of several days, for forecasts such as when a table will be full."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

_FEWEST_FOR_SPREAD: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A least-squares line through values of several days.

    Attributes:
        slope_per_day: change per day, in the unit of the values.
        spread_per_day: standard error of the slope; infinite with fewer than three days.
        last_day: the latest day.
        at_last_day: the value of the line on the latest day.
    """

    slope_per_day: float
    spread_per_day: float
    last_day: float
    at_last_day: float

    def days_until(self, level: float) -> tuple[float, float, float]:
        """Days from the latest day until the line reaches ``level``: (soonest, likely, latest).

        The first and the last one use a slope that differs by its standard error. They are infinite
        if the line never reaches the level.
        """
        left = level - self.at_last_day
        if left <= 0:
            return 0.0, 0.0, 0.0
        if not math.isfinite(self.spread_per_day):
            return 0.0, _divided(left, self.slope_per_day), math.inf
        soon, late = (self.slope_per_day + s * self.spread_per_day for s in (1.0, -1.0))
        return _divided(left, soon), _divided(left, self.slope_per_day), _divided(left, late)


def trend(days: Sequence[float], values: Sequence[float]) -> Trend | None:
    """The line through the values of at least two different days; None for fewer days.

    Args:
        days: when each value was measured, in days from any origin.
        values: one value for each entry of ``days``.
    """
    if len(set(days)) < 2:
        return None
    x, y = np.array(days, dtype=float), np.array(values, dtype=float)
    middle = x.mean()
    square = float(((x - middle) ** 2).sum())
    slope = float(((x - middle) * y).sum() / square)
    rest = y - y.mean() - slope * (x - middle)
    spread = math.inf
    if len(days) >= _FEWEST_FOR_SPREAD:
        spread = math.sqrt(float((rest**2).sum()) / (len(days) - 2) / square)
    last = float(x.max())
    return Trend(
        slope_per_day=slope,
        spread_per_day=spread,
        last_day=last,
        at_last_day=float(y.mean()) + slope * (last - float(middle)),
    )


def _divided(left: float, slope: float) -> float:
    return left / slope if slope > 0 else math.inf
