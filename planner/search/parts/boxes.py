"""Bounds for boxes of phase maxima, where collective times are bounded by their chords.

Measured collectives take a time whose rate rises with size, so one convex minorant for all sizes
lies far below them: latency is paid or not, and a convex function has to assume not. Within a box
of phase maxima every stage's time has an affine minorant of its own, and the narrower the box the
closer it is. The iteration is a longest path over stage times, hence convex in them, so its
tangents are cuts that hold inside the box.

What is outside every box is settled otherwise: below ``low`` no plan has its maxima (the linear
programme says), above ``high`` the shortest possible iteration is longer than the incumbent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.iteration.base import StageTimes
from costmodels.sharding import ComputeKernel, ShardingType
from planner.evaluation import Cut, FloatArray, IntArray

SAMPLES: Final = 65
"""Points per side of a box at which stage times are sampled."""
_STEP: Final = 1e-6
_JITTER: Final = 1e-4
_ATTEMPTS: Final = 4
_SAME: Final = 1e-6

Call = tuple[ShardingType, ComputeKernel]
"""One fused call: the tables of one sharding type with one kernel on a rank."""

Leaves = tuple[FloatArray, ...]
"""Durations that plans change, in the order of :func:`leaves_of`."""

StageTimesOf = Callable[[FloatArray], StageTimes]
"""Stage times of made-up plans from the phases of each group, ``[N, G]``."""

IterationOf = Callable[[StageTimes, int], FloatArray]
"""Iteration times ``[N]`` from stage times of N plans."""


def leaves_of(times: StageTimes) -> Leaves:
    """The durations that depend on how tables are sharded."""
    exchanges = [s for f in times.families for s in (f.input_s, *(s for _, s in f.outputs_s))]
    own = (times.lookup_forward_s, times.lookup_backward_s, times.cache_fetch_s)
    return (*own, times.tail_bucket_s, *exchanges)


def with_leaves(times: StageTimes, leaves: Leaves) -> StageTimes:
    """The stage times with other durations; the inverse of :func:`leaves_of`."""
    rest = list(leaves[4:])
    families = []
    for family in times.families:
        input_s = rest.pop(0)
        outputs = tuple((label, rest.pop(0)) for label, _ in family.outputs_s)
        families.append(replace(family, input_s=input_s, outputs_s=outputs))
    return replace(
        times,
        lookup_forward_s=leaves[0],
        lookup_backward_s=leaves[1],
        cache_fetch_s=leaves[2],
        tail_bucket_s=leaves[3],
        families=tuple(families),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampled:
    """One group's stage times on one side of a box.

    ``size`` ``[n]`` are values of the group's phase, ``leaves[i]`` ``[n, ...]`` durations there.
    """

    size: FloatArray
    leaves: Leaves

    def chord(self, leaf: int) -> tuple[FloatArray, FloatArray]:
        """(constant, slope) of a line that is nowhere above the duration.

        Durations do not fall when bytes are added, so between two samples one is at least that of
        the lower sample; the line is kept below it at the upper one.
        """
        times, size = self.leaves[leaf], self.size
        slope = (times[-1] - times[0]) / max(float(size[-1] - size[0]), 1e-300)
        steps = size[1:].reshape(-1, *(1,) * (times.ndim - 1))
        return (times[:-1] - slope * steps).min(axis=0), slope


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launches:
    """What fused calls beyond the first add to the phases of a group, on the rank that has them.

    The made-up plans have one call of a spread type on each rank. ``calls`` are the (type, kernel)
    a rank may have; ``seconds`` ``[G]`` is what one more of them adds to each group's phase.
    """

    calls: tuple[Call, ...]
    seconds: FloatArray


class Box:
    """Plans of one set of sharding types whose phase maxima lie between ``low`` and ``high``.

    Attributes:
        low, high: ``[G]`` phase of each group.
        cuts: found so far; they hold inside the box.
        launches: what further fused calls cost.
        sampled: stage times along each side; ``owner`` is the side that sets each of them.
        per_second: unit of ``iteration`` per second.
    """

    def __init__(
        self,
        times_of: StageTimesOf,
        iteration: IterationOf,
        first: IntArray,
        num_phases: int,
        low: FloatArray,
        high: FloatArray,
        launches: Launches,
        parent: Box | None = None,
        per_second: float = 1.0,
    ) -> None:
        """Sample the stage times along each side, unless a parent has done so on the same one."""
        self._times_of, self._iteration = times_of, iteration
        self.first, self._num_phases, self.per_second = first, num_phases, per_second
        self.launches = launches
        self.low, self.high = low, np.maximum(high, low + 1e-9 * max(float(high.max()), 1e-12))
        self.cuts: list[Cut] = [] if parent is None else list(parent.cuts)
        self._base = times_of(self.low[None])
        self._start = leaves_of(self._base)
        self.sampled = [self._sample(g, parent) for g in range(len(low))]
        self.owner: list[int | None] = self._owners() if parent is None else parent.owner
        self._lines = [
            None if g is None else self.sampled[g].chord(i) for i, g in enumerate(self.owner)
        ]

    def _sample(self, group: int, parent: Box | None) -> Sampled:
        low, high = self.low[group], self.high[group]
        if parent is not None and (low, high) == (parent.low[group], parent.high[group]):
            return parent.sampled[group]
        points = np.repeat(self.low[None], SAMPLES, axis=0)
        points[:, group] = np.linspace(low, high, SAMPLES)
        return Sampled(size=points[:, group], leaves=leaves_of(self._times_of(points)))

    def _owners(self) -> list[int | None]:
        """The group that sets each duration; None if none does.

        Raises:
            ValueError: two groups set one duration, so that chords would count it twice.
        """
        owners: list[int | None] = []
        for i in range(len(self._start)):
            setting = [
                g
                for g, s in enumerate(self.sampled)
                if not np.allclose(s.leaves[i][0], s.leaves[i])
            ]
            if len(setting) > 1:
                message = "a stage time depends on more than one group of phases"
                raise ValueError(message)
            owners.append(setting[0] if setting else None)
        return owners

    def cut(self, phases: FloatArray) -> Cut | None:
        """The longest path at these phases, ``[K]``, as a cut that holds in the box."""
        at = np.clip(phases[self.first], self.low, self.high)
        width = np.maximum(self.high - self.low, 1e-12)
        step = _STEP * float(width.max())
        rng = np.random.default_rng(0)
        groups = len(at)
        for _ in range(_ATTEMPTS):
            moves = np.eye(groups) * step
            times = self.relaxed(np.concatenate([at[None], at + moves, at - moves]))
            up = (times[1 : groups + 1] - times[0]) / step
            down = (times[0] - times[groups + 1 :]) / step
            if np.abs(up - down).max() < _SAME * max(1.0, self.per_second):
                slopes = np.zeros(self._num_phases)
                slopes[self.first] = up
                return Cut(base=float(times[0] - up @ at), slopes=slopes)
            at = np.clip(at + _JITTER * width * rng.random(groups), self.low, self.high)
        return None

    def relaxed(self, points: FloatArray) -> FloatArray:
        """Iteration times with chords, ``[N]`` from the phases of each group, ``[N, G]``."""
        return self._iteration(self._chorded(points, None), len(points))

    def true(self, points: FloatArray) -> FloatArray:
        """Iteration times with the models' own durations, ``[N]``."""
        return self._iteration(self._times_of(points), len(points))

    def errors(self, phases: FloatArray) -> FloatArray:
        """``[G]`` how much longer the iteration is at these phases without a group's chords."""
        at = np.clip(phases[self.first], self.low, self.high)
        relaxed = float(self.relaxed(at[None])[0])
        own = leaves_of(self._times_of(at[None]))
        errors = np.zeros(len(at))
        for g in range(len(at)):
            times = self._iteration(self._chorded(at[None], {g: own}), 1)
            errors[g] = float(times[0]) - relaxed
        return errors

    def least(self, phases: FloatArray) -> FloatArray:
        """``[...]`` what the cuts say of plans whose groups are no less, ``[..., G]``."""
        at = np.maximum(phases, self.low)
        found = np.full(at.shape[:-1], -math.inf)
        for cut in self.cuts:
            found = np.maximum(found, cut.base + at @ cut.slopes[self.first])
        return found

    def part(self, low: FloatArray, high: FloatArray) -> Box:
        """The box between these limits, which lie inside this one; its cuts hold there too."""
        return Box(
            self._times_of,
            self._iteration,
            self.first,
            self._num_phases,
            low,
            high,
            self.launches,
            self,
            self.per_second,
        )

    def _chorded(self, points: FloatArray, own: dict[int, Leaves] | None) -> StageTimes:
        """Stage times at ``points`` by chords; those of the groups in ``own`` as given."""
        count = len(points)
        leaves: list[FloatArray] = []
        for i, (start, group, line) in enumerate(
            zip(self._start, self.owner, self._lines, strict=True)
        ):
            if group is None or line is None:
                leaves.append(np.broadcast_to(start, (count, *start.shape[1:])))
            elif own is not None and group in own:
                leaves.append(own[group][i])
            else:
                constant, slope = line
                size = points[:, group].reshape(-1, *(1,) * (start.ndim - 1))
                leaves.append(constant + slope * size)
        return with_leaves(self._base, tuple(leaves))
