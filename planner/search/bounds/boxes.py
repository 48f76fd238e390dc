"""Bounds for boxes of phase maxima, inside which durations are bounded by straight lines.

A duration is the time of a stage, such as a collective, as a function of the largest value of its
phase over ranks. The rate of measured collectives rises with their size. One straight line that is
below such a curve at all sizes is far below it at most of them. A box says between which limits the
maximum of each phase lies. Inside a box every duration has a line of its own, its *chord*, and the
narrower the box, the closer the chord is to the curve. The iteration is the longest of several
chains of durations. So the chords of each chain add up to a cut that holds inside the box.

Plans outside the first box need no bound. Below ``low`` there are no plans, as a linear program
says; above ``high`` the shortest possible iteration is longer than the best plan's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodels.datatypes import BoolArray, FloatArray, IntArray
from costmodels.floors.floor import Leaf, TypeFloor
from costmodels.sharding import ComputeKernel, ShardingType
from planner.space.objective import Cut

_SAMPLES: Final = 65
"""Points of a side at which a duration is sampled to find its chord. With more points the chord
comes a little closer to the duration, and every box takes longer."""
_NARROWEST_S: Final = 1e-21
"""Least width of a side in seconds, so that a chord has a slope even if all sides are at 0."""
_NARROWEST_RATIO: Final = 1e-9
"""Least width of a side as a share of the largest phase of the box, for the same reason."""

Call = tuple[ShardingType, ComputeKernel]
"""A fused call: one launch looks up all tables of one sharding type and one kernel on a rank."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoxLaunches:
    """What fused calls add to the phases on the ranks that have them, beyond those counted.

    Some sharding types put shards on some ranks only. Of their calls, a rank has one for each type
    and kernel that it has shards of. The shortest iterations of a box count fewer.

    Attributes:
        calls: the calls of these types that a rank may have.
        seconds: ``[L]`` what one more call adds to the phase of each side.
        num_counted: number of these calls that the shortest iterations count already.
        least_shares: for each sharding type of the calls, the least share of ranks that have a call
            of it, because every plan of the box has shards of the type.
    """

    calls: tuple[Call, ...]
    seconds: FloatArray
    num_counted: int
    least_shares: tuple[tuple[ShardingType, float], ...] = ()


class Box:
    """Plans of one set of sharding types whose phase maxima are between ``low`` and ``high``.

    A box has a side for each duration that depends on the plan, see
    :class:`costmodels.floors.floor.TypeFloor`. Two sides may be about the same phase; they
    have the same limits then. In shapes, L is the number of sides and K that of phases.

    Args:
        floor: the shortest iteration as a function of the phases' maxima.
        num_phases: number of all phases, K.
        low, high: ``[L]`` limits of the phase of each side, in seconds.
        launches: what further fused calls cost.
        flat: ``[L]`` True for sides whose phases no program looks at; None for none.
        parent: a box that this one is part of, whose cuts and chords are used again.

    Attributes:
        first: ``[L]`` the phase of each side.
        low, high: ``[L]`` limits of the phase of each side.
        flat: ``[L]`` the same. No program can keep such a phase inside the box. So its duration
            counts as it is at ``low``; above, it is no shorter.
        cuts: the cuts found so far; they hold inside the box.
        launches: the same.
    """

    def __init__(
        self,
        floor: TypeFloor,
        num_phases: int,
        low: FloatArray,
        high: FloatArray,
        launches: BoxLaunches,
        *,
        flat: BoolArray | None = None,
        parent: Box | None = None,
    ) -> None:
        """Find the chord of every side; a parent's is used again if the limits are the same."""
        self.flat: BoolArray = np.zeros(len(low), dtype=bool) if flat is None else flat
        self.floor, self._num_phases = floor, num_phases
        self.first: IntArray = floor.phases
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
        """The longest chain of durations at these phases, ``[K]``, as a cut for the box."""
        path = self.floor.longest_path(self._chords(self._inside(phases)))
        slopes = np.zeros(self._num_phases)
        np.add.at(slopes, self.first, path.counts * self._slope)
        base_s = path.constant_s + float(path.counts @ self._constant_s)
        return Cut(base=base_s, slopes=slopes)

    def exact_times(self, points: FloatArray) -> FloatArray:
        """``[N]`` the shortest iterations by the models' own durations.

        Args:
            points: ``[N, L]`` the phase of each side, for each of N points.
        """
        return self.floor.seconds(self.floor.leaf_seconds(points))

    def errors(self, phases: FloatArray) -> FloatArray:
        """``[L]`` how far each chord lowers the iteration at these phases, ``[K]``.

        That is the shortest iteration with the own duration of this side and all other chords, less
        the one with all chords.
        """
        at = self._inside(phases)
        chords = self._chords(at)
        own = self.floor.leaf_seconds(at[None])[0]
        points = np.where(np.eye(len(at), dtype=bool), own, chords)
        seconds = self.floor.seconds(np.concatenate([chords[None], points]))
        return np.asarray(seconds[1:] - seconds[0])

    def part(self, low: FloatArray, high: FloatArray, *, flat: BoolArray | None = None) -> Box:
        """The part of this box between these limits, ``[L]``; it begins with this box's cuts."""
        flat = self.flat if flat is None else flat
        return Box(self.floor, self._num_phases, low, high, self.launches, flat=flat, parent=self)

    def _inside(self, phases: FloatArray) -> FloatArray:
        return np.clip(phases[self.first], self.low, self.high)

    def _chords(self, at: FloatArray) -> FloatArray:
        return self._constant_s + self._slope * at


def _chord(leaf: Leaf, low: float, high: float) -> tuple[float, float]:
    """A line that is nowhere above a duration, between two values of its phase.

    A duration does not fall as its phase grows. So between two samples it is at least what it is at
    the lower one. The line is moved down until, at the upper one of every two neighbouring samples,
    it is not above that.

    Returns:
        The line's value in seconds at phase 0, and its slope.
    """
    if leaf.is_line:
        return leaf.constant_s, leaf.slope_ratio
    size = np.linspace(low, high, _SAMPLES)
    times = leaf.duration_s(size)
    slope = float(times[-1] - times[0]) / (high - low)
    return float((times[:-1] - slope * size[1:]).min()), slope
