"""Bounds for boxes of phase maxima, where durations are bounded by their chords.

Measured collectives take a time whose rate rises with size, so one straight line below all sizes
lies far below them: latency is paid or not, and a line has to assume not. Within a box of phase
maxima every duration has a line of its own, and the narrower the box the closer it is. The
iteration is the longest of several chains of durations, so each chain is a cut that holds inside
the box.

What is outside every box is settled otherwise: below ``low`` no plan has its maxima (the linear
program says), above ``high`` the shortest possible iteration is longer than the incumbent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.floors.type_floor import Leaf, TypeFloor
from costmodels.sharding import ComputeKernel, ShardingType
from planner.space.objective import Cut

_SAMPLES: Final = 65
"""Points per side of a box at which durations are sampled."""
_NARROWEST_S: Final = 1e-21
_NARROWEST_RATIO: Final = 1e-9
"""Least width of a side, so that chords have a slope."""

Call = tuple[ShardingType, ComputeKernel]
"""One fused call: the tables of one sharding type with one kernel on a rank."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launches:
    """What fused calls beyond those counted add to the phases, on the rank that has them.

    The shortest iterations count one call of the types that are on some ranks only. ``calls`` are
    the (type, kernel) a rank may have of these; ``seconds`` ``[L]`` is what one more of them adds
    to the phase of each side; the shortest iterations count ``num_counted`` of them already.
    """

    calls: tuple[Call, ...]
    seconds: FloatArray
    num_counted: int


class Box:
    """Plans of one set of sharding types whose phase maxima lie between ``low`` and ``high``.

    A box has a side for each duration that depends on the plan, see
    :class:`costmodels.floors.type_floor.TypeFloor`; sides may have a phase in common, and then its
    limits.

    Attributes:
        first: ``[L]`` the phase of each side.
        low, high: ``[L]`` limits of the phases.
        flat: ``[L]`` sides whose phases no program looks at, and so cannot be told to be in a box:
            each duration counts as at ``low``, for it is no less anywhere above.
        cuts: found so far; they hold inside the box.
        launches: what further fused calls cost.
        per_second: unit of the objective per second.
    """

    def __init__(
        self,
        floor: TypeFloor,
        num_phases: int,
        low: FloatArray,
        high: FloatArray,
        launches: Launches,
        *,
        per_second: float = 1.0,
        flat: BoolArray | None = None,
        parent: Box | None = None,
    ) -> None:
        """Find a chord for every side; those of a parent hold for sides that are the same."""
        self.flat: BoolArray = np.zeros(len(low), dtype=bool) if flat is None else flat
        self.floor, self._num_phases, self.per_second = floor, num_phases, per_second
        self.first: IntArray = floor.phases
        sides = np.unique(self.first, return_index=True)[1]
        self._once = np.isin(np.arange(len(self.first)), sides)
        self.launches = launches
        self.low = low
        self.high = np.maximum(high, low + _NARROWEST_RATIO * float(high.max()) + _NARROWEST_S)
        self.cuts: list[Cut] = [] if parent is None else list(parent.cuts)
        self._constant_s, self._slope = np.zeros((2, len(low)))
        for i, leaf in enumerate(floor.leaves):
            same = parent is not None and (low[i], self.high[i]) == (parent.low[i], parent.high[i])
            if self.flat[i]:
                self._constant_s[i] = float(leaf.duration_s(low[i : i + 1])[0])
            elif same and parent is not None:
                self._constant_s[i], self._slope[i] = parent._constant_s[i], parent._slope[i]
            else:
                self._constant_s[i], self._slope[i] = _chord(leaf, low[i], self.high[i])

    def cut(self, phases: FloatArray) -> Cut:
        """The longest chain at these phases, ``[K]``, as a cut that holds in the box."""
        path = self.floor.longest_path(self._chords(self._inside(phases)))
        slopes = np.zeros(self._num_phases)
        np.add.at(slopes, self.first, path.counts * self._slope)
        base_s = path.constant_s + float(path.counts @ self._constant_s)
        return Cut(base=base_s * self.per_second, slopes=slopes * self.per_second)

    def exact_times(self, points: FloatArray) -> FloatArray:
        """Shortest iterations with the models' own durations, ``[N]`` from sides ``[N, L]``."""
        return self.floor.seconds(self.floor.leaf_seconds(points)) * self.per_second

    def relaxed(self, points: FloatArray) -> FloatArray:
        """Shortest iterations with chords, ``[N]`` from sides ``[N, L]``."""
        return self.floor.seconds(self._chords(points)) * self.per_second

    def errors(self, phases: FloatArray) -> FloatArray:
        """``[L]`` how much longer the iteration is at these phases without a side's chord."""
        at = self._inside(phases)
        chords = self._chords(at)
        own = self.floor.leaf_seconds(at[None])[0]
        points = np.where(np.eye(len(at), dtype=bool), own, chords)
        seconds = self.floor.seconds(np.concatenate([chords[None], points]))
        return np.asarray(seconds[1:] - seconds[0]) * self.per_second

    def least(self, phases: FloatArray) -> FloatArray:
        """``[...]`` what the cuts say of plans whose sides are no less, ``[..., L]``."""
        at = np.maximum(phases, self.low)
        found = np.full(at.shape[:-1], -math.inf)
        for cut in self.cuts:
            found = np.maximum(found, cut.base + at @ (cut.slopes[self.first] * self._once))
        return found

    def part(self, low: FloatArray, high: FloatArray, *, flat: BoolArray | None = None) -> Box:
        """The box between these limits, which lie inside this one; its cuts hold there too."""
        return Box(
            self.floor,
            self._num_phases,
            low,
            high,
            self.launches,
            per_second=self.per_second,
            flat=self.flat if flat is None else flat,
            parent=self,
        )

    def _inside(self, phases: FloatArray) -> FloatArray:
        return np.clip(phases[self.first], self.low, self.high)

    def _chords(self, at: FloatArray) -> FloatArray:
        return self._constant_s + self._slope * at


def _chord(leaf: Leaf, low: float, high: float) -> tuple[float, float]:
    """(constant, slope) of a line that is nowhere above a duration between two phases.

    Durations do not fall when a phase grows, so between two samples one is at least that of the
    lower sample; the line is kept below it at the upper one.
    """
    if leaf.is_line:
        return leaf.constant_s, leaf.slope_ratio
    size = np.linspace(low, high, _SAMPLES)
    times = leaf.duration_s(size)
    slope = float(times[-1] - times[0]) / (high - low)
    return float((times[:-1] - slope * size[1:]).min()), slope
